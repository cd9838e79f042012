"""Every family says what its published code says: logits of tiny random checkpoints under the published names.

The fixtures were computed by fixtures/compute.py with that code, in an environment of its own; here only weights' seed,
input ids and logits are left of it.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TINY, save_tiny
from tiny_tokenizers import SAVE, TEXTS, save_dream_tokenizer

import sinkscope
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


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", TINY)
def test_logits_are_those_of_the_published_code(name, shards, tmp_path):
    tiny = TINY[name]
    found, expected = say(load_tiny(name, tmp_path, shards), tiny), PUBLISHED[name]
    assert found.shape == expected.shape == (tiny.length, found.shape[1])
    assert np.abs(found - expected)[tiny.padding :].max() < 1e-5
    assert np.abs(expected).max() > 1


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_padding_matters_to_the_logits(name):
    """So that the padded comparisons compare something."""
    padding = TINY[f"{name}-padded"].padding
    assert np.abs(PUBLISHED[name] - PUBLISHED[f"{name}-padded"])[padding:].max() > 0.1


def rms(one, other):
    return float(np.sqrt(np.mean((one - other) ** 2)))


@pytest.mark.parametrize("name", ["llada", "mmada", "dream"])
def test_bfloat16_follows_the_published_code(name, tmp_path):
    """Bit for bit on the machine of the fixture; on others the matrix library may round differently."""
    found = say(load_tiny(name, tmp_path, dtype="bfloat16"), TINY[name])
    own_error = rms(PUBLISHED[f"{name}-bf16"], PUBLISHED[name])
    assert rms(found, PUBLISHED[f"{name}-bf16"]) < 0.5 * own_error
    assert own_error > 0.01


@pytest.mark.parametrize("name", ["llada", "mmada"])
def test_without_rotation_in_full_precision_bfloat16_is_further_away(name, tmp_path):
    tiny = TINY[name]
    ours = say(load_tiny(name, tmp_path / "ours", dtype="bfloat16"), tiny)
    save_tiny(name, tmp_path / "plain", rope_full_precision=False)
    plain = say(sinkscope.load(SAVE[name](tmp_path / "plain"), dtype="bfloat16"), tiny)
    published = PUBLISHED[f"{name}-bf16"]
    assert rms(ours, published) < 0.5 * rms(plain, published)


@torch.no_grad()
def test_queries_and_keys_are_rotated_in_full_precision(tmp_path):
    """The attention of one layer in bfloat16, to the bit, from five lines."""
    network = load_tiny("llada", tmp_path, dtype="bfloat16").network
    hidden = torch.randn(1, 9, 48, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    layer, angle = network.model.layers[0].self_attn, torch.arange(9.0)[:, None] * 500000.0 ** -(torch.arange(0, 12, 2) / 12)
    cos, sin = angle.repeat(1, 2).cos(), angle.repeat(1, 2).sin()
    q, k, v = (project(hidden).view(1, 9, 4, 12).transpose(1, 2) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k = ((x.float() * cos + torch.cat([-x[..., 6:], x[..., :6]], -1).float() * sin).to(torch.bfloat16) for x in (q, k))
    expected = layer.o_proj(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 9, 48))
    positions = network.model.rotary_emb(hidden, torch.arange(9)[None])
    assert positions[0].dtype == torch.float32
    assert torch.equal(layer(hidden, position_embeddings=positions, is_causal=False)[0], expected)


def test_rotary_buffers_are_filled_and_stay_in_full_precision(tmp_path):
    """A buffer of a class of one's own comes out of loading uninitialised unless transformers knows how to fill it."""
    network = load_tiny("llada", tmp_path, dtype="bfloat16").network
    expected = 500000.0 ** -(torch.arange(0, 12, 2, dtype=torch.float64) / 12)
    assert network.model.rotary_emb.inv_freq.dtype == torch.float32
    torch.testing.assert_close(network.model.rotary_emb.inv_freq.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["llada", "mmada", "dream", "llama"])
def test_saved_again_a_network_is_the_same(name, tmp_path):
    """In transformers' own layout and names, recognised as the same family, bfloat16 rotations included."""
    model = load_tiny(name, tmp_path / "first", dtype="bfloat16")
    model.network.save_pretrained(tmp_path / "second")
    again = sinkscope.load(str(SAVE[name](tmp_path / "second")))
    assert again.family is model.family
    assert again.tensors.renamed == 0
    assert (again.card.mask_id, again.card.stored_dtype) == (model.card.mask_id, "bfloat16")
    assert np.array_equal(say(again, TINY[name]), say(model, TINY[name]))


def test_dream_texts_become_the_published_ids(tmp_path):
    published = json.loads((FIXTURES / "published_dream_tokens.json").read_text())
    tokenizer = load_tokenizer(save_dream_tokenizer(tmp_path), sinkscope.models.FAMILIES["dream"], TINY["dream"].config)
    assert {text: tokenizer(text).input_ids for text in TEXTS} == published
