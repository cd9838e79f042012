"""The folder of an evaluation: one JSON file a problem, each written whole, so that a killed run loses one batch at
most.

run.json                         the model and the versions of the libraries; another run is refused
lock, lock.0-of-4 …              held by the processes at work; the system releases them when a process dies, however it
dies lab-arith/task.json              how the task is asked: sampler, shots, data; another one is refused
lab-arith/none/000017.json       one problem under one rule, with everything needed to audit it, and a checksum
results.json                     written at the end
results.json.gz                  the same, compressed; read where there is no results.json, so that outcomes can be kept
in a repository
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.runs.files import UNFINISHED, json_text, read_json_object, read_object, write_whole
from sinkscope.runs.folder import (
    EVALUATION,
    FINGERPRINTS,
    WEIGHTS,
    changed_fingerprint,
    difference_in_words,
    differences,
    exclusive,
    item_path,
    kind_of_run,
    lock,
    made_folder,
    open_lock,
)
from sinkscope.runs.share import ALL, Share

RUN, TASK, LOCK, RESULTS = "run.json", "task.json", "lock", "results.json"
COMPRESSED = f"{RESULTS}.gz"
CLAIM = f"{LOCK}.claim"  # held by those who are about to take a lock or to write what the run is
AMOUNTS = ("limit", "problems")  # how many problems are asked, which changes none of their answers
DAMAGED = ".damaged"
_OURS = re.compile(rf"{LOCK}.*|({RUN}|{RESULTS})(.*{UNFINISHED})?")
_log = logging.getLogger(__name__)


@contextmanager
def locked(folder: Path, share: Share = ALL, kind: str = EVALUATION) -> Iterator[None]:
    """Make the folder, and keep other processes out of it while the body runs, except those with other shares of the
    same work.

    Args:
        kind: what the folder may hold, of `runs.folder`.

    Raises:
        CallError: the folder is a file, holds something else, or another process is at work in it.
        EvaluationError: it cannot be made, or lies where files cannot be locked.
    """
    import fcntl  # not on Windows, where results can still be read

    with contextlib.ExitStack() as stack:
        stack.enter_context(made_folder(folder, EvaluationError))
        names = sorted(path.name for path in folder.iterdir())
        strange = next((name for name in names if not _OURS.fullmatch(name)), None)
        if RUN not in names and strange is not None:
            raise CallError(
                f"{folder} holds files without the {RUN} of a run ({strange} …); choose another folder or an empty one"
            )
        found = read_object(folder / RUN) if RUN in names else None
        if found is not None and kind_of_run(found) != kind:
            raise CallError(
                f"{folder} holds another run: expected an empty folder, or one with {kind}, "
                f"found {kind_of_run(found)}; choose another folder"
            )
        shared = own = stack.enter_context(open_lock(folder / LOCK, EvaluationError))
        if share.count > 1:
            own = stack.enter_context(open_lock(_lock_path(folder, share), EvaluationError))
        try:
            with exclusive(folder / CLAIM, EvaluationError):  # else two that start together would each find nobody
                busy = next((other for other in _other_shares(folder, share.count) if is_working(folder, other)), None)
                if busy is not None:
                    own = stack.enter_context(_lock_path(folder, busy).open())
                    raise BlockingIOError
                lock(shared, (fcntl.LOCK_EX if share.count == 1 else fcntl.LOCK_SH) | fcntl.LOCK_NB, EvaluationError)
                if share.count > 1:
                    _take(own)
        except BlockingIOError as error:
            own.seek(0)
            raise CallError(
                f"{folder}: another process is evaluating into it (process {own.read().strip() or 'unknown'}); "
                "wait for it or choose another folder"
            ) from error
        own.truncate(0)
        own.write(f"{os.getpid()}\n")
        own.flush()
        yield


def _take(file: IO[str]) -> None:
    """Lock a file that others may hold for a moment to see whether it is locked."""
    import fcntl

    for attempt in range(20):
        try:
            return lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB, EvaluationError)
        except BlockingIOError:
            if attempt == 19:
                raise
            time.sleep(0.05)


def is_working(folder: Path, share: Share) -> bool:
    """Return whether a process holds that share.

    Raises:
        EvaluationError: the file system has no locks.
    """
    import fcntl

    try:
        with open_lock(_lock_path(folder, share), EvaluationError) as file:
            lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB, EvaluationError)
    except BlockingIOError:
        return True
    return False


def started_at(folder: Path, share: Share) -> int | None:
    """Return when a process last took that share, in nanoseconds; None when none ever did.

    Who takes a share writes its number into the lock, so an empty one was only looked at.
    """
    path = _lock_path(folder, share)
    found = path.stat() if path.exists() else None
    return found.st_mtime_ns if found is not None and found.st_size else None


def _lock_path(folder: Path, share: Share) -> Path:
    return folder / f"{LOCK}.{share.index}-of-{share.count}"


def _other_shares(folder: Path, count: int) -> list[Share]:
    """Return the shares of other divisions of the work, into another number of processes, whose locks are here."""
    names = [path.name.removeprefix(f"{LOCK}.") for path in folder.glob(f"{LOCK}.*")]
    found = [match for name in names if (match := re.fullmatch(r"(\d+)-of-(\d+)", name))]
    return [Share(int(match[1]), int(match[2])) for match in found if int(match[2]) != count]


def check_claims(contents: Mapping[Path, Mapping[str, Any]]) -> None:
    """Compare everything that is to be evaluated with what is there, before any of it is written.

    Raises:
        CallError: another run is there.
    """
    for path, content in contents.items():
        theirs = read_object(path)
        if theirs is not None:
            _compare_claim(path.parent, theirs, json.loads(json.dumps(content)))


def _compare_claim(folder: Path, theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    # the same weights under another path are the same model; `fingerprints` has the config
    ignored = ["model.name", "model.config_hash"]
    changed = changed_fingerprint(theirs, mine)
    if changed is not None and mine.get("model", {}).get("weight_hash") == mine.get(WEIGHTS):
        ignored.append("model.weight_hash")  # weights that are in no file
    changes = [
        difference_in_words(name, old, new, "{name}: {old} → {new}")
        for name, old, new in differences(_settings(theirs), _settings(mine))
        if name not in ignored
    ]
    if changes or changed is not None:
        own = f" ({'; '.join(changes)}); choose another folder, or go on with its settings"
        raise CallError(f"{folder} holds another run{own if changes else f': {changed}'}")


def claim(path: Path, content: Mapping[str, Any]) -> str:
    """Write what is evaluated, or compare it with what is there; return its hash for `ResultItems`.

    How many problems are asked may change from one call to the next; the file says how many were asked last.

    Raises:
        CallError: another run is there.
        EvaluationError: it cannot be written, or lies where files cannot be locked.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / CLAIM, EvaluationError):
        mine = json.loads(json.dumps(content))
        theirs = read_object(path)
        if theirs is None:
            if path.exists():
                _log.warning("%s is damaged and is written anew; items of another run will be redone", path)
            write_json(path, mine)
        else:
            _compare_claim(folder, theirs, mine)
            if any(theirs.get(name) != mine.get(name) for name in AMOUNTS):
                write_json(path, {**theirs, **{name: mine[name] for name in AMOUNTS if name in mine}})
    return hash_claim(mine)


