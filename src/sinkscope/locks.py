"""Locks of the folders and files that a process writes, so that two processes never mix what they write.

A lock is a file that the system locks for its holder and releases when the holder ends, however it ends. It is taken before anything else
is made, a second process is refused at once, and the file is removed at the end. Locks that several processes of one run share are in
`work_items`.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sinkscope.documents import check_plain, check_regular, exists
from sinkscope.errors import CallError, SinkscopeError

CLAIM = ".claim"
"""Name of the lock in a folder that is being written."""
UNMOVED = ".unmoved"
"""Name of the folder, within a new folder, for what is not whole yet."""
MOVING = ".moving"
"""Name of the list, in there, of what is moved, while it is."""
Failure = type[SinkscopeError]


@contextmanager
def claimed_folder(folder: Path, failure: Failure) -> Iterator[None]:
    """Make a folder, if there is none, and keep other processes out of it while the body runs.

    Where the body raises, the folders that were made and are still empty are removed.

    Raises:
        CallError: there is a file on the way.
        failure: another process writes into it, or it cannot be made or locked.
    """
    with made_folder(folder, failure), _held(folder / CLAIM, str(folder), failure):
        yield


@contextmanager
def claimed_file(path: Path, failure: Failure) -> Iterator[None]:
    """Keep other processes from writing a file, or a folder that appears whole, while the body runs; its folder is made.

    Raises:
        failure: another process writes it, or its folder cannot be made or locked.
    """
    with (
        made_folder(path.parent, failure, str(path)),
        _held(path.with_name(f".{path.name}{CLAIM}"), str(path), failure),
    ):
        yield


@contextmanager
def new_folder(folder: Path, failure: Failure, purpose: str, *last: str, among: Collection[str] = ()) -> Iterator[Path]:
    """Give a place within a new or empty folder; what is written there moves into the folder when the body ends, or is removed.

    What a killed process has left in such a place is removed.

    Args:
        purpose: what the folder is for, such as ``the folded model``.
        last: names of the files that move last, because readers take a folder that has them for whole.
        among: names of all that will be written; the folder may then hold others.

    Raises:
        CallError: the folder holds something that it must not, or there is a file on the way.
        failure: it cannot be written, or another process writes into it.
    """
    with claimed_folder(folder, failure):
        _undo_moving(folder, failure)
        held = [name for name in names_in(folder) if name != UNMOVED]
        if among and (there := [name for name in held if name in among]):
            raise CallError(f"{folder / there[0]} is there already; choose another folder or delete it")
        if held and not among:
            raise CallError(
                f"{folder}: expected a new or empty folder for {purpose}, found something there ({held[0]}); choose another"
            )
        whole = folder.absolute()  # the body may change the current folder
        place = whole / UNMOVED
        try:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            yield place
            names = sorted(names_in(place), key=lambda name: last.index(name) if name in last else -1)
            (place / f"{MOVING}.writing").write_text(json.dumps(names))
            (place / f"{MOVING}.writing").rename(place / MOVING)
            for name in names:
                (place / name).rename(whole / name)
            shutil.rmtree(place)
        except BaseException as error:
            with contextlib.suppress(failure):
                _undo_moving(whole, failure)
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(error, OSError):
                raise failure(
                    f"{folder} cannot be written ({_reason(error)}); make room or choose another folder"
                ) from error
            if isinstance(error, failure):
                raise failure(str(error).replace(str(place), str(folder))) from error
            raise


@contextmanager
def replaced_files(folder: Path, failure: Failure) -> Iterator[Path]:
    """Give a place within a folder; the files written there take the places of earlier ones all together when the body ends.

    Where the body raises, the earlier ones stay as they are.

    Raises:
        failure: they cannot be written.
    """
    whole = folder.absolute()  # the body may change the current folder
    place = whole / UNMOVED
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        yield place
        names = names_in(place)
        for one in names:
            expect_no_folder(folder / one, failure)
            if (folder / one).exists():
                check_regular(folder / one, failure, "make room or choose another folder")
        for one in names:
            (place / one).replace(whole / one)
    except OSError as error:
        raise failure(f"{folder} cannot be written ({_reason(error)}); make room or choose another folder") from error
    except failure as error:
        raise failure(str(error).replace(str(place), str(folder))) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def expect_no_folder(path: Path, failure: Failure) -> None:
    """Raise ``failure`` for a folder where a file is to be written."""
    if path.is_dir() and not path.is_symlink():
        raise failure(f"{path} cannot be written (a folder stands there); remove it, or choose another name")


def _undo_moving(folder: Path, failure: Failure) -> None:
    """Remove what a process has moved into a folder that was killed before all of it was there."""
    place = folder / UNMOVED
    try:
        listed = json.loads((place / MOVING).read_text())
    except (OSError, ValueError):
        return
    if not isinstance(listed, list) or not all(isinstance(name, str) and Path(name).name == name for name in listed):
        return
    moved = [folder / name for name in listed if not exists(place / name) and exists(folder / name)]
    try:
        for path in moved if len(moved) < len(listed) else ():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.rmtree(place)
    except OSError as error:
        raise failure(f"{folder} cannot be written ({_reason(error)}); choose another folder") from error


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder but that of its lock, in order."""
    return sorted(one.name for one in folder.iterdir() if one.name != CLAIM)


