"""`attend` against dense attention: output, columns, diagonal, hiding, prefix, any shape."""

import math
from dataclasses import replace

import pytest
import torch
from dense import (
    BATCH,
    DIM,
    GROUPS,
    HEADS,
    KEYS,
    KV_HEADS,
    MASKS,
    QUERIES,
    VALUE_DIM,
    Inputs,
    adds_up,
    as_bias,
    close,
    dense,
    dense_sums,
    draw,
    draw_mask,
    triangle,
    without,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.attention import Columns, Prefix, attend


@pytest.fixture(params=["heads together", "heads apart"])
def chunks(request, monkeypatch):
    """On long sequences heads are taken a few at a time."""
    if request.param == "heads apart":
        monkeypatch.setattr("sinkscope.attention.blockwise.CPU_SCORES", 1)


# Output and columns


@pytest.mark.parametrize("block", [None, 1, 4, 11, 64])
@pytest.mark.parametrize("kind", MASKS)
def test_output_and_columns_equal_dense(kind, block):
    inputs = draw()
    arguments, bias = draw_mask(kind, inputs)
    output, columns = attend(**vars(inputs), **arguments, block=block)
    expected, weights = dense(inputs, bias)
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)
    close(columns.last_row, weights[:, :, -1], inputs)
    assert columns.local is None and columns.prefix is None


@pytest.mark.parametrize("queries", [1, 200])
def test_chosen_block_equals_dense(queries):
    """With 200 queries the default block is smaller than the canvas."""
    inputs = draw(queries=queries, keys=210)
    output, columns = attend(**vars(inputs))
    expected, weights = dense(inputs)
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_each_query_head_takes_its_own_key_head(kv_heads):
    inputs = draw(kv_heads=kv_heads)
    output, columns = attend(**vars(inputs))
    expected, weights = dense(inputs)
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)


@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (9, 1), (4, 12), (12, 4)])
@pytest.mark.parametrize("kind", MASKS)
def test_queries_and_keys_may_differ_in_number(kind, queries, keys):
    inputs = draw(queries=queries, keys=keys)
    arguments, bias = draw_mask(kind, inputs)
    output, columns = attend(**vars(inputs), **arguments, block=5)
    expected, weights = dense(inputs, bias)
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)


def test_scale_is_used_as_given():
    inputs = draw()
    output, _ = attend(**vars(inputs), scale=0.3)
    close(output, dense(inputs, scale=0.3)[0], inputs)


def test_a_mask_for_every_head_of_its_own(chunks):
    inputs = draw()
    visible = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(2)) < 0.7
    output, columns = attend(**vars(inputs), mask=visible, block=4)
    expected, weights = dense(inputs, as_bias(visible))
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)


@pytest.mark.parametrize("block", [4, 64])
def test_a_mask_with_one_row_holds_for_all_queries(block):
    inputs = draw()
    visible = torch.rand(BATCH, 1, 1, KEYS, generator=torch.Generator().manual_seed(2)) < 0.7
    output, _ = attend(**vars(inputs), mask=visible, block=block)
    close(output, dense(inputs, as_bias(visible))[0], inputs)


def test_fully_masked_rows_give_nothing_as_sdpa():
    inputs = draw()
    visible = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)
    visible[1, :, 3] = False
    output, columns = attend(**vars(inputs), mask=visible, block=4)
    repeated = (tensor.repeat_interleave(HEADS // KV_HEADS, dim=1) for tensor in (inputs.key, inputs.value))
    close(output, torch.nn.functional.scaled_dot_product_attention(inputs.query, *repeated, attn_mask=visible), inputs)
    assert torch.equal(output[1, :, 3], torch.zeros(HEADS, VALUE_DIM))
    everything = inputs.groups.sum(-1)
    everything[1] -= inputs.groups[1, :, 3]
    adds_up(columns.sums.sum(-1), everything[:, None].expand(-1, HEADS, -1), inputs)


def test_left_padding_counts_for_nothing():
    """A padded row of a batch equals the same row alone, because of its mask and its group membership."""
    inputs, padding = draw(queries=KEYS), 4
    real = torch.ones(BATCH, KEYS, dtype=torch.bool)
    real[0, :padding] = False
    groups = real[:, None].float()
    output, columns = attend(
        **vars(replace(inputs, groups=groups)), mask=real[:, None, None].expand(-1, 1, KEYS, -1), block=5
    )
    own = slice(padding, None)
    alone = Inputs(
        inputs.query[:1, :, own], inputs.key[:1, :, own], inputs.value[:1, :, own], torch.ones(1, 1, KEYS - padding)
    )
    expected, expected_columns = attend(**vars(alone))
    close(output[:1, :, own], expected, inputs)
    close(columns.sums[:1, :, :, own], expected_columns.sums, inputs)
    assert torch.equal(columns.sums[0, :, :, :padding], torch.zeros(HEADS, 1, padding))
    adds_up(columns.sums.sum(-1), torch.tensor([KEYS - padding, KEYS])[:, None, None].expand(-1, HEADS, -1), inputs)


# The diagonal and the last row


@pytest.mark.parametrize("block", [1, 3, 64])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (4, 9), (9, 4), (1, 6)])
def test_diagonal_is_the_newest_queries_on_the_newest_keys(queries, keys, block):
    inputs = draw(queries=queries, keys=keys)
    _, columns = attend(**vars(inputs), block=block)
    weights, expected = dense(inputs)[1], torch.zeros(BATCH, HEADS, queries)
    for query in range(queries):
        if query + keys - queries >= 0:
            expected[:, :, query] = weights[:, :, query, query + keys - queries]
    close(columns.diagonal, expected, inputs)


