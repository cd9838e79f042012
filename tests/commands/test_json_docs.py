"""docs/json.md names what the commands print, all of it and nothing else."""

import json
import re
import sys
from pathlib import Path

import _networks_by_hand
import pytest

import sinkscope
from sinkscope.emergence import TrainingWatch, hold_out

DOCS = Path(__file__).parents[2] / "docs"
PROMPT = "Q: Tom has 7 apples.\nA:"


def documented(page, title):
    """Paths in the list under a heading, before each colon: (always there, sometimes there)."""
    (section,) = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    always, sometimes = [], []
    for cell in re.findall(r"^\* (`[^:\n]*)", section, re.MULTILINE):
        words = re.sub(r"`[^`]*`|,", "", cell).strip()
        (sometimes if words else always).extend(
            key for keys in re.findall(r"`([^`]+)`", cell) for key in expanded(keys)
        )
    return always, sometimes


def expanded(keys):
    """Keys written with braces, one by one: `a.{b,c}[]` is a.b[] and a.c[]."""
    before, brace, rest = keys.partition("{")
    within, _, after = rest.partition("}")
    return [key for one in within.split(",") for key in expanded(before + one + after)] if brace else [keys]


def paths(value, at=""):
    """Paths of a document; of an empty list or object its own."""
    if isinstance(value, dict) and value:
        return {path for key, one in value.items() for path in paths(one, f"{at}.{key}" if at else key)}
    if isinstance(value, list):
        return {path for one in value for path in paths(one, at + "[]")} or {at + "[]"}
    return {at}


def pattern(path):
    return re.compile(re.escape(path).replace(r"\*", ".+"))


def differences(documents, always, sometimes):
    """What is printed and not documented, and what is documented and never, or not always, printed."""
    found = [paths(document) for document in documents]
    known = always + sometimes

    def told(path):  # null and empty lists stand for what would be below them
        return any(pattern(one).fullmatch(path) or one.startswith((path + ".", path + "[")) for one in known)

    strange = {f"not documented: {path}" for one in found for path in one if not told(path)}
    absent = {
        f"never printed: {path}"
        for path in known
        if not any(pattern(path).fullmatch(one) for one in set().union(*found))
    }
    top = {path: re.split(r"[.\[]", path)[0] for path in always if "*" not in path[:1]}
    missing = {
        f"not always printed: {path}"
        for path, first in top.items()
        if any(first not in document for document in documents)
    }
    return sorted(strange | absent | missing)


@pytest.fixture(scope="module")
def session(tmp_path_factory, diffusion_folder):
    """Everything that the commands print and write, by the heading of its documentation."""
    import contextlib
    import io
    from unittest.mock import patch

    from sinkscope import cli

    folder = tmp_path_factory.mktemp("json")

    def run(*arguments):
        out = io.StringIO()
        with patch.object(sys, "argv", ["sinkscope", *map(str, arguments)]), contextlib.redirect_stdout(out):
            cli.main()
        return [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]

    write = ("trace", diffusion_folder, "--prompt", PROMPT, "--length", 6, "--block", 3, "--json", "--out")
    lab = ("evaluate", diffusion_folder, "--limit", 2, "--shots", 0, "--length", 4, "--json", "--out")
    counts = run("trace", "lab-diffusion", "--length", 8, "--json", "--keep", "statistics", "--out", folder / "s")
    assert counts == [{"statistics": str(folder / "s"), "prompts": 1, "complete": True}]
    prompts = [{"prompt": text} for text in _networks_by_hand.save(folder / "by-hand", "idle")]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    by_hand = (folder / "by-hand", "--prompts", folder / "prompts.jsonl", "--length", 16, "--json", "--out")
    with_roles = ("--roles", folder / "roles", "--json")
    printed = {
        "roles": run("roles", *by_hand, folder / "roles", "--canvases", 2),
        "trace": run(*write, folder / "t", "--keep-maps", "1:0:0")
        + run(*write, folder / "h", "--hide", "top:1")
        + run("trace", *by_hand, folder / "b"),
        "sinks": run("sinks", folder / "t", "--excess", 0.1, "--json")
        + run("sinks", folder / "t", "--excess", 15, "--json"),
        "sinks of statistics": run("sinks", folder / "s", "--json"),
        "tracks": run("tracks", folder / "t", "--excess", 0.1, "--json")
        + run("tracks", folder / "b/000000", *with_roles),
        "analyse": run("analyse", folder / "t", "--excess", 0.5, "--no-sweep", "--no-choice", "--json")
        + run("analyse", folder / "t", "--versus", folder / "h", "--excess", 0.5, "--no-sweep", "--no-choice", "--json")
        + run("analyse", folder / "b", "--no-sweep", "--no-choice", *with_roles),
        "lens": run("lens", folder / "t", "--json") + run("lens", folder / "b", "--every", 8, "--json"),
        "map": run("map", folder / "t", "--step", 1, "--layer", 0, "--head", 0, "--json")
        + run("map", folder / "t", "--step", 2, "--layer", 1, "--head", 3, "--json"),
        "export": run("export", folder / "t", "--to", "numpy", "--out", folder / "e", "--json"),
        "problems": run("problems", "--count", 2) + run("problems", "--task", "lab-code", "--count", 1),
        "check": run("check", diffusion_folder, "--json"),
        "trace with keep drift": run(*write, folder / "d", "--keep", "drift"),
        "compare-caches": run(
            *("compare-caches", diffusion_folder, "--limit", 2, "--length", 4, "--block", 2, "--json", "--budget", 3),
            *(
                "--tasks",
                "lab-sums",
                "--policies",
                "fast-dllm-dual,block:keep=top,block:keep=no-sinks",
                "--out",
                folder / "c",
            ),
        ),
        "evaluate, table": run(*lab, folder / "r", "--hide", "none,top:1,random:1")
        + run("table", folder / "r", "--json"),
    }
    model = sinkscope.load(diffusion_folder)
    watch = TrainingWatch(
        model.network, hold_out([range(5, 25)] * 2, mask_id=model.card.mask_id), folder / "watch", every=1
    )
    watch(1)
    printed["watch-training"] = run("watch-training", folder / "watch", "--out", folder / "w", "--json")
    for title, files in {
        "run.json": "r/run.json",
        "TASK/task.json": "r/*/task.json",
        "TASK/RULE/000000.json": "r/*/*/00000?.json",
        "results.json": "?/results.json",
        "manifest.json": "[th]/manifest.json",
    }.items():
        printed[title] = [json.loads(path.read_text()) for path in sorted(folder.glob(files))]
        assert printed[title], title
    return printed


@pytest.mark.slow
def test_the_page_names_every_key(session):
    page = (DOCS / "json.md").read_text()
    for title in session.keys() - {"manifest.json"}:
        always, sometimes = documented(page, title)
        assert always and differences(session[title], always, sometimes) == [], title


@pytest.mark.slow
def test_the_page_on_traces_names_every_key_of_the_manifest(session):
    always, _ = documented((DOCS / "trace-format.md").read_text(), "manifest.json")
    for manifest in session["manifest.json"]:
        assert set(manifest) | {"maps"} == set(always)
