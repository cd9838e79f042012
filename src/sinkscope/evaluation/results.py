"""Results of evaluations: frozen records and their file. This module loads neither torch nor transformers."""

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.paired_tests import wilson_interval
from sinkscope.evaluation.results_folder import COMPRESSED, RESULTS, RUN, TASK, ResultItems, hash_claim, write_json
from sinkscope.runs.files import compare_checksum, parse_json, read_object, validated, with_checksum
from sinkscope.runs.folder import EVALUATION, kind_of_run

FORMAT = 1
RULE = re.compile(r"([a-z]+):(\d+)(?:@(.*))?")
"""The text of a rule that hides K keys: word, K, options."""
_RULES = {"none": None, "top": None, "ranks": False} | dict.fromkeys(
    ("random", "mass", "rowmass", "persistent", "class"), True
)
"""The answers of `takes_seed` for common rules, so that most tables load no torch; a test compares them."""
_SEED = re.compile(r"seed=(\d+)")
AGAIN = "the file is damaged; the same `sinkscope evaluate` makes it again from its items"


@dataclass(frozen=True)
class Result:
    """The result of one model on one task under one rule of hiding, ``none`` without.

    Attributes:
        interval: Wilson's 95 % interval of the accuracy over problems; it holds for this one checkpoint.
        settings: of the sampler, with ``shots`` and ``batch``; protocol: name and source, None where it was not used.
        weight_hash, config_hash: of the model, see `models.ModelCard`; data: of problems and shots; empty in old ones.
        measures: accuracy by every published measure of the task; empty for the lab's.
        removed_share, removed_share_committed, hit_rate: see `Effect`, mean over problems; None where undefined.
        without_effect: rules that hid nothing in any problem, and why.
        outcomes: one character for each problem, in order: 1 correct, 0 not. Runs are compared problem by problem.
        not_enforced: protections of the sandbox that the system refused, see `sandbox.ProgramResult`.
        seconds: time for writing and scoring, summed over problems.
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
    protocol: str | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    removed_share: float | None = None
    removed_share_committed: float | None = None
    hit_rate: float | None = None
    data: str = ""
    outcomes: str = ""
    not_enforced: tuple[str, ...] = ()
    seconds: float = 0.0
    config_hash: str = ""
    without_effect: tuple[str, ...] = ()


def summarise(items: Sequence[Mapping[str, Any]], **known: Any) -> Result:
    """Return the result of all items of a run, in order; ``known`` are the fields that are not computed from items."""

    def mean(name: str) -> float | None:
        found = [item["effect"][name] for item in items if (item.get("effect") or {}).get(name) is not None]
        return sum(found) / len(found) if found else None

    n, correct = len(items), sum(item["correct"] for item in items)
    idle = [(item.get("effect") or {}).get("without_effect", ()) for item in items]
    return Result(
        n=n,
        correct=correct,
        accuracy=correct / n,
        interval=wilson_interval(correct, n),
        measures={name: sum(item["measures"][name] for item in items) / n for name in items[0]["measures"]},
        **{name: mean(name) for name in ("removed_share", "removed_share_committed", "hit_rate")},
        outcomes="".join("01"[item["correct"]] for item in items),
        without_effect=tuple(one for one in idle[0] if all(one in other for other in idle)),
        not_enforced=tuple(sorted({line for item in items for line in item["not_enforced"]})),
        seconds=round(sum(item["seconds"] for item in items), 3),
        **known,
    )


def collect(folder: Path, wanted: Sequence[tuple[str, str]]) -> list[Result]:
    """Return the results of pairs of task and rule from the items in a folder, and write them to ``results.json``."""
    run, again = read_object(folder / RUN), "run the same `sinkscope evaluate` again"
    results, missing = [], 0
    for task, hide in wanted:
        asked = read_object(folder / task / TASK)
        if run is None or asked is None:
            raise EvaluationError(f"{folder} is damaged or not begun; {again}")
        stored = ResultItems(folder, task, hide, hash_claim(run), hash_claim(asked))
        count, batch, model = asked["problems"], run["batch"], run["model"]
        read = [stored.read(index, min(batch, count - index // batch * batch)) for index in range(count)]
        items = [item for item in read if item is not None]
        missing += count - len(items)
        if missing:
            continue
        result = summarise(
            items,
            model=model["name"],
            task=task,
            hide=hide,
            settings={**asked["sampler"], "shots": asked["shots"], "chat": asked["chat"], "batch": batch},
            protocol=asked["protocol"],
            data=asked["data"],
            versions=run["versions"],
            device=run["device"],
            **{name: model[name] for name in ("weight_hash", "config_hash", "dtype")},
        )
        results.append(result)
    if missing:
        raise EvaluationError(f"{folder} is unfinished ({missing} problems missing); {again}")
    write_results(folder, results)
    return results


def write_results(folder: Path, results: Sequence[Result]) -> None:
    """Write ``results.json``, keeping its results of other tasks and rules on the same weights, dtype and device."""
    runs = {(result.weight_hash, result.dtype, result.device) for result in results}
    try:
        old = [result for result in read_results(folder) if (result.weight_hash, result.dtype, result.device) in runs]
    except (CallError, EvaluationError):
        old = []  # absent or damaged; every result can be made again from its items
    kept = {(one.task, rule_of(one)): asdict(one) for one in (*old, *results)}
    write_json(folder / RESULTS, with_checksum({"format": FORMAT, "results": list(kept.values())}))


def read_results(*folders: Path | str) -> list[Result]:
    """Return the results of finished evaluations, folder by folder; an error for one that is none, or is unfinished."""
    return [one for folder in folders for one in _read_folder(Path(folder))]


def cell_of(result: Result) -> str:
    """Return the key of the (model, task, rule) cell, the same for all spellings of a rule."""
    names = "model task n weight_hash config_hash settings dtype device data".split()
    return json.dumps([rule_of(result), [getattr(result, name) for name in names]], sort_keys=True, default=str)


def rule_of(result: Result) -> tuple[str, ...]:
    """Return word, K, seed (0 without one) and options in order of a rule that hides K keys, else its text alone."""
    rule = RULE.fullmatch(result.hide)
    if rule is None:
        return (result.hide,)
    options = sorted({option for option in (rule[3] or "").split(",") if option})
    seeds = [seed[1] for seed in map(_SEED.fullmatch, options) if seed] or ["0"]
    return (rule[1], str(int(rule[2])), str(int(seeds[0])), *(one for one in options if not _SEED.fullmatch(one)))


def takes_seed(word: str) -> bool | None:
    """Return whether the control of a word draws at random, and so takes a seed; None where the word is no control."""
    if word in _RULES:
        return _RULES[word]
    from sinkscope.interventions import known_controls  # here, as it loads torch

    return known_controls().get(word)


def hides_k(word: str) -> bool:
    """Return whether a rule hides K keys of every head and is no control."""
    if word in _RULES:
        return word == "top"
    from sinkscope.interventions import known_rules  # here, as it loads torch

    kind = known_rules().get(word)
    return kind is not None and not kind.control and kind.rule == f"{word}:K"


def _read_folder(folder: Path) -> list[Result]:
    path, compressed = folder / RESULTS, folder / COMPRESSED
    path = path if path.exists() or not compressed.exists() else compressed
    if not path.exists():
        found = kind_of_run(read_object(folder / RUN) or {})
        if found != EVALUATION:
            raise CallError(f"{folder}: expected a folder that `sinkscope evaluate` wrote, found {found}")
        raise EvaluationError(f"{folder} is unfinished; run the same `sinkscope evaluate` again")
    try:
        content = gzip.decompress(path.read_bytes()) if path == compressed else path.read_bytes()
        document = parse_json(content, str(path), EvaluationError, AGAIN)
        if document["format"] != FORMAT:
            raise EvaluationError(f"{path}: expected results of format {FORMAT}, found {document['format']!r}")
        results = validated(list[Result], document["results"], path, EvaluationError, AGAIN)
        compare_checksum(document, path, EvaluationError, AGAIN)
    except (OSError, EOFError, zlib.error, KeyError, TypeError) as error:
        raise EvaluationError(f"{path}: {error}; {AGAIN}") from error
    return results
