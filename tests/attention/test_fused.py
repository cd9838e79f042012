"""The Triton kernels against dense attention; without a GPU they are interpreted."""

import contextlib
from dataclasses import replace

import numpy
import pytest
import torch
from dense import (
    MASKS,
    Inputs,
    as_bias,
    attention_inputs,
    close,
    dense,
    dense_sums,
    draw,
    draw_mask,
    own_places,
    triangle,
    without,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from sinkscope.attention import Prefix, norms_of, output_norms

SMALL = {"batch": 2, "heads": 2, "kv_heads": 1, "queries": 21, "keys": 37, "dim": 8, "value_dim": 11, "groups": 3}
"""Several tiles of 16 along both axes, none of them full."""

interpreted = pytest.param(
    "cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the kernels are compiled")
)
compiled = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


@pytest.fixture(params=[interpreted, compiled])
def device(request):
    pytest.importorskip("triton", reason="needs Triton, which has wheels for Linux only")
    return request.param


@pytest.fixture
def small_tiles(monkeypatch):
    for name in ("_tiles", "_column_tiles"):
        monkeypatch.setattr(f"sinkscope.attention.fused.{name}", lambda *_: (16, 16, 4, 1))


def fused(device, inputs, *, mask=None, hidden=None, prefix=None, **more):
    """Output and columns on the CPU; the interpreter's numpy warns of every log 0 that `where` drops."""
    from sinkscope.attention.fused import compute_fused

    mask, hidden = (None if one is None else one.to(device) for one in (mask, hidden))
    there = Inputs(*(one.to(device) for one in vars(inputs).values()))
    if prefix is not None:
        prefix = Prefix(*(None if one is None else one.to(device) for one in vars(prefix).values()))
    given = attention_inputs(there, mask=mask, hidden=hidden, prefix=prefix, **more)
    with (
        numpy.errstate(all="ignore"),
        torch.no_grad(),
        torch.cuda.device(0) if device == "cuda" else contextlib.nullcontext(),
    ):
        output, columns = compute_fused(given)
    return output.cpu(), replace(
        columns, **{name: one.cpu() for name, one in vars(columns).items() if isinstance(one, torch.Tensor)}
    )


def all_equal_dense(output, columns, inputs, bias, hidden=None):
    """Everything but the prefix, against dense attention."""
    bias = bias.expand(-1, inputs.query.shape[1], -1, -1)
    clean = dense(inputs, bias)[1]
    taken = bias if hidden is None else without(bias, hidden)
    expected, weights = dense(inputs, taken)
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)
    close(columns.last_row, clean[:, :, -1], inputs)
    close(columns.last_row_in_force, weights[:, :, -1], inputs)
    if hidden is None:
        assert columns.local is None and columns.removed is None
        return
    close(columns.local, dense_sums(inputs, clean), inputs)
    gone = hidden[:, :, None] & ~(weights * hidden[:, :, None]).any(-1, keepdim=True)
    close(columns.removed, (clean * gone).sum(-1), inputs)


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_kernels_equal_dense(kind, hide, device, small_tiles):
    inputs = draw(**SMALL)
    arguments, bias = draw_mask(kind, inputs)
    hidden = torch.rand(2, 2, 37, generator=torch.Generator().manual_seed(3)) < 0.3 if hide else None
    output, columns = fused(device, inputs, **arguments, hidden=hidden)
    all_equal_dense(output, columns, inputs, bias, hidden)
    spread = bias.expand(-1, 2, -1, -1)
    weights = dense(inputs, spread if hidden is None else without(spread, hidden))[1]
    close(columns.diagonal, own_places(weights, 0 if kind == "causal" else 16), inputs)


@pytest.mark.parametrize(
    ("dim", "value_dim", "dtype"), [(80, 48, torch.float32), (256, 256, torch.bfloat16), (32, 32, torch.float16)]
)
def test_head_sizes_and_dtypes(dim, value_dim, dtype, device):
    inputs = draw(batch=1, heads=2, kv_heads=1, queries=19, keys=35, dim=dim, value_dim=value_dim, groups=1)
    inputs = Inputs(*(one.to(dtype) for one in (inputs.query, inputs.key, inputs.value)), inputs.groups)
    output, columns = fused(device, inputs, scale=0.05)
    expected, weights = dense(inputs, scale=0.05)
    assert output.dtype == dtype
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)