def in_the_way(folder: Path) -> str:
    """Return in words what keeps a folder from being made."""
    leads_nowhere = any(one.is_symlink() and not one.exists() for one in (folder, *folder.parents))
    return "a link that leads nowhere" if leads_nowhere else "a file on the way"


@contextmanager
def made_folder(folder: Path, failure: Failure, wanted: str = "") -> Iterator[None]:
    """Make a folder; where the body raises, those that were made and are still empty are removed.

    Args:
        wanted: what the user named, if it was not the folder.

    Raises:
        CallError: there is a file on the way.
        failure: it cannot be made.
    """
    made = [one.absolute() for one in _missing_folders(folder, failure)]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (NotADirectoryError, FileExistsError) as error:
            purpose = "a folder for it" if wanted else "a folder"
            raise CallError(
                f"{wanted or folder}: expected {purpose}, found {in_the_way(folder)}; choose another name"
            ) from error
        except (OSError, ValueError) as error:
            raise failure(f"{folder} cannot be made ({_reason(error)}); choose another folder") from error
        yield
    except BaseException:
        for one in made:
            with contextlib.suppress(OSError, ValueError):
                one.rmdir()
        raise


@contextmanager
def _held(path: Path, name: str, failure: Failure) -> Iterator[None]:
    """Hold a lock while the body runs; ``name`` is what it protects."""
    import filelock

    check_plain(path, failure, f"the lock of {name}")
    path = path.absolute()  # the body may change the current folder

    lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        if not os.path.lexists(path):  # nobody holds it: it cannot be made
            raise failure(f"{name} cannot be written ({_why_not(path)}); choose another folder") from error
        owner = _owner(path)
        who = "this process" if owner == str(os.getpid()) else f"process {owner}"
        raise failure(f"{name}: another run is writing into it ({who}); wait for it or choose another name") from error
    except (OSError, ValueError, NotImplementedError) as error:
        raise failure(
            f"{name} cannot be locked ({_reason(error)}); choose a folder on a disk where files can be written and locked"
        ) from error
    try:
        with contextlib.suppress(OSError):
            path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while it is held: whoever waits for the file that is gone begins anew
        lock.release()


def _why_not(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
    except OSError as error:
        return _reason(error)
    return "it is being deleted"


def _owner(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip() or "unknown"
    return "unknown"


def _missing_folders(folder: Path, failure: Failure) -> list[Path]:
    """Return the folders on the way that do not exist, the innermost first."""
    try:
        return [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    except (OSError, ValueError) as error:
        raise failure(f"{folder} cannot be made ({_reason(error)}); choose another folder") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ValueError):  # of its encoding, or of a NUL in it
        return "no file can have this name"
    return getattr(error, "strerror", None) or str(error)
