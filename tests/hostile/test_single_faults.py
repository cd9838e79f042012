"""Faults that were found one by one: bombs in the sandbox, separators in JSON lines, weights of NaN, changed corpora."""

import gzip
import json
import shutil

import numpy as np
import pytest
import torch
from hostile import trial
from safetensors.torch import load_file, save_file

import sinkscope
from sinkscope.errors import CallError, ModelError


def test_a_line_separator_does_not_end_a_line(tmp_path):
    from sinkscope.commands.trace import read_prompts
    from sinkscope.lab.texts import read_texts

    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b\x85c", "answer": "d"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_prompts(path) == ["a\u2028b\x85c"]
    assert read_texts(path).documents[0].prompt == "a\u2028b\x85c"


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    from sinkscope.commands.trace import read_prompts
    from sinkscope.lab.texts import read_texts
    from sinkscope.runs.files import read_json_object

    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"prompt": "a", "answer": "d"}\n', encoding="utf-8")
    assert read_prompts(path) == ["a"] and read_texts(path).documents[0].prompt == "a"
    assert read_json_object(path, CallError) == {"prompt": "a", "answer": "d"}


def test_data_of_a_task_may_be_in_gzip(tmp_path):
    """As HumanEval is published."""
    from sinkscope.evaluation.humaneval import FILES, HUB
    from sinkscope.evaluation.task_data import Source, text_fields

    path, row = tmp_path / "HumanEval.jsonl.gz", {"task_id": "0", "prompt": "a"}
    path.write_bytes(gzip.compress((json.dumps(row) + "\n").encode()))
    for given in (path, tmp_path):
        assert Source("humaneval", given, HUB, text_fields("task_id", "prompt"), FILES).rows("test") == (row,)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CallError, match=r"HumanEval.jsonl.gz: cannot be read"):
        Source("humaneval", path, HUB, text_fields("task_id", "prompt"), FILES).rows("test")


def test_logits_that_are_not_finite_are_an_error_that_names_the_step(place):
    model = sinkscope.load(place / "model")
    with torch.no_grad():
        model.network.lm_head.weight[5] = float("nan")  # a file with it is refused
    with pytest.raises(ModelError, match="model, step 0: expected finite logits, found nan; its weights are damaged"):
        sinkscope.generate(model, "Q: Tom\nA:", length=4, steps=4, block=4)


def test_roles_take_a_seed_of_the_sampler_and_one_of_the_control(place):
    words = f"roles {place}/model --out {place}/out --problems 10 --canvases 1 --length 4 --steps 4 --block 4 --seed 1 --control-seed 2"
    assert trial.run(*words.split()).status == 0


def test_figures_of_a_small_network_print_nothing_of_their_library(place):
    outcome = trial.run("figures", str(place / "statistics"), "--out", str(place / "out"))
    assert outcome.status == 0 and "Warning" not in outcome.err, outcome.err


@pytest.mark.parametrize("seed", [(1 << 62) - 1, 99999999999999])
def test_any_seed_trains(place, seed):
    outcome = trial.run("train", "lab-sink-token", "--seed", str(seed), "--out", str(place / "out"))
    assert outcome.status == 0, outcome.err


def _sealed_corpus(folder, change):
    """Change the tokens of a corpus, and its manifest as if they had been written so."""
    from sinkscope.runs.files import sha256_of, with_checksum

    manifest = json.loads((folder / "corpus.json").read_text())
    tokens = np.fromfile(folder / "train.bin", "<u2")
    change(tokens).tofile(folder / "train.bin")
    manifest["files"]["train.bin"] = sha256_of(folder / "train.bin")
    (folder / "corpus.json").write_text(json.dumps(with_checksum(manifest)))


def test_a_corpus_that_changed_since_the_run_began(place):
    words = ["train", "lab-text-diffusion", "--data", str(place / "corpus"), "--out", str(place / "textrun")]
    assert trial.run(*words).status == 0
    _sealed_corpus(place / "corpus", lambda tokens: tokens[::-1])
    outcome = trial.run(*words)
    assert trial.faults(outcome) == [] and "holds a run of another recipe (data 'corpus sha256:" in outcome.err, outcome


def test_the_moments_of_another_training_are_refused(place):
    """Two runs of one name would share a folder, and the second one's measurements would be the first one's."""
    shutil.copytree(place / "textrun", place / "a/textrun")
    words = ["watch-training", "--data", str(place / "corpus"), "--canvases", "2", "--out", str(place / "out")]
    outcome = trial.run(*words, str(place / "textrun"), str(place / "a/textrun"))
    assert trial.faults(outcome, out=place / "out") == [] and "found 'textrun' twice" in outcome.err, outcome
    assert trial.run(*words, str(place / "textrun")).status == 0
    weights = load_file(place / "textrun/snapshots/update-000000.safetensors")
    weights["lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"][0] += 1
    save_file(weights, place / "a/textrun/snapshots/update-000000.safetensors")
    outcome = trial.run(*words, str(place / "a/textrun"))
    assert trial.faults(outcome) == [] and "expected the moment of these weights, found others" in outcome.err, outcome


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_snapshot_that_says_nothing_finite(place, value):
    path = place / "textrun/snapshots/update-000000.safetensors"
    weights = load_file(path)
    for weight in weights.values():
        weight.fill_(0 if value is None else value)
    save_file(weights, path)
    outcome = trial.run(
        "watch-training",
        str(place / "textrun"),
        "--data",
        str(place / "corpus"),
        "--canvases",
        "2",
        "--out",
        str(place / "out"),
    )
    if value is None:  # weights of 0 are allowed; they have no norms to compare
        assert outcome.status == 0 and "Warning" not in outcome.err, outcome
    else:
        assert trial.faults(outcome, out=place / "out") == [] and "expected finite log-probabilities" in outcome.err, (
            outcome
        )


def test_a_model_that_is_named_twice_counts_once():
    once, twice = (
        trial.run("reproduce", "paper1", "--dry-run", "--json", "--models", name)
        for name in ("lab-diffusion", "lab-diffusion," * 2)
    )
    assert once.status == 0 and once.out == twice.out
    ks = [
        trial.run("reproduce", "paper1", "--dry-run", "--json", "--models", "lab", "--ks", ks)
        for ks in ("1,5", "1,5,1")
    ]
    assert ks[0].status == 0 and ks[0].out == ks[1].out


def test_a_map_of_a_trace_without_a_sampler(place):
    """As of a network that was called without one; its manifest says null."""
    from sinkscope.runs.files import with_checksum

    path = place / "trace/manifest.json"
    path.write_text(json.dumps(with_checksum({**json.loads(path.read_text()), "sampler": None})))
    outcome = trial.run("map", str(place / "trace"), "--step", "2", "--layer", "0", "--head", "0")
    assert outcome.status == 0, outcome
