"""Numbers that would look right: weights of NaN, measurements of other weights, maps of another step."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import trial
from safetensors.torch import load_file, save_file

import sinkscope
from sinkscope.errors import ModelError
from sinkscope.runs.files import sha256_of, with_checksum

sys.path.append(str(Path(__file__).parents[1] / "models"))

from tiny import save_tiny
from tiny_tokenizers import save_sdar_tokenizer

SNAPSHOT = "snapshots/update-000000.safetensors"


def test_logits_that_are_not_finite_are_an_error_that_names_the_step(place):
    model = sinkscope.load(place / "model")
    with torch.no_grad():
        model.network.lm_head.weight[5] = float("nan")  # a file with it is refused
    with pytest.raises(ModelError, match="model, step 0: expected finite logits, found nan; its weights are damaged"):
        sinkscope.generate(model, "Q: Tom\nA:", length=4, steps=4, block=4)


def test_the_moments_of_another_training_are_refused(place):
    """Two runs of one name would share a folder, and the second one's measurements would be the first one's."""
    run, other = place / "textrun", shutil.copytree(place / "textrun", place / "a/textrun")
    words = ["watch-training", "--data", place / "corpus", "--canvases", "2", "--out", place / "out"]
    outcome = trial.run(*words, run, other)
    assert outcome.refused and "found one of them twice" in outcome.err, outcome
    assert trial.run(*words, run).status == 0
    weights = load_file(run / SNAPSHOT)
    next(iter(weights.values()))[0] += 1
    save_file(weights, other / SNAPSHOT)
    outcome = trial.run(*words, other)
    assert outcome.refused and "expected the moment of these weights, found others" in outcome.err, outcome


def test_a_corpus_that_changed_since_the_run_began(place):
    words = ["train", "lab-text-diffusion", "--data", place / "corpus", "--out", place / "textrun"]
    assert trial.run(*words).status == 0
    manifest, path = json.loads((place / "corpus/corpus.json").read_text()), place / "corpus/train.bin"
    np.fromfile(path, "<u2")[::-1].tofile(path)
    manifest["files"]["train.bin"] = sha256_of(path)
    (place / "corpus/corpus.json").write_text(json.dumps(with_checksum(manifest)))
    outcome = trial.run(*words)
    assert outcome.refused and "holds a run of another recipe (data 'corpus sha256:" in outcome.err, outcome


def test_every_map_behind_a_cache_of_blocks_has_the_columns_that_were_recorded(tmp_path):
    from sinkscope.decoding import resolve_settings
    from sinkscope.recorder.attention_map import recompute_map

    model = sinkscope.load(save_sdar_tokenizer(save_tiny("sdar", tmp_path / "model")))
    with sinkscope.recording(model, out=tmp_path / "trace"):
        sinkscope.generate(model, [3, 14, 15, 9, 26, 5, 35, 8, 9], length=8, seed=3)
    trace = sinkscope.open_trace(tmp_path / "trace")
    assert 8 < trace.steps <= resolve_settings(model.family, length=8).most_calls
    for step in range(trace.steps):
        length = int(trace.lengths[step])
        found = recompute_map(model, trace, step, 1, 2)
        np.testing.assert_allclose(found.attention.sum(0), trace.column_sums[step, 1, 2, :length], atol=2e-4)
        np.testing.assert_allclose(found.attention.sum(1), 1, atol=1e-4)
        assert not found.attention[:4, 4:].any() and found.attention[4:8, 8:].sum() == 0
