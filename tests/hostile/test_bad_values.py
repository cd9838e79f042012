"""Every flag of every command with values that cannot be, one at a time."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hostile import trial

from sinkscope.commands import COMMANDS, find_command

NUMBERS = [
    "99999999999999",
    str(10**20),
    "-1",
    str(-(10**20)),
    "9" * 5000,
    "nan",
    "inf",
    "1e999",
    "x",
    "",
    "1.5",
    "0",
    "١",
    "0x10",
    "1_000",
]
PATHS = [
    "", "\udcff", "/dev/null/x", "/proc/self/mem", "/proc/1/x", "x" * 300, "a\nb/c", "/", "~nosuchuser/x", "{loop}", "{loop}/x", "{fifo}",
    "{file}/x", "{zero}", "/sys/kernel/x", "x" * 5000, "x.npy/", "{out}/" + "a/" * 1500,
]  # fmt: skip
DEVICES = ["meta", "hpu", "foo", "cuda", "cuda:99", "cuda:x", "cpu:0:0", "", "mps", "xla", "\udcff", "c" * 5000]
RULES = [
    *"top:99999999999999999999 window:100000000000000000001+1 top:1@layers=0-99999999999 top:1@steps=0-300000000 top:1@layers=77".split(),
    *"top:1@heads=9.9 random:1@seed=9999999999999999999 top:-1 top: top:x nosuch:1 top:1@ @ : above:nan above:inf top:1@keys=1-0".split(),
    *"top:1@keys=99999- window:0+0 none@x top:1@@ persistent:1@layers=5 class:1@layers=1- top:0 ranks:1@queries=x top:1, mass:1e9".split(),
    *["above:1e309", "top:" + "9" * 5000, "top:1@steps=" + "+".join(["1"] * 20000)],
]
TEXTS = [
    "",
    "\udcff",
    "\x1b[31m",
    "x" * 100_000,
    "٣",
    "none",
    "0",
    "-1",
    "../..",
    "a,b,c",
    ",",
    "=",
    "a=b=c",
    "'; rm",
    "${x}",
    "%s%n",
]
CACHES = [
    *"nosuch block block: block:every=x block:every=0 block:every=-1 block:every=99999999999999999999 block:keep=sinks : ,".split(),
    *"block:budget=nan block:keep=sinks,budget=0 block:every=8,every=9 fast-dllm-dual:x=1 none:1 block:every=1e309".split(),
    *f"block:keep=random,budget=2,seed={10**30} block:keep=top,budget={10**30} block:window=0 sparse-dllm:ratio=nan".split(),
    *["fast-dllm-prefix@threshold=0.9", "block:every=" + "9" * 5000],
]
SHORT = ["--length", "4", "--steps", "4", "--block", "4"]
BASES = {
    "trace": ["{model}", "--prompt", "Q: Tom\nA:", "--out", "{out}", *SHORT],
    "sinks": ["{trace}"],
    "tracks": ["{trace}"],
    "roles": ["{model}", "--out", "{out}", "--problems", "10", "--canvases", "1", *SHORT],
    "analyse": ["{trace}", "--no-choice", "--no-sweep"],
    "figures": ["{trace}", "--only", "3", "--out", "{out}"],
    "explore": ["{trace}", "--out", "{out}.html"],
    "map": ["{trace}", "--step", "1", "--layer", "0", "--head", "1"],
    "export": ["{trace}", "--to", "numpy", "--out", "{out}"],
    "problems": [],
    "evaluate": ["{model}", "--out", "{out}", "--limit", "1", "--shots", "0", *SHORT],
    "compare-caches": ["{model}", "--policies", "none", "--limit", "1", "--shots", "0", "--out", "{out}", *SHORT],
    "bundle": ["{trace}", "--out", "{out}"],
    "table": ["{results}"],
    "reproduce": ["paper1", "--dry-run", "--models", "lab"],
    "train": ["lab-sink-token", "--out", "{out}"],
    "watch-training": ["{watch}", "--out", "{out}"],
    "fold": ["{model}", "--out", "{out}"],
    "convert": ["{lit}/lit.safetensors", "--tokenizer", "{lit}", "--heads", "2", "--out", "{out}"],
    "demo": ["--out", "{out}"],
    "check": ["{model}"],
}
GOOD = {
    *(("demo", "--out", name) for name in ("a\nb/c", "~nosuchuser/x", "x.npy/")),
}
"""Values that are good, of commands that then work for minutes."""
NEVER = {
    ("explore", "--serve"),
    ("explore", "--port"),
    ("evaluate", "--jobs"),
    ("demo", "--problems"),
}  # --serve waits for ever


def flags_of(name):
    """Yield the flags of a command with the values to try."""
    command = find_command(name)
    hints = get_type_hints(command)
    for field in dataclasses.fields(command):
        flag = f"--{field.name.replace('_', '-')}"
        kinds = {hints[field.name], *get_args(hints[field.name])}
        if (name, flag) in NEVER or field.name in ("json", "sampler"):
            continue
        if field.name == "hide":
            yield flag, RULES + TEXTS
        elif field.name in ("policies", "budget"):
            yield flag, CACHES + [f"none@threshold={number}" for number in NUMBERS] + TEXTS
        elif field.name == "device":
            yield flag, DEVICES
        elif kinds & {int, float}:
            yield flag, NUMBERS
        elif any(one is Path or Path in get_args(one) for one in kinds):
            yield flag, PATHS
        elif bool not in kinds:
            yield flag, TEXTS
    if any(field.name == "sampler" for field in dataclasses.fields(command)):
        for flag in (
            "--length",
            "--steps",
            "--block",
            "--temperature",
            "--guidance",
            "--seed",
            "--threshold",
            "--factor",
            "--top-p",
            "--eps",
        ):
            yield flag, [*NUMBERS, "1000000000039", "16777213", "8388607"]
        for flag in ("--cache", "--remasking", "--algorithm", "--block-order"):
            yield flag, CACHES + TEXTS


def base_of(name, flag, value, names):
    """Return the arguments of a command with one value replaced; a positional one stands first."""
    words = [word.format(**names) for word in BASES[name]]
    if flag in words:
        at = words.index(flag)
        return [*words[:at], *words[at + 2 :], flag, value]
    positional = {"--model", "--runs", "--trace", "--traces", "--results", "--recipe", "--file", "--paper"}
    if flag in positional and not (flag == "--model" and name in ("map", "figures", "explore")):
        return [value, *words[1:]]
    return [*words, flag, value]


@pytest.mark.parametrize("name", BASES)
def test_a_flag_of_a_bad_value(place, tally, share, name):
    (place / "loop").symlink_to(place / "loop")
    os.mkfifo(place / "fifo")
    (place / "file").write_text("x")
    (place / "zero").symlink_to("/dev/zero")
    names = {
        one: str(place / one)
        for one in ("model", "lit", "trace", "results", "watch", "loop", "fifo", "file", "zero", "out")
    }
    cases = [(flag, value) for flag, values in flags_of(name) for value in values]
    kept = cases[:: len(cases) // share(len(cases))]
    before = listing(place)
    for flag, value in kept:
        if (name, flag, value) in GOOD or (value == "/" and os.access("/", os.W_OK)):  # root may write there
            continue
        value = value.format(**names) if value.startswith("{") else value
        words = base_of(name, flag, value, names)
        outcome = trial.run(name, *words, cwd=place)
        tally.judge(f"{name} {flag} {value[:40]!a}", outcome, harmless=True)
        after = listing(place)
        if outcome.status and after != before:
            tally.blame(f"{name} {flag} {value[:40]!a}: left {sorted(after - before)[:3]}: {outcome.err[-200:]}")
        for left in after - before:
            path = place / left
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    tally.conclude(min(len(kept), 3))


@pytest.mark.parametrize("name", BASES)
def test_a_command_without_a_bad_value_ends_well(place, name):
    """Otherwise each of its cases would be refused for another reason than its own."""
    if name == "demo":
        pytest.skip("it takes a minute, and has tests of its own")
    names = {one: str(place / one) for one in ("model", "lit", "trace", "results", "watch", "out")}
    outcome = trial.run(name, *(word.format(**names) for word in BASES[name]), cwd=place)
    assert outcome.status == 0, outcome.err


def test_every_command_has_cases():
    assert {*COMMANDS} - {*BASES} == {"bench", "completion"}


def listing(folder):
    return {path.name for path in folder.iterdir()}
