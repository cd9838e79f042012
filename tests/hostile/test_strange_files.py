"""Named pipes, devices, folders and links in a circle in the place of every file that is read; values of tensors that cannot be."""

import os
import shutil

import numpy as np
import pytest
from hostile import trial
from safetensors.numpy import load_file, save_file

from sinkscope.checksums import compare_file

PART = "steps-000000.safetensors"
TRACE = [
    "trace",
    "{0}/model",
    "--prompt",
    "Q: Tom\nA:",
    "--length",
    "4",
    "--steps",
    "4",
    "--block",
    "4",
    "--out",
    "{0}/out",
]
FILES = {
    "trace/manifest.json": ["sinks", "{0}/trace"],
    f"trace/{PART}": ["sinks", "{0}/trace"],
    "trace/map-000001-000-001.safetensors": ["map", "{0}/trace", "--step", "1", "--layer", "0", "--head", "1"],
    "statistics/manifest.json": ["sinks", "{0}/statistics"],
    "statistics/statistics.safetensors": ["sinks", "{0}/statistics"],
    "results/results.json": ["table", "{0}/results"],
    "roles.json": ["tracks", "{0}/trace", "--roles", "{0}/roles.json"],
    "counts.json": ["analyse", "{0}/trace", "--training-counts", "{0}/counts.json"],
    "model/config.json": TRACE,
    "model/tokenizer.json": TRACE,
    "model/tokenizer_config.json": TRACE,
    "model/model.safetensors": TRACE,
    "corpus/corpus.json": ["train", "lab-text-diffusion", "--data", "{0}/corpus", "--out", "{0}/out"],
    "corpus/train.bin": ["train", "lab-text-diffusion", "--data", "{0}/corpus", "--out", "{0}/out"],
    "run/recipe.json": ["train", "lab-sink-token", "--out", "{0}/run"],
    "run/training-state.safetensors": ["train", "lab-sink-token", "--out", "{0}/run"],
    "prompts.jsonl": ["trace", "{0}/model", "--prompts", "{0}/prompts.jsonl", "--out", "{0}/out"],
    "text.jsonl": ["train", "lab-sink-token", "--data", "{0}/text.jsonl", "--out", "{0}/out"],
}


def _folder(path):
    path.mkdir()


KINDS = {
    "a pipe": os.mkfifo,
    "zeros for ever": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda path: path.symlink_to("/dev/null"),
    "a folder": _folder,
    "a circle": lambda path: path.symlink_to(path.name),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
}


@pytest.mark.parametrize("file", FILES)
def test_no_regular_file(place, tally, file):
    for kind, make in KINDS.items():
        path = place / file
        kept = path.read_bytes()
        path.unlink()
        make(path)
        words = [word.format(place) for word in FILES[file]]
        tally.judge(f"{words[0]} with {kind} as {file}", trial.run(*words), out=place / "out")
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_bytes(kept)
        shutil.rmtree(place / "out", ignore_errors=True)
    tally.conclude(len(KINDS))


def _set(name, value):
    def change(tensors):
        tensors[name] = np.full_like(tensors[name], value)

    return change


CHANGES = {
    "columns of NaN": _set("column_sums", np.nan),
    "infinite columns": _set("column_sums", np.inf),
    "columns below 0": _set("column_sums", -5),
    "columns of 2e34": _set("column_sums", 2e34),
    "lengths below 0": _set("lengths", -1),
    "lengths of 2**31": _set("lengths", 2**31 - 1),
    "tokens below −1": _set("tokens", -7),
    "a mask of 7": _set("masked", 7),
    "infinite norms": _set("value_norms", np.inf),
    "float64": lambda tensors: tensors.update(column_sums=tensors["column_sums"].astype(np.float64)),
    "lengths as float": lambda tensors: tensors.update(lengths=tensors["lengths"].astype(np.float32)),
    "one axis less": lambda tensors: tensors.update(column_sums=tensors["column_sums"][0]),
    "one step less": lambda tensors: tensors.update(tokens=tensors["tokens"][1:]),
    "another head": lambda tensors: tensors.update(column_sums=np.repeat(tensors["column_sums"], 2, axis=2)),
    "another layer": lambda tensors: tensors.update(column_sums=np.repeat(tensors["column_sums"], 2, axis=1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_that_cannot_be(place, tally, change):
    """The manifest lists no part, as after a kill, so that only the values tell."""
    import json

    path, manifest = place / "trace" / PART, place / "trace/manifest.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(
        json.dumps({**fields, "parts": [], "checksum": None} | {"checksum": None}).replace(', "checksum": null', "")
    )
    tensors = load_file(path)
    CHANGES[change](tensors)
    save_file(tensors, path, {"first_step": "0", "steps": "8"})
    for words in (["sinks"], ["tracks"], ["analyse"], ["figures", "--out", str(place / "out")]):
        outcome = trial.run(words[0], str(place / "trace"), *words[1:])
        seen = words[0] in ("figures", "analyse") or change not in (
            "infinite norms",
            "a mask of 7",
        )  # others do not read these
        tally.judge(f"{words[0]} with {change}", outcome, harmless=not seen, out=place / "out")
    tally.conclude(4)


def test_a_file_is_compared_once(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    sha256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    compare_file(path, sha256, ValueError, "its manifest")
    monkeypatch.setattr("hashlib.file_digest", None)
    compare_file(path, sha256, ValueError, "its manifest")
    path.write_bytes(b"y")  # another file
    with pytest.raises(TypeError):
        compare_file(path, sha256, ValueError, "its manifest")
