"""The lens: equal to dense recomputations, to TransformerLens and tuned-lens, and to what is known beforehand."""

import dataclasses
import json
import math
from itertools import pairwise
from pathlib import Path

import _networks_by_hand
import numpy as np
import pytest
import torch
from small_llama import TOKENS, small_llama

import sinkscope
from sinkscope.errors import CallError, ModelError
from sinkscope.figures.lens_figure import draw_lens
from sinkscope.lenses import TunedLens, fit_lens, open_lens
from sinkscope.lenses.comparison import NUMBERS
from sinkscope.lenses.pairs import PAIRS, final_canvas, pair_up
from sinkscope.lenses.readout import blocks_of, read, readout, streams_of
from sinkscope.statistics.intervals import Means

FIXTURE = json.loads((Path(__file__).parent / "fixtures" / "small_llama.json").read_text())
MODELS = ("lab-diffusion", "lab-autoregressive", "lab-shifted")


@pytest.fixture(scope="module", params=MODELS)
def written(request, tmp_path_factory):
    """A bundled model and a trace of it."""
    model, folder = sinkscope.load(request.param), tmp_path_factory.mktemp("lens") / "trace"
    with sinkscope.recording(model, out=folder):
        sinkscope.generate(model, "Q: Tom has 7 apples and buys 5 more. How many apples are left?\nA:", length=24)
    return model, sinkscope.open_trace(folder)


