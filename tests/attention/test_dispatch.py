"""Which implementation computes a call, and that all implementations record the same."""

import numpy
import pytest
import torch
from closeness import assert_close, terms_of
from dense import attention_inputs, close, draw

import sinkscope
from sinkscope.attention import Hidden, OutputProjections, Watcher, attend, dispatch, norms_of, output_norms, subscribed
from sinkscope.attention.blockwise import compute_blockwise
from sinkscope.attention.projections import output_projection, reduced


@pytest.fixture(autouse=True)
def warn_anew():
    dispatch._warn_once.cache_clear()
    dispatch._given_up.clear()
    with numpy.errstate(all="ignore"):  # Triton's interpreter warns of every log 0 that `where` drops
        yield


class OnAGpu(torch.Tensor):
    is_cuda = True


def on_a_gpu(dtype=torch.bfloat16, dim=128):
    """Return a tensor that claims to be on a GPU."""
    return torch.empty(1, 4, 9, dim, dtype=dtype).as_subclass(OnAGpu)


def test_a_gpu_takes_triton_where_it_is_installed(monkeypatch):
    tensors = on_a_gpu(dim=80), on_a_gpu(dim=80), on_a_gpu(dim=64)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    assert dispatch.kernels_take(*tensors)
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    with pytest.warns(RuntimeWarning, match="expected Triton on a GPU, found none") as warned:
        assert not dispatch.kernels_take(*tensors) and not dispatch.kernels_take(*tensors)
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((on_a_gpu(dim=64), on_a_gpu(dim=64), on_a_gpu(dim=512)), "found head size 512"),
        ((on_a_gpu(torch.float32), on_a_gpu(), on_a_gpu()), "found dtype bfloat16 and float32"),
    ],
)
def test_other_tensors_fall_back_with_one_warning(tensors, message, monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    with pytest.warns(RuntimeWarning, match=message) as warned:
        assert not any(dispatch.kernels_take(*tensors) for _ in range(3))
    assert len(warned) == 1


def test_what_kernels_cannot_hide_goes_through_the_sweep(monkeypatch):
    taken, inputs = forced(monkeypatch), draw()
    key = torch.ones(1, 1, 1, 13, dtype=torch.bool)
    some = torch.ones(1, 11, dtype=torch.bool)
    for one in (Hidden(key, zeroed=True), Hidden(key.expand(-1, -1, 11, -1)), Hidden(key, queries=some)):
        assert attend(**vars(inputs), hidden=[one])[1].path == "sweep"
    assert taken == []
    assert attend(**vars(inputs), hidden=[Hidden(~key)] * 2)[1].path == "triton"
    assert taken == ["triton"]


def test_gradients_go_through_the_sweep(monkeypatch):
    taken = forced(monkeypatch)
    inputs = draw()
    inputs.query.requires_grad_()
    output, columns = attend(**vars(inputs))
    output.sum().backward()
    assert taken == [] and columns.path == "sweep" and inputs.query.grad is not None


def forced(monkeypatch):
    """Turns the CPU's tensors to the kernels; returns the list of the calls that took them."""
    taken, by_kernels = [], dispatch.compute_by_kernels

    def note(inputs):
        taken.append("triton")
        return by_kernels(inputs)

    monkeypatch.setattr(dispatch, "kernels_take", lambda *_: True)
    monkeypatch.setattr(dispatch, "compute_by_kernels", note)
    pytest.importorskip("triton", reason="needs Triton, which has wheels for Linux only")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels are compiled, and do not take the CPU's tensors")
    return taken


@pytest.mark.parametrize("name", ["diffusion", "autoregressive"])
@pytest.mark.slow
def test_a_recording_is_the_same_by_the_kernels(name, request, monkeypatch, tmp_path):
    model = request.getfixturevalue(name)
    prompts, settings = (
        [[5, 9, 11, 7], [8, 6]],
        {"length": 4} | ({"steps": 2, "block": 4} if name == "diffusion" else {}),
    )
    rule = sinkscope.HideTopSinks(k=1)
    written = {}
    for chosen in ("sweep", "triton"):
        taken = forced(monkeypatch) if chosen == "triton" else ["sweep"]
        with sinkscope.recording(model, out=tmp_path / chosen), rule(model):
            sinkscope.generate(model, prompts, **settings)
        assert taken and set(taken) == {chosen}
        written[chosen] = sinkscope.open_traces(tmp_path / chosen)
    for mine, theirs in zip(written["sweep"], written["triton"], strict=True):
        assert mine.manifest["attention"] == "sweep" and theirs.manifest["attention"] == "triton"
        assert numpy.array_equal(mine.tokens[:], theirs.tokens[:])
        for tensor in ("column_sums", "self_attention", "value_norms", "key_norms", "output_norms"):
            assert_close(getattr(mine, tensor)[:], getattr(theirs, tensor)[:], terms=terms_of(model.network, 8))


class Failing:
    """A kernel that cannot be compiled or launched."""

    def __init__(self, error):
        self.error, self.tries = error, 0

    def __getitem__(self, grid):
        self.tries += 1
        raise self.error


@pytest.mark.parametrize(("kernel", "words"), [("_attention", "ptxas died"), ("_columns", "no C compiler")])
def test_a_kernel_that_cannot_run_falls_back_with_one_warning(kernel, words, monkeypatch):
    failing = Failing(RuntimeError(words))
    forced(monkeypatch)
    monkeypatch.setattr(f"sinkscope.attention.fused.{kernel}", failing)
    inputs = draw()
    with pytest.warns(
        RuntimeWarning,
        match=r"expected to run with head size 7 in float32 on cpu, found that it does not \(.*the slower blockwise",
    ) as told:
        found = [attend(**vars(inputs)) for _ in range(2)]
    assert len(told) == 1 and str(failing.error) in str(told[0].message) and failing.tries == 1
    expected = compute_blockwise(attention_inputs(inputs))
    for output, columns in found:
        assert columns.path == "sweep"
        close(output, expected[0], inputs)
        close(columns.sums, expected[1].sums, inputs)


def test_norms_whose_kernel_cannot_run_are_torch_s_with_one_warning(diffusion, monkeypatch):
    forced(monkeypatch)
    seen = []

    class Seeing(Watcher):
        def watch(self, call, columns):
            seen.append((call, norms.key_norms(call)))

    norms = OutputProjections(diffusion.network)
    failing = Failing(RuntimeError("ptxas died"))
    monkeypatch.setattr("sinkscope.attention.fused._norms", failing)
    told = r"in float32 for norms on cpu, found that it does not \(.*\); torch's slower operations run"
    with pytest.warns(RuntimeWarning, match=told) as warned, subscribed(diffusion.network, Seeing()), torch.no_grad():
        diffusion.network(torch.tensor([[5, 9, 11]]))
    assert len(warned) == 1 and failing.tries == 1 and len(seen) == 3
    for call, found in seen:
        assert torch.equal(found.values, norms_of(call.value)) and torch.equal(found.keys, norms_of(call.key))
        projection = reduced(output_projection(diffusion.network.get_submodule(call.name), call.query.shape[1]))
        assert torch.equal(found.outputs, output_norms(call.value, projection.contiguous()))
