"""The seeded networks as models of each family, built by hand, with a tokenizer of words w0 … w57."""

from functools import cache

from changed_tokens import changes_along
from seeded_network import EOS, MASK, seed_weights, seeded_network

from sinkscope.decoding import find_sampler, make_batch, settings_of
from sinkscope.models import Family, Model, ModelCard

NETWORKS = {"llada": "llama", "mmada": "llama", "dream": "qwen2", "autoregressive": "causal", "sdar": "qwen3"}


@cache
def words():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*(f"w{number}" for number in range(58)), "<|eot_id|>", "<eos>", "<mask>"]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", mask_token="<mask>", unk_token=None)


@cache
def seeded_model(sampler, seed=0):
    """A model that is written with by one sampler; Dream's has the logit shift and grouped queries."""
    network = seeded_network(NETWORKS[sampler], seed)
    if sampler == "sdar":
        from sinkscope.models.networks import BlockCausalQwen3

        network.config.is_causal, network.config.block_size = False, 4
        network = seed_weights(BlockCausalQwen3(network.config), seed).eval()
    causal = sampler == "autoregressive"
    named = {"name": f"seeded-{sampler}", "family": sampler, "weight_hash": f"seed {seed}"}
    named |= {"stored_dtype": "float32", "dtype": "float32", "mask_id": None if causal else MASK, "eos_id": EOS}
    card = ModelCard.of(network, **named)
    family = Family(sampler, causal=causal, sampler=sampler, model_types=(), source="tests", shift=sampler == "dream")
    return Model(network, words(), family, card)


def changes_of(steps, prompts, length):
    """Return, row by row, `changes_along` the canvases without padding."""
    rows = ((row, prompt, len(prompt) + length) for row, prompt in enumerate(prompts))
    return [changes_along(prompt, [step.tokens[row, -size:] for step in steps]) for row, prompt, size in rows]


def steps_of(model, prompts, **settings):
    """Return all steps of a diffusion sampler for prompts given as ids; no setting follows from another."""
    resolved = settings_of(model.family.sampler)(**settings)
    batch = make_batch(model, prompts, [None] * len(prompts), resolved.length)
    return list(find_sampler(model.family.sampler)(model, batch, resolved))
