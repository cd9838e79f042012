"""Results of evaluations: frozen records and their file. This module loads neither torch nor transformers."""

import functools
import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.paired_tests import wilson_interval
from sinkscope.evaluation.results_folder import (
    COMPRESSED,
    RESULTS,
    RUN,
    TASK,
    ResultItems,
    find_items,
    hash_claim,
    items_folder,
    write_json,
)
from sinkscope.runs.files import compare_checksum, parse_json, read_object, with_checksum, write_whole
from sinkscope.runs.folder import COMPARISON, EVALUATION, ROLES, kind_of_run

FORMAT = 1
RULE = re.compile(r"([a-z]+):(\d+)(?:@(.*))?")
"""The text of a rule that hides K keys: word, K, options."""
_PLAIN = re.compile(r"[a-z-]+(:(0|[1-9]\d*))?(@([a-z_]+|seed=(0|[1-9]\d*))(,([a-z_]+|seed=(0|[1-9]\d*)))*)?")
"""Texts of rules whose words and numbers can be compared as they stand."""
_SEED = re.compile(r"seed=([0-9]{1,20})")
_DEFAULTS = {"", "previous", "local", "columns", "head", "mask"}
_log = logging.getLogger(__name__)
AGAIN = "the file is damaged; the same `sinkscope evaluate` makes it again from its items"


