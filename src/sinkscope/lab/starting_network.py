"""The tokenizer and the network with which the training of a recipe begins, and the canvases that it learns.

Below them the adaptation of a causal model, which becomes a masked diffusion model or is trained on: small changes of a
frozen base (LoRA, by peft), or all weights. The body looks both ways from the first update, or by degrees; its mask of
attention can keep the first token for itself. Sources: DiffuGPT (2410.17891) for shift and annealing, Open-dLLM
(2605.06885) for the alignment of hidden states.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sinkscope.errors import CallError, first_line
from sinkscope.lab.canvases import Canvases, draw_canvases, draw_nulls, null_tokenizer
from sinkscope.lab.prompts import build_tokenizer
from sinkscope.lab.recipes import Adaptation, Recipe
from sinkscope.lab.texts import Corpus, TextCanvases, Texts, draw_windows
from sinkscope.models import Model, add_sink_token, load
from sinkscope.models.family import MARK, MARK_FIRST, MARK_POSITIONS
from sinkscope.models.folders import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    BASE_HASH,
    base_name,
    compare_base,
    find_folder,
    is_adapter,
    read_config,
)
from sinkscope.models.loading import outline
from sinkscope.models.sink_token import sink_parameters, variant_of

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RATES = (0.15, 0.5, 0.85)
"""Masked shares at which held-out text is predicted."""
ROWS = 24
"""Held-out canvases."""


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


# The adaptation of a causal model


def seen_keys(adaptation: Adaptation, length: int, update: int | None = None) -> Tensor:
    """Return which keys a query sees, bool [1, 1, query, key]; a random draw while annealing, after the end of which
    ``update`` is None or negative.
    """
    causal, seen = torch.ones(length, length, dtype=torch.bool).tril(), torch.ones(length, length, dtype=torch.bool)
    if adaptation.first_alone:
        seen[0, 1:] = False
    if update is not None and 0 <= update < adaptation.anneal:
        source = torch.Generator().manual_seed(update)
        seen = causal | seen & (torch.rand(length, length, generator=source) < update / adaptation.anneal)
    return seen[None, None]


def base_of(recipe: Recipe) -> tuple[str, Path | None]:
    """Return the model whose weights stay frozen, and the folder of the adapter with which the training begins."""
    name = str(recipe.start_from)
    folder = find_folder(name, weights=False)
    if recipe.adaptation is None or recipe.adaptation.rank is None or not is_adapter(folder):
        return name, None
    return base_name(folder), find_folder(name)


def start(recipe: Recipe) -> Any:
    """Return the network of the model to start from, fp32, with its sink and the weights that are to be trained; raise
    CallError where peft is missing, the base is no Llama, Qwen2 or Qwen3 that looks back, or no token is free;
    ModelError where the adapter was trained on another base.
    """
    adaptation, (base, adapter), objective = recipe.adaptation, base_of(recipe), recipe.objective
    assert adaptation is not None
    model = load(base, dtype=torch.float32)
    network = model.network
    if not model.family.causal or not hasattr(network, "lm_head") or not hasattr(network.model, "embed_tokens"):
        expected = "a causal Llama, Qwen2 or Qwen3 to adapt"
        raise CallError(f"{base}: expected {expected}, found the family {model.family.name}")
    trained = {}
    if objective != "next_token":
        mask_id = mask_of(model, adaptation)
        network.config.is_causal, network.config.mask_token_id = False, mask_id
        for layer in network.model.layers:
            layer.self_attn.is_causal = False
        setattr(network.config, MARK, "dream" if objective == "shifted_diffusion" else "llada")
        if adaptation.first_alone and network.config.model_type != "llama":
            raise CallError(f"--first-alone: expected a Llama, found {base}, a {network.config.model_type}")
        setattr(network.config, MARK_FIRST, adaptation.first_alone)
        embedding = network.get_input_embeddings().weight
        with torch.no_grad():
            embedding[mask_id] = embedding.mean(0)
        trained = {"embed_tokens": [mask_id]}
    if adaptation.align and (adaptation.rank is None or recipe.sink_token != "none"):
        raise CallError("--align: goes with the base as it is, which --rank 0 and --sink-token do not leave")
    variant = variant_of(recipe.sink_token)
    if variant is not None:
        add_sink_token(network, replace(variant, seed=recipe.seed))
    if adaptation.rank is None:
        return network.requires_grad_(True)
    if adapter is not None:
        compare_base(adapter, read_config(adapter), model.card.weight_hash)
    setattr(network.config, BASE_HASH, model.card.weight_hash)
    from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    torch.manual_seed(recipe.seed)
    config = LoraConfig(
        r=adaptation.rank,
        lora_alpha=2 * adaptation.rank,
        target_modules=list(LAYERS),
        trainable_token_indices=trained or None,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )
    network = inject_adapter_in_model(config, network.requires_grad_(False))
    if adapter is not None:
        stored = load_file(adapter / ADAPTER_WEIGHTS)
        begun = get_peft_model_state_dict(network, save_embedding_layers=False)
        begun |= {name.removeprefix("base_model.model."): one for name, one in stored.items()}
        try:
            if left := set_peft_model_state_dict(network, begun).unexpected_keys:
                raise CallError(f"{adapter}: an adapter for another recipe or with a sink token; not used: {left[:2]}")
        except RuntimeError as error:
            expected = f"an adapter of rank {adaptation.rank}, as --rank says"
            raise CallError(f"{adapter}: expected {expected} ({first_line(error)})") from error
    for _, parameter in sink_parameters(network):
        parameter.requires_grad_(True)
    return network


def mask_of(model: Model, adaptation: Adaptation) -> int:
    """Return the id of the mask token; raise CallError where none is named, or it is no special token that texts
    lack.
    """
    tokenizer, text = model.tokenizer, adaptation.mask_token
    if text is None and tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    used = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token}
    template = str(tokenizer.chat_template or "")
    free = [one for one in tokenizer.get_added_vocab() if one not in used and one not in template]
    if text not in free:
        expected = ", ".join(free) or "none is free"
        raise CallError(f"mask token: expected one of {expected}, found {text!r}; --mask-token")
    return int(tokenizer.convert_tokens_to_ids(text))


@contextmanager
def without_adapter(network: Any) -> Iterator[None]:
    """Compute with the weights of the base while the body runs."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [one for one in network.modules() if isinstance(one, BaseTunerLayer)]
    for one in layers:
        one.enable_adapters(False)
    try:
        yield
    finally:
        for one in layers:
            one.enable_adapters(True)


