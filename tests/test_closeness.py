"""The tolerance of the suite: it accepts any order of additions, and refuses the effect of a mistake."""

import math

import numpy as np
import pytest
import torch
from closeness import DEVIATIONS, assert_close, terms_of, tolerance

from sinkscope.attention import Hider, subscribed

EPSILON = float(np.finfo(np.float32).eps)
TOKENS = torch.randint(5, 60, (3, 17), generator=torch.Generator().manual_seed(0))


def test_few_terms_are_counted_and_many_by_their_root():
    numbers = torch.tensor([1.0, -4.0, 2.0])
    assert tolerance(numbers, terms=5) == pytest.approx(4 * EPSILON * 5)
    assert tolerance(numbers, terms=10_000) == pytest.approx(4 * EPSILON * DEVIATIONS * 100)
    assert tolerance(numbers, terms=5, scores=(30.0, 4)) == pytest.approx(4 * EPSILON * (5 + 30 * 4))


def test_the_coarsest_type_counts_and_what_is_no_number_does_not():
    half, whole = torch.tensor([1.0, 3.0], dtype=torch.bfloat16), torch.tensor([1.0, 2.0])
    assert tolerance(half, whole, terms=1) == 3 * torch.finfo(torch.bfloat16).eps
    assert tolerance(whole, whole.double(), terms=1) == 2 * EPSILON
    assert tolerance(np.array([1, np.nan, -np.inf, 2], np.float32), 5.0, terms=1) == 5 * EPSILON
    assert tolerance(0.5, terms=2) == 0.5 * 2 * np.finfo(np.float64).eps
    assert tolerance(0.5, terms=2, dtype=torch.float32) == 0.5 * 2 * EPSILON


@pytest.mark.parametrize("terms", [3, 80, 3000])
def test_any_order_of_additions_passes(terms):
    numbers = torch.rand(50, terms, generator=torch.Generator().manual_seed(terms))
    order = torch.randperm(terms, generator=torch.Generator().manual_seed(1))
    one_by_one = torch.stack([numbers[:, at] for at in order]).cumsum(0)[-1]
    assert_close(one_by_one, numbers.double().sum(-1), terms=terms)
    assert_close(one_by_one, numbers.sum(-1), terms=terms)


@pytest.fixture(params=["diffusion", "autoregressive"])
def network(request):
    return request.getfixturevalue(request.param).network


@torch.no_grad()
def logits(network, tokens=TOKENS):
    return network(tokens, use_cache=False).logits


def test_a_batch_is_as_close_to_its_rows_as_that(network):
    rows = torch.cat([logits(network, row[None]) for row in TOKENS])
    assert_close(logits(network), rows, terms=terms_of(network, TOKENS.shape[1]))


class HideOne(Hider):
    """One key of one head of one layer."""

    def hide(self, call):
        return torch.zeros(1, call.query.shape[1], call.keys, dtype=torch.bool).index_put(
            (torch.tensor(0), torch.tensor(1), torch.tensor(call.keys - 1)), torch.tensor(call.index == 1)
        )


def rounded(parameter, bits):
    """The values with so few bits behind the point: 10 are TF32's, 7 those of bfloat16."""
    mantissa, exponent = torch.frexp(parameter)
    return torch.ldexp((mantissa * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponent)


def test_what_a_mistake_does_is_refused(network):
    """Products of one layer in TF32; the frequencies of the rotations in bfloat16; one key of one head hidden in one layer."""
    expected, terms = logits(network), terms_of(network, TOKENS.shape[1])
    changed = {}
    for name, tensor, bits in (
        ("products", network.model.layers[1].self_attn.o_proj.weight, 10),
        ("rotations", network.model.rotary_emb.inv_freq, 7),
    ):
        before = tensor.detach().clone()
        with torch.no_grad():
            tensor.copy_(rounded(before, bits))
            changed[name] = logits(network)
            tensor.copy_(before)
    with subscribed(network, HideOne()):
        changed["hidden"] = logits(network)
    assert_close(logits(network), expected, terms=terms)
    for name, found in changed.items():
        with pytest.raises(AssertionError, match=f"{name}: off by"):
            assert_close(found, expected, terms=terms, what=name)


@pytest.mark.parametrize(
    ("found", "expected", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], r"expected shape \(3,\), found \(2,\)"),
        ([1.0, math.nan], [1.0, 2.0], r"off by nan at \(1,\)"),
        ([1.0, 2.0], [1.0, math.nan], "where something is no number"),
        ([1.0, math.inf], [1.0, -math.inf], "where something is no number"),
        ([1.0, math.inf], [1.0, 2.0], r"off by inf at \(1,\)"),
        ([1.0, 1e-6], [1.0, 0.0], "off by 1e-06"),
        ([0.0, 1e-30], [0.0, 0.0], "off by 1e-30"),
    ],
)
def test_what_is_not_close_is_told(found, expected, message):
    with pytest.raises(AssertionError, match=message):
        assert_close(torch.tensor(found), np.array(expected), terms=2)


def test_what_is_no_number_may_be_the_same():
    numbers = torch.tensor([1.0, math.nan, -math.inf])
    assert_close(numbers, numbers.numpy(), terms=1)
    assert_close(torch.ones(2, 3), 1.0, terms=1)
    with pytest.raises(AssertionError, match=r"at \(1, 0\)"):
        assert_close(torch.tensor([[1.0], [2.0]]), 1.0, terms=1)
