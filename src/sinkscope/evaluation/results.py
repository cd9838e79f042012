"""Results of evaluations, and their folder: one JSON file a problem, each written whole. This loads no torch.

run.json                      the model and the versions of the libraries; another run is refused
lock.0-of-1, lock.2-of-4 …    held by the processes at work; the system releases them when a process dies
lab-arith/task.json           how the task is asked: sampler, shots, data; another one is refused
lab-arith/none/000017.json    one problem under one rule, with everything needed to audit it, and a checksum
results.json, .json.gz        written at the end; compressed, for a repository
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.paired_tests import wilson_interval
from sinkscope.runs import files
from sinkscope.runs import folder as runs

RUN, TASK, LOCK, RESULTS = "run.json", "task.json", "lock", "results.json"
CLAIM = f"{LOCK}.claim"  # held by those who are about to take a lock or to write run.json
AMOUNTS = ("limit", "problems")  # how many problems are asked, which changes none of their answers


@contextmanager
def locked(folder: Path, share: runs.Share = runs.ALL, kind: str = runs.EVALUATION) -> Iterator[None]:
    """Make the folder, and keep other processes out while the body runs, except those with other shares of the work."""
    import fcntl  # not on Windows, where results can still be read

    with runs.made_folder(folder), contextlib.ExitStack() as stack:
        run = files.read_object(folder / RUN)
        strange = [name for name in sorted(os.listdir(folder)) if not name.startswith((LOCK, RUN, RESULTS))]
        holds = f"files without a {RUN} ({strange[0]} …)" if strange and not (folder / RUN).exists() else ""
        if run is not None and runs.kind_of_run(run) != kind:
            holds = f"another run: expected {kind}, found {runs.kind_of_run(run)}"
        if holds:  # before a lock is left in it
            raise CallError(f"{folder} holds {holds}; choose another or an empty folder")
        with runs.exclusive(folder / CLAIM, EvaluationError):  # else two that start together would each find nobody
            mine = folder / f"{LOCK}.{share.index}-of-{share.count}"
            own = stack.enter_context(mine.open("a+"))
            others = [one for one in folder.glob(f"{LOCK}.*-of-*") if not one.name.endswith(f"-of-{share.count}")]
            if (busy := next(filter(_is_held, [*others, mine]), None)) is not None:
                who = f"another process is evaluating into it (process {busy.read_text().strip()})"
                raise CallError(f"{folder}: {who}; wait for it or choose another folder")
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own.truncate(0)
            own.write(f"{os.getpid()}\n")
            own.flush()
        yield


def state_of(folder: Path, share: runs.Share) -> tuple[bool, int]:
    """Return whether a process holds a share, and when one last took it, in nanoseconds; 0 if none ever did."""
    path = folder / f"{LOCK}.{share.index}-of-{share.count}"
    with runs.exclusive(folder / CLAIM, EvaluationError):
        return (_is_held(path), path.stat().st_mtime_ns) if path.exists() else (False, 0)


def _is_held(path: Path) -> bool:
    import fcntl

    try:
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def claim(folder: Path, contents: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Write the descriptions of a run, or refuse those of another one, before one is written; return their hashes."""
    with runs.exclusive(folder / CLAIM, EvaluationError):
        mine = {name: json.loads(json.dumps(content)) for name, content in contents.items()}
        theirs = {name: files.read_object(folder / name) for name in mine}
        for name, found in theirs.items():
            if found is not None:
                _compare((folder / name).parent, found, mine[name])
        for name, content in mine.items():
            amounts = {one: content[one] for one in AMOUNTS if one in content}
            content = {**(theirs[name] or content), **amounts}
            if content != theirs[name]:
                runs.write_json(folder / name, content)
    return {name: hash_claim(content) for name, content in mine.items()}