def test_diagonal_of_a_causal_call_is_upper_left():
    inputs = draw(queries=6, keys=9)
    _, columns = attend(**vars(inputs), causal=True, block=4)
    weights = dense(inputs, as_bias(triangle(6, 9)))[1]
    close(columns.diagonal, weights.diagonal(dim1=-2, dim2=-1), inputs)


def test_last_row_holds_no_other_rows_in_memory():
    _, columns = attend(**vars(draw()), block=4)
    assert columns.last_row.untyped_storage().nbytes() == 4 * BATCH * HEADS * KEYS


# Hiding


@pytest.mark.parametrize("shape", [(1, 1), (BATCH, 1), (1, HEADS), (BATCH, HEADS)])
@pytest.mark.parametrize("kind", MASKS)
def test_hiding_equals_dense_without_the_keys(kind, shape, chunks):
    inputs = draw()
    arguments, bias = draw_mask(kind, inputs)
    hidden = torch.rand(*shape, KEYS, generator=torch.Generator().manual_seed(3)) < 0.4
    output, columns = attend(**vars(inputs), **arguments, hidden=hidden, block=4)
    clean_output, clean = attend(**vars(inputs), **arguments, block=4)
    expected, weights = dense(inputs, without(bias.expand(-1, HEADS, -1, -1), hidden))
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)
    own = 0 if kind == "causal" else KEYS - QUERIES
    close(columns.diagonal, weights.diagonal(offset=own, dim1=-2, dim2=-1), inputs)
    assert columns.local is not None
    close(columns.local, clean.sums, inputs)  # those of the run without hiding
    close(columns.last_row, clean.last_row, inputs)  # the one without hiding
    assert not torch.equal(output, clean_output)


def test_hidden_keys_get_exactly_nothing():
    inputs = draw()
    hidden = torch.zeros(BATCH, HEADS, KEYS, dtype=torch.bool)
    hidden[0, 1, 4] = hidden[1, 5, :6] = True
    _, columns = attend(**vars(inputs), hidden=hidden)
    assert torch.equal(columns.sums.masked_select(hidden[:, :, None]), torch.zeros(GROUPS * 7))
    adds_up(columns.sums.sum(-1), inputs.groups.sum(-1)[:, None].expand(-1, HEADS, -1), inputs)


def test_a_query_keeps_its_keys_where_only_hidden_ones_are_visible():
    """Causal query 0 sees key 0 alone; queries 1 and later lose it."""
    inputs = draw()
    hidden = torch.zeros(1, 1, KEYS, dtype=torch.bool)
    hidden[..., 0] = True
    output, columns = attend(**vars(inputs), causal=True, hidden=hidden, block=4)
    close(output[:, :, 0], inputs.value.repeat_interleave(HEADS // KV_HEADS, dim=1)[:, :, 0], inputs)
    close(columns.sums[..., 0], inputs.groups[:, None, :, 0].expand(-1, HEADS, -1), inputs)


@pytest.mark.parametrize("stand_in", [-torch.inf, torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min])
def test_a_query_does_not_turn_to_padding_instead(stand_in):
    """Whatever stands for −∞ in an additive mask; bfloat16's minimum comes with masks that were made in bfloat16."""
    inputs = draw()
    mask = torch.zeros(BATCH, 1, QUERIES, KEYS)
    mask[:, :, 3, 2:] = stand_in
    hidden = (torch.arange(KEYS) < 2)[None, None]
    output, _ = attend(**vars(inputs), mask=mask, hidden=hidden)
    clean, _ = attend(**vars(inputs), mask=mask)
    close(output[:, :, 3], clean[:, :, 3], inputs)
    assert (output[:, :, 4] - clean[:, :, 4]).abs().amax() > 0.1


def test_hiding_every_key_changes_nothing():
    inputs = draw()
    output, columns = attend(**vars(inputs), hidden=torch.ones(1, 1, KEYS, dtype=torch.bool))
    clean, clean_columns = attend(**vars(inputs))
    close(output, clean, inputs)
    close(columns.sums, clean_columns.sums, inputs)


# The prefix


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_prefix_equals_dense_with_the_keys_in_front(kind, hide, chunks):
    inputs, count = draw(), 2
    arguments, bias = draw_mask(kind, inputs)
    front = draw(seed=5, batch=1, keys=count)
    prefix = Prefix(keys=front.key[0], values=front.value[0])
    hidden = torch.rand(BATCH, HEADS, KEYS, generator=torch.Generator().manual_seed(3)) < 0.4 if hide else None
    output, columns = attend(**vars(inputs), **arguments, prefix=prefix, hidden=hidden, block=4)
    longer = replace(
        inputs,
        key=torch.cat([front.key.expand(BATCH, -1, -1, -1), inputs.key], dim=2),
        value=torch.cat([front.value.expand(BATCH, -1, -1, -1), inputs.value], dim=2),
    )
    taken = bias.expand(-1, HEADS, -1, -1) if hidden is None else bias.masked_fill(hidden[:, :, None], -torch.inf)
    expected, weights = dense(longer, torch.nn.functional.pad(taken, (count, 0)))
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights)[..., count:], inputs)
    close(columns.prefix, dense_sums(inputs, weights)[..., :count], inputs)
    close(columns.last_row, dense(longer, torch.nn.functional.pad(bias, (count, 0)))[1][:, :, -1, count:], inputs)


