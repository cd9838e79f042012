"""Sinks along a training: every number against a dense version, the folder of a watched run, and ways to fill it."""

import csv
import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from closeness import assert_close, terms_of

import sinkscope
from sinkscope.emergence import TrainingWatch, hold_out, measure, open_emergence
from sinkscope.emergence.history import Emergence, Moment
from sinkscope.errors import CallError, TrainingError
from sinkscope.figures.run_figures import draw_emergence
from sinkscope.interventions import HideTopSinks
from sinkscope.lab.canvases import CanvasMix, draw_nulls
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.run_folder import held_out_rows, network_at, open_run
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.texts import LongText, make_corpus, open_corpus
from sinkscope.lab.training import train, train_checkpoint
from sinkscope.models.loading import model_of
from sinkscope.roles.probes import predictions

SHAPE = Architecture(layers=2, hidden_size=24, heads=4, kv_heads=2, intermediate_size=40, max_positions=96, tied=True)
KINDS = {"causal": "lab-text-autoregressive", "diffusion": "lab-text-diffusion"}
LENGTH, MASK = 40, 2
BOOK = " ".join(
    f"Chapter {number}: the {'old ' * (number % 3)}whale swam {number} miles, and Ishmael slept."
    for number in range(200)
)


def recipe(kind, **changes):
    mix = CanvasMix(tokens=2 * LENGTH, lengths=(LENGTH,), weights=(1.0,))
    given = {"architecture": SHAPE, "canvases": mix, "updates": 4, "autocast": False, "snapshots": (0, 2, 4), **changes}
    return dataclasses.replace(RECIPES[KINDS[kind]], **given)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    texts = [LongText("Whales", BOOK), LongText("Held out", BOOK[1000:6000], held_out=True)]
    folder = tmp_path_factory.mktemp("corpora") / "whales"
    return open_corpus(make_corpus(texts, folder, vocabulary=400, source="a test", progress=False))


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def network_and_canvases(kind, corpus, count=3):
    network = build_network(recipe(kind), corpus.tokenizer())
    tokens, predictable = held_out_rows(recipe(kind), corpus.tokenizer(), corpus, count)
    return network, hold_out(tokens, predictable, mask_id=None if kind == "causal" else MASK)


def test_every_number_of_a_moment_equals_a_dense_version(kind, corpus):
    network, canvases = network_and_canvases(kind, corpus)
    found, values, terms = measure(model_of(network), canvases), [], terms_of(network, LENGTH)
    for layer in network.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda m, i, o: values.append(o[0]))
    for number, one in enumerate(canvases):
        values.clear()
        with torch.no_grad():
            said = network(torch.from_numpy(one.probe.tokens)[None], output_attentions=True, use_cache=False)
        maps, readers = torch.stack(said.attentions)[:, 0], torch.from_numpy(one.probe.readers)
        columns, rows = maps.sum(2), maps[:, :, readers].mean(2)  # [layer, head, key]
        seen = torch.ones(LENGTH, LENGTH).tril() if kind == "causal" else torch.ones(LENGTH, LENGTH)
        over = columns - (seen / seen.sum(1, keepdim=True)).sum(0)
        main, masks = over.argmax(-1), torch.from_numpy(one.probe.tokens) == MASK
        norms = torch.stack(values).view(2, LENGTH, 2, -1).norm(dim=-1).permute(0, 2, 1).repeat_interleave(2, 1)
        assert (found.place[number] == main.numpy()).all()
        assert_close(found.share[number], rows.gather(-1, main[..., None])[..., 0], terms=terms)
        assert_close(found.first_share[number], rows[..., 0], terms=terms)
        assert_close(found.masks_share[number], rows[..., masks].sum(-1), terms=terms)
        at_main = norms.gather(-1, main[..., None])[..., 0].numpy()
        assert_close(found.value_ratio[number], at_main / np.median(norms.numpy(), axis=-1), terms=terms)
        assert_close(found.loss[number], loss_of(said.logits[0, readers], one), terms=terms)
        assert (found.sinks[number] == (over * LENGTH / (LENGTH - 1) > 3).sum(-1).numpy()).all()


