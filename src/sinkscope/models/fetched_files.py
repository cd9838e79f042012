"""The beginning of a model's files: whether their content was fetched, and whether transformers reads it as sinkscope does."""

from pathlib import Path

from sinkscope.documents import BYTE_ORDER_MARK
from sinkscope.errors import ModelError

_POINTER, _MARK = b"version https://git-lfs", BYTE_ORDER_MARK.encode()
NOT_FETCHED = "a pointer of Git LFS, whose content was not fetched"


def is_pointer(path: Path) -> bool:
    """Return whether a file is what `git clone` leaves of a large one where Git LFS is not installed."""
    return _beginning(path).startswith(_POINTER)


def check_fetched(path: Path) -> None:
    """Raise an error for a file of a model that is a pointer of Git LFS.

    Raises:
        ModelError: it is one.
    """
    if is_pointer(path):
        raise ModelError(
            f"{path}: expected a file of a model, found {NOT_FETCHED}; run `git lfs pull` where it was cloned"
        )


def check_text(path: Path) -> None:
    """Raise an error for a text that transformers does not read as sinkscope does, which knows byte order marks.

    Raises:
        ModelError: such a mark, or a pointer of Git LFS.
    """
    check_fetched(path)
    if _beginning(path).startswith(_MARK):
        raise ModelError(f"{path}: expected text without a byte order mark, found one in front; save it as plain UTF-8")


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file; none where whoever reads it will say why it cannot be read."""
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER))
    except OSError:
        return b""
