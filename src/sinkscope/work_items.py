"""Work items: numbered pieces of work that several processes share, so that a run that was killed goes on by the same command.

Doing an item again gives the same result. An item is committed by writing its file under another name and renaming it, so that a
reader sees all of it or nothing. A folder of items belongs to one run: what decides the results stands beside them, and another run
is refused. Locks are the system's own, which releases them when their holder dies, however it dies.

Functions that touch the disk take ``failure``, the class of the exception that they raise when the system refuses.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sinkscope.documents import check_plain, check_regular, read_bytes
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.locks import expect_no_folder

UNFINISHED = ".writing"
"""What the name of a file ends in while it is being written."""
WEIGHTS, TOKENIZER, CONFIG = FINGERPRINTS = ("weights_sha256", "tokenizer_sha256", "config_sha256")
"""Fields for the hashes of what decides a model's answers; folders of earlier versions have none, or the first one only."""
CHANGED = "the weights in memory are not those that began it, as they were changed after they were loaded; save them, load that folder"
LOCKED = "a file that can be locked"
Failure = type[SinkscopeError]


@dataclass(frozen=True)
class Share:
    """The part of the work that a process does: every ``count``-th piece from number ``index`` on.

    Raises:
        CallError: an index that is not below the count.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise CallError(f"share: expected an index from 0 to below its count, found {self.index} of {self.count}")


ALL = Share()


def share_of_process() -> Share:
    """Return the share that torchrun gives this process in ``RANK`` and ``WORLD_SIZE``; all of the work without it.

    Raises:
        CallError: numbers that make no sense.
    """
    rank, count = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (re.fullmatch("[0-9]{1,9}", rank) and re.fullmatch("[0-9]{1,9}", count) and int(rank) < int(count)):
        raise CallError(
            f"expected RANK below WORLD_SIZE in the environment, as torchrun sets them, found RANK={rank}, WORLD_SIZE={count}"
        )
    return Share(int(rank), int(count))


def expect_one_process(what: str) -> None:
    """Raise CallError under torchrun, whose other processes would only find that another run is at work.

    Args:
        what: what is done by one process, such as ``roles``.
    """
    if (count := share_of_process().count) > 1:
        raise CallError(
            f"{what}: expected one process, since its work is not divided, found {count} of torchrun; leave torchrun out"
        )


def item_path(folder: Path, index: int, suffix: str) -> Path:
    """Return the file of an item; in a folder of them the order of names is that of numbers."""
    return folder / f"{index:06d}{suffix}"


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview], failure: Failure, advice: str) -> None:
    """Write a file, whole or in pieces, so that a reader sees all of it or nothing; ``advice`` ends the message of a failure.

    Two processes may write the same file at once: the one that ends last wins. What is no regular file, such as /dev/null, stays.
    """
    write_together({path: content}, failure, advice)


def write_together(
    contents: Mapping[Path, bytes | Iterable[bytes | memoryview]], failure: Failure, advice: str
) -> None:
    """Write several files as `write_whole` writes one; where one cannot be written, earlier files under all their names stay."""
    written: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            expect_no_folder(path, failure)
            if path.exists() and not path.is_dir():
                check_regular(path, failure, advice)
            written[path] = beside = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
            with beside.open("wb") as file:
                for piece in [content] if isinstance(content, bytes) else content:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        for path, beside in written.items():
            os.replace(beside, path)
    except BaseException as error:
        for beside in written.values():
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise failure(f"{path} cannot be written ({error.strerror or error}); {advice}") from error
        raise


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None where there is no such file, or a damaged one.

    Raises:
        SinkscopeError: the file may not be read.
    """
    try:
        content = json.loads(read_bytes(path, SinkscopeError, most=1 << 30))
    except (SinkscopeError, ValueError, RecursionError) as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        return None
    return content if isinstance(content, dict) else None


EVALUATION, COMPARISON, ROLES = "an evaluation", "a comparison of caches", "roles"
"""What a folder with a run.json may hold."""


def kind_of_run(run: Mapping[str, Any]) -> str:
    """Return what a folder holds, by its run.json."""
    if isinstance(run.get("weight_hash"), str) and "canvases" in run:
        return ROLES
    return (
        "something else"
        if not isinstance(run.get("model"), dict)
        else COMPARISON
        if run.get("compares") == "caches"
        else EVALUATION
    )


def differences(theirs: Mapping[str, Any], mine: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield what makes two runs different ones: the name of each value that differs, such as ``sampler.length``, theirs and mine."""
    for key in dict.fromkeys([*theirs, *mine]):
        old, new, name = theirs.get(key), mine.get(key), f"{where}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{name}.")
        elif old != new:
            yield name, old, new


def first_difference(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first of `differences`, None without one; a hash only where nothing else differs, as another dtype changes hashes too."""
    return min(differences(theirs, mine), key=lambda one: one[0] in FINGERPRINTS, default=None)


def changed_fingerprint(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """Return what has changed of the model of a run since it began, and what to do; None where nothing has, or nothing is known."""
    name = next((one for one in FINGERPRINTS if theirs.get(one, mine.get(one)) != mine.get(one)), None)
    if name is None:
        return None
    if name == WEIGHTS:
        return f"{CHANGED}; choose another place for its results"
    what = "config.json" if name == CONFIG else "tokenizer, or its chat template,"
    return f"the model's {what} is not that with which it began; bring it back, or choose another place for the results"


def difference_in_words(name: str, old: Any, new: Any, form: str) -> str:
    """Return what differs between two runs, in the form of a text for its name and both values; a checksum says only what it is of."""
    checksum = re.fullmatch(r"(?:.*\.)?(\w+?)s?_(?:sha256|hash)", name)
    return f"other {checksum[1]}s" if checksum else form.format(name=name, old=old, new=new)


@contextmanager
def exclusive(path: Path, failure: Failure) -> Iterator[None]:
    """Wait until no other process is in here with the same file, and keep others out while the body runs.

    Raises:
        failure: there is something else in its place, or it cannot be made.
    """
    import fcntl

    with open_lock(path, failure) as file:
        lock(file, fcntl.LOCK_EX, failure)
        yield  # closing the file releases the lock, and so does dying


def open_lock(path: Path, failure: Failure) -> IO[str]:
    """Open the file of a lock for appending and reading; it is made if need be. A link is not followed, since its target would be written.

    Raises:
        failure: there is something else in its place, or it cannot be made.
    """
    check_plain(path, failure, LOCKED)
    try:
        return open(path, "a+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
    except OSError as error:
        raise failure(
            f"{path}: expected {LOCKED} ({error.strerror}); remove what is there or choose another folder"
        ) from error


def lock(file: IO[str], how: int, failure: Failure) -> None:
    """Lock an open file; ``how`` as for ``fcntl.flock``.

    Raises:
        BlockingIOError: another process has it.
    """
    import fcntl  # not on Windows, where results can still be read

    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        raise
    except OSError as error:
        way_out = "choose a folder on a local disk, or have the shared one mounted with locks (NFS: its lock service; Lustre: flock)"
        raise failure(
            f"{file.name}: expected a file system that locks files, found {error.strerror}; {way_out}"
        ) from error