def loss_of(logits, canvas):
    return F.cross_entropy(logits.float(), torch.from_numpy(canvas.targets))


def test_the_main_key_of_every_head_is_hidden_from_the_readers_alone(kind, corpus):
    network, canvases = network_and_canvases(kind, corpus, 1)
    one = canvases[0]
    found = measure(model_of(network), canvases)
    readers = torch.from_numpy(one.probe.readers)
    first = int(readers.nonzero()[0])
    hidden_from = torch.arange(LENGTH) >= first if kind == "causal" else readers

    def attend(module, query, key, value, attention_mask, scaling, **others):
        key, value = (part.repeat_interleave(2, 1) for part in (key, value))
        scores = query @ key.mT * scaling
        if kind == "causal":
            scores = scores + torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
        main = scores.softmax(-1).sum(2)[0].argmax(-1)  # of this layer, with nothing hidden in it
        for head, at in enumerate(main):
            scores[0, head, hidden_from, at] = -torch.inf
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("dense_for_a_test", attend)
    network.config._attn_implementation = "dense_for_a_test"
    with torch.no_grad():
        said = network(torch.from_numpy(one.probe.tokens)[None], use_cache=False).logits[0, readers]
    assert_close(found.loss_without_top[0], loss_of(said, one), terms=terms_of(network, LENGTH))
    assert found.loss_without_top[0] != found.loss[0] != found.loss_without_rowmass[0]


def test_measuring_leaves_the_network_and_the_random_state_as_they_are(corpus):
    network, canvases = network_and_canvases("causal", corpus)
    network.train()
    before, state = {name: one.clone() for name, one in network.state_dict().items()}, torch.get_rng_state()
    frozen = network.model.layers[0].eval()
    measure(model_of(network), canvases)
    assert [part for part in network.modules() if not part.training] == list(frozen.modules())
    assert (torch.get_rng_state() == state).all() and network.config._attn_implementation == "eager"
    assert all((one == before[name]).all() for name, one in network.state_dict().items())


def test_half_of_what_may_be_predicted_is_masked_and_the_last_quarters_are_read():
    rows = [np.arange(10, 210)] * 2
    free = np.arange(200) >= 50
    for one in hold_out(rows, [free] * 2, mask_id=MASK):
        masked = one.probe.tokens == MASK
        assert not masked[:50].any() and 50 < masked.sum() < 100 and (one.targets == rows[0][masked]).all()
        assert (one.probe.readers == masked).all() and one.queries == "masked"
    shifted = hold_out(rows, mask_id=MASK, shift=True)[0]
    assert (np.flatnonzero(shifted.probe.readers) + 1 == np.flatnonzero(shifted.probe.tokens == MASK)).all()
    causal = hold_out(rows, mask_id=None)[0]
    assert (
        causal.queries == "50-198" and (causal.targets == rows[0][51:]).all() and (causal.probe.tokens == rows[0]).all()
    )
    assert hold_out([np.arange(512)], mask_id=None)[0].queries == "64-510"
    with pytest.raises(CallError, match="canvas 0 has 1 tokens and nothing to predict"):
        hold_out([np.arange(1)], mask_id=None)


def test_canvases_for_another_kind_of_network_are_refused(kind, corpus, tmp_path):
    network = build_network(recipe(kind), corpus.tokenizer())
    canvases = hold_out([np.arange(10, 10 + LENGTH)], mask_id=MASK if kind == "causal" else None)
    message = "is an autoregressive" if kind == "causal" else rf"mask_id={MASK}\), because .* is a diffusion"
    with pytest.raises(CallError, match=message):
        TrainingWatch(network, canvases, tmp_path / "watch", every=1)
    assert not (tmp_path / "watch").exists()


def moment(share, place, loss=1.0):
    shares = np.full((2, 1, 2), share, np.float32)
    whole = np.full(2, loss, np.float32)
    places = np.array(place, np.int32)
    return Moment(whole, whole, whole, places, shares, shares, shares, shares, shares, places)


