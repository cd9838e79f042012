"""Recordings that are used twice, for nothing, by several threads, or within themselves: each is refused, none is
mixed.
"""

import copy
import pickle
import threading

import pytest
import torch

import sinkscope
from sinkscope.attention import foreign
from sinkscope.errors import AttentionError, CallError
from sinkscope.interventions import HideTopSinks

PROMPT, SETTINGS = [5, 9, 11, 7], {"length": 8, "steps": 4, "block": 4}


def write(model, **more):
    return sinkscope.generate(model, PROMPT, **SETTINGS, **more)


@pytest.mark.parametrize("keep", ["columns", "statistics", "drift"])
def test_a_recording_of_nothing_is_refused_and_leaves_nothing(diffusion, tmp_path, keep):
    out = tmp_path / "new" / "run"
    with pytest.raises(CallError, match="nothing was recorded"), sinkscope.recording(diffusion, out=out, keep=keep):
        pass
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
    expected = write(diffusion).tokens
    for attempt in range(2):
        folder = tmp_path / str(attempt)

        def record(number, folder=folder):
            with sinkscope.recording(diffusion, out=folder / str(number)):
                return write(diffusion)

        found = in_threads(3, record)
        refused = [one for one in found if isinstance(one, BaseException)]
        assert all(isinstance(one, AttentionError) and "load it once per thread" in str(one) for one in refused)
        traces = sinkscope.open_traces(folder)
        assert len(traces) == 3 - len(refused) >= 1
        assert all(trace.steps == 4 and trace.manifest["complete"] for trace in traces)
        assert all(torch.equal(one.tokens, expected) for one in found if not isinstance(one, BaseException))
    assert not any(module._forward_pre_hooks for module in diffusion.network.modules())


def test_nothing_watches_or_hides_from_a_network_while_another_thread_generates(diffusion, tmp_path, monkeypatch):
    """Also where its generation begins after `recording` has looked, since hooks in the middle of a call would answer
    its layers.
    """
    inside, go_on = threading.Event(), threading.Event()

    def hold(step):
        inside.set()
        go_on.wait(30)

    slow = threading.Thread(target=lambda: write(diffusion, on_step=hold))
    slow.start()
    assert inside.wait(30)
    monkeypatch.setattr("sinkscope.recorder.levels.is_generating", lambda network: False)
    told = "expected LlamaForCausalLM between its generations, found one of it in another thread; end that first"
    with pytest.raises(AttentionError, match=told), sinkscope.recording(diffusion, out=tmp_path / "run"):
        pass
    with pytest.raises(AttentionError, match=told), sinkscope.parse_rule("top:1")(diffusion):
        pass
    assert not (tmp_path / "run").exists()
    go_on.set()
    slow.join()
    with sinkscope.parse_rule("top:1")(diffusion):
        assert write(diffusion).steps == 4


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


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_a_model_is_not_copied_while_it_is_changed(diffusion_folder, tmp_path, duplicate):
    # Anew, as transformers leaves hooks that cannot be pickled on networks that gave maps.
    diffusion = sinkscope.load(str(diffusion_folder))
    for block in (HideTopSinks(1)(diffusion), sinkscope.recording(diffusion, out=tmp_path / "run")):
        with (
            pytest.raises(AttentionError, match="is recorded or changed; copy or store it outside of"),
            block,
        ):
            duplicate(diffusion)
    duplicate(diffusion)
    network = torch.nn.Sequential(torch.nn.Linear(3, 3))
    with pytest.raises(AttentionError, match="is recorded or changed"), foreign(network):
        duplicate(network)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_recording_begins_before_a_generation(diffusion, tmp_path, recorded):
    """Begun in its middle it would hold the last steps as if they were all."""

    def begin(step):
        with sinkscope.recording(diffusion, out=tmp_path / "inner"):
            pass

    refused = pytest.raises(
        AttentionError, match=r"a generation of .* has begun, here or in another thread; open the recording first"
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


def test_another_mask_than_that_of_the_model_is_refused(diffusion, tmp_path):
    network, ids = diffusion.network, torch.tensor([[5, 9, 11, 3, 3]])
    refused = pytest.raises(CallError, match=r"mask_id: expected 2, the mask of .*, found 3")
    recording = sinkscope.recording(diffusion, out=tmp_path / "run")
    with refused, recording, sinkscope.following(network, mask_id=3), torch.no_grad():
        network(input_ids=ids)
        network(input_ids=ids)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("keep", "changed"), [("statistics", True), ("drift", False)])
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