@torch.no_grad()
def dense(model, tokens):
    """Log-probabilities [layer, position, vocabulary], by transformers' hidden states and the modules' names."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    states = model.network.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[1:-1]
    logits = [model.network.lm_head(model.network.model.norm(one))[0] for one in states]
    return torch.log_softmax(torch.stack([*logits, model.network(input_ids=ids).logits[0]]), -1)


def test_readouts_are_those_of_the_dense_computation(written):
    model, trace = written
    tokens = trace.tokens[trace.steps // 2][: int(trace.lengths[trace.steps // 2])]
    blocks, rows = blocks_of(model), np.array([1, 5, 9, 16])
    streams = streams_of(model, blocks, tokens)[:, rows]
    wanted = np.array([[3, 8], [0, -1], [11, 2], [7, 7]])
    said, found = dense(model, tokens)[:, rows], readout(model, blocks, streams, wanted)
    torch.testing.assert_close(read(model, blocks, streams).log_softmax(-1), said, atol=2e-4, rtol=1e-4)
    np.testing.assert_allclose(found.entropy, -(said.exp() * said).sum(-1), atol=1e-4)
    np.testing.assert_allclose(found.kl, (said[-1].exp() * (said[-1] - said)).sum(-1).clamp(min=0), atol=2e-4)
    assert not found.kl[-1].round(5).any()
    assert (found.top == said.argmax(-1).numpy()).all()
    for row, (first, second) in enumerate(wanted):
        assert (found.rank[:, row, 0] == (said[:, row] > said[:, row, first, None]).sum(-1).numpy() + 1).all()
        assert np.isnan(found.rank[:, row, 1]).all() == (second < 0)


def test_numbers_of_groups_are_means_over_their_rows(written):
    """All of one canvas again, from the trace, in loops."""
    model, trace = written
    step, shift = trace.steps - 1, model.family.causal or model.family.shift
    found = sinkscope.lens(model, trace, every=1 if trace.causal else trace.steps)  # the last, or the first
    step = trace.steps - 1 if trace.causal else 0
    said, final = dense(model, trace.tokens[step][: int(trace.lengths[step])]), final_canvas(trace)
    assert found.predicts == ("next" if shift else "here")
    tracks = sinkscope.track(sinkscope.find_sinks(trace))
    place = "written" if trace.causal else "masked"
    group, prompt = found.of(place), trace.manifest["prompt_length"]
    mains = tracks.main[step][tracks.main[step] >= prompt]
    sinks = sorted(set(mains.tolist()), key=lambda one: (-(mains == one).sum(), one))[:PAIRS]
    assert found.canvases == 1
    assert group.positions <= len(sinks)
    if group.positions == len(sinks):  # all have a match
        entropy = -(said[:, sinks].exp() * said[:, sinks]).sum(-1).mean(-1)
        np.testing.assert_allclose(group.means["entropy"].mean, entropy, atol=1e-4)
        agreement = [said[:, one].argmax(-1).numpy() == final[one + shift] for one in sinks if final[one + shift] >= 0]
        np.testing.assert_allclose(group.means[f"agreement.{found.predicts}"].mean, np.mean(agreement, axis=0))
        ranks = [(said[:, one] >= said[:, one, final[one], None]).sum(-1).numpy() for one in sinks]
        np.testing.assert_allclose(group.means["rank.here"].mean, np.exp(np.mean(np.log(ranks), axis=0)), rtol=1e-6)
    else:
        assert found.alone


def test_intervals_are_over_prompts_or_steps(written):
    model, trace = written
    one, several = sinkscope.lens(model, trace, every=4), sinkscope.lens(model, [trace] * 5, every=4)
    assert (one.over, several.over) == ("steps", "prompts")
    for group in (group for group in several.groups if group.kind == "sink"):
        entropy, once = group.means["entropy"], one.of(group.place).means["entropy"]
        np.testing.assert_allclose(entropy.mean, once.mean, atol=0.05)  # the one that is alone is drawn
        assert (entropy.low <= entropy.mean).all() and (entropy.mean <= entropy.high).all()
    difference = one.of("prompt", "difference").means["kl"].mean
    kinds = (one.of("prompt", kind).means["kl"].mean for kind in ("sink", "match"))
    np.testing.assert_allclose(difference, np.subtract(*kinds), atol=1e-9)


def test_a_canvas_that_did_not_change_goes_through_the_network_once(tmp_path, monkeypatch):
    model, given = sinkscope.load("lab-shifted"), []
    with sinkscope.recording(model, out=tmp_path / "trace"):
        sinkscope.generate(model, "Q: Tom has 7 apples.\nA:", length=12, steps=24)
    trace = sinkscope.open_trace(tmp_path / "trace")
    monkeypatch.setattr(
        "sinkscope.lenses.comparison.streams_of",
        lambda model, blocks, tokens: (given.append(tokens), streams_of(model, blocks, tokens))[1],
    )
    found = sinkscope.lens(model, trace)
    changes = 1 + (np.diff(np.asarray(trace.tokens), axis=0) != 0).any(-1).sum()
    assert found.canvases == trace.steps > changes >= len(given) > changes / 2
    assert all((one != other).any() for one, other in pairwise(given))


def test_the_published_lenses_say_the_same(autoregressive):
    """Fixture: TransformerLens 4.3.0 and tuned-lens 0.2.0 on the same weights, the affine maps drawn by NumPy too."""
    model = dataclasses.replace(autoregressive, network=small_llama())
    blocks, rng = blocks_of(model), np.random.default_rng(2)
    streams, nothing = streams_of(model, blocks, TOKENS), np.full((len(TOKENS), 1), -1)
    drawn = [torch.from_numpy(rng.normal(0, 0.1, shape)).float() for shape in ((24, 24), (24,)) * 2]
    affine = TunedLens(torch.stack(drawn[::2]), torch.stack(drawn[1::2])[:, None], "", "")
    for name, tuned in (("transformer_lens", None), ("tuned_lens", None), ("tuned_lens_affine", affine)):
        found, theirs = readout(model, blocks, streams, nothing, tuned), FIXTURE[name]
        np.testing.assert_allclose(found.entropy, theirs["entropy"], atol=1e-5)
        np.testing.assert_allclose(found.kl, theirs["kl"], atol=1e-5)
        logits = read(model, blocks, streams if tuned is None else tuned(streams)).detach()
        np.testing.assert_allclose(logits[:, -1, :6], theirs["logits"], atol=1e-5)


@pytest.mark.parametrize("kind", ["idle", "broadcast by a copier"])
def test_what_a_network_set_by_hand_stores_is_read_where_it_stores_it(tmp_path, kind):
    """One layer copies the source's letter to all other tokens, or nothing: elsewhere all tokens are as likely."""
    model, (layer, _), prompts = _networks_by_hand.make(tmp_path, kind, layers=3, heads=4, seed=1)
    tokens, blocks, uniform = np.array(prompts[0]), blocks_of(model), math.log(model.card.vocabulary)
    source = (tokens == _networks_by_hand.SOURCE) | (tokens >= _networks_by_hand.FIRST_LETTERED)
    assert layer > 0 and source.sum() == 1
    found = readout(model, blocks, streams_of(model, blocks, tokens), np.full((len(tokens), 1), -1))
    np.testing.assert_allclose(found.entropy[:layer], uniform, atol=1e-5)
    if kind == "idle":
        assert (found.entropy[layer:] > uniform - 0.05).all()
    else:
        assert len({*found.top[layer:, ~source].ravel().tolist()}) == 1
        assert found.entropy[layer:, ~source].max() < 1 < found.entropy[layer:, source].min()  # it gives, others hold


def test_pairs_are_alike_and_as_near_as_can_be():
    rng = np.random.default_rng(0)
    for _ in range(50):
        heads, sinks, place, open_ = (rng.integers(0, high, 40) for high in (3, 2, 3, 2))
        sinks, open_ = (sinks > 0) | (heads > 0), open_ > 0
        pairs = pair_up(heads, sinks, place, open_, rng)
        assert len({*pairs.match.tolist()}) == len(pairs.match) and not sinks[pairs.match].any()
        assert (place[pairs.sink] == place[pairs.match]).all() and (open_[pairs.sink] == open_[pairs.match]).all()
        assert (np.bincount(pairs.place, minlength=3) <= PAIRS).all()
        first = np.flatnonzero(~sinks & (place == pairs.place[0]) & (open_ == open_[pairs.sink[0]]))
        assert abs(pairs.match[0] - pairs.sink[0]) == np.abs(first - pairs.sink[0]).min()
    alone = pair_up(np.array([1, 0]), np.array([True, True]), np.zeros(2, int), np.zeros(2, bool), rng)
    assert (len(alone.sink), alone.alone) == (0, 1)