def test_a_query_that_sees_nothing_sees_the_prefix():
    inputs = draw()
    front = draw(seed=5, batch=1, keys=1)
    visible = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)
    visible[1, :, 3] = False
    output, columns = attend(**vars(inputs), mask=visible, prefix=Prefix(keys=front.key[0], values=front.value[0]))
    close(output[1, :, 3], front.value[0, :, 0].repeat_interleave(HEADS // KV_HEADS, dim=0), inputs)
    assert columns.prefix is not None
    adds_up(columns.sums.sum(-1) + columns.prefix.sum(-1), inputs.groups.sum(-1)[:, None].expand(-1, HEADS, -1), inputs)


@pytest.mark.parametrize("dressed", ["keys", "logits"])
def test_prefix_without_values_only_takes_attention(dressed, chunks):
    inputs, count = draw(), 2
    keys, logits = (
        draw(seed=5, batch=1, keys=count).key[0],
        torch.randn(HEADS, count, generator=torch.Generator().manual_seed(6)),
    )
    output, columns = attend(
        **vars(inputs), prefix=Prefix(keys=keys) if dressed == "keys" else Prefix(logits=logits), block=4
    )
    repeat = HEADS // KV_HEADS
    mine = (
        inputs.query @ keys.repeat_interleave(repeat, 0).mT / math.sqrt(DIM)
        if dressed == "keys"
        else logits[:, None].expand(-1, QUERIES, -1)
    )
    scores = inputs.query @ inputs.key.repeat_interleave(repeat, 1).mT / math.sqrt(DIM)
    weights = torch.softmax(torch.cat([mine.expand(BATCH, -1, -1, -1), scores], dim=-1), dim=-1)
    close(output, weights[..., count:] @ inputs.value.repeat_interleave(repeat, 1), inputs)
    close(columns.prefix, dense_sums(inputs, weights)[..., :count], inputs)
    close(columns.sums, dense_sums(inputs, weights)[..., count:], inputs)


# Any shape


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_shape_equals_dense(data):
    size = st.integers(1, 9)
    kv_heads, repeat = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    batch, queries, keys, groups = (data.draw(size) for _ in range(4))
    inputs = draw(
        data.draw(st.integers(0, 99)),
        batch,
        kv_heads * repeat,
        kv_heads,
        queries,
        keys,
        data.draw(size),
        data.draw(size),
        groups,
    )
    arguments, bias = draw_mask(data.draw(st.sampled_from(MASKS)), inputs)
    hidden = torch.rand(batch, kv_heads * repeat, keys, generator=torch.Generator().manual_seed(9)) < data.draw(
        st.sampled_from([0.0, 0.3, 1.0])
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sinkscope.attention.blockwise.CPU_SCORES", data.draw(st.sampled_from([1, 200, 1 << 18])))
        output, columns = attend(**vars(inputs), **arguments, hidden=hidden, block=data.draw(st.integers(1, 10)))
    bias = bias.expand(-1, kv_heads * repeat, -1, -1)
    expected, weights = dense(inputs, without(bias, hidden))
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)
    close(columns.local, dense_sums(inputs, dense(inputs, bias)[1]), inputs)
    close(columns.last_row, dense(inputs, bias)[1][:, :, -1], inputs)
    assert isinstance(columns, Columns)