def test_the_readers_stand_in_the_rules_of_a_shifted_and_of_a_patchy_canvas():
    model = sinkscope.load("lab-shifted")
    text = "Q: Tom has 3 apples. How many apples does Tom have now?\nA: 3"
    (one,) = hold_out([model.encode(text)], mask_id=model.card.mask_id, shift=True)
    assert read_queries(one.queries) == np.flatnonzero(one.probe.readers).tolist()
    with HideTopSinks(1, observe="current", queries=np.flatnonzero(one.probe.readers))(model):
        said = predictions(model, torch.from_numpy(one.probe.tokens)[None], torch.from_numpy(one.probe.readers))[0]
    expected = -said[torch.arange(len(one.targets)), torch.from_numpy(one.targets)].mean()
    assert_close(
        torch.tensor(measure(model, [one]).loss_without_top[0]),
        expected,
        terms=terms_of(model.network, len(one.probe.tokens)),
    )
    with pytest.raises(
        CallError, match=r"shift=True\), because lab-shifted is .*, found one of other masks or another shift"
    ):
        measure(model, hold_out([np.arange(10, 50)], mask_id=model.card.mask_id))
    (gaps,) = hold_out([np.arange(10, 50)], [np.arange(40) % 2], mask_id=None)
    assert read_queries(gaps.queries) == np.flatnonzero(gaps.probe.readers).tolist() and len(gaps.targets) > 5


def read_queries(text):
    return list(sinkscope.parse_rule(f"top:1@queries={text}").queries)


def test_a_moment_of_other_weights_is_measured_again(corpus, tmp_path):
    network, canvases = network_and_canvases("diffusion", corpus)
    watch = TrainingWatch(network, canvases, tmp_path / "watch", every=1)
    assert watch(1) and not watch(1)
    before = open_emergence(tmp_path / "watch").stacked("loss")
    with torch.no_grad():
        network.model.embed_tokens.weight.mul_(1.5)
    with pytest.warns(RuntimeWarning, match="held update 1 of other weights, so it is measured again"):
        assert TrainingWatch(network, canvases, tmp_path / "watch", every=1)(1)
    after = open_emergence(tmp_path / "watch").stacked("loss")
    np.testing.assert_array_equal(after[0], measure(model_of(network), canvases).loss)
    assert not np.array_equal(before, after)


def test_a_sink_is_born_when_it_has_come_to_stay():
    moments = (moment(0.2, [[[0, 1]], [[0, 1]]]), moment(0.05, [[[0, 2]], [[0, 1]]]), moment(0.3, [[[0, 2]], [[0, 3]]]))
    run = Emergence({"name": "by hand", "layers": 1, "heads": 2, "canvases": 2}, (0, 10, 100), moments)
    assert (
        run.born().tolist() == [[100, 100]]
        and run.born(0.5).tolist() == [[-1, -1]]
        and run.born(0.04).tolist() == [[0, 0]]
    )
    assert np.isnan(run.stayed[0]).all() and run.stayed[1:].tolist() == [[[1.0, 0.5]], [[1.0, 0.5]]]


def test_a_folder_goes_on_refuses_other_runs_and_says_what_is_damaged(corpus, tmp_path):
    network, canvases = network_and_canvases("causal", corpus)
    folder = tmp_path / "watch"
    watch = TrainingWatch(network, canvases, folder, every=2, name="mine")
    assert [watch(update) for update in (1, 2, 3, 4)] == [False, True, False, True]
    again = TrainingWatch(network, canvases, folder, every=2, name="mine")
    assert not again(4) and again(6)
    found, direct = open_emergence(folder), measure(model_of(network), canvases)
    assert found.updates == (2, 4, 6) and found.name == "mine" and found.manifest["causal"]
    assert (found.stacked("share") == direct.share).all() and found.moments[0].role is None
    with pytest.raises(CallError, match="holds another run: its name is 'mine', now it is 'another'"):
        TrainingWatch(network, canvases, folder, every=2, name="another")
    with pytest.raises(CallError, match="holds another run: its canvases is 3, now it is 2"):
        TrainingWatch(network, canvases[:2], folder, every=2, name="mine")
    path = folder / "update-000004.safetensors"
    renamed = path.rename(path.with_name("update-000005.safetensors"))
    with pytest.raises(TrainingError, match="expected update 5, as its name says, found 4"):
        open_emergence(folder)
    renamed.rename(path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrainingError, match="expected the tensors whose sha256 it holds"):
        open_emergence(folder)
    with pytest.raises(CallError, match=r"expected the folder of a watched training, with its manifest\.json"):
        open_emergence(tmp_path)


