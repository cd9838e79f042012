"""Files of settings that libraries read in a user's folders when they are imported: checked before, told by name where one fails."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from sinkscope.documents import check_regular, files_in
from sinkscope.errors import SinkscopeError, first_line

MOST_SETTINGS = 1 << 20
"""Bytes of a file of settings; a larger one is none."""
_READERS = {"fsspec/config.py": ("fsspec", "cdir", "fn"), "donfig/config_obj.py": ("zarr", "path")}
"""The code that reads settings, whose they are, and its local variables that name the file."""


def check_settings(files: Iterable[Path | str], library: str, more: str = "") -> None:
    """Raise SinkscopeError for a file that the library would wait for, read for ever or could not read as text.

    Args:
        more: what else than removing the file helps.
    """
    advice = f"{library} reads its settings there; remove it{more}"
    for file in map(Path, files):
        if not file.exists() or file.is_dir() or os.path.realpath(file) == os.devnull:
            continue
        check_regular(file, SinkscopeError, advice, most=MOST_SETTINGS)
        try:
            file.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise SinkscopeError(f"{file}: expected text in UTF-8, found other bytes; {advice}") from error


def check_fsspec() -> None:
    """Check the settings of fsspec, which zarr and datasets import."""
    check_settings(_within([os.environ.get("FSSPEC_CONFIG_DIR") or "~/.config/fsspec"], ("ini", "json")), "fsspec")


def check_zarr() -> None:
    """Check the settings of zarr and fsspec."""
    check_settings(
        _within(["/etc/zarr", os.path.join(sys.prefix, "etc", "zarr"), "~/.config/zarr"], ("yaml", "yml", "json")),
        "zarr",
    )
    check_fsspec()


def refused_file(error: BaseException) -> str | None:
    """Return a message that names the file of settings at which a library failed; None where an error has another reason."""
    last: BaseException | None = error
    while last is not None:
        trace = last.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename.replace(os.sep, "/")
            library, *names = _READERS.get("/".join(file.split("/")[-2:]), ("",))
            found = [str(trace.tb_frame.f_locals.get(name)) for name in names]
            if found and os.path.isfile(path := os.path.join(*found)):
                return f"{path}: expected settings as {library} reads them, found others ({first_line(last)}); mend or remove the file"
            trace = trace.tb_next
        last = last.__cause__ or last.__context__
    return None


def _within(folders: Iterable[str], endings: tuple[str, ...]) -> list[Path]:
    places = [Path(os.path.expanduser(folder)) for folder in folders]
    return [file for place in places for ending in endings for file in files_in(place, f"*.{ending}", SinkscopeError)]