def test_tokens_around_a_mask_are_those_that_are_not_yet_written():
    pairs = pair_up(
        np.array([0, 1, 0, 0]), np.arange(4) == 1, np.array([2, 0, 0, 2]), np.zeros(4, bool), np.random.default_rng(0)
    )
    masked, canvas = np.array([False, True, True, False, False]), np.array([10, 11, 12, 13])
    assert pairs.tokens(canvas, masked).tolist() == [[-1, 11, 12], [11, 12, -1]]


def test_a_tuned_lens_begins_as_the_logit_lens_and_comes_nearer_to_the_final_prediction(tmp_path, diffusion):
    model = sinkscope.load("lab-diffusion")
    texts = [f"Q: Tom has {one} apples and buys 5 more. How many apples are left?\nA: {one} + 5" for one in range(1, 9)]
    none = fit_lens(model, texts, updates=0)
    fitted = fit_lens(model, texts, updates=25, seed=0)
    assert none.kl == pytest.approx(none.kl_before) and fitted.kl_before == none.kl_before
    assert sum(fitted.kl) < 0.8 * sum(fitted.kl_before)
    assert all(one.grad is None for one in model.network.parameters())
    fitted.save(tmp_path / "lens")
    again = open_lens(tmp_path / "lens", model)
    assert torch.equal(again.weight, fitted.weight) and torch.equal(again.bias, fitted.bias)
    with pytest.raises(CallError, match="other weights"):
        open_lens(tmp_path / "lens", diffusion)
    with pytest.raises(CallError, match="no tuned lens"):
        open_lens(tmp_path, model)


def test_refusals(written, diffusion):
    model, trace = written
    with pytest.raises(CallError, match="was written by weights"):
        sinkscope.lens(diffusion, trace)
    with pytest.raises(CallError, match="every"):
        sinkscope.lens(model, trace, every=0)
    with pytest.raises(ModelError, match="one residual stream"):
        streams_of(model, blocks_of(model)[:-1], np.arange(12))


def test_the_command_says_first_what_sinks_predict(written, tmp_path, run):
    model, trace = written
    status, out, _ = run("lens", trace.folder, "--every", 6, "--out", tmp_path / "lens.svg")
    found = sinkscope.lens(model, trace.folder, every=6)
    assert status == 0 and " ".join(out.split()).startswith(found.headline())
    place = found.groups[0].place if found.of("masked") else max(found.groups, key=lambda one: one.positions).place
    assert found.headline().startswith(f"at {place} sinks layer {3 * model.card.layers // 4} of ")
    assert (tmp_path / "lens.svg").read_text().count("matched positions without a sink")
    rows = draw_lens(found.as_dict()).rows
    assert {row[3] for row in rows} == {"entropy", "kl", f"agreement.{found.predicts}"} < {*NUMBERS}


def test_the_command_fits_a_lens_and_reads_with_it(tmp_path, run, monkeypatch):
    monkeypatch.setattr("sinkscope.commands.lens.UPDATES", 2)
    texts, folder = tmp_path / "texts.jsonl", tmp_path / "lens"
    texts.write_text("".join(json.dumps({"text": f"Q: Tom has {one} apples.\nA: {one}"}) + "\n" for one in range(8)))
    assert run("lens", "--fit", texts, "--model", "lab-autoregressive", "--out", folder)[1].startswith(str(folder))
    run("trace", "lab-autoregressive", "--out", tmp_path / "trace", "--length", 8)
    assert json.loads(run("lens", tmp_path / "trace", "--tuned", folder, "--json")[1])["tuned"]
    assert run("lens")[0] == run("lens", "--fit", texts)[0] == 2


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(-0.1, 0.2, "no different from"), (0.1, 0.3, "in 50.0 %"), (np.nan, np.nan, "too few steps")],
)
def test_the_headline_hedges_where_the_interval_of_the_difference_holds_nothing(written, low, high, words):
    model, trace = written
    found = sinkscope.lens(model, trace, every=8)
    numbers = {"sink": (0.5, np.nan, np.nan), "match": (0.4, np.nan, np.nan), "difference": (0.1, low, high)}
    groups = tuple(
        dataclasses.replace(
            one,
            means={
                f"agreement.{found.predicts}": Means(*(np.full(6, end) for end in numbers[one.kind]), np.full(6, 9))
            },
        )
        for one in found.groups
    )
    said = dataclasses.replace(found, groups=groups).headline()
    assert words in said and ("no different" in said) == (low < 0)
    assert "nothing can be compared" in dataclasses.replace(found, groups=()).headline()
