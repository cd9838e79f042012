"""Block diffusion behind a cache in every command: what works, and what is refused."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hostile import trial

sys.path.append(str(Path(__file__).parents[1] / "models"))

from tiny import save_tiny
from tiny_tokenizers import save_sdar_tokenizer

import sinkscope

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9]
WRITE = ["--length", "8", "--seed", "3"]


@pytest.fixture(scope="module")
def sdar(tmp_path_factory):
    trial.warm_up()
    return save_sdar_tokenizer(save_tiny("sdar", tmp_path_factory.mktemp("sdar") / "model"))


@pytest.fixture(scope="module")
def recorded(sdar, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdar") / "trace"
    with sinkscope.recording(model := sinkscope.load(sdar), out=folder):
        sinkscope.generate(model, PROMPT, length=8, seed=3)
    return folder


def test_every_map_of_a_trace_has_the_columns_that_were_recorded(sdar, recorded):
    from sinkscope.recorder.attention_map import recompute_map

    model, trace = sinkscope.load(sdar), sinkscope.open_trace(recorded)
    for step in range(trace.steps):
        length = int(trace.lengths[step])
        found = recompute_map(model, trace, step, 1, 2)
        np.testing.assert_allclose(found.attention.sum(0), trace.column_sums[step, 1, 2, :length], atol=2e-4)
        np.testing.assert_allclose(found.attention.sum(1), 1, atol=1e-4)
        assert not found.attention[:4, 4:].any() and found.attention[4:8, 8:].sum() == 0


def test_maps_are_shown_and_kept(sdar, recorded, tmp_path):
    shown = trial.run(
        "map", str(recorded), "--step", "3", "--layer", "1", "--head", "2", "--model", str(sdar), "--json"
    )
    assert shown.status == 0, shown.err
    assert np.array(json.loads(shown.out)["map"]).sum(0)[0] > 0
    out = tmp_path / "out"
    kept = trial.run("trace", str(sdar), "--prompt", "a b c", *WRITE, "--keep-maps", "0:0:0,4:2:1", "--out", str(out))
    assert kept.status == 0 and len([*out.glob("map-*")]) == 2, kept.err
    drawn = trial.run("figures", str(recorded), "--only", "8", "--model", str(sdar), "--out", str(tmp_path / "figures"))
    assert drawn.status == 0 and [*(tmp_path / "figures").glob("figure8*")], drawn.err


def test_a_dry_run_counts_the_calls_that_are_made(sdar, tmp_path):
    outcome = trial.run("evaluate", str(sdar), "--dry-run", "--limit", "1", "--shots", "0", "--length", "12", "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["total"]["forwards"] == 1 + 3 * (4 + 1)
    longer = shutil.copytree(sdar, tmp_path / "longer")
    config = json.loads((longer / "config.json").read_text())
    (longer / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    for task in ("gsm8k", "humaneval"):
        outcome = trial.run("evaluate", str(longer), "--dry-run", "--tasks", task, "--allow-code-execution")
        assert outcome.status == 0, outcome.err


@pytest.mark.parametrize("prompt", [8, 9, 11])
@pytest.mark.parametrize("length", [4, 8, 9])
def test_no_generation_makes_more_calls_than_its_settings_say(sdar, prompt, length):
    from sinkscope.decoding import resolve_settings

    model = sinkscope.load(sdar)
    written = sinkscope.generate(model, PROMPT[:8] + [5] * (prompt - 8), length=length, remasking="static", seed=1)
    assert length < written.steps <= resolve_settings(model.family, length=length).most_calls


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["compare-caches", "--limit", "1", "--shots", "0"],
            "sdar has no setting 'cache': expected a model whose sampler takes a cache",
        ),
        (["compare-caches", "--dry-run"], "sdar has no setting 'cache': expected a model whose sampler takes a cache"),
        (["trace", "--prompt", "a b c", "--keep", "drift"], "that every step computes again, found sdar"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_what_cannot_be_is_refused_in_our_words(sdar, tmp_path, words, says):
    out = tmp_path / "out"
    outcome = trial.run(words[0], str(sdar), *words[1:], "--length", "8", "--out", str(out))
    assert trial.faults(outcome, out=out) == [] and says in outcome.err, outcome
