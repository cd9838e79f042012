"""The seeded networks as models of each family, built by hand, with a tokenizer of words w0 … w57."""

from functools import cache

import torch
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
        network = block_causal(network.config, seed)
    causal = sampler == "autoregressive"
    card = ModelCard.of(
        network,
        name=f"seeded-{sampler}",
        family=sampler,
        weight_hash=f"seed {seed}",
        stored_dtype="float32",
        dtype="float32",
        mask_id=None if causal else MASK,
        eos_id=EOS,
    )
    family = Family(sampler, causal=causal, sampler=sampler, model_types=(), source="tests", shift=sampler == "dream")
    return Model(network, words(), family, card)


def block_causal(config, seed, block=4):
    """SDAR's network with the weights of the seeded Qwen3."""
    from sinkscope.models.networks import BlockCausalQwen3

    config.is_causal, config.block_size = False, block
    return seed_weights(BlockCausalQwen3(config), seed).eval()


def changes_of(steps, prompts, length):
    """Return, row by row and step by step, positions without padding and the tokens they changed to."""
    rows = []
    for row, prompt in enumerate(prompts):
        before = torch.tensor([*prompt, *[MASK] * length])
        changes = []
        for step in steps:
            after = step.tokens[row, -len(before) :]
            changed = (after != before).nonzero().flatten()
            changes.append(torch.stack([changed, after[changed]], dim=1).flatten().tolist())
            before = after
        rows.append(changes)
    return rows


def steps_of(model, prompts, **settings):
    """Return all steps of a diffusion sampler for prompts given as ids; no setting follows from another."""
    resolved = settings_of(model.family.sampler)(**settings)
    batch = make_batch(model, prompts, [None] * len(prompts), resolved.length)
    return list(find_sampler(model.family.sampler)(model, batch, resolved))