@dataclass(frozen=True)
class Result:
    """The result of one model on one task under one rule of hiding.

    Attributes:
        model: name of the model, as it was given.
        task: name of the task.
        hide: rule that hid keys; ``none`` is the unchanged model.
        n: number of problems.
        correct: problems answered correctly.
        accuracy: ``correct / n``, 0…1.
        interval: Wilson's 95 % interval of the accuracy over problems; it holds for this one checkpoint.
        settings: of the sampler, with ``shots`` and ``batch``.
        weight_hash: of the model, see `models.ModelCard`.
        versions: of Python and the libraries.
        device: the device of the run; accuracies differ between kinds of device.
        dtype: of the weights in memory.
        protocol: name and source of the published settings; None where settings were given or are the lab's.
        measures: accuracy by every published measure of the task; empty for the lab's.
        removed_share: share of attention that the hidden keys would have had, of all attention of the heads, in the
            steps, in which the rule was in force (also of queries that it leaves alone), mean over problems; None for
            ``none``.
        removed_share_committed: the same of the queries whose tokens were committed in the step, mean over problems;
            None for ``none``, for likelihoods, and in older results.
        hit_rate: share of the hidden keys that were still among the top, mean over problems; None where it is not
            defined.
        data: hash of the task's problems and shots; it does not depend on the file; empty in older results.
        outcomes: one character for each problem, in order: 1 correct, 0 not. Runs are compared problem by problem.
        not_enforced: protections of the sandbox that the system refused, see `sandbox.ProgramResult`.
        seconds: time for writing and scoring, summed over problems.
        config_hash: of the model, see `models.ModelCard`; empty in older results.
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


def summarise(items: Sequence[Mapping[str, Any]], **known: Any) -> Result:
    """Return the result of all items of a run, in order; ``known`` are the fields that are not computed from items."""
    correct = sum(item["correct"] for item in items)
    return Result(
        n=len(items),
        correct=correct,
        accuracy=correct / len(items),
        interval=wilson_interval(correct, len(items)),
        measures={
            name: sum(item["measures"][name] for item in items) / len(items) for name in items[0].get("measures", {})
        },
        removed_share=_mean(items, "removed_share"),
        removed_share_committed=_mean(items, "removed_share_committed"),
        hit_rate=_mean(items, "hit_rate"),
        outcomes="".join("01"[item["correct"]] for item in items),
        not_enforced=tuple(sorted({line for item in items for line in item["not_enforced"]})),
        seconds=round(sum(item["seconds"] for item in items), 3),
        **known,
    )


def _mean(items: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [item["effect"][name] for item in items if (item.get("effect") or {}).get(name) is not None]
    return sum(found) / len(found) if found else None


def stored_text(folder: Path, task: str, text: str, given: Iterable[str]) -> str:
    """Return the text under which the items of a rule lie in a folder: its canonical one, or as it was given to an
    earlier version.

    Args:
        folder: of an evaluation.
        task: its name.
        text: the canonical text of the rule.
        given: rules as they were given this time, among them others.
    """
    from sinkscope.interventions.rules import canonical_rule  # here, as it loads torch

    same = (one for one in given if canonical_rule(one) == text)
    return next((one for one in (text, *same) if items_folder(folder, task, one).is_dir()), text)


def collect(folder: Path, wanted: Sequence[tuple[str, str]], given: Iterable[str] = ()) -> list[Result]:
    """Return the results of tasks and rules from the items in a folder, once all are done, and write them to
    ``results.json``.

    Args:
        folder: of an evaluation.
        wanted: pairs of task and rule.
        given: rules as they were given, see `stored_text`.

    Raises:
        EvaluationError: items are missing or damaged, or the folder's own files are.
    """
    run = read_object(folder / RUN)
    results, missing = [], 0
    for task, hide in wanted:
        asked = read_object(folder / task / TASK)
        if run is None or asked is None:
            raise EvaluationError(f"{folder} is damaged or not begun; run the same `sinkscope evaluate` again")
        stored = ResultItems(folder, task, stored_text(folder, task, hide, given), hash_claim(run), hash_claim(asked))
        count, batch = asked["problems"], run["batch"]
        read = [stored.read(index, min(batch, count - index // batch * batch)) for index in range(count)]
        items = [item for item in read if item is not None]
        missing += count - len(items)
        if not missing:
            results.append(_from_items(items, run, asked, hide))
    if missing:
        raise EvaluationError(
            f"{folder} is unfinished ({missing} problems missing); run the same `sinkscope evaluate` again"
        )
    write_results(folder, results)
    return results


def _from_items(
    items: Sequence[Mapping[str, Any]], run: Mapping[str, Any], asked: Mapping[str, Any], hide: str
) -> Result:
    return summarise(
        items,
        model=run["model"]["name"],
        task=asked["task"],
        hide=hide,
        settings={**asked["sampler"], "shots": asked["shots"], "chat": asked["chat"], "batch": run["batch"]},
        protocol=asked["protocol"],
        data=asked["data"],
        weight_hash=run["model"]["weight_hash"],
        config_hash=run["model"].get("config_hash", ""),
        versions=run["versions"],
        device=run["device"],
        dtype=run["model"]["dtype"],
    )


def write_results(folder: Path, results: Sequence[Result]) -> None:
    """Write ``results.json``, keeping what it holds of other tasks and rules on the same weights, dtype and device.

    Raises:
        EvaluationError: no permission, no space.
    """
    new = {(result.task, _hidden(result)): result for result in results}
    runs = {(result.weight_hash, result.dtype, result.device) for result in results}
    try:
        found = [result for result in read_results(folder) if (result.weight_hash, result.dtype, result.device) in runs]
        old = {(result.task, _hidden(result)): result for result in found}
    except (CallError, EvaluationError):
        old = {}  # absent or damaged; every result can be made again from its items
    for key, result in new.items():
        if key in old and old[key].n > result.n:
            _log.warning(
                "%s: %s, %s: it has the first %d problems now, where it had %d; all are kept, and a larger --limit "
                "counts them again",
                *(folder / RESULTS, result.task, result.hide, result.n, old[key].n),
            )
    write_json(folder / RESULTS, _stored((old | new).values()))


def write_compressed(folder: Path, results: Sequence[Result]) -> None:
    """Write ``results.json.gz`` and nothing else: the same bytes for the same results.

    Raises:
        EvaluationError: no permission, no space.
    """
    text = json.dumps(_stored(results), ensure_ascii=False, separators=(",", ":")).encode()
    folder.mkdir(parents=True, exist_ok=True)
    kept = "what was there before is kept: make room and write it again"
    write_whole(folder / COMPRESSED, gzip.compress(text, mtime=0), EvaluationError, kept)


def _stored(results: Iterable[Result]) -> dict[str, Any]:
    return with_checksum({"format": FORMAT, "results": [asdict(result) for result in results]})


def read_results(*folders: Path | str) -> list[Result]:
    """Return the results of finished evaluations, folder by folder.

    Raises:
        CallError: no folder given, no such folder, one that holds no evaluation, one given twice, or two with the same
            result.
        EvaluationError: an unfinished evaluation, a damaged file, or one of another version.
    """
    if not folders:
        raise CallError("expected at least one folder that `sinkscope evaluate` wrote, found none")
    found: dict[Path, list[Result]] = {}
    for path in map(Path, folders):
        if (same := path.resolve()) in found:
            raise CallError(f"results: expected each folder once, found {path} twice")
        found[same] = _read_folder(path)
    cells: dict[str, Path] = {}
    for path, results in found.items():
        for one in results:
            if (other := cells.setdefault(cell_of(one), path)) != path:  # it would count as two tests
                raise CallError(
                    f"{path}: {one.task}, {one.hide} of {one.model} with the same settings is in {other} too; "
                    "leave one folder out"
                )
    return [result for results in found.values() for result in results]


def cell_of(result: Result) -> str:
    """Return the key of the (model, task, rule) cell, the same for all spellings of a rule."""
    run = [
        result.model,
        result.task,
        result.n,
        result.weight_hash,
        result.config_hash,
        dict(result.settings),
        result.dtype,
        result.device,
        result.data,
    ]
    return json.dumps([_hidden(result), run], sort_keys=True, default=str)


def _hidden(result: Result) -> tuple[Any, ...]:
    """Return the rule of a result, the same for all its spellings."""
    rule = rule_of(result)
    return (rule[1], rule[2], *options_of(rule[3]), seed_of(rule[3])) if rule else (comparable_rule(result.hide),)


def rule_of(result: Result) -> re.Match[str] | None:
    """Return word, K and options of the rule of a result; None where it does not hide K keys."""
    return RULE.fullmatch(comparable_rule(result.hide))


@functools.lru_cache(maxsize=1024)
def comparable_rule(text: str) -> str:
    """Return the canonical text of a rule; unchanged where no such rule is known here."""
    if _PLAIN.fullmatch(text):
        return text
    from sinkscope.interventions.rules import canonical_rule  # here, as it loads torch

    try:
        return canonical_rule(text)
    except CallError:  # of a package that is not installed here
        return text


def options_of(text: str | None) -> list[str]:
    """Return a rule's options in a fixed order, without its seed and without defaults."""
    return sorted({option for option in (text or "").split(",") if not _SEED.fullmatch(option)} - _DEFAULTS)


