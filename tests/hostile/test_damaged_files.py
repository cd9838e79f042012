"""A damaged file is an error, or changes nothing of what is printed."""

import random
import shutil
from types import SimpleNamespace

import pytest
from hostile import damage, trial

SHORT = ["--length", "4", "--steps", "4", "--block", "4", "--out", "{out}"]
TRACE = ["trace", "{model}", "--prompt", "Q: Tom\nA:", *SHORT]
MAP = "map-000001-000-001.safetensors"
PART = "steps-000000.safetensors"
TRAIN_TEXT = ["train", "lab-text-diffusion", "--data", "{corpus}", "--out", "{out}"]
WATCH = ["watch-training", "{textrun}", "--data", "{corpus}", "--canvases", "2", "--out", "{out}"]
DRAW = ["watch-training", "{watch}", "--out", "{out}"]
ROLES = ["roles", "{model}", "--problems", "10", "--canvases", "1", *SHORT[:-1], "{found}"]
CACHES = [
    "compare-caches",
    "{model}",
    "--policies",
    "none@threshold=0.9",
    "--limit",
    "1",
    "--shots",
    "0",
    *SHORT[:-1],
    "{caches}",
]
READERS = {
    "trace/manifest.json": (
        ["sinks", "{trace}", "--json"], ["tracks", "{trace}"], ["export", "{trace}", "--to", "numpy", "--out", "{out}"],
        ["figures", "{trace}", "--only", "4,9", "--out", "{out}"], ["explore", "{trace}", "--out", "{out}"],
    ),
    "statistics/manifest.json": (["sinks", "{statistics}", "--json"],),
    "results/results.json": (["table", "{results}"],),
    "roles.json": (["tracks", "{trace}", "--roles", "{roles}"],),
    "model/config.json": (TRACE,),
    "model/tokenizer_config.json": (TRACE,),
    "counts.json": (["analyse", "{trace}", "--training-counts", "{counts}", "--no-choice", "--no-sweep"],),
    "corpus/corpus.json": (TRAIN_TEXT,),
    "corpus/tokenizer/tokenizer_config.json": (TRAIN_TEXT,),
    "textrun/recipe.json": (WATCH,),
    "watch/manifest.json": (DRAW,),
    "bundle/bundle.json": (["bundle", "{bundle}", "--check"],),
    "found/run.json": (ROLES,),
    "found/choose/000000.json": (ROLES,),
    "caches/run.json": (CACHES,),
    "caches/lab-arith/none/000000.json": (CACHES,),
    "run/recipe.json": (["train", "lab-sink-token", "--out", "{run}"],),
    "prompts.jsonl": (["trace", "{model}", "--prompts", "{prompts}", *SHORT],),
    "text.jsonl": (["train", "lab-sink-token", "--data", "{text}", "--out", "{out}"],),
}  # fmt: skip
TENSORS = {
    f"trace/{PART}": ["sinks", "{trace}", "--json"],
    f"trace/{MAP}": ["map", "{trace}", "--step", "1", "--layer", "0", "--head", "1", "--json"],
    "statistics/statistics.safetensors": ["sinks", "{statistics}", "--json"],
    "model/model.safetensors": TRACE,
    "run/training-state.safetensors": ["train", "lab-sink-token", "--out", "{run}"],
    "watch/update-000001.safetensors": DRAW,
    "textrun/snapshots/update-000000.safetensors": WATCH,
}  # fmt: skip
FREE = ("prompts.jsonl", "text.jsonl", "counts.json")
"""What a user writes, so that other bytes in it are no damage."""
WRITTEN = ("run", "found", "caches")
"""Folders that a command goes on with."""
BYTES = {
    **TENSORS,
    **{name: commands[0] for name, commands in READERS.items() if name not in FREE and not name.startswith("caches")},
    **{
        f"bundle/{name}": ["bundle", "{bundle}", "--check"]
        for name in ("manifest.json", PART, "README.md", "page.html")
    },
    **{f"corpus/{name}": TRAIN_TEXT for name in ("train.bin", "tokenizer/tokenizer.json")},
}


def command(place, words):
    folders = "trace statistics results model run corpus textrun watch bundle found caches".split()
    names = {name: place / name for name in folders}
    names |= {"roles": place / "roles.json", "counts": place / "counts.json", "prompts": place / "prompts.jsonl"}
    names |= {"text": place / "text.jsonl", "out": place / "out"}
    return [word.format(**names) if "{" in word else word for word in words]


def attempt(tally, place, file, name, content, words, **how):
    """Run a command on a damaged file, and put the file back."""
    path = place / file
    kept = path.read_bytes()
    damage.write(path, content)
    out = place / "out"
    outcome = trial.run(*command(place, words))
    whole = file in ("model/config.json", "model/tokenizer_config.json", "prompts.jsonl", f"trace/{PART}", "text.jsonl")
    tally.judge(
        f"{words[0]} with {file}: {name}",
        outcome,
        out=out if "{out}" in words and outcome.status and not whole else None,
        **how,
    )
    path.write_bytes(kept)
    for left in (out, out.with_name("out.npz")):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    for name in WRITTEN:
        if f"{{{name}}}" in words:
            shutil.rmtree(place / name)
            shutil.copytree(place.parent / name, place / name)


@pytest.fixture
def place(place):
    for name in WRITTEN:
        shutil.copytree(place / name, place.parent / name)
    return place


@pytest.mark.parametrize("file", BYTES)
def test_other_bytes(place, tally, share, file):
    """What a command prints of a damaged file is what it prints of the whole one, or an error."""
    content, source = (place / file).read_bytes(), random.Random(f"bytes {file}")
    printed = []

    def keep(name, outcome, **how):
        printed.append(outcome)

    attempt(SimpleNamespace(judge=keep), place, file, "whole", content, BYTES[file])
    assert printed[0].status == 0, printed[0].err
    for _ in range(share(160)):
        attempt(tally, place, file, *damage.flipped(content, source), BYTES[file], harmless=True, same=printed[0].out)
    tally.conclude(20)