def test_moments_of_other_weights_in_files_are_refused(corpus, tmp_path):
    network, canvases = network_and_canvases("diffusion", corpus)
    assert TrainingWatch(network, canvases, tmp_path / "watch", every=1, weights=("a" * 64,))(1)
    assert not TrainingWatch(network, canvases, tmp_path / "watch", every=1, weights=("a" * 64,))(1)
    with pytest.raises(CallError, match="expected the moment of these weights, found others"):
        TrainingWatch(network, canvases, tmp_path / "watch", every=1, weights=("b" * 64,))(1)


def test_transformers_trainer_calls_it_before_the_first_step_and_after_the_chosen_ones(corpus, tmp_path):
    network, canvases = network_and_canvases("causal", corpus)
    callback = TrainingWatch(network, canvases, tmp_path / "watch", updates=(0, 2)).trainer_callback()
    callback.on_train_begin(None, SimpleNamespace(global_step=0), None)
    for step in (1, 2, 3):
        callback.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert open_emergence(tmp_path / "watch").updates == (0, 2)


def test_roles_are_found_on_the_same_canvases(tmp_path):
    model = sinkscope.load("lab-nulls-autoregressive-4-0")
    drawn = draw_nulls(dataclasses.replace(RECIPES["lab-nulls-autoregressive-4"].nulls, rows=24), -1, 0)
    canvases = hold_out(list(drawn.tokens.numpy()), list((drawn.answers >= 0).numpy()), mask_id=None)
    assert measure(model, canvases, roles=True).role.tolist() == [[0]]
    with pytest.raises(CallError, match="found 12 and 0"):
        TrainingWatch(model.network, canvases[::2], tmp_path / "watch", every=1, roles=True)


def test_roles_of_moments_that_were_measured_without_them_are_found(corpus, tmp_path):
    network, canvases = network_and_canvases("diffusion", corpus, count=10)
    assert TrainingWatch(network, canvases, tmp_path / "watch", every=1)(1)
    watch = TrainingWatch(network, canvases, tmp_path / "watch", every=1, roles=True)
    assert watch(1) and not watch(1)
    assert open_emergence(tmp_path / "watch").stacked("role").shape == (1, 2, 4)


@pytest.mark.slow
def test_a_run_is_measured_from_its_snapshots(kind, corpus, run, tmp_path):
    network, out = {}, tmp_path / "out"
    watch = lambda given, update: network.__setitem__(update, given)  # noqa: E731
    train_checkpoint(recipe(kind), tmp_path / "run", texts=corpus, watch=watch)
    assert sorted(network) == [0, 1, 2, 3, 4]
    call = ("watch-training", tmp_path / "run", "--data", corpus.folder, "--out", out, "--canvases", "2")
    status, _, err = run("watch-training", tmp_path / "run", "--out", out)
    assert status == 2 and f"{tmp_path}/run was trained on {corpus.fingerprint}" in err
    status, printed, _ = run(*call, "--json")
    (one,) = json.loads(printed, parse_constant=pytest.fail)["runs"]  # NaN is no JSON
    assert status == 0 and one["canvases"] == 2
    assert [moment["update"] for moment in one["moments"]] == [0, 2, 4]
    opened = open_emergence(out / "run")
    assert np.allclose([moment["loss"] for moment in one["moments"]], opened.stacked("loss").mean(1))
    with (out / "emergence.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 2 * 4
    for row in rows:
        at = opened.updates.index(int(row["update"])), int(row["layer"]), int(row["head"])
        assert float(row["share"]) == pytest.approx(opened.shares[at])
    status, printed, _ = run("watch-training", out / "run", "--out", tmp_path / "again")
    assert status == 0 and "held-out loss" in printed and len(printed.splitlines()) == 2 + 3 + 3
    shutil.copytree(out / "run", tmp_path / "twin")
    status, printed, _ = run("watch-training", out / "run", tmp_path / "twin", "--out", tmp_path / "both")
    assert status == 0 and f"{opened.name} (twin): held-out loss" in printed


@pytest.mark.slow
def test_train_watches_and_gives_the_same_weights(run, tmp_path):
    for name, more in (("plain", ()), ("watched", ("--watch", "1"))):
        run("train", "lab-nulls-autoregressive-1", "--updates", "2", "--out", tmp_path / name, *more)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "watched")]
    assert weights[0] == weights[1]
    assert open_emergence(tmp_path / "watched/watch").updates == (0, 1, 2)
    status, _, err = run("watch-training", tmp_path / "watched", "--canvases", "2", "--out", tmp_path / "out")
    assert status == 0 and f"{tmp_path}/watched/watch was measured while {tmp_path}/watched trained" in err