def _compare(folder: Path, theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    changed = runs.changed_fingerprint(theirs, mine)
    ignored = ["model.config_hash"]  # `fingerprints` has it
    if changed is not None and mine.get("model", {}).get("weight_hash") == mine.get(runs.WEIGHTS):
        ignored.append("model.weight_hash")  # weights that are in no file
    changes = [
        runs.difference_in_words(name, old, new, "{name}: {old} → {new}")
        for name, old, new in runs.differences(_identity(theirs), _identity(mine))
        if name not in ignored
    ]
    if changes or changed is not None:
        what = "; ".join(changes) or changed
        raise CallError(f"{folder} holds another run ({what}); choose another folder or its settings")


def hash_claim(content: Mapping[str, Any]) -> str:
    """Return the hash of `claim`, which neither the path of the model nor the number of problems changes."""
    return files.checksum_of(_identity(content))


def _identity(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description without amounts, fingerprints, and the path of the model, whose weights may move."""
    plain = {key: value for key, value in content.items() if key not in (*AMOUNTS, *runs.FINGERPRINTS)}
    if "model" in plain:
        plain["model"] = {key: value for key, value in plain["model"].items() if key != "name"}
    return plain


def items_of(folder: Path, task: str, hide: str, *run: str) -> runs.Items:
    """Return the items of one task under one rule, one a problem; ``run``: hashes of `claim`; others do not count."""
    name = re.sub(r"[^\w.+-]", "-", hide)
    name = name if len(name) < 100 else name[:80] + files.checksum_of({"hide": hide})[:16]
    return runs.Items(folder / task / name, files.checksum_of({"run": run, "task": task, "hide": hide}))


FORMAT = 1
_RULES = {"none": None, "top": None, "ranks": False} | dict.fromkeys(
    ("random", "mass", "rowmass", "persistent", "class"), True
)
"""The answers of `takes_seed` for common rules, so that most tables load no torch; a test compares them."""
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


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known, None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def summarise(items: Sequence[Mapping[str, Any]], **known: Any) -> Result:
    """Return the result of all items of a run, in order; ``known`` are the fields that are not computed from items."""
    n, correct, effects = len(items), sum(item["correct"] for item in items), [one.get("effect") or {} for one in items]
    idle = [effect.get("without_effect", ()) for effect in effects]
    shares = ("removed_share", "removed_share_committed", "hit_rate")
    return Result(
        n=n,
        correct=correct,
        accuracy=correct / n,
        interval=wilson_interval(correct, n),
        measures={name: sum(item["measures"][name] for item in items) / n for name in items[0]["measures"]},
        **{name: mean_of(effect.get(name) for effect in effects) for name in shares},
        outcomes="".join("01"[item["correct"]] for item in items),
        without_effect=tuple(one for one in idle[0] if all(one in other for other in idle)),
        not_enforced=tuple(sorted({line for item in items for line in item["not_enforced"]})),
        seconds=round(sum(item["seconds"] for item in items), 3),
        **known,
    )


def collect(folder: Path, wanted: Sequence[tuple[str, str]]) -> list[Result]:
    """Return the results of pairs of task and rule from the items in a folder, and write them to ``results.json``."""
    run, results, missing = files.read_object(folder / RUN) or {}, [], 0
    for task, hide in wanted:
        asked = files.read_object(folder / task / TASK) or {}
        stored = items_of(folder, task, hide, hash_claim(run), hash_claim(asked))
        count, batch, model = asked["problems"], run["batch"], run["model"]
        read = [stored.read(index, min(batch, count - index // batch * batch)) for index in range(count)]
        items = [item for item in read if item is not None]
        missing += count - len(items)
        if not missing:
            known = {name: asked[name] for name in ("task", "protocol", "data")}
            known |= {name: run[name] for name in ("versions", "device")}
            known |= {name: model[name] for name in ("weight_hash", "config_hash", "dtype")}
            settings = {**asked["sampler"], "shots": asked["shots"], "chat": asked["chat"], "batch": batch}
            results.append(summarise(items, model=model["name"], hide=hide, settings=settings, **known))
    if missing:
        again = "run the same `sinkscope evaluate` again"
        raise EvaluationError(f"{folder} is unfinished ({missing} problems missing); {again}")
    write_results(folder, results)
    return results


def write_results(folder: Path, results: Sequence[Result]) -> None:
    """Write ``results.json``, keeping its results of other tasks and rules on the same weights, dtype and device."""
    same = {(result.weight_hash, result.dtype, result.device) for result in results}
    try:
        old = [result for result in read_results(folder) if (result.weight_hash, result.dtype, result.device) in same]
    except (CallError, EvaluationError):
        old = []  # absent or damaged; every result can be made again from its items
    kept = {(one.task, rule_of(one)): asdict(one) for one in (*old, *results)}
    runs.write_json(folder / RESULTS, files.with_checksum({"format": FORMAT, "results": list(kept.values())}))


def read_results(*folders: Path | str) -> list[Result]:
    """Return the results of finished evaluations, folder by folder; an error for one that is none, or is unfinished."""
    results: list[Result] = []
    for folder in map(Path, folders):
        path = next((one for end in ("", ".gz") if (one := folder / f"{RESULTS}{end}").exists()), None)
        if path is None:
            found = runs.kind_of_run(files.read_object(folder / RUN) or {})
            if found != runs.EVALUATION:
                raise CallError(f"{folder}: expected a folder that `sinkscope evaluate` wrote, found {found}")
            raise EvaluationError(f"{folder} is unfinished; run the same `sinkscope evaluate` again")
        document = files.read_json_object(path, EvaluationError, AGAIN)  # plain or in gzip
        files.compare_checksum(document, path, EvaluationError, AGAIN)
        results += files.validated(list[Result], document.get("results"), path, EvaluationError, AGAIN)
    return results


def cell_of(result: Result) -> str:
    """Return the key of the (model, task, rule) cell, the same for all spellings of a rule."""
    names = "model task n weight_hash config_hash settings dtype device data".split()
    return json.dumps([rule_of(result), [getattr(result, name) for name in names]], sort_keys=True, default=str)


def rule_of(result: Result) -> tuple[str, ...]:
    """Return word, K, seed (0 without one) and options in order of a rule that hides K keys, else its text alone."""
    rule = re.fullmatch(r"([a-z]+):(\d+)(?:@(.*))?", result.hide)
    if rule is None:
        return (result.hide,)
    options = sorted({option for option in (rule[3] or "").split(",") if option})
    seeds = [one for one in options if re.fullmatch(r"seed=\d+", one)]
    seed = int(seeds[0].removeprefix("seed=")) if seeds else 0
    return (rule[1], str(int(rule[2])), str(seed), *(one for one in options if one not in seeds))


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
