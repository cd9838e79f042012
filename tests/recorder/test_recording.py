from importlib.metadata import version

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from leaves_no_trace import compare, look

import sinkscope
from sinkscope.attention import current_session

QUESTION = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
SHORT = "Q: Write a function f(x) that returns x plus 3.\nA:"
DIFFUSION = {"length": 12, "block": 6, "steps": 12}
AUTOREGRESSIVE = {"length": 10}
IDS = torch.arange(5, 22)[None]


@pytest.fixture(params=["diffusion", "autoregressive"])
def family(request):
    """A model and settings for a short generation."""
    return request.getfixturevalue(request.param), DIFFUSION if request.param == "diffusion" else AUTOREGRESSIVE


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run.trace"


class Stop(Exception):
    """What a body or a hook raises in these tests."""


def stop(*_):
    raise Stop


def stop_at(number):
    def on_step(step):
        if step.number == number:
            raise Stop

    return on_step


SAMPLED = {"temperature": 0.9, "seed": 3}


@pytest.mark.parametrize("prompts", [QUESTION, [QUESTION, SHORT]], ids=["one", "batch"])
@pytest.mark.parametrize(
    ("family", "more"), [("diffusion", {"guidance": 1.0}), ("autoregressive", SAMPLED)], indirect=["family"]
)
def test_recording_changes_no_token(family, out, prompts, more):
    model, settings = family
    plain = sinkscope.generate(model, prompts, **settings, **more)
    with sinkscope.recording(model, out=out):
        recorded = sinkscope.generate(model, prompts, **settings, **more)
    for one, other in zip(plain, recorded, strict=True) if isinstance(plain, list) else [(plain, recorded)]:
        assert one.tokens.tolist() == other.tokens.tolist()
        assert (one.text, one.steps) == (other.text, other.steps)


def sampler_raises(model, settings):
    sinkscope.generate(model, QUESTION, **settings, on_step=stop_at(3))


def layer_raises(model, settings):
    handle = model.network.model.layers[1].mlp.register_forward_pre_hook(stop)
    try:
        sinkscope.generate(model, QUESTION, **settings)
    finally:
        handle.remove()


def body_raises_between_forwards(model, settings):
    model.network(IDS)
    raise Stop


@pytest.mark.parametrize("body", [sampler_raises, layer_raises, body_raises_between_forwards])
def test_recording_leaves_no_trace_on_the_model(family, out, body):
    model, settings = family
    before = look(model.network, IDS)
    with pytest.raises(Stop), sinkscope.recording(model, out=out):
        body(model, settings)
    compare(before, look(model.network, IDS), "after the recording")
    assert current_session(model.network) is None


def test_a_sampler_that_raises_leaves_its_steps_and_says_incomplete(family, out):
    model, settings = family
    with pytest.raises(Stop), sinkscope.recording(model, out=out):
        sampler_raises(model, settings)
    trace = sinkscope.open_trace(out)
    assert not trace.complete
    assert trace.steps == 4
    assert_close(np.nansum(trace.column_sums[:, 0, 0], axis=-1), trace.lengths[:], terms=3 * int(trace.lengths[-1]))


def test_the_manifest_says_what_made_the_trace(family, out):
    model, settings = family
    with sinkscope.recording(model, out=out):
        answer = sinkscope.generate(model, QUESTION, seed=11, **settings)
    manifest = sinkscope.open_trace(out).manifest
    assert manifest["complete"] is True
    assert manifest["steps"] == answer.steps
    assert manifest["model"] == model.card.as_dict()
    assert len(manifest["model"]["weight_hash"]) == 64
    assert (
        manifest["sampler"].items()
        >= {"name": model.family.sampler, "temperature": 0.0, "seed": 11, **settings}.items()
    )
    assert (manifest["seed"], manifest["causal"], manifest["level"]) == (11, model.family.causal, "columns")
    assert manifest["prompt"] == QUESTION
    assert manifest["prompt_length"] == answer.prompt_length == len(model.encode(QUESTION))
    assert manifest["layers"] == [f"model.layers.{number}.self_attn" for number in range(3)]
    assert (manifest["heads"], manifest["kv_heads"]) == (model.card.heads, model.card.kv_heads)
    assert (manifest["mask_id"], manifest["eos_id"]) == (model.card.mask_id, model.card.eos_id)
    assert (manifest["device"], manifest["dtype"]) == ("cpu", "float32")
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["versions"]["sinkscope"] == version("sinkscope")
    assert manifest["text"] == answer.text != ""


def test_a_batch_makes_numbered_traces_with_their_own_prompts_and_seeds(family, out):
    model, settings = family
    with sinkscope.recording(model, out=out):
        answers = sinkscope.generate(model, [SHORT, QUESTION], temperature=0.7, seed=20, **settings)
    traces = sinkscope.open_traces(out)
    assert [trace.folder.name for trace in traces] == ["000000", "000001"]
    assert [trace.manifest["prompt"] for trace in traces] == [SHORT, QUESTION]
    assert [trace.manifest["seed"] for trace in traces] == [20, 21]
    assert [trace.manifest["sampler"]["seed"] for trace in traces] == [20, 21]
    assert [trace.manifest["text"] for trace in traces] == [answer.text for answer in answers]
    assert [path.name for path in sorted(out.iterdir())] == ["000000", "000001"]