@pytest.mark.slow
def test_watching_a_finished_training_is_refused(run, tmp_path):
    call = ("train", "lab-nulls-autoregressive-1", "--updates", "2", "--out", tmp_path / "run")
    assert run(*call)[0] == 0
    status, _, err = run(*call, "--watch", "2")
    assert status == 2 and f"{tmp_path}/run is at update 2, and {tmp_path}/run/watch lacks update 0" in err


def test_a_snapshot_and_a_state_of_another_run_are_refused(corpus, tmp_path):
    def stop_after_three(network, done):
        if done == 3:
            raise KeyboardInterrupt

    folders = [tmp_path / "mine", tmp_path / "theirs"]
    recipes = [recipe("causal", seed=seed, save_every=2) for seed in range(2)]
    for one, folder in zip(recipes, folders, strict=True):
        with pytest.raises(KeyboardInterrupt):
            train(one, folder, texts=corpus, progress=False, watch=stop_after_three)
    mine, theirs = folders
    for name, use in (
        ("training-state", lambda: train(recipes[0], mine, texts=corpus, progress=False)),
        ("snapshots/update-000002", lambda: network_at(open_run(mine), 2, corpus.tokenizer())),
    ):
        path = mine / f"{name}.safetensors"
        kept = path.read_bytes()
        shutil.copy(theirs / f"{name}.safetensors", path)
        with pytest.raises(TrainingError, match=rf"{name}\.safetensors: expected weights of the run in .*mine, found"):
            use()
        path.write_bytes(kept)
        use()


def test_a_trace_is_told_from_a_training_run(run, tmp_path):
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "manifest.json").write_text('{"format": 1, "complete": true, "parts": []}')
    status, _, err = run("watch-training", tmp_path / "trace", "--out", tmp_path / "out")
    assert status == 1 and "expected the folder of a watched training" in err and not (tmp_path / "out").exists()


def test_a_figure_of_two_runs_has_a_line_for_each_head_and_says_what_it_shows():
    places, runs = [[[0, 1]], [[0, 1]]], []
    for name, share in (("none", 0.01), ("all", 0.4)):
        about = {"name": name, "layers": 1, "heads": 2, "canvases": 2}
        runs.append(Emergence(about, (0, 10), (moment(0.01, places), moment(share, places))))
    drawn = draw_emergence(runs)
    title = drawn.sheet.get_suptitle()
    assert "none: 0 of 2 heads give" in title and "all: 2 of 2 heads give one key 10%" in title
    assert "the first does from update 10 on" in title and len(drawn.rows) == 2 * 2 * 2
    assert [len(axes.get_lines()) for axes in drawn.sheet.axes] == [1, 1, 2, 2, 3, 3, 2, 2, 2, 2]


def test_a_bidirectional_qwen2_is_watched(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Qwen2Config(**sizes, **heads, mask_token_id=2, is_causal=False)
    network = transformers.Qwen2ForCausalLM(config)
    assert TrainingWatch(network, hold_out([range(3, 43)], mask_id=2), tmp_path / "watch", every=1)(1)
    assert open_emergence(tmp_path / "watch").shares.shape == (1, 2, 4)
