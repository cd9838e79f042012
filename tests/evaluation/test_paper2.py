"""`reproduce paper2`: the list of work, its cost, and a run on tiny models with local files."""

import json

import pytest
from test_choices import ROWS, model, write_rows  # noqa: F401 - a fixture

from sinkscope.errors import CallError
from sinkscope.evaluation.paper2 import ACCURACY, CHECKPOINTS, PROBLEMS, SHAPES, TASKS, paper2, read_folders
from sinkscope.evaluation.runbook import estimate
from sinkscope.reproduction import Options, reproduce


def test_all_of_the_tables_is_there():
    parts = paper2(read_folders("published"))
    assert {(part.model, part.task) for part in parts} == {(name, task) for name in CHECKPOINTS for task in TASKS}
    assert set(ACCURACY) == set(CHECKPOINTS) and all(len(row) == len(TASKS) for row in ACCURACY.values())
    guidance = {part.task: part.settings.get("guidance") for part in parts}
    assert guidance["piqa"] == 0.6 and guidance["lambada"] == 1.1 and guidance["hellaswag"] == 0.7
    assert all("block" in part.settings for part in parts if part.task == "gsm8k_two_pass" and part.model.startswith("scratch"))


def test_parameters_are_those_of_the_shape():
    shape = SHAPES["scratch-472m"]
    layer = 4 * shape.hidden**2 + 3 * shape.hidden * shape.ffn + 2 * shape.hidden
    assert shape.parameters == (2 * shape.vocabulary - 1) * shape.hidden + shape.layers * layer + shape.hidden


def test_the_cost_counts_canvases():
    parts = {part.task: part for part in paper2({"scratch-472m": ""})}
    forwards = {task: estimate(part).forwards for task, part in parts.items()}
    assert forwards["arc_easy"] == PROBLEMS["arc_easy"] * 4 * 1024 * 2  # choices, samples, guidance
    assert forwards["piqa"] == PROBLEMS["piqa"] * 2 * 20 * 2  # a token at a time
    assert forwards["gsm8k_two_pass"] == 1319 * 256 * 2
    fewer = paper2({"scratch-472m": ""}, tasks=["piqa"], limit=10)
    assert estimate(fewer[0]).forwards * 1838 == forwards["piqa"] * 10
    slow, fast = (estimate(parts["arc_easy"], tflops).gpu_hours for tflops in (1, 2))
    assert slow == pytest.approx(2 * fast) and slow > 0


def test_the_dry_run_needs_no_checkpoint(run):
    status, out, _ = run("reproduce", "paper2", "--dry-run", "--json")
    document = json.loads(out)
    assert status == 0 and len(document["parts"]) == len(CHECKPOINTS) * len(TASKS)
    assert document["total"]["forwards"] == sum(row["forwards"] for row in document["parts"])


def test_a_run_on_local_files(model, tmp_path):  # noqa: F811
    names = ["piqa", "arc_easy"]
    data = {name: write_rows(tmp_path, name) for name in names}
    parts = paper2({"scratch-472m": model.card.name, "scratch-472m+sink": model.card.name}, tasks=names)
    (written,) = reproduce(parts, Options(tmp_path / "out", data, batch=2), lambda line: None)
    lines = written.read_text().splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == ["scratch-472m"] * 2 + ["scratch-472m+sink"] * 2
    assert f"| arc_easy | {len(ROWS['arc_easy'])} |" in lines[3] and lines[3].endswith("| 32.2 |") and lines[5].endswith("| 40.9 |")
    results = json.loads((tmp_path / "out" / "evaluations" / "scratch-472m" / "piqa" / "results.json").read_text())
    assert results["results"][0]["settings"]["method"] == "chain_rule" and results["results"][0]["settings"]["guidance"] == 0.6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: paper2({"scratch-1b": "x"}), "paper2: no checkpoint 'scratch-1b'; expected some of qwen2.5-0.5b,"),
        (lambda: paper2({"scratch-472m": "x"}, tasks=["gsm8k"]), "paper2: no task 'gsm8k'; expected some of arc_easy"),
        (lambda: read_folders("scratch-472m"), "--models: expected NAME=FOLDER once each, .* found 'scratch-472m'"),
        (lambda: read_folders("scratch-472m=a,scratch-472m=b"), "--models: expected NAME=FOLDER once each"),
        (
            lambda: reproduce(paper2({"scratch-472m": ""}), Options("x", {})),  # type: ignore[arg-type]
            "expected a folder for scratch-472m, found none; `sinkscope convert` makes one, pass --models scratch-472m=FOLDER",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(CallError, match=message):
        make()
