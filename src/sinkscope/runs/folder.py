"""Folders that one process writes: a lock, a place for unfinished files, and the identity of a run that goes on.

A lock is a file that the system locks for its holder and releases when the holder dies, however it dies.
"""

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError, SinkscopeError
from sinkscope.runs import files

CLAIM = ".claim"
"""Name of the lock in a folder that is being written."""
WEIGHTS, TOKENIZER, CONFIG = FINGERPRINTS = ("weights_sha256", "tokenizer_sha256", "config_sha256")
"""Fields for the hashes of the files that decide a model's answers."""
CHANGED = "the weights in memory were changed after they were loaded; save them, and load that folder"
EVALUATION, COMPARISON, ROLES = "an evaluation", "a comparison of caches", "roles"
"""The kinds of results that a folder with a run.json may hold."""

Failure = type[SinkscopeError]
_log = logging.getLogger(__name__)


@contextmanager
def made_folder(folder: Path, wanted: str = "") -> Iterator[None]:
    """Make a folder; where the body raises, those that were made and are still empty are removed.

    Raise CallError where there is a file on the way; ``wanted`` is the name that the user gave, if not the folder's.
    """
    folder = folder.absolute()
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError) as error:
        what = "expected a folder, found a file on the way; choose another name"
        raise CallError(f"{wanted or folder}: {what}") from error
    try:
        yield
    except BaseException:
        for one in made:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise


@contextmanager
def exclusive(path: Path, failure: Failure, name: str = "") -> Iterator[None]:
    """Wait for a lock file, which stays, and hold it while the body runs.

    Where a ``name`` stands in messages for the protected files, raise instead if another process holds it, and remove
    it at the end.
    """
    import filelock

    path = path.absolute()  # the body may change the current folder
    lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=not name)
    except filelock.Timeout as error:
        owner = path.read_text().strip() if path.exists() else ""
        who = "this process" if owner == str(os.getpid()) else f"process {owner or 'unknown'}"
        raise failure(f"{name}: another run is writing into it ({who}); wait for it or choose another name") from error
    try:
        if name:
            with contextlib.suppress(OSError):
                path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        if name:
            with contextlib.suppress(OSError):
                path.unlink()  # while it is held: whoever waits for the file that is gone begins anew
        lock.release()


@contextmanager
def claimed_folder(folder: Path, failure: Failure) -> Iterator[None]:
    """Make a folder, if there is none, and keep other processes out of it while the body runs."""
    with made_folder(folder), exclusive(folder / CLAIM, failure, str(folder)):
        yield


@contextmanager
def claimed_file(path: Path, failure: Failure) -> Iterator[None]:
    """Keep others from writing a file, or a folder that appears whole, while the body runs; its folder is made."""
    lock = path.with_name(f".{path.name}{CLAIM}")
    with made_folder(path.parent, str(path)), exclusive(lock, failure, str(path)):
        yield


@contextmanager
def new_folder(folder: Path, failure: Failure, purpose: str, *last: str, among: Collection[str] = ()) -> Iterator[Path]:
    """Give a place for the files of a new folder; they move into it when the body ends, or are removed where it raises.

    Args:
        purpose: of the folder, such as ``the folded model``.
        last: names of the files that move last: a reader takes a folder that has them for whole.
        among: names of all files that will be written; the folder may then hold others.
    """
    with claimed_folder(folder, failure):
        unfinished = f"files{files.UNFINISHED}"  # of a run that was killed
        there = [name for name in names_in(folder) if (name in among if among else name != unfinished)]
        if there:
            what = f"{folder}: expected a new or empty folder for {purpose}, found something there ({there[0]})"
            what = f"{folder / there[0]} is there already" if among else what
            raise CallError(f"{what}; choose another folder or delete it")
        with replaced_files(folder, last) as place:
            yield place