def adapted_states(network: Any, adaptation: Adaptation, update: int, noisy: Tensor, tokens: Tensor) -> tuple[Any, Any]:
    """Return the last hidden states [row, position, width] of canvases with masks during an update, and the weighted
    distance of all hidden states to the base's on the text without masks.
    """
    length, align = tokens.shape[1], adaptation.align
    output = hidden(network, noisy, seen_keys(adaptation, length, update), align > 0)
    if not align:
        return output.last_hidden_state, 0.0
    with torch.no_grad(), without_adapter(network):
        causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        wanted = hidden(network, tokens, causal, True).hidden_states
    pairs = list(zip(output.hidden_states, wanted, strict=True))[1:]  # the first are embeddings
    far = [1 - F.cosine_similarity(own.float(), other.float(), dim=-1).mean() for own, other in pairs]
    return output.last_hidden_state, align * torch.stack(far).mean()


def hidden(network: Any, tokens: Tensor, seen: Tensor, states: bool = False) -> Any:
    """Return the output of a network's layers under a mask of attention, bool [1, 1, query, key]."""
    device = network.lm_head.weight.device
    bias = torch.zeros(seen.shape, device=device).masked_fill(~seen.to(device), -torch.inf)
    return network.model(input_ids=tokens.to(device), attention_mask=bias, use_cache=False, output_hidden_states=states)


@torch.no_grad()
def held_out_losses(network: Any, recipe: Recipe, canvases: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the nats a token of held-out canvases of one length: of masked tokens at each of `RATES`, and of all
    tokens under the base, the causal model.
    """
    adaptation, tokens = recipe.adaptation, torch.from_numpy(np.stack(canvases))
    assert adaptation is not None
    mask_id, length, found = network.config.mask_token_id, tokens.shape[1], {}
    shift = recipe.objective == "shifted_diffusion"
    source = torch.Generator().manual_seed(1)
    for rate in RATES:
        masked = torch.rand(tokens.shape, generator=source) < rate
        masked[:, 0] = False
        noisy = tokens.masked_fill(masked, mask_id)
        found[f"masked_{rate}"] = _nats(network, noisy, tokens, masked, seen_keys(adaptation, length), shift)
    every = torch.ones_like(tokens, dtype=torch.bool)
    every[:, 0] = False
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    base = load(base_of(recipe)[0], dtype=torch.float32, device=str(network.lm_head.weight.device)).network
    return found | {"causal": _nats(base, tokens, tokens, every, causal, True)}


def _nats(network: Any, inputs: Tensor, tokens: Tensor, chosen: Tensor, seen: Tensor, shift: bool) -> float:
    total = 0.0
    for first in range(0, len(tokens), 8):
        rows = slice(first, first + 8)
        states = hidden(network, inputs[rows], seen).last_hidden_state
        read = chosen[rows].roll(-1, dims=1) if shift else chosen[rows]  # the first column is never chosen
        logits = network.lm_head(states[read.to(states.device)]).float()
        total += float(F.cross_entropy(logits, tokens[rows][chosen[rows]].to(logits.device), reduction="sum"))
    return total / int(chosen.sum())


def save_adapter(network: Any, base: str, folder: Path) -> None:
    """Write the trained part of a network as an adapter folder of peft for its base, bf16, that `load` reads."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    tensors = get_peft_model_state_dict(network, save_embedding_layers=False) | dict(sink_parameters(network))
    stored = {f"base_model.model.{name}": one.detach().to("cpu", torch.bfloat16) for name, one in tensors.items()}
    save_file({name: one.contiguous() for name, one in stored.items()}, folder / ADAPTER_WEIGHTS)
    network.peft_config["default"].save_pretrained(folder)
    adapter = json.loads((folder / ADAPTER_CONFIG).read_text()) | {
        "base_model_name_or_path": base,
        "inference_mode": True,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(adapter, indent=2))
    dropped = ("_name_or_path", "quantization_config", "transformers_version")
    config = {key: one for key, one in network.config.to_dict().items() if key not in dropped}
    config["architectures"] = [type(network).__name__]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