def hash_claim(content: Mapping[str, Any]) -> str:
    """Return the hash of `claim`, which neither the path of the model nor the number of problems changes."""
    plain = _settings(content)
    if "model" in plain:
        plain["model"] = {key: value for key, value in plain["model"].items() if key != "name"}
    return _checksum(plain)


def _settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the answers."""
    return {key: value for key, value in content.items() if key not in (*AMOUNTS, *FINGERPRINTS)}


def items_folder(folder: Path, task: str, hide: str) -> Path:
    """Return the folder for the items of a task under a rule."""
    return folder / task / re.sub(r"[^\w.+-]", "-", hide)


class ResultItems:
    """The items of one task under one rule, one a problem.

    Args:
        folder: of the evaluation.
        task, hide: names of the task and the rule.
        run: from `claim`, for the folder and for the task; items of another run do not count.
    """

    def __init__(self, folder: Path, task: str, hide: str, *run: str) -> None:
        self.folder = items_folder(folder, task, hide)
        self.run = _checksum({"run": run, "task": task, "hide": hide})

    def read(self, index: int, beside: int = 0) -> dict[str, Any] | None:
        """Return a committed item, or None; a damaged one is set aside and reported.

        Args:
            index: number of the problem.
            beside: problems of its batch as it is now; an item that was written among fewer, at the end of a smaller
                limit, is to be done again, so that padding and rounding are those of an uninterrupted run.
        """
        path = self.path(index)
        if not path.exists():
            return None
        try:
            item = read_json_object(path, EvaluationError)
        except EvaluationError:
            item = {}
        ours = item.pop("checksum", None) == _checksum(item)
        if not ours or (item.get("run"), item.get("index")) != (self.run, index):
            aside = path.with_name(path.name + DAMAGED)
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                os.replace(path, aside)
            _log.warning(
                "%s is damaged or of another run; it is kept as %s and the problem is done again", path, aside.name
            )
            return None
        return item if item.get("beside", beside) >= beside else None

    def commit(self, index: int, item: Mapping[str, Any]) -> dict[str, Any]:
        """Write an item.

        Raises:
            EvaluationError: no permission, no space.
        """
        content = json.loads(json_text({"run": self.run, "index": index, **item}))
        write_json(self.path(index), {**content, "checksum": _checksum(content)})
        return content

    def is_done(self, index: int, beside: int = 0) -> bool:
        """Return whether an item is committed, damaged or not; ``beside`` as in `read`."""
        path = self.path(index)
        found = (read_object(path) or {}).get("beside", beside)
        return path.exists() and (not isinstance(found, int) or found >= beside)

    def path(self, index: int) -> Path:
        """Return the file of an item."""
        return item_path(self.folder, index, ".json")


def find_items(folder: Path) -> list[Path]:
    """Return the files of the problems that are done."""
    return sorted(folder.glob("*/*/??????.json"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file so that a reader sees all of it or nothing.

    Raises:
        EvaluationError: no permission, no space.
    """
    kept = "what was done before is kept: make room and run the same command again"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode(), EvaluationError, kept)


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
