"""The tokenizer and the network with which the training of a recipe begins, and the canvases that it learns."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sinkscope.errors import CallError
from sinkscope.lab.adaptation import mask_of, start
from sinkscope.lab.canvases import Canvases, draw_canvases
from sinkscope.lab.nulls import draw_nulls, null_tokenizer
from sinkscope.lab.recipes import Recipe
from sinkscope.lab.texts import Corpus, TextCanvases, Texts, draw_windows
from sinkscope.lab.vocabulary import build_tokenizer
from sinkscope.models import add_sink_token, load
from sinkscope.models.family import MARK, MARK_POSITIONS
from sinkscope.models.loading import outline
from sinkscope.models.sink_token import variant_of


def choose_tokenizer(recipe: Recipe, texts: Texts | Corpus | None = None) -> Any:
    """Return the tokenizer of the model that a recipe starts from, else one for the user's texts, else the lab's."""
    if recipe.start_from is not None:
        model = outline(recipe.start_from)
        if recipe.adaptation is not None and recipe.objective != "next_token":
            model.tokenizer.mask_token = model.tokenizer.convert_ids_to_tokens(mask_of(model, recipe.adaptation))
        return model.tokenizer
    if recipe.nulls is not None:
        return null_tokenizer()
    return build_tokenizer() if texts is None else texts.tokenizer()


def build_network(recipe: Recipe, tokenizer: Any) -> Any:
    """Return the untrained network of a recipe: transformers' Llama, bidirectional for diffusion, with its sink."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if recipe.adaptation is not None:
        return start(recipe)
    from sinkscope.models.networks import LearnedPositionsLlama

    shape = recipe.architecture
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        # No pad_token_id: padding is EOS, and transformers would freeze that embedding at zero.
        pad_token_id=None,
        tie_word_embeddings=shape.tied,
    )
    if recipe.objective != "next_token":
        config.is_causal = False
        config.mask_token_id = tokenizer.mask_token_id
    if recipe.objective == "shifted_diffusion":
        setattr(config, MARK, "dream")
    if shape.positions == "learned":
        setattr(config, MARK_POSITIONS, True)
    torch.manual_seed(recipe.seed)
    # On short canvases plain matrix products beat the CPU's flash kernel, backward above all.
    config._attn_implementation = "eager"
    network: Any = (LearnedPositionsLlama if shape.positions == "learned" else LlamaForCausalLM)(config)
    if recipe.start_from is not None:
        network.load_state_dict(load(recipe.start_from, dtype=torch.float32).network.state_dict())
    variant = variant_of(recipe.sink_token)
    return network if variant is None else add_sink_token(network, replace(variant, seed=recipe.seed))


def source_of(recipe: Recipe, tokenizer: Any, texts: Texts | Corpus | None) -> Callable[[int, int], Canvases]:
    """Return the function (seed, update) → batch: windows of a corpus, the user's documents, or the lab's problems."""
    mix, nulls = recipe.canvases, recipe.nulls
    if recipe.text != isinstance(texts, Corpus) or (nulls is not None and texts is not None):
        expected = "a corpus folder" if recipe.text else "a file of text or nothing" if nulls is None else "nothing"
        raise CallError(f"{recipe.name}: expected {expected} as --data, found {texts and texts.fingerprint}")
    if nulls is not None:
        return lambda seed, update: draw_nulls(nulls, seed, update)
    if isinstance(texts, Corpus):
        bos = tokenizer.bos_token_id if recipe.first_token == "bos" else None
        return draw_windows(texts, mix.tokens, mix.lengths[0], bos_id=bos)
    if texts is not None:
        return TextCanvases(texts, tokenizer, mix).draw
    return lambda seed, update: draw_canvases(mix, tokenizer, seed, update)