@pytest.mark.parametrize(("queries", "keys", "groups"), [(1, 9, 1), (9, 1, 2), (40, 17, 5), (17, 40, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_any_lengths(queries, keys, groups, causal, device, small_tiles):
    inputs = draw(batch=1, heads=4, kv_heads=2, queries=queries, keys=keys, groups=groups)
    output, columns = fused(device, inputs, causal=causal)
    bias = (
        as_bias(triangle(queries, keys)[None, None])
        if causal
        else torch.zeros(1, 1, queries, keys, dtype=torch.float64)
    )
    all_equal_dense(output, columns, inputs, bias)
    close(columns.diagonal, own_places(dense(inputs, bias)[1], 0 if causal else keys - queries), inputs)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_hidden_keys_of_each_batch_and_head(shape, device):
    inputs = draw(**SMALL)
    hidden = torch.rand(*shape, 37, generator=torch.Generator().manual_seed(4)) < 0.3
    output, columns = fused(device, inputs, hidden=hidden)
    all_equal_dense(output, columns, inputs, torch.zeros(1, 1, 21, 37, dtype=torch.float64), hidden)
    assert columns.sums.masked_select(hidden[:, :, None].expand(2, 2, 3, 37)).abs().sum() == 0  # exactly nothing


def test_left_padding_and_queries_that_see_nothing(device, small_tiles):
    inputs = draw(**SMALL)
    visible = torch.ones(2, 1, 21, 37, dtype=torch.bool)
    visible[0, :, :, :20], visible[1, :, 3] = False, False
    hidden = torch.zeros(1, 2, 37, dtype=torch.bool)
    hidden[:, 1, 25] = True
    output, columns = fused(device, inputs, mask=visible, hidden=hidden)
    all_equal_dense(output, columns, inputs, as_bias(visible), hidden)
    assert output[1, :, 3].abs().sum() == 0


def test_a_query_keeps_its_keys_where_only_hidden_ones_are_visible(device, small_tiles):
    """Causal queries 0 and 1 see hidden keys alone; the others lose them."""
    inputs = draw(**{**SMALL, "queries": 37})
    hidden = torch.zeros(1, 1, 37, dtype=torch.bool)
    hidden[..., :2] = True
    output, columns = fused(device, inputs, causal=True, hidden=hidden)
    all_equal_dense(output, columns, inputs, as_bias(triangle(37, 37)[None, None].expand(2, 1, -1, -1)), hidden)
    assert columns.removed is not None and columns.removed[:, :, :2].abs().sum() == 0


def test_hiding_a_key_that_takes_nearly_everything(device, small_tiles):
    """What is left, exp(−200) of a row, is scaled up to the whole."""
    inputs, strength = draw(**{**SMALL, "dim": 16}), 200.0
    inputs.query[..., 0], inputs.key[..., 0] = 4 * strength, 0.0
    inputs.key[:, :, 5, 0] = 1.0
    hidden = torch.zeros(1, 1, 37, dtype=torch.bool)
    hidden[..., 5] = True
    output, columns = fused(device, inputs, hidden=hidden)
    all_equal_dense(output, columns, inputs, torch.zeros(1, 1, 21, 37, dtype=torch.float64), hidden)


@pytest.mark.parametrize(("dressed", "hide"), [("keys and values", True), ("keys", False), ("logits", True)])
def test_prefix(dressed, hide, device, small_tiles):
    inputs, count = draw(**SMALL), 2
    front = draw(**{**SMALL, "batch": 1, "keys": count, "seed": 5})
    logits = torch.randn(2, count, generator=torch.Generator().manual_seed(6))
    prefix = Prefix(
        keys=None if dressed == "logits" else front.key[0],
        values=front.value[0] if "values" in dressed else None,
        logits=logits if dressed == "logits" else None,
    )
    hidden = torch.rand(2, 2, 37, generator=torch.Generator().manual_seed(3)) < 0.3 if hide else None
    output, columns = fused(device, inputs, causal=True, prefix=prefix, hidden=hidden)
    bias = as_bias(triangle(21, 37)[None, None].expand(2, 2, -1, -1))
    if hidden is not None:
        bias = bias.masked_fill(hidden[:, :, None], -torch.inf)
    body = (inputs.query.double() @ inputs.key.repeat_interleave(2, 1).double().mT) * 8**-0.5 + bias
    own = (
        logits[None, :, None]
        if dressed == "logits"
        else (inputs.query @ front.key.repeat_interleave(2, 1).mT) * 8**-0.5
    )
    weights = torch.softmax(torch.cat([own.double().expand(2, 2, 21, count), body], -1), -1)
    values = front.value.double() if "values" in dressed else torch.zeros_like(front.value).double()
    everything = torch.cat([values.expand(2, -1, -1, -1), inputs.value.double()], 2).repeat_interleave(2, 1)
    close(output, weights @ everything, inputs)
    close(columns.sums, dense_sums(inputs, weights)[..., count:], inputs)
    close(columns.prefix, dense_sums(inputs, weights)[..., :count], inputs)


def test_not_a_number_comes_through(device):
    inputs = draw(batch=1, heads=3, kv_heads=3, queries=5, keys=6, groups=1)
    inputs.query[0, 1, 2] = torch.nan
    output, columns = fused(device, inputs, hidden=torch.zeros(1, 1, 6, dtype=torch.bool))
    assert columns.sums.isnan().any(-1)[0, :, 0].tolist() == [False, True, False]
    assert output[0, 1, 2].isnan().all() and not output[0, 0].isnan().any()


# Torch's attention, and our columns


@contextlib.contextmanager
def given_to(kernel, device, monkeypatch):
    """Let torch give its attention to one of its kernels; on a CPU by taking the choice away from it."""
    if device == "cpu":
        if kernel == "cudnn":
            pytest.skip("cuDNN needs a GPU")
        monkeypatch.setattr("sinkscope.attention.fused._torch_takes", lambda *_: kernel)
        yield
    else:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION if kernel == "flash" else SDPBackend.CUDNN_ATTENTION):
            yield


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys", "causal"), [(21, 37, False), (37, 21, False), (37, 37, True)])
def test_columns_beside_torch_s_attention_equal_dense(
    kernel, queries, keys, causal, dtype, device, small_tiles, monkeypatch
):
    """In half precision a CPU's exponentials are cubic polynomials there (2⁻¹⁴), and columns are no more exact than
    that.
    """
    if device != "cpu" and dtype == torch.float32:
        pytest.skip("torch's kernels with a log-sum-exp do not take float32 on a GPU")
    inputs = draw(**{**SMALL, "kv_heads": 2, "queries": queries, "keys": keys, "value_dim": 8})
    inputs = Inputs(*(one.to(dtype) for one in (inputs.query, inputs.key, inputs.value)), inputs.groups)
    bias = (
        as_bias(triangle(queries, keys)[None, None])
        if causal
        else torch.zeros(1, 1, queries, keys, dtype=torch.float64)
    )
    with given_to(kernel, device, monkeypatch):
        output, columns = fused(device, inputs, scale=0.2, causal=causal)
    expected, weights = dense(inputs, bias, scale=0.2)
    assert columns.path == kernel and columns.local is None and columns.removed is None
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs, dtype)
    close(columns.last_row, weights[:, :, -1], inputs, dtype)
    close(columns.last_row_in_force, weights[:, :, -1], inputs, dtype)
    close(columns.diagonal, own_places(weights, 0 if causal else keys - queries), inputs, dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
@pytest.mark.parametrize("causal", [False, True])
def test_beside_torch_s_attention_the_output_is_the_stock_model_s(kernel, causal, monkeypatch):
    inputs = draw(batch=2, heads=4, kv_heads=4, queries=300, keys=300, dim=128, value_dim=128, groups=2)
    inputs = Inputs(*(one.bfloat16() for one in (inputs.query, inputs.key, inputs.value)), inputs.groups)
    with given_to(kernel, "cuda", monkeypatch):
        output, columns = fused("cuda", inputs, causal=causal)
        there = (one.cuda() for one in (inputs.query, inputs.key, inputs.value))
        stock = torch.nn.functional.scaled_dot_product_attention(*there, is_causal=causal).cpu()
    assert columns.path == kernel and torch.equal(output, stock)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "keys", "newest", "dims", "dtype", "projected"),
    [
        (4, 2, 37, 37, (8, 11), torch.float32, True),
        (3, 3, 70, 5, (24, 40), torch.bfloat16, True),
        (2, 1, 1, 1, (72, 8), torch.float16, True),
        (2, 1, 9, 9, (8, 11), torch.float32, False),
    ],
)
def test_norms_equal_torch_s(heads, kv_heads, keys, newest, dims, dtype, projected, device):
    from sinkscope.attention.fused import compute_norms

    generator = torch.Generator().manual_seed(4)
    key, value = (torch.randn(2, keys, kv_heads, dim, generator=generator).transpose(1, 2).to(dtype) for dim in dims)
    projection = torch.randn(heads, min(dims[1], 9), dims[1], generator=generator) if projected else None
    there = (one if one is None else one.to(device) for one in (key, value, projection))
    of_keys, of_values, outputs = compute_norms(*there, newest)
    torch.testing.assert_close(of_keys.cpu(), norms_of(key))
    torch.testing.assert_close(of_values.cpu(), norms_of(value))
    assert projected or outputs is None
    if projection is not None and outputs is not None:
        torch.testing.assert_close(outputs.cpu(), output_norms(value[:, :, keys - newest :], projection))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["none", "causal", "boolean, hidden"])
