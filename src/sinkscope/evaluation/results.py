"""Results: frozen records, their file, and the table. Needs neither torch nor transformers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.work_folder import RESULTS, RUN, find_items, write_json

FORMAT = 1
CONFIDENCE = 0.95
NOTE = "Accuracy with Wilson's 95 % interval over problems; it speaks of one checkpoint, not of a way to train."


@dataclass(frozen=True)
class Result:
    """One model on one task under one rule of hiding.

    Attributes:
        model: name of the model, as it was asked for.
        task: name of the task.
        hide: rule that hid keys; ``none`` is the unchanged model.
        n: problems.
        correct: problems answered correctly.
        accuracy: ``correct / n``, 0…1.
        interval: Wilson's 95 % interval of the accuracy, over problems: it speaks of this one checkpoint.
        settings: of the sampler, with ``shots`` and ``batch``.
        weight_hash: of the model, see `models.ModelCard`.
        versions: of Python and the libraries.
        device: what it ran on; accuracies differ between kinds of device.
        dtype: of the weights in memory.
        published: what the paper reports for this model, task and rule, or None.
        outcomes: one character a problem, in order: 1 correct, 0 not; for comparing runs problem by problem.
        not_enforced: limits on programs that the system did not grant, see `sandbox.ProgramResult`.
        seconds: spent writing and scoring, summed over problems.
    """

    model: str
    task: str
    hide: str
    n: int
    correct: int
    accuracy: float
    interval: tuple[float, float]
    settings: Mapping[str, Any]
    weight_hash: str
    versions: Mapping[str, str]
    device: str
    dtype: str
    published: float | None = None
    outcomes: str = ""
    not_enforced: tuple[str, ...] = ()
    seconds: float = 0.0


def summarise(items: Sequence[Mapping[str, Any]], **known: Any) -> Result:
    """The result of all items of a run, in order; ``known`` are the fields that are not counted."""
    correct = sum(item["correct"] for item in items)
    return Result(
        n=len(items),
        correct=correct,
        accuracy=correct / len(items),
        interval=wilson_interval(correct, len(items)),
        outcomes="".join("01"[item["correct"]] for item in items),
        not_enforced=tuple(sorted({line for item in items for line in item["not_enforced"]})),
        seconds=round(sum(item["seconds"] for item in items), 3),
        **known,
    )


def wilson_interval(correct: int, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share, 95 %; sensible also at 0 and n."""
    from scipy.stats import binomtest

    interval = binomtest(correct, n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def write_results(folder: Path, results: Sequence[Result]) -> None:
    """Writes ``results.json`` as a whole, keeping what it holds of other tasks and rules.

    Raises:
        EvaluationError: no permission, no space.
    """
    new = {(result.task, result.hide): result for result in results}
    try:
        old = {(result.task, result.hide): result for result in read_results(folder)}
    except (CallError, EvaluationError):
        old = {}  # absent or damaged; every result can be made again from its items
    write_json(folder / RESULTS, {"format": FORMAT, "results": [asdict(result) for result in (old | new).values()]})


def read_results(*folders: Path | str) -> list[Result]:
    """The results of finished evaluations, folder by folder.

    Raises:
        CallError: no folder given, no such folder, or one that holds no evaluation.
        EvaluationError: an unfinished evaluation, a damaged file, or one of another version.
    """
    if not folders:
        raise CallError("expected at least one folder that `sinkscope evaluate` wrote, found none")
    return [result for folder in folders for result in _read_folder(Path(folder))]


def _read_folder(folder: Path) -> list[Result]:
    path = folder / RESULTS
    if not folder.is_dir():
        raise CallError(f"{folder}: expected a folder that `sinkscope evaluate` wrote, found {'a file' if folder.exists() else 'nothing'}")
    if not path.exists():
        if not (folder / RUN).exists():
            raise CallError(f"{folder} holds no evaluation: expected {RESULTS} in it")
        raise EvaluationError(f"{folder} is unfinished ({len(find_items(folder))} problems done); run the same `sinkscope evaluate` again")
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} is damaged ({error}); the same `sinkscope evaluate` makes it again from its items") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise EvaluationError(f"{path}: expected results of format {FORMAT}, found {found!r}; read them with the sinkscope that wrote them")
    try:
        return [_result(row) for row in document["results"]]
    except (KeyError, TypeError, ValueError) as error:
        raise EvaluationError(f"{path} is damaged ({error}); the same `sinkscope evaluate` makes it again from its items") from error


def _result(row: dict[str, Any]) -> Result:
    low, high = row["interval"]
    return Result(**{**row, "interval": (low, high), "not_enforced": tuple(row["not_enforced"])})


def table(results: Iterable[Result]) -> dict[str, list[dict[str, Any]]]:
    """Results as ``{"rows": [...]}``, one row each: every field but ``outcomes``."""
    names = [field.name for field in fields(Result) if field.name != "outcomes"]
    rows = []
    for result in results:
        values = asdict(result)
        rows.append({name: values[name] for name in names} | {"interval": list(result.interval), "not_enforced": list(result.not_enforced)})
    return {"rows": rows}


def markdown(results: Sequence[Result]) -> str:
    """Results laid out as in paper 1's Table 1: tasks and rules down, models across."""
    models = list(dict.fromkeys(result.model for result in results))
    places = dict.fromkeys((result.task, result.hide) for result in results)
    lines = [f"| task | hidden | {' | '.join(models)} |", "|---|---|" + "---|" * len(models)]
    for task, hide in places:
        cells = []
        for model in models:
            found = [result for result in results if (result.model, result.task, result.hide) == (model, task, hide)]
            cells.append("; ".join(map(_cell, found)) or "–")
        lines.append(f"| {task} | {hide} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", NOTE])


def _cell(result: Result) -> str:
    low, high = result.interval
    return f"{result.accuracy:.3f} ({low:.3f}–{high:.3f}), n = {result.n}"
