"""Every family computes what its published code computes: logits of tiny random checkpoints under the published names.

The fixtures were computed by fixtures/compute.py with that code, in an environment of its own; here only weights' seed,
input ids and logits are left of it.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close
from tiny import TINY, save_tiny
from tiny_tokenizers import SAVE, TEXTS, save_dream_tokenizer

import sinkscope
from sinkscope.attention import Watcher, subscribed
from sinkscope.models.tokenization import load_tokenizer

FIXTURES = Path(__file__).parent / "fixtures"
PUBLISHED = np.load(FIXTURES / "published_logits.npz", allow_pickle=False)


def load_tiny(name, folder, shards=1, **options):
    kind = name.partition("-")[0]
    return sinkscope.load(str(SAVE[kind](save_tiny(name, folder, shards))), **options)


@torch.no_grad()
def say(model, tiny):
    """Logits [position, vocabulary], float32, as sinkscope's samplers ask for them."""
    real = tiny.real
    padding = {} if real.all() else {"attention_mask": real, "position_ids": (real.cumsum(-1) - 1).clamp(min=0)}
    if tiny.padding and "n_layers" in tiny.config:
        del padding["position_ids"]  # LLaDA's code counts positions from the padding on; rotations are relative
    return model.network(tiny.tokens, use_cache=False, **padding).logits[0].float().numpy()


@pytest.mark.parametrize("name", TINY)
def test_logits_are_those_of_the_published_code(name, tmp_path):
    tiny = TINY[name]
    found, expected = say(load_tiny(name, tmp_path, 1 + 2 * (name == "llada")), tiny), PUBLISHED[name]
    assert found.shape == expected.shape == (tiny.length, found.shape[1])
    assert_close(found[tiny.padding :], expected[tiny.padding :], terms=tiny.terms)
    assert np.abs(expected).max() > 1


def rms(one, other):
    return float(np.sqrt(np.mean((one - other) ** 2)))


@pytest.mark.parametrize("name", ["llada", "mmada", "dream", "sdar", "llada2"])
def test_bfloat16_is_as_exact_as_the_published_code(name, tmp_path):
    """Bit for bit on the machine of the fixture; other kernels round elsewhere, to errors of the same size."""
    found = say(load_tiny(name, tmp_path, dtype="bfloat16"), TINY[name])
    own_error = rms(PUBLISHED[f"{name}-bf16"], PUBLISHED[name])
    assert 0.5 * own_error < rms(found, PUBLISHED[name]) < 2 * own_error
    assert own_error > 0.01


class First(Watcher):
    """The first layer's queries and keys, as attention gets them."""

    def watch(self, call, columns):
        if call.index == 0:
            self.rotated = call.query, call.key


@torch.no_grad()
def rotated_in_full_precision(network):
    """Share of the first layer's queries and keys that five lines in fp32 give to the bit; theirs are [batch, head,
    position, dim].
    """
    projected, kept = network.model.layers[0].self_attn, {}
    hooks = [
        getattr(projected, name).register_forward_hook(lambda m, i, out, name=name: kept.update({name: out}))
        for name in ("q_proj", "k_proj")
    ]
    with subscribed(network, first := First()):
        network(TINY["llada"].tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    angle = torch.arange(12.0)[:, None] * 500000.0 ** -(torch.arange(0, 12, 2) / 12)
    cos, sin = angle.repeat(1, 2).cos(), angle.repeat(1, 2).sin()
    same = []
    for found, straight in zip(first.rotated, kept.values(), strict=True):
        x = straight.unflatten(-1, (-1, 12)).transpose(1, 2).float()
        same.append(
            (found == (x * cos + torch.cat([-x[..., 6:], x[..., :6]], -1) * sin).to(torch.bfloat16)).float().mean()
        )
    return float(sum(same) / 2)


@pytest.mark.parametrize("name", ["llada", "mmada"])
def test_queries_and_keys_are_rotated_in_full_precision(name, tmp_path):
    """Beyond the first place, which is not rotated; the last bit of a cosine, which may differ, turns few roundings the
    other way.
    """
    ours = load_tiny(name, tmp_path / "ours", dtype="bfloat16").network
    save_tiny(name, tmp_path / "plain", rope_full_precision=False)
    plain = sinkscope.load(SAVE[name](tmp_path / "plain"), dtype="bfloat16").network
    assert ours.model.rotary_emb(torch.zeros(1), torch.arange(9)[None])[0].dtype == torch.float32
    assert rotated_in_full_precision(ours) > 0.99
    assert rotated_in_full_precision(plain) < 0.9


@pytest.mark.parametrize("name", ["llada", "mmada", "dream", "llama", "sdar"])
def test_saved_again_a_network_is_the_same(name, tmp_path):
    """In transformers' own layout and names, recognised as the same family, bfloat16 rotations included."""
    model = load_tiny(name, tmp_path / "first", dtype="bfloat16")
    model.network.save_pretrained(tmp_path / "second")
    again = sinkscope.load(str(SAVE[name](tmp_path / "second")))
    assert again.family is model.family
    assert again.tensors.renamed == 0
    assert (again.card.mask_id, again.card.stored_dtype) == (model.card.mask_id, "bfloat16")
    mine, theirs = dict(again.network.named_parameters()), dict(model.network.named_parameters())
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert torch.equal(again.network.model.rotary_emb.inv_freq, model.network.model.rotary_emb.inv_freq)
    exact = [
        say(replace(one, network=one.network.float()), TINY[name]) for one in (again, model)
    ]  # bfloat16 rounds more than it could hide
    assert_close(*exact, terms=TINY[name].terms)


def test_dream_texts_become_the_published_ids(tmp_path):
    published = json.loads((FIXTURES / "published_dream_tokens.json").read_text())
    tokenizer = load_tokenizer(save_dream_tokenizer(tmp_path), sinkscope.models.FAMILIES["dream"], TINY["dream"].config)
    assert {text: tokenizer(text).input_ids for text in TEXTS} == published