def test_a_second_generation_makes_the_first_a_numbered_trace(family, out):
    model, settings = family
    with sinkscope.recording(model, out=out):
        answers = [sinkscope.generate(model, QUESTION, **settings)]
        assert sinkscope.open_trace(out).complete
        answers.append(sinkscope.generate(model, SHORT, **settings))
        answers += sinkscope.generate(model, [SHORT, QUESTION], **settings)
    traces = sinkscope.open_traces(out)
    assert [trace.folder.name for trace in traces] == [f"{number:06d}" for number in range(4)]
    assert [trace.manifest["prompt"] for trace in traces] == [QUESTION, SHORT, SHORT, QUESTION]
    assert [trace.manifest["text"] for trace in traces] == [answer.text for answer in answers]
    assert all(trace.complete for trace in traces)
    assert sorted(path.name for path in out.iterdir()) == [trace.folder.name for trace in traces]
    assert_close(traces[1].column_sums[:], traces[2].column_sums[:], terms=terms_of(model.network, 64))


def test_a_forward_call_between_two_steps_of_a_sampler_is_nobodys_step(family, tmp_path):
    model, settings = family
    for name, call in (("plain", lambda step: None), ("disturbed", lambda step: model.network(IDS))):
        with sinkscope.recording(model, out=tmp_path / name), torch.no_grad():
            sinkscope.generate(model, SHORT, **settings, on_step=call)
    plain, disturbed = sinkscope.open_trace(tmp_path / "plain"), sinkscope.open_trace(tmp_path / "disturbed")
    assert disturbed.steps == plain.steps
    np.testing.assert_array_equal(disturbed.column_sums[:], plain.column_sums[:])


def eager_columns(network, canvas):
    """Column sums of one canvas by transformers' eager attention: [layer, head, key]."""
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    with torch.no_grad():
        maps = network(
            torch.as_tensor(np.asarray(canvas), dtype=torch.long)[None], output_attentions=True, use_cache=False
        ).attentions
    network.set_attn_implementation(before)
    return torch.stack(maps)[:, 0].sum(dim=2).numpy()


def test_transformers_own_generate_is_recorded(autoregressive, tmp_path):
    ids = torch.tensor([autoregressive.encode(QUESTION)])
    options = {"max_new_tokens": 6, "do_sample": False}
    plain = autoregressive.network.generate(ids, **options)
    with sinkscope.recording(autoregressive, out=tmp_path / "theirs"):
        answer = autoregressive.network.generate(ids, **options)
    assert answer.tolist() == plain.tolist()
    with sinkscope.recording(autoregressive, out=tmp_path / "ours"):
        sinkscope.generate(autoregressive, QUESTION, length=6)
    theirs, ours = sinkscope.open_trace(tmp_path / "theirs"), sinkscope.open_trace(tmp_path / "ours")
    assert theirs.complete
    assert theirs.manifest["sampler"] == {"name": "foreign"}
    assert theirs.manifest["prompt_length"] == ids.shape[1]
    for name in set(ours.tensors) & set(theirs.tensors):
        assert_close(getattr(theirs, name)[:], getattr(ours, name)[:], terms=terms_of(autoregressive.network, 64))
    assert set(ours.tensors) - set(theirs.tensors) == {"written", "predicted", "confidence"}


def test_plain_forward_calls_are_steps_of_one_trace(family, out):
    model, _ = family
    canvases = [model.encode(QUESTION), model.encode(SHORT), model.encode(QUESTION)[:9]]
    with sinkscope.recording(model, out=out), torch.no_grad():
        for canvas in canvases:
            model.network(torch.tensor([canvas]))
    trace = sinkscope.open_trace(out)
    assert trace.complete
    assert trace.lengths[:].tolist() == [len(canvas) for canvas in canvases]
    for step, canvas in enumerate(canvases):
        assert trace.tokens[step, : len(canvas)].tolist() == canvas
        found = trace.column_sums[step, ..., : len(canvas)]
        assert_close(found, eager_columns(model.network, canvas), terms=terms_of(model.network, 64))
        assert not np.isnan(trace.self_attention[step, ..., : len(canvas)]).any()


def test_maps_that_are_asked_for_are_warned_of_once(diffusion, out):
    """Transformers gives none of them: an empty tuple."""
    told = pytest.warns(RuntimeWarning, match="output_attentions=True gives no maps inside a recording")
    with told as found, sinkscope.recording(diffusion, out=out), torch.no_grad():
        maps = [diffusion.network(IDS, output_attentions=True).attentions for _ in range(2)]
    assert len(found) == 1 and not any(maps)