def seed_of(text: str | None) -> int:
    """Return the seed among a rule's options; 0 without one."""
    seeds = filter(None, map(_SEED.fullmatch, (text or "").split(",")))
    return next((int(seed[1]) for seed in seeds), 0)


def _read_folder(folder: Path) -> list[Result]:
    path, compressed = folder / RESULTS, folder / COMPRESSED
    if not path.exists() and compressed.exists():
        path = compressed
    if not path.exists():
        if not (folder / RUN).exists():
            raise CallError(f"{folder}: expected a folder that `sinkscope evaluate` wrote, with {RESULTS}, found none")
        kind = kind_of_run(read_object(folder / RUN) or {"model": {}})
        if kind != EVALUATION:
            command = {COMPARISON: "compare-caches", ROLES: "roles"}.get(kind)
            way_out = f"`sinkscope {command}` prints its table" if command else "name another folder"
            raise CallError(f"{folder}: expected a folder that `sinkscope evaluate` wrote, found {kind}; {way_out}")
        raise EvaluationError(
            f"{folder} is unfinished ({len(find_items(folder))} problems done); run the same `sinkscope evaluate` again"
        )
    from pydantic import TypeAdapter, ValidationError

    try:
        content = gzip.decompress(path.read_bytes()) if path == compressed else path.read_bytes()
        document = parse_json(content, str(path), EvaluationError, AGAIN)
        if document["format"] != FORMAT:
            raise EvaluationError(f"{path}: expected results of format {FORMAT}, found {document['format']!r}")
        results = TypeAdapter(list[Result]).validate_python(document["results"])
        compare_checksum(document, path, EvaluationError, AGAIN)
    except (OSError, EOFError, zlib.error, KeyError, TypeError, ValidationError) as error:
        raise EvaluationError(f"{path}: {error}; {AGAIN}") from error
    for result in results:
        expect_agreement(result, str(path), EvaluationError)
    return results


def expect_agreement(result: Result, where: str, failure: type[CallError | EvaluationError]) -> None:
    """Raise an error for a result whose numbers contradict one another."""
    n, correct, outcomes = result.n, result.correct, result.outcomes
    counted = not outcomes or (len(outcomes), outcomes.count("1")) == (n, correct)
    if not (counted and 0 <= correct <= n and n > 0 and abs(result.accuracy - correct / n) < 1e-6):
        raise failure(
            f"{where}: {result.task}, {result.hide}: expected outcomes and an accuracy of {correct} correct answers of "
            f"{n}, "
            f"found {outcomes[:20]!r} and {result.accuracy}"
        )
