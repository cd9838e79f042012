"""Recordings that are used twice, for nothing, by several threads, or within themselves: each is refused, none is mixed."""

import copy
import os
import pickle
import threading
import warnings

import pytest
import torch

import sinkscope
from sinkscope.attention import foreign
from sinkscope.errors import AttentionError, CallError, TraceError
from sinkscope.interventions import HideTopSinks

PROMPT, SETTINGS = [5, 9, 11, 7], {"length": 8, "steps": 4, "block": 4}


def write(model, **more):
    return sinkscope.generate(model, PROMPT, **SETTINGS, **more)


@pytest.mark.parametrize("keep", ["columns", "top", "statistics", "drift"])
def test_a_recording_of_nothing_is_refused_and_leaves_nothing(diffusion, tmp_path, keep):
    with (
        pytest.raises(CallError, match="nothing was recorded"),
        sinkscope.recording(diffusion, out=tmp_path / "new" / "run", keep=keep),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_recording_of_another_model_is_refused(diffusion, autoregressive, tmp_path):
    with pytest.raises(CallError, match="nothing was recorded"), sinkscope.recording(diffusion, out=tmp_path / "run"):
        sinkscope.generate(autoregressive, PROMPT, length=2)
    assert list(tmp_path.iterdir()) == []


def in_threads(count, act):
    """Return what each of several threads, started together, returned or raised."""
    found, begin = [], threading.Barrier(count)

    def run(number):
        begin.wait()
        try:
            found.append(act(number))
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_that_record_one_model_never_mix_their_steps(diffusion, tmp_path):
    def hooks():
        return sum(
            len(module._forward_hooks) + len(module._forward_pre_hooks) for module in diffusion.network.modules()
        )

    expected, before = write(diffusion).tokens, hooks()
    for attempt in range(4):
        folder = tmp_path / str(attempt)

        def record(number, folder=folder):
            with sinkscope.recording(diffusion, out=folder / str(number)):
                return write(diffusion)

        found = in_threads(3, record)
        refused = [one for one in found if isinstance(one, BaseException)]
        assert all(
            isinstance(one, AttentionError) and "load the model once for each thread" in str(one) for one in refused
        )
        traces = sinkscope.open_traces(folder)
        assert len(traces) == 3 - len(refused) >= 1
        assert all(trace.steps == 4 and trace.manifest["complete"] for trace in traces)
        assert all(torch.equal(one.tokens, expected) for one in found if not isinstance(one, BaseException))
    assert hooks() == before


def test_threads_that_write_in_one_recording_never_mix_their_steps(diffusion, tmp_path):
    inside, go_on = threading.Event(), threading.Event()

    def hold(step):
        inside.set()
        go_on.wait(30)

    with sinkscope.recording(diffusion, out=tmp_path / "run"):
        slow = threading.Thread(target=lambda: write(diffusion, on_step=hold))
        slow.start()
        assert inside.wait(30)
        with pytest.raises(AttentionError, match="one generation of it runs already"):
            write(diffusion)
        with pytest.raises(AttentionError, match="one generation of it runs already"):
            diffusion.network(torch.tensor([[5, 6, 7]]))
        go_on.set()
        slow.join()
    trace = sinkscope.open_trace(tmp_path / "run")
    assert trace.manifest["complete"] and trace.steps == 4


def test_nothing_watches_or_hides_from_a_network_while_another_thread_generates(diffusion, tmp_path, monkeypatch):
    """Also where its generation begins after `recording` has looked, since hooks in the middle of a call would answer its layers."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(step):
        inside.set()
        go_on.wait(30)

    slow = threading.Thread(target=lambda: write(diffusion, on_step=hold))
    slow.start()
    assert inside.wait(30)
    monkeypatch.setattr("sinkscope.recorder.levels.is_generating", lambda network: False)
    told = "expected LlamaForCausalLM between its generations, found one of it in another thread; let that end first"
    with pytest.raises(AttentionError, match=told), sinkscope.recording(diffusion, out=tmp_path / "run"):
        pass
    with pytest.raises(AttentionError, match=told), sinkscope.parse_rule("top:1")(diffusion):
        pass
    assert not (tmp_path / "run").exists()
    go_on.set()
    slow.join()
    with sinkscope.parse_rule("top:1")(diffusion):
        assert write(diffusion).steps == 4


def test_threads_may_write_in_turn_in_one_recording(diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "run"):
        for _ in range(2):
            (found,) = in_threads(1, lambda _: write(diffusion))
            assert found.steps == 4
    assert [trace.steps for trace in sinkscope.open_traces(tmp_path / "run")] == [4, 4]


def test_a_foreign_network_runs_in_one_thread_at_a_time(tmp_path):
    inside, go_on = threading.Event(), threading.Event()

    class Attends(torch.nn.Module):
        def forward(self, tokens):
            states = torch.ones(*tokens.shape, 4)[:, None]
            out = torch.nn.functional.scaled_dot_product_attention(states, states, states)
            inside.set()
            go_on.wait(30)
            return out

    network, tokens = Attends(), torch.tensor([[1, 2, 3]])
    with foreign(network), sinkscope.recording(network, out=tmp_path / "run"):
        slow = threading.Thread(target=network, args=(tokens,))
        slow.start()
        assert inside.wait(30)
        with pytest.raises(AttentionError, match="one generation of it runs already"):
            network(tokens)
        go_on.set()
        slow.join()
    assert sinkscope.open_trace(tmp_path / "run").steps == 1


def test_a_generation_inside_another_is_refused_while_recorded(diffusion, tmp_path):
    with (
        pytest.raises(AttentionError, match="one generation of it runs already"),
        sinkscope.recording(diffusion, out=tmp_path / "run"),
    ):
        write(diffusion, on_step=lambda step: write(diffusion))
    trace = sinkscope.open_trace(tmp_path / "run")
    assert trace.steps == 1 and not trace.manifest["complete"]
    assert write(diffusion, on_step=lambda step: write(diffusion)).steps == 4


def test_a_generation_that_failed_does_not_stop_the_next(diffusion, tmp_path):
    def fail(step):
        raise KeyError("mine")

    with sinkscope.recording(diffusion, out=tmp_path / "run"):
        with pytest.raises(KeyError) as kept:
            write(diffusion, on_step=fail)
        write(diffusion)
    assert kept.value.__traceback__ is not None  # it holds the frames of the first generation
    assert [trace.manifest["complete"] for trace in sinkscope.open_traces(tmp_path / "run")] == [False, True]


@pytest.mark.parametrize("keep", ["columns", "statistics", "drift"])
def test_a_trace_is_replaced_only_when_another_one_begins(diffusion, tmp_path, keep):
    def record(**more):
        with sinkscope.recording(diffusion, out=tmp_path / "out", **more):
            sinkscope.generate(diffusion, [5, 6, 7], length=4, steps=4, block=4)

    record()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(CallError), sinkscope.recording(diffusion, out=tmp_path / "out", keep=keep, overwrite=True):
        sinkscope.generate(diffusion, [5, 6, 7], length=4, steps=9, block=4)
    with (
        pytest.raises(CallError, match="nothing was recorded"),
        sinkscope.recording(diffusion, out=tmp_path / "out", keep=keep, overwrite=True),
    ):
        pass
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.name != ".claim"}
    assert found == {name: content for name, content in before.items() if name != ".claim"}
    record(overwrite=True, keep=keep)
    assert not (tmp_path / "out" / ".replaced.writing").exists()
    assert sinkscope.traces.is_statistics(tmp_path / "out") == (keep == "statistics")


def test_what_a_killed_process_kept_aside_is_no_trace(diffusion, tmp_path):
    for _ in range(2):
        with sinkscope.recording(diffusion, out=tmp_path / "out", overwrite=True):
            sinkscope.generate(diffusion, [5, 6, 7], length=4, steps=4, block=4)
        (tmp_path / "out" / ".replaced.writing").mkdir()
        (tmp_path / "out" / "manifest.json").rename(tmp_path / "out" / ".replaced.writing" / "manifest.json")
    with pytest.raises(TraceError, match="no trace at"):
        sinkscope.open_trace(tmp_path / "out")


@pytest.mark.parametrize(
    "more", [["--hide", "top:1@layers=9"], ["--cache", "fast-dllm-dual:block=3"], ["--steps", "9"]], ids=str
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_statistics_that_are_refused_leave_what_was_there(diffusion_folder, tmp_path, run, more, overwrite):
    call = [
        "trace",
        diffusion_folder,
        "--problem",
        "0",
        "--length",
        "4",
        "--steps",
        "4",
        "--block",
        "4",
        "--out",
        tmp_path / "out",
    ]
    if overwrite:
        assert run(*call)[0] == 0
    before = sorted(path.name for path in tmp_path.rglob("*"))
    status, _, err = run(*call, "--keep", "statistics", *more, *(["--overwrite"] if overwrite else []))
    assert status in (1, 2) and err
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name != ".claim") == [
        name for name in before if name != ".claim"
    ]


def in_a_fork(act):
    """Return what a forked process says of an error, after it has acted."""
    source, sink = os.pipe()
    with warnings.catch_warnings():  # Python warns of forks where threads run
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            act()
        except Exception as error:
            os.write(sink, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(sink)
    os.waitpid(child, 0)
    with os.fdopen(source) as told:
        return told.read()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_a_model_is_not_copied_while_it_is_changed(diffusion_folder, tmp_path, duplicate):
    diffusion = sinkscope.load(
        str(diffusion_folder)
    )  # transformers leaves hooks that cannot be pickled on networks that gave maps
    for block in (HideTopSinks(1)(diffusion), sinkscope.recording(diffusion, out=tmp_path / "run")):
        with (
            pytest.raises(AttentionError, match="is recorded or changed; copy or store it outside of"),
            block,
        ):
            duplicate(diffusion)
    duplicate(diffusion)


def test_work_on_texts_of_its_own_is_not_recorded(diffusion, tmp_path):
    from sinkscope.emergence import TrainingWatch, hold_out

    canvases = hold_out([PROMPT * 4] * 4, mask_id=diffusion.card.mask_id)
    watch = TrainingWatch(diffusion.network, canvases, tmp_path / "watch", every=1)
    for work in (lambda: watch(1), lambda: sinkscope.find_roles(diffusion, [PROMPT] * 10)):
        with (
            pytest.raises(CallError, match="as it is, found it recorded or changed; call this outside"),
            sinkscope.recording(diffusion, out=tmp_path / "run"),
        ):
            work()


def test_no_sink_token_is_added_to_a_recorded_network(diffusion, tmp_path):
    network = copy.deepcopy(diffusion.network)
    with (
        pytest.raises(CallError, match="a network that nothing records or changes; add it outside"),
        sinkscope.recording(network, out=tmp_path / "run"),
    ):
        sinkscope.add_sink_token(network)


class Attending(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.projection = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 24)

    def forward(self, ids):
        query, key, value = self.projection(self.embedding(ids)).view(*ids.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def test_foreign_closes_behind_what_it_shows(tmp_path):
    network, ids = Attending(), torch.arange(5)[None]
    block = foreign(network)
    block.__enter__()
    with sinkscope.recording(network, out=tmp_path / "run"):
        network(ids)
        network(ids)
        with pytest.raises(AttentionError, match="to be closed before foreign, found 1 open"):
            block.__exit__(None, None, None)
    trace = sinkscope.open_trace(tmp_path / "run")
    assert (trace.steps, trace.complete) == (2, True)


def test_layers_stay_while_they_are_recorded(diffusion, tmp_path):
    model = copy.deepcopy(diffusion)

    def shorten(step):
        model.network.model.layers = model.network.model.layers[:2]

    with (
        pytest.raises(AttentionError, match=r"layers of the first step in every step \(model.*, found model"),
        sinkscope.recording(model, out=tmp_path / "run"),
    ):
        write(model, on_step=shorten)


class Wrapped(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.backbone = network

    def forward(self, ids):
        return self.backbone(ids)


def test_a_module_around_a_network_names_what_to_pass(diffusion, tmp_path):
    for around, path in ((Wrapped, "backbone"), (torch.nn.Sequential, "0"), (torch.nn.DataParallel, "module")):
        network = around(diffusion.network)
        message = f"expected a transformers network itself, found {around.__name__}; pass its {path}$"
        with pytest.raises(AttentionError, match=message), sinkscope.recording(network, out=tmp_path / "run"):
            network(torch.tensor([PROMPT]))
    assert list(tmp_path.iterdir()) == []


def test_what_torch_compile_returned_is_refused(diffusion, tmp_path):
    network = torch.compile(diffusion.network, backend="eager")
    with (
        pytest.raises(CallError, match=r"pass the network that torch\.compile was given"),
        sinkscope.recording(network, out=tmp_path / "run"),
    ):
        network(torch.tensor([PROMPT]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recorded", [False, True])
def test_a_recording_begins_before_a_generation(diffusion, tmp_path, recorded):
    """Begun in its middle it would hold the last steps as if they were all."""

    def begin(step):
        with sinkscope.recording(diffusion, out=tmp_path / "inner"):
            pass

    refused = pytest.raises(
        AttentionError, match=r"a generation of .* has begun, here or in another thread; open the recording before"
    )
    if recorded:
        with refused, sinkscope.recording(diffusion, out=tmp_path / "outer"):
            write(diffusion, on_step=begin)
        assert not sinkscope.open_trace(tmp_path / "outer").complete
    with refused:
        write(diffusion, on_step=begin)
    assert not (tmp_path / "inner").exists()
    with sinkscope.recording(diffusion, out=tmp_path / "after"):
        write(diffusion)
    assert sinkscope.open_trace(tmp_path / "after").complete


def test_calls_that_name_no_mask_are_recorded_of_a_model_with_one(diffusion, tmp_path):
    ids = torch.tensor([[5, 9, 11, 2, 2]])
    with foreign(diffusion.network, causal=True), sinkscope.recording(diffusion, out=tmp_path / "run"), torch.no_grad():
        diffusion.network(input_ids=ids)
    trace = sinkscope.open_trace(tmp_path / "run")
    assert trace.complete and trace.manifest["mask_id"] is None and trace.manifest["model"]["mask_id"] == 2


def test_another_mask_than_that_of_the_model_is_refused(diffusion, tmp_path):
    network, ids = diffusion.network, torch.tensor([[5, 9, 11, 3, 3]])
    refused = pytest.raises(CallError, match=r"mask_id: expected 2, which is the mask of .*, found 3; leave it out")
    with (
        refused,
        sinkscope.recording(diffusion, out=tmp_path / "run"),
        sinkscope.following(network, mask_id=3),
        torch.no_grad(),
    ):
        network(input_ids=ids)
        network(input_ids=ids)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("keep", ["statistics", "drift"])
@pytest.mark.parametrize("changed", [False, True], ids=["cast", "changed"])
def test_prompts_of_two_networks_are_not_added_up(keep, changed, diffusion_folder, tmp_path):
    model = sinkscope.load(str(diffusion_folder))
    settings = {"length": 8, "steps": 8, "block": 4}
    says = f"keep='{keep}' .* prompts of one network: expected the weights of the first prompt, found others"
    with pytest.raises(CallError, match=says), sinkscope.recording(model, out=tmp_path / "out", keep=keep):
        for prompt in ([5, 9, 11], [8, 6, 7], [4, 6, 7]):
            sinkscope.generate(model, prompt, **settings)
            if prompt == [8, 6, 7] and changed:
                model.network.model.layers[0].self_attn.q_proj.weight.data.zero_()
            elif prompt == [8, 6, 7]:
                model.network.bfloat16()
