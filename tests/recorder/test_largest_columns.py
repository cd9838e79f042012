"""The largest columns are chosen on the device, of all prompts at once, as NumPy's stable sort chooses them."""

import numpy as np
import pytest
import torch

import sinkscope
from sinkscope.recorder import largest_columns as module
from sinkscope.recorder.async_writer import AsyncWriter
from sinkscope.recorder.largest_columns import largest_columns

LAYERS, BATCH, HEADS, KEYS = 3, 4, 5, 11
FIRST = (0, 2, 7, 10)
PROMPTS = ((5, 9, 11, 7, 8, 30), (8, 6, 13))


def columns_with_ties():
    drawn = torch.randint(0, 5, (LAYERS, BATCH, HEADS, KEYS), generator=torch.Generator().manual_seed(2)) / 4
    return drawn * torch.tensor([1.0, -1.0])[torch.arange(KEYS) % 2] ** (drawn == 0)  # some zeros are negative


def dense(columns, count):
    """One head."""
    order = np.argsort(-columns, kind="stable")[:count]
    others = np.delete(columns, order).astype(np.float64)
    room = count - len(order)
    values, keys = np.append(columns[order], [np.nan] * room), np.append(order, [-1] * room)
    return values, keys, others.mean() if len(others) else np.nan


@pytest.mark.parametrize("count", [1, 4, 11, 13])
@pytest.mark.parametrize("first", [None, FIRST])
@pytest.mark.parametrize("at_once", [1 << 22, 1])
def test_the_largest_of_each_head_where_they_are_and_the_mean_of_the_others(count, first, at_once, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    columns = columns_with_ties()
    found = largest_columns("column_sums", columns, count, None if first is None else torch.tensor(first))
    values, keys, rest = (
        found[name].numpy() for name in ("top_column_sums", "top_column_sums_key", "rest_column_sums")
    )
    assert (values.dtype, keys.dtype, rest.dtype) == (np.float32, np.int32, np.float32)
    for layer, row, head in np.ndindex(LAYERS, BATCH, HEADS):
        begin = 0 if first is None else first[row]
        expected = dense(columns[layer, row, head, begin:].numpy(), count)
        np.testing.assert_array_equal(values[layer, row, head], expected[0])
        np.testing.assert_array_equal(keys[layer, row, head], expected[1])
        np.testing.assert_allclose(rest[layer, row, head], expected[2], rtol=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_column_that_is_no_number_shows_in_the_total(sign):
    columns = columns_with_ties()
    columns[1, 2, 3, 4] = np.copysign(np.nan, sign)
    total = largest_columns("column_sums", columns, 2)["total"]
    assert torch.equal(total[..., 0].isnan().nonzero(), torch.tensor([[1, 2, 3]]))


def test_no_column_that_is_not_kept_leaves_the_device(diffusion, tmp_path, monkeypatch):
    shapes, send = [], AsyncWriter.send

    def spied(writer, tensors, landed):
        shapes.append({name: tuple(one.shape) for (number, name), one in tensors.items() if number >= 0})
        send(writer, tensors, landed)

    monkeypatch.setattr(AsyncWriter, "send", spied)
    with sinkscope.recording(diffusion, out=tmp_path / "top", keep="top", top=3):
        sinkscope.generate(diffusion, [list(one) for one in PROMPTS], length=6, steps=6, block=6)
    layers, heads = diffusion.card.layers, diffusion.card.heads
    of_heads = (layers, len(PROMPTS), heads)
    expected = {"top_column_sums": (*of_heads, 3), "top_column_sums_key": (*of_heads, 3)}
    assert shapes == [expected | {"rest_column_sums": of_heads, "total": (*of_heads, 1)}] * 6
