"""Every command that writes, on a disk that is full after so many bytes of a file: one message, and nothing that looks whole."""

import json

import pytest
from hostile import trial
from hostile.test_bad_values import BASES, SHORT

WRITERS = {
    name: [name, *BASES[name]]
    for name in ("trace", "roles", "figures", "explore", "evaluate", "train", "fold", "convert", "bundle")
}
WRITERS |= {
    "statistics": ["trace", "{model}", "--prompts", "{prompts}", "--keep", "statistics", "--out", "{out}", *SHORT],
    "a folder of the explorer": ["explore", "{trace}", "--out", "{out}"],
    "a map": ["map", "{trace}", "--step", "1", "--layer", "0", "--head", "1", "--out", "{out}.png"],
    "a corpus": ["train", "lab-text-diffusion", "--data", "{corpus}", "--out", "{out}"],
    **{name: ["export", "{trace}", "--to", name, "--out", "{out}"] for name in ("numpy", "zarr", "parquet", "xarray")},
}
WHOLE = {"results.json", "roles.json", "index.html", "config.json", "model.safetensors", "report.html"}
WHOLE_OR_NOTHING = {"fold", "convert", "bundle"}
LARGEST = 200
"""Bytes that a file may have here: enough for the message on standard error, and for nothing else."""
TIMES = 24
"""Bytes by which a file that tells how long something took may be shorter the next time."""


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk(place, tally, name):
    names = {one: str(place / one) for one in ("model", "lit", "trace", "corpus", "out")} | {
        "prompts": str(place / "prompts.jsonl")
    }
    words = [word.format(**names) for word in WRITERS[name]]
    if name == "evaluate":
        words += ["--json"]
    before = {*place.iterdir()}
    assert trial.run(*words, cwd=place).status == 0
    sizes = sorted({path.stat().st_size for path in written(place, before)})
    wipe(place, before)
    for largest in [LARGEST, *(max(LARGEST, size - TIMES) for size in sizes if size > LARGEST)][:12]:
        outcome = trial.run(*words, cwd=place, largest_file=largest)
        tally.judge(f"{name} with files of {largest} bytes", outcome)
        if outcome.status and name in WHOLE_OR_NOTHING and {*place.iterdir()} != before:
            tally.blame(f"{name} with files of {largest} bytes: left a folder")
        for path in written(place, before) if outcome.status else ():
            if (path.name in WHOLE and path.stat().st_size) or path.parent == place:
                tally.blame(f"{name} with files of {largest} bytes: left {path.relative_to(place)}")
            if path.name == "manifest.json" and json.loads(path.read_text())["complete"]:
                tally.blame(f"{name} with files of {largest} bytes: left a complete manifest")
        wipe(place, before)
    tally.conclude(1)


def written(place, before):
    """Return the files that were written."""
    return [
        path
        for top in {*place.iterdir()} - before
        for path in ([top] if top.is_file() else top.rglob("*"))
        if path.is_file()
    ]


def wipe(place, before):
    import shutil

    for path in {*place.iterdir()} - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