def test_whole_tiles(kind, dtype, device):
    """With the tiles as `_tiles` gives them, none cut to the lengths."""
    length, dims = (150, (64,)) if device == "cpu" else (1024, (64, 128, 256))
    for dim in dims:
        inputs = draw(batch=1, heads=2, kv_heads=1, queries=length, keys=length, dim=dim, value_dim=dim, groups=2)
        inputs = Inputs(*(one.to(dtype) for one in (inputs.query, inputs.key, inputs.value)), inputs.groups)
        arguments, bias = draw_mask(kind.partition(",")[0], inputs)
        hidden = (
            torch.rand(1, 2, length, generator=torch.Generator().manual_seed(3)) < 0.1 if "hidden" in kind else None
        )
        output, columns = fused(device, inputs, **arguments, hidden=hidden)
        assert columns.path == "triton"
        all_equal_dense(output, columns, inputs, bias, hidden)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_numbers_in_every_run():
    inputs = draw(batch=2, heads=8, kv_heads=4, queries=700, keys=900, dim=128, value_dim=128, groups=2)
    inputs = Inputs(*(one.bfloat16() for one in (inputs.query, inputs.key, inputs.value)), inputs.groups)
    first, again = fused("cuda", inputs), fused("cuda", inputs)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1].sums, again[1].sums)
    all_equal_dense(*first, inputs, torch.zeros(1, 1, 700, 900, dtype=torch.float64))
