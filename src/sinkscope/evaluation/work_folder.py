"""The folder of an evaluation: one JSON file a problem, each written whole, so that a killed run loses one batch at most.

run.json                         what is evaluated and how; another run is refused
lock                             held by the process at work; the system drops it when that process dies, however it dies
lab-arith/none/000017.json       one problem under one rule, with everything needed to audit it, and a checksum
results.json                     written at the end
"""

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError

RUN, LOCK, RESULTS = "run.json", "lock", "results.json"
UNFINISHED, DAMAGED = ".writing", ".damaged"
_log = logging.getLogger(__name__)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes the folder and keeps other processes out of it.

    Raises:
        CallError: the folder is a file, holds something else, or another process is at work in it.
        EvaluationError: it cannot be made.
    """
    import fcntl  # not on Windows, where results can still be read

    try:
        folder.mkdir(parents=True, exist_ok=True)
        ours = {RUN, LOCK, RESULTS, RUN + UNFINISHED}
        names = sorted(path.name for path in folder.iterdir())
        if RUN not in names and not ours.issuperset(names):
            strange = next(name for name in names if name not in ours)
            raise CallError(f"{folder} holds files of something else ({strange} …); choose another folder or an empty one")
        file = (folder / LOCK).open("a+")
    except (FileExistsError, NotADirectoryError) as error:
        raise CallError(f"{folder}: expected a folder for the results, found a file on the way; choose another name") from error
    except OSError as error:
        raise EvaluationError(f"{folder} cannot be written ({error.strerror}); choose another folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            message = f"{folder}: another process is evaluating into it (process {owner}); wait for it or choose another folder"
            raise CallError(message) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def claim_run(folder: Path, run: Mapping[str, Any]) -> str:
    """Writes what is evaluated, or compares it with what the folder holds; returns a hash for `WorkItems`.

    Raises:
        CallError: the folder holds another run.
    """
    path = folder / RUN
    mine = json.loads(json.dumps(run))
    theirs = _read_object(path)
    if theirs is None:
        if path.exists():
            _log.warning("%s is damaged and is written anew; items of another run will be redone", path)
        write_json(path, mine)
    else:
        changes = list(_changes(theirs, mine))
        if changes:
            raise CallError(f"{folder} holds another run ({'; '.join(changes)}); choose another folder, or go on with its settings")
    mine["model"] = {key: value for key, value in mine["model"].items() if key != "name"}
    return _checksum(mine)


def _changes(theirs: dict[str, Any], mine: dict[str, Any], where: str = "") -> Iterator[str]:
    for key in dict.fromkeys([*theirs, *mine]):
        old, new, name = theirs.get(key), mine.get(key), f"{where}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changes(old, new, f"{name}.")
        elif old != new and name != "model.name":  # the same weights under another path are the same model
            yield f"{name}: {old} → {new}"


class WorkItems:
    """The problems of one task under one rule.

    Args:
        folder: of the evaluation.
        task, hide: which.
        run: from `claim_run`; items of another run do not count.
    """

    def __init__(self, folder: Path, task: str, hide: str, run: str) -> None:
        self.folder = folder / task / re.sub(r"[^\w.+-]", "-", hide)
        self.run = _checksum({"run": run, "task": task, "hide": hide})

    def read(self, index: int) -> dict[str, Any] | None:
        """A committed item, or None; a damaged one is set aside and reported."""
        path = self._path(index)
        if not path.exists():
            return None
        item = _read_object(path)
        if item is not None and item.pop("checksum", None) == _checksum(item) and (item["run"], item["index"]) == (self.run, index):
            return item
        aside = path.with_name(path.name + DAMAGED)
        os.replace(path, aside)
        _log.warning("%s is damaged or of another run; it is kept as %s and the problem is done again", path, aside.name)
        return None

    def commit(self, index: int, item: Mapping[str, Any]) -> dict[str, Any]:
        """Writes an item for good.

        Raises:
            EvaluationError: no permission, no space.
        """
        content = json.loads(json.dumps({"run": self.run, "index": index, **item}))
        write_json(self._path(index), {**content, "checksum": _checksum(content)})
        return content

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.json"


def find_items(folder: Path) -> list[Path]:
    """Files of the problems that are done."""
    return sorted(folder.glob("*/*/??????.json"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a file so that a reader sees all of it or nothing.

    Raises:
        EvaluationError: no permission, no space.
    """
    beside = path.with_name(path.name + UNFINISHED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        kept = "what was done before is kept: make room and run the same command again"
        raise EvaluationError(f"{path} cannot be written ({error.strerror}); {kept}") from error


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
