"""Folders of something else, and files where folders should be: nothing is written into them, and the message says what they hold."""

import json
import os
import re
import shutil

import pytest
from hostile import trial

SHORT = ["--limit", "1", "--shots", "0", "--length", "4", "--steps", "4", "--block", "4"]
EVALUATE = ["evaluate", "{0}/model", *SHORT, "--out", "{0}/{1}"]
COMPARE = ["compare-caches", "{0}/model", "--policies", "none@threshold=0.9", *SHORT, "--out", "{0}/{1}"]
ROLES = [
    "roles",
    "{0}/model",
    "--problems",
    "10",
    "--canvases",
    "1",
    "--length",
    "4",
    "--steps",
    "4",
    "--block",
    "4",
    "--out",
    "{0}/{1}",
]
WATCH = ["watch-training", "{0}/watch", "--out", "{0}/{1}"]
CASES = [
    (EVALUATE, "found", "expected an empty folder, or one with an evaluation, found roles"),
    (EVALUATE, "caches", "expected an empty folder, or one with an evaluation, found a comparison of caches"),
    (COMPARE, "found", "expected an empty folder, or one with a comparison of caches, found roles"),
    (COMPARE, "results", "expected an empty folder, or one with a comparison of caches, found an evaluation"),
    (ROLES, "results", "choose another folder"),
    (ROLES, "caches", "choose another folder"),
    (EVALUATE, "foreign", "expected an empty folder, or one with an evaluation, found something else"),
    (
        ["table", "{0}/{1}"],
        "found",
        "expected a folder that `sinkscope evaluate` wrote, found roles; `sinkscope roles` prints its table",
    ),
    (["table", "{0}/{1}"], "caches", "found a comparison of caches; `sinkscope compare-caches` prints its table"),
    (["explore", "{0}/trace", "--out", "{0}/{1}"], "trace", "trace holds files of something else (manifest.json …)"),
    *(
        (WATCH, name, f"{name} holds files of something else")
        for name in ("trace", "model", "results", "found", "mine", "watch")
    ),
]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("words", "name", "says"), CASES, ids=lambda value: value[0] if isinstance(value, list) else value[:20]
)
def test_a_folder_of_something_else_is_left_as_it_was(place, words, name, says):
    (place / "foreign").mkdir()
    (place / "foreign/run.json").write_text(json.dumps({"scripts": {}}))
    (place / "mine").mkdir()
    (place / "mine/notes.txt").write_text("x")
    before = contents(place)
    outcome = trial.run(*(word.format(place, name) for word in words))
    assert trial.faults(outcome) == [] and says in outcome.err, outcome
    assert contents(place) == before


def test_a_watch_goes_on_in_its_own_folder(place):
    words = [word.format(place, "out") for word in WATCH]
    for _ in range(2):
        assert trial.run(*words).status == 0
    for out in (
        "other",
        "textrun/watch",
        "other",
    ):  # a collection within its run, where training itself would have measured
        words = [
            "watch-training",
            f"{place}/textrun",
            "--data",
            f"{place}/corpus",
            "--canvases",
            "2",
            "--out",
            f"{place}/{out}",
        ]
        for _ in range(2):
            assert trial.run(*words).status == 0


def test_a_page_whose_ending_is_in_capitals(place):
    assert trial.run("explore", "trace", "--out", "p.HTML", cwd=place).status == 0
    assert (place / "p.HTML").is_file()


def test_other_settings_than_those_of_a_folder(place):
    for words, says in (
        (["train", "lab-sink-token", "--out", "run", "--sink-token", "gate"], "(sink_token 'token' → 'gate')"),
        ([*ROLES[:2], "--shots", "1", *ROLES[2:]], "another run: other prompts; choose another folder"),
        (
            ["trace", "model", "--prompt", "Q", "--keep", "statistics", "--length", "8", "--out", "statistics"],
            "other prompts",
        ),
    ):
        words = [word.format(place, "found").replace(f"{place}/", "") for word in words]
        outcome = trial.run(*words, cwd=place)
        assert trial.faults(outcome) == [] and says in outcome.err, outcome
        assert not re.search(r"[0-9a-f]{32}|\{", outcome.err), outcome


BLOCKED = {
    "a file for the answers of a task": (EVALUATE, "results", "lab-arith", "file"),
    "a file for the answers of a comparison": (COMPARE, "caches", "lab-arith", "file"),
    "a folder for the lock": (EVALUATE, "results", "lock", "folder"),
    "a file for the prompts that choose": (ROLES, "found", "choose", "file"),
    "a file for the prompts that judge": (ROLES, "found", "judge", "file"),
}


@pytest.mark.parametrize("case", BLOCKED)
def test_a_file_in_the_place_of_a_folder(place, case):
    words, folder, name, kind = BLOCKED[case]
    path = place / folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.write_text("x") if kind == "file" else os.mkdir(path)
    outcome = trial.run(*(word.format(place, folder) for word in words))
    assert trial.faults(outcome) == [] and str(path) in outcome.err, outcome