@contextmanager
def replaced_files(folder: Path, last: Collection[str] = ()) -> Iterator[Path]:
    """Give a place for new files of a folder, which replace earlier ones together when the body ends, if it does."""
    whole = folder.absolute()
    place = whole / f"files{files.UNFINISHED}"
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        yield place
        for one in sorted(names_in(place), key=lambda one: one in last):
            (place / one).replace(whole / one)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder but that of its lock, in order."""
    return sorted(one.name for one in folder.iterdir() if one.name != CLAIM)


def item_path(folder: Path, index: int, suffix: str) -> Path:
    """Return the file of an item; in a folder of them the order of names is that of numbers."""
    return folder / f"{index:06d}{suffix}"


class Items:
    """The items of a run, one a file; ``run`` is a hash of all that decides them: items of other runs do not count."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder, self.run = folder, run

    def read(self, index: int, beside: int = 0) -> dict[str, Any] | None:
        """Return a committed item; None too if it stood ``beside`` fewer problems. A damaged one is set aside."""
        path = item_path(self.folder, index, ".json")
        item = files.read_object(path)
        if item is None and not path.exists():
            return None
        damaged = item is None or item.pop(files.CHECKSUM, None) != files.checksum_of(item)
        if item is None or damaged or (item["run"], item["index"]) != (self.run, index):
            aside = path.with_name(f"{path.name}.damaged")
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                os.replace(path, aside)
            what = f"it is kept as {aside.name} and the problem is done again"
            _log.warning("%s is damaged or of another run; %s", path, what)
            return None
        return item if item.get("beside", beside) >= beside else None

    def commit(self, index: int, item: Mapping[str, Any]) -> None:
        content = json.loads(json.dumps({"run": self.run, "index": index, **item}))
        write_json(item_path(self.folder, index, ".json"), files.with_checksum(content))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object as a whole file, in a folder that is made."""
    kept = "what was done before is kept: make room and run the same command again"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode(), EvaluationError, kept)


def differences(theirs: Mapping[str, Any], mine: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield name, such as ``sampler.length``, old and new value of each setting that differs between two runs."""
    for key in dict.fromkeys([*theirs, *mine]):
        old, new, name = theirs.get(key), mine.get(key), f"{where}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{name}.")
        elif old != new:
            yield name, old, new


def difference_in_words(name: str, old: Any, new: Any, form: str) -> str:
    """Return a difference between two runs by a form for its name and both values; of a checksum, only its name."""
    checksum = re.fullmatch(r"(?:.*\.)?(\w+?)s?_(?:sha256|hash)", name)
    return f"other {checksum[1]}s" if checksum else form.format(name=name, old=old, new=new)


def first_difference(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first of `differences`, None without one; a hash only where nothing else differs."""
    return min(differences(theirs, mine), key=lambda one: one[0] in FINGERPRINTS, default=None)


def changed_fingerprint(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """Say which file of a run's model has changed since the run began, and how to go on; None where none has."""
    name = next((one for one in FINGERPRINTS if theirs.get(one, mine.get(one)) != mine.get(one)), None)
    if name == WEIGHTS:
        return f"{CHANGED}; choose another place for its results"
    what = "config.json" if name == CONFIG else "tokenizer, or its chat template,"
    how = "is not that with which it began; bring it back, or choose another place for the results"
    return None if name is None else f"the model's {what} {how}"


@contextmanager
def run_folder(folder: Path, name: str, identity: Mapping[str, Any], failure: Failure, what: str) -> Iterator[str]:
    """Claim the folder of a run, a new one or that of the same run, while the body runs; give its identity's sha256.

    Args:
        name: of the file that holds the identity, plain values; it goes where the body makes no other.
        what: another run, in messages.

    Raises:
        CallError: the folder holds another run or something else.
        failure: it cannot be written, or another process writes into it.
    """
    with claimed_folder(folder, failure):
        path, run = folder / name, files.with_checksum(identity)
        names = [one for one in names_in(folder) if not one.endswith(files.UNFINISHED)]
        if names and name not in names:
            raise CallError(f"{folder} holds something else ({min(names)} …), no {name}; choose a new or empty folder")
        if names:
            theirs = files.read_json_object(path, failure)
            files.compare_checksum(theirs, path, failure)
            if (other := first_difference({**theirs, files.CHECKSUM: run[files.CHECKSUM]}, run)) is not None:
                words = difference_in_words(*other, "its {name} is {old!r}, now it is {new!r}")
                change = changed_fingerprint(theirs, run) if other[0] in FINGERPRINTS else None
                raise CallError(f"{folder} holds {what}: {change or f'{words}; choose another folder'}")
        else:
            advice = "make room or choose another folder; the same command goes on"
            files.write_whole(path, json.dumps(run, indent=1).encode() + b"\n", failure, advice)
        try:
            yield run[files.CHECKSUM]
        finally:
            if not names and names_in(folder) == [name]:
                path.unlink()


def kind_of_run(run: Mapping[str, Any]) -> str:
    """Return the kind of the results in a folder, by its run.json."""
    if isinstance(run.get("weight_hash"), str) and "canvases" in run:
        return ROLES
    if not isinstance(run.get("model"), dict):
        return "something else"
    return COMPARISON if run.get("compares") == "caches" else EVALUATION


# The share of the work that a process does, as torchrun numbers its processes


@dataclass(frozen=True)
class Share:
    """Every ``count``-th piece of the work from number ``index`` on."""

    index: int = 0
    count: int = 1


ALL = Share()


def share_of_process() -> Share:
    """Return the share that torchrun gives this process in ``RANK`` and ``WORLD_SIZE``; all of the work without it."""
    return Share(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def expect_one_process(what: str) -> None:
    """Raise CallError under torchrun for work that is not divided: its other processes would find the folder locked."""
    if (count := share_of_process().count) > 1:
        raise CallError(f"{what} runs in one process, found {count} of torchrun; leave torchrun out")
