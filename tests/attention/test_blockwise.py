"""`attend` against dense attention: any call, low precision, gradients, memory."""

import pytest
import torch
from dense import (
    BATCH,
    DIM,
    HEADS,
    KEYS,
    KV_HEADS,
    MASKS,
    QUERIES,
    VALUE_DIM,
    Inputs,
    adds_up,
    close,
    dense,
    dense_sums,
    draw,
    draw_mask,
    own_places,
    without,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from sinkscope.attention import Hidden, Prefix, attend, blockwise
from sinkscope.attention.blockwise import KeptBias
from sinkscope.errors import AttentionError


def in_front(inputs: Inputs, kind: str, count: int, scale: float) -> tuple[Prefix, torch.Tensor, torch.Tensor]:
    """Return constant keys, their scores [batch, head, query, count], and their values for every head."""
    heads, kv_heads, dim = inputs.query.shape[1], *inputs.key.shape[1::2]
    source = torch.Generator().manual_seed(5)
    keys = torch.randn(kv_heads, count, dim, generator=source)
    values = torch.randn(kv_heads, count, inputs.value.shape[-1], generator=source)
    logits = torch.randn(heads, count, generator=source)
    prefix = {"keys": Prefix(keys), "keys and values": Prefix(keys, values), "logits": Prefix(logits=logits)}[kind]
    keys, values = (one.double().repeat_interleave(heads // kv_heads, 0) for one in (keys, values))
    scores = logits.double()[:, None] if kind == "logits" else inputs.query.double() @ keys.mT * scale
    values = values if kind == "keys and values" else torch.zeros_like(values)
    return prefix, scores.expand(*inputs.query.shape[:3], -1), values.expand(len(inputs.query), -1, -1, -1)


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_call_equals_dense(data):
    size = st.integers(1, 9)
    kv_heads, repeat = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    heads, (batch, queries, keys, groups, dim, value_dim) = kv_heads * repeat, (data.draw(size) for _ in range(6))
    seed, scale = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.3, dim**-0.5]))
    inputs = draw(seed, batch, heads, kv_heads, queries, keys, dim, value_dim, groups)
    arguments, bias = draw_mask(data.draw(st.sampled_from(MASKS)), inputs)
    share, front = data.draw(st.sampled_from([0.0, 0.3, 1.0])), data.draw(st.sampled_from([0, 2]))
    hidden = torch.rand(batch, heads, keys, generator=torch.Generator().manual_seed(9)) < share
    bias = bias.expand(-1, heads, -1, -1)
    key, values = (one.double().repeat_interleave(repeat, 1) for one in (inputs.key, inputs.value))
    scores = inputs.query.double() @ key.mT * scale
    if front:
        kind = data.draw(st.sampled_from(["keys", "keys and values", "logits"]))
        arguments["prefix"], before, front_values = in_front(inputs, kind, front, scale)
        scores, values = torch.cat([before, scores], -1), torch.cat([front_values, values], 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sinkscope.attention.blockwise.CPU_SCORES", data.draw(st.sampled_from([1, 200, 1 << 18])))
        block = data.draw(st.integers(1, 10))
        output, columns = attend(**vars(inputs), **arguments, scale=scale, hidden=hidden, block=block)
    bias = pad(bias, (front, 0))
    clean = torch.softmax(scores + bias, -1).nan_to_num(0.0)
    weights = torch.softmax(scores + without(bias, pad(hidden, (front, 0))), -1).nan_to_num(0.0)
    close(output, weights @ values, inputs)
    sums = dense_sums(inputs, weights)
    close(columns.sums, sums[..., front:], inputs)
    close(columns.local, dense_sums(inputs, clean)[..., front:], inputs)
    gone = pad(hidden, (front, 0))[:, :, None] & (weights == 0)
    close(columns.removed, (clean * gone).sum(-1), inputs)
    close(columns.last_row, clean[:, :, -1, front:], inputs)
    close(columns.last_row_in_force, weights[:, :, -1, front:], inputs)
    if front:
        close(columns.prefix, sums[..., :front], inputs)
    first = 0 if arguments.get("causal") else keys - queries  # the key of query 0
    close(columns.diagonal, own_places(weights[..., front:], first), inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_have_fp32_columns(dtype):
    """Scores reach ±60 and more here, where a score rounded to bfloat16 would already be off by a tenth."""
    inputs = draw(queries=300, keys=310, dim=64, groups=1)
    inputs = Inputs(
        *(2 * tensor.to(dtype) for tensor in (inputs.query, inputs.key, inputs.value)), torch.ones(BATCH, 1, 300)
    )
    output, columns = attend(**vars(inputs))
    expected, weights = dense(inputs)
    assert columns.sums.dtype == columns.diagonal.dtype == columns.last_row.dtype == torch.float32
    assert output.dtype == dtype
    close(columns.sums, dense_sums(inputs, weights), inputs)
    adds_up(columns.sums.sum(-1), torch.full((BATCH, HEADS, 1), 300.0), inputs)
    close(output, expected, inputs)


class Rounding(TorchDispatchMode):
    """Rounds the factors of float32 products to bfloat16 where the program allows it, as CPUs with such units do."""

    products = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.baddbmm)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in self.products and torch.get_float32_matmul_precision() != "highest":
            *others, left, right = args
            args = (*others, *(one.bfloat16().float() if one.dtype == torch.float32 else one for one in (left, right)))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def rounding(monkeypatch):
    """A program that lets torch round, on a CPU that rounds; setting the precision raises while the test runs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    blockwise._rounds.cache_clear()
    with Rounding(), monkeypatch.context() as patch:
        for name in ("_set_float32_matmul_precision", "_set_fp32_precision_setter"):
            patch.setattr(torch._C, name, None, raising=False)
        yield
    torch.set_float32_matmul_precision(before)
    blockwise._rounds.cache_clear()


HIDING = {
    "nothing hidden": None,
    "keys hidden": torch.arange(310)[None, None] % 7 == 3,
    "nearly all keys hidden": torch.arange(310)[None, None] != 3,
    "other keys for each query": [Hidden((torch.arange(310) % 7 == torch.arange(300)[:, None] % 7)[None, None])],
}


@pytest.mark.parametrize(("dtype", "block"), [(torch.float32, None), (torch.bfloat16, 64)])
@pytest.mark.parametrize("hiding", HIDING)
def test_scores_and_sums_keep_their_digits_where_the_program_lets_torch_round(hiding, dtype, block, rounding):
    """The output's product with the values is left as the program has it, as in torch's own attention."""
    inputs = draw(queries=300, keys=310, groups=1)
    inputs = Inputs(*(one.to(dtype) for one in (inputs.query, inputs.key, inputs.value)), inputs.groups)
    hidden = HIDING[hiding]
    output, columns = attend(**vars(inputs), hidden=hidden, block=block)
    expected, clean = dense(inputs)
    assert torch.get_float32_matmul_precision() == "medium"
    close(columns.sums if hidden is None else columns.local, dense_sums(inputs, clean), inputs)
    if hidden is not None:
        keys = hidden[0].keys if isinstance(hidden, list) else hidden[:, :, None]
        bias = torch.zeros(1, 1, 300, 310, dtype=torch.float64).masked_fill(keys, -torch.inf)
        expected, weights = dense(inputs, bias)
        close(columns.sums, dense_sums(inputs, weights), inputs)
        close(columns.removed, (clean * keys).sum(-1), inputs)
        close(columns.last_row_in_force, weights[:, :, -1], inputs)
    close(output, expected, inputs, torch.bfloat16)


@pytest.mark.parametrize("constant", ["keys", "logits"])
def test_constant_keys_keep_their_digits_where_the_program_lets_torch_round(constant, rounding):
    inputs, front = draw(queries=300, keys=310, groups=1), draw(batch=1, keys=2, seed=5)
    prefix = Prefix(keys=front.key[0]) if constant == "keys" else Prefix(logits=torch.ones(HEADS, 2))
    _, columns = attend(**vars(inputs), prefix=prefix)
    repeat, scale = HEADS // KV_HEADS, DIM**-0.5
    body = inputs.query.double() @ inputs.key.repeat_interleave(repeat, 1).double().mT * scale
    own = inputs.query.double() @ front.key.repeat_interleave(repeat, 1).double().mT * scale
    own = own if constant == "keys" else torch.ones_like(own)
    sums = dense_sums(inputs, torch.softmax(torch.cat([own, body], -1), -1))
    close(columns.prefix, sums[..., :2], inputs)
    close(columns.sums, sums[..., 2:], inputs)


@pytest.mark.parametrize("kind", ["causal", "boolean", "additive"])
def test_gradients_equal_dense(kind):
    """With a row that sees nothing and a query that would lose all it sees, both of which could turn gradients into
    NaN.
    """
    inputs = draw()
    arguments, bias = draw_mask(kind, inputs)
    if "mask" in arguments:
        arguments["mask"][0, 0, 2], bias[0, 0, 2] = False if kind == "boolean" else -torch.inf, -torch.inf
    hidden = torch.zeros(1, 1, KEYS, dtype=torch.bool)
    hidden[..., :2] = True
    direction = torch.randn(BATCH, HEADS, QUERIES, VALUE_DIM, generator=torch.Generator().manual_seed(7))

    def gradients(fast: bool) -> tuple[Tensor, ...]:
        leaves = [tensor.clone().requires_grad_() for tensor in (inputs.query, inputs.key, inputs.value)]
        mine = Inputs(*leaves, inputs.groups)
        if fast:
            output, columns = attend(**vars(mine), **arguments, hidden=hidden, block=4)
            assert not columns.sums.requires_grad
        else:
            empty = bias.isneginf().all(-1, keepdim=True)
            output, _ = dense(mine, without(bias.expand(-1, HEADS, -1, -1), hidden).masked_fill(empty, 0))
            output = output.masked_fill(empty, 0)
        return torch.autograd.grad((output * direction).sum(), leaves)

    for found, expected in zip(gradients(fast=True), gradients(fast=False), strict=True):
        assert found.abs().sum() > 0
        close(found, expected, inputs)


class LargestTensor(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_no_map_is_ever_held():
    inputs = draw(batch=1, heads=6, kv_heads=2, queries=1300, keys=1320, groups=1)
    hidden = torch.zeros(1, 1, 1320, dtype=torch.bool)
    hidden[..., 3] = True
    with LargestTensor() as largest, torch.no_grad():
        attend(**vars(inputs), mask=torch.ones(1, 1, 1300, 1320, dtype=torch.bool), hidden=hidden)
    assert 0 < largest.elements <= max(3 * 512 * 1320, torch.get_num_threads() << 19)
    with LargestTensor() as whole:
        dense(inputs)
    assert whole.elements >= 6 * 1300 * 1320, "the measure sees a map where there is one"


def test_causal_with_a_mask_is_refused():
    inputs = draw()
    with pytest.raises(AttentionError, match="either a mask or causal=True"):
        attend(**vars(inputs), causal=True, mask=torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool))


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_a_mask_that_changes_in_place_is_read_anew(kind):
    kept_bias, inputs = KeptBias(), draw()
    mask = torch.rand(2, 1, 11, 13, generator=torch.Generator().manual_seed(4)) < 0.7
    mask = mask if kind == "boolean" else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    for _ in range(2):
        for prefix in (None, Prefix(logits=torch.zeros(6, 1))):  # behind which every query sees something
            found, expected = (
                attend(**vars(inputs), mask=mask, prefix=prefix, kept_bias=place) for place in (kept_bias, None)
            )
            assert torch.equal(found[0], expected[0]) and torch.equal(found[1].sums, expected[1].sums)
        mask[:, :, :4] = False if kind == "boolean" else -torch.inf
    with torch.inference_mode():
        unversioned = mask.clone()
        before = attend(**vars(inputs), mask=unversioned, kept_bias=kept_bias)[0]
        unversioned.fill_(True if kind == "boolean" else 0.0)
        after = attend(**vars(inputs), mask=unversioned, kept_bias=kept_bias)[0]
    assert not torch.equal(after, before)
    assert torch.equal(after, attend(**vars(inputs))[0])
