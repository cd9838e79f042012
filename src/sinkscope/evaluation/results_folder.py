"""The folder of an evaluation: one JSON file a problem, each written whole, so that a killed run loses one batch.
run.json                      the model and the versions of the libraries; another run is refused
lock.0-of-1, lock.2-of-4 …    held by the processes at work; the system releases them when a process dies
lab-arith/task.json           how the task is asked: sampler, shots, data; another one is refused
lab-arith/none/000017.json    one problem under one rule, with everything needed to audit it, and a checksum
results.json                  written at the end
results.json.gz               the same, compressed, for a repository; read where there is no results.json
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.runs.files import CHECKSUM, checksum_of, json_text, read_object, with_checksum, write_whole
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
    made_folder,
)
from sinkscope.runs.share import ALL, Share

RUN, TASK, LOCK, RESULTS = "run.json", "task.json", "lock", "results.json"
COMPRESSED = f"{RESULTS}.gz"
CLAIM = f"{LOCK}.claim"  # held by those who are about to take a lock or to write run.json
AMOUNTS = ("limit", "problems")  # how many problems are asked, which changes none of their answers
_log = logging.getLogger(__name__)


@contextmanager
def locked(folder: Path, share: Share = ALL, kind: str = EVALUATION) -> Iterator[None]:
    """Make the folder, and keep other processes out while the body runs, except those with other shares of the work."""
    import fcntl  # not on Windows, where results can still be read

    with made_folder(folder), contextlib.ExitStack() as stack:
        run = read_object(folder / RUN) if (folder / RUN).exists() else None
        strange = [name for name in sorted(os.listdir(folder)) if not name.startswith((LOCK, RUN, RESULTS))]
        if strange and not (folder / RUN).exists():
            raise CallError(f"{folder} holds files without a {RUN} ({strange[0]} …); choose another or an empty folder")
        if run is not None and kind_of_run(run) != kind:  # before a lock is left in it
            found = f"expected {kind}, found {kind_of_run(run)}"
            raise CallError(f"{folder} holds another run: {found}; choose another folder")
        with exclusive(folder / CLAIM, EvaluationError):  # else two that start together would each find nobody
            mine = _lock_path(folder, share)
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


def state_of(folder: Path, share: Share) -> tuple[bool, int]:
    """Return whether a process holds a share, and when one last took it, in nanoseconds; 0 if none ever did."""
    path = _lock_path(folder, share)
    with exclusive(folder / CLAIM, EvaluationError):
        return (_is_held(path), path.stat().st_mtime_ns) if path.exists() else (False, 0)


def _lock_path(folder: Path, share: Share) -> Path:
    return folder / f"{LOCK}.{share.index}-of-{share.count}"


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
    with exclusive(folder / CLAIM, EvaluationError):
        mine = {name: json.loads(json.dumps(content)) for name, content in contents.items()}
        theirs = {name: read_object(folder / name) for name in mine}
        for name, found in theirs.items():
            if found is not None:
                _compare((folder / name).parent, found, mine[name])
        for name, content in mine.items():
            amounts = {one: content[one] for one in AMOUNTS if one in content}
            content = {**(theirs[name] or content), **amounts}
            if content != theirs[name]:
                write_json(folder / name, content)
    return {name: hash_claim(content) for name, content in mine.items()}


def _compare(folder: Path, theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    changed = changed_fingerprint(theirs, mine)
    ignored = ["model.config_hash"]  # `fingerprints` has it
    if changed is not None and mine.get("model", {}).get("weight_hash") == mine.get(WEIGHTS):
        ignored.append("model.weight_hash")  # weights that are in no file
    changes = [
        difference_in_words(name, old, new, "{name}: {old} → {new}")
        for name, old, new in differences(_identity(theirs), _identity(mine))
        if name not in ignored
    ]
    if changes:
        raise CallError(f"{folder} holds another run ({'; '.join(changes)}); choose another folder or its settings")
    if changed is not None:
        raise CallError(f"{folder} holds another run: {changed}")


def hash_claim(content: Mapping[str, Any]) -> str:
    """Return the hash of `claim`, which neither the path of the model nor the number of problems changes."""
    return checksum_of(_identity(content))


def _identity(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description without amounts, fingerprints, and the path of the model, whose weights may move."""
    plain = {key: value for key, value in content.items() if key not in (*AMOUNTS, *FINGERPRINTS)}
    if "model" in plain:
        plain["model"] = {key: value for key, value in plain["model"].items() if key != "name"}
    return plain


class ResultItems:
    """The items of one task under one rule, one a problem; ``run`` are hashes of `claim`: other runs' do not count."""

    def __init__(self, folder: Path, task: str, hide: str, *run: str) -> None:
        name = re.sub(r"[^\w.+-]", "-", hide)
        self.folder = folder / task / (name if len(name) < 100 else name[:80] + checksum_of({"hide": hide})[:16])
        self.run = checksum_of({"run": run, "task": task, "hide": hide})

    def read(self, index: int, beside: int = 0) -> dict[str, Any] | None:
        """Return a committed item; None too if it stood ``beside`` fewer problems. A damaged one is set aside."""
        path = item_path(self.folder, index, ".json")
        item = read_object(path)
        if item is None and not path.exists():
            return None
        ours = item is not None and item.pop(CHECKSUM, None) == checksum_of(item)
        if not ours or (item["run"], item["index"]) != (self.run, index):
            aside = path.with_name(f"{path.name}.damaged")
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                os.replace(path, aside)
            what = f"it is kept as {aside.name} and the problem is done again"
            _log.warning("%s is damaged or of another run; %s", path, what)
            return None
        return item if item.get("beside", beside) >= beside else None

    def commit(self, index: int, item: Mapping[str, Any]) -> None:
        content = json.loads(json_text({"run": self.run, "index": index, **item}))
        write_json(item_path(self.folder, index, ".json"), with_checksum(content))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    kept = "what was done before is kept: make room and run the same command again"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode(), EvaluationError, kept)
