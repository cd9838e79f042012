"""`Hidden` in `attend` against dense attention: per query, zeroed, several at once."""

import pytest
import torch
from dense import BATCH, DIM, HEADS, KEYS, QUERIES, close, dense, dense_sums, draw, draw_mask

from sinkscope.attention import Hidden, attend


def some(*shape, seed=3, share=0.3):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


def everywhere(keys, queries=None):
    """Return which query loses which key, [batch, head, query, key]."""
    taken = keys.expand(BATCH, HEADS, QUERIES, KEYS)
    return taken if queries is None else taken & queries[:, None, :, None]


def dense_hidden(inputs, bias, masked, zeroed):
    """Weights without and with the hiding; a query that would lose everything it sees loses nothing."""
    _, before = dense(inputs, bias)
    spared = bias.masked_fill(masked | zeroed, -torch.inf).isneginf().all(-1, keepdim=True)
    _, after = dense(inputs, bias.masked_fill(masked & ~spared, -torch.inf))
    return before, after.masked_fill(zeroed & ~spared, 0), (before * ((masked | zeroed) & ~spared)).sum(-1)


NONE = torch.zeros(BATCH, HEADS, QUERIES, KEYS, dtype=torch.bool)
KEYS_OF_HEADS, BAND = some(BATCH, HEADS, 1, KEYS), some(BATCH, 1, QUERIES, KEYS, seed=4)
SOME_QUERIES = some(BATCH, QUERIES, seed=5, share=0.5)
CASES = {
    "keys": ([Hidden(KEYS_OF_HEADS)], everywhere(KEYS_OF_HEADS), NONE),
    "keys of every query": ([Hidden(BAND)], everywhere(BAND), NONE),
    "some queries": ([Hidden(KEYS_OF_HEADS, SOME_QUERIES)], everywhere(KEYS_OF_HEADS, SOME_QUERIES), NONE),
    "zeroed": ([Hidden(KEYS_OF_HEADS, zeroed=True)], NONE, everywhere(KEYS_OF_HEADS)),
    "zeroed, some queries": ([Hidden(BAND, SOME_QUERIES, zeroed=True)], NONE, everywhere(BAND, SOME_QUERIES)),
    "masked and zeroed": (
        [Hidden(KEYS_OF_HEADS), Hidden(some(1, 1, 1, KEYS, seed=6), zeroed=True)],
        everywhere(KEYS_OF_HEADS),
        everywhere(some(1, 1, 1, KEYS, seed=6)),
    ),
    "several": (
        [Hidden(KEYS_OF_HEADS), Hidden(BAND, SOME_QUERIES)],
        everywhere(KEYS_OF_HEADS) | everywhere(BAND, SOME_QUERIES),
        NONE,
    ),
}


@pytest.mark.parametrize("mask", ["causal", "boolean", "additive"])
@pytest.mark.parametrize("case", CASES)
def test_hiding_equals_dense(case, mask, monkeypatch):
    if mask == "boolean":  # a head at a time
        monkeypatch.setattr("sinkscope.attention.blockwise.CPU_SCORES", 1)
    hidden, masked, zeroed = CASES[case]
    inputs = draw()
    arguments, bias = draw_mask(mask, inputs)
    output, columns = attend(**vars(inputs), **arguments, hidden=hidden, block=4)
    before, after, removed = dense_hidden(inputs, bias.expand(-1, HEADS, -1, -1), masked, zeroed)
    close(output, after @ inputs.value.double().repeat_interleave(2, dim=1), inputs)
    close(columns.local, dense_sums(inputs, before), inputs)
    close(columns.sums, dense_sums(inputs, after), inputs)
    close(columns.removed, removed, inputs)
    close(columns.last_row, before[:, :, -1], inputs)
    close(columns.last_row_in_force, after[:, :, -1], inputs)


@pytest.mark.parametrize("everybody", [True, False], ids=["all queries", "one query apart"])
@pytest.mark.parametrize("zeroed", [False, True])
def test_a_key_that_takes_nearly_everything_is_hidden_exactly(zeroed, everybody):
    """All but 1e-15 of the attention is on the hidden key; what is left has too few digits to be scaled up."""
    inputs = draw()
    inputs.key[:, :, 2] = 0
    inputs.query[..., 0] = 60 * DIM**0.5
    inputs.key[..., 0] = 0
    inputs.key[:, :, 2, 0] = 1
    hidden = (torch.arange(KEYS) == 2)[None, None, None]
    if not everybody:
        hidden = hidden.repeat(1, 1, QUERIES, 1)
        hidden[..., -1, 0] = True
    output, columns = attend(**vars(inputs), hidden=[Hidden(hidden, zeroed=zeroed)], block=4)
    _, weights = dense(inputs)
    assert weights[..., 2].min() > 1 - 1e-6
    if zeroed:
        close(output, weights.masked_fill(hidden, 0) @ inputs.value.double().repeat_interleave(2, dim=1), inputs)
    else:
        expected, weights = dense(
            inputs, torch.zeros(BATCH, HEADS, QUERIES, KEYS).double().masked_fill(hidden, -torch.inf)
        )
        close(output, expected, inputs)
        close(columns.sums, dense_sums(inputs, weights), inputs)


def test_float16_keeps_its_digits_where_a_hidden_key_has_almost_all_attention():
    """What the other keys share is scaled up by more than float16 can hold."""
    inputs, left = draw(queries=KEYS), 1e-5
    inputs.query[..., 0], inputs.key[..., 0] = 4.0, 0.0
    inputs.key[:, :, 2, 0] = -torch.log(torch.tensor(left)) * DIM**0.5 / 4
    half = type(inputs)(*(getattr(inputs, name).half() for name in ("query", "key", "value")), inputs.groups)
    exact = type(inputs)(*(getattr(half, name).float() for name in ("query", "key", "value")), inputs.groups)
    hidden = [Hidden((torch.arange(KEYS) == 2)[None, None, None])]
    (output, columns), (expected, _) = (attend(**vars(one), hidden=hidden, block=4) for one in (half, exact))
    assert output.dtype == torch.float16 and columns.removed.max() > 1 - 20 * left
    close(output, expected, inputs, dtype=torch.float16)
