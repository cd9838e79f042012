"""Files of JSON lines that a user gives, plain or in gzip."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from sinkscope.documents import BYTE_ORDER_MARK, Failure, read_bytes

LARGEST = 1 << 32
"""Bytes of the largest file that is read, and of what it holds unpacked."""
PACKED, UNPACKED = 128, 1 << 26
"""How many times larger than its gzip file text may be, and from how many bytes on; text that says something is 5 to 50 times larger."""
PIECE = 1 << 22
_BLANK = re.compile(r"\s*")
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"BZh": "bzip2",
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PAR1": "Parquet",
}


def read_json_lines(path: Path, where: str, advice: str, failure: Failure) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank; see `read_lines`."""
    yield from numbered(read_lines(path, where, advice, failure))


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank; only a line feed ends a line."""
    number, at = 1, 0
    while (first := _BLANK.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        number += text.count("\n", at, first)
        start, end = max(at, text.rfind("\n", at, first) + 1), text.find("\n", first)
        end = len(text) if end < 0 else end
        yield number, text[start:end]
        number, at = number + 1, min(end + 1, len(text))


def read_lines(path: Path, where: str, advice: str, failure: Failure) -> str:
    """Return a file of JSON lines, unpacked and without a byte order mark.

    Args:
        where: names the file in messages, such as ``--prompts FILE``.
        advice: ends the message about a file that cannot be read.

    Raises:
        failure: the file cannot be read, is damaged or packed otherwise than by gzip, holds too much, or is no UTF-8.
    """
    content = read_bytes(path, failure, advice, LARGEST)
    if content.startswith(_GZIP):
        packed = io.BytesIO(content)
        parts: list[bytes] = []
        size = 0
        try:
            with gzip.GzipFile(fileobj=packed) as file:
                while part := file.read(PIECE):
                    parts.append(part)
                    size += len(part)
                    if size > (most := min(LARGEST, max(UNPACKED, PACKED * packed.tell()))):
                        raise failure(
                            f"{where}: expected at most {most:,} bytes of JSON lines in {packed.tell():,} of gzip, found more; unpack it"
                        )
        except (OSError, EOFError, zlib.error) as error:
            how = "one that ends early" if isinstance(error, EOFError) else "a damaged one"
            raise failure(f"{where}: expected a whole gzip file, found {how}; get it again, or unpack it") from error
        content = b"".join(parts)
    if other := next((name for start, name in _OTHERS.items() if content.startswith(start)), None):
        first = "write its rows as such lines" if other == "Parquet" else "unpack it"
        raise failure(f"{where}: expected JSON lines, plain or in gzip, found {other}; {first} first")
    try:
        return content.decode().removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        found = f"byte {content[error.start]:#04x} at {error.start}"
        raise failure(f"{where}: expected JSON lines in UTF-8, found {found}; save the file as UTF-8") from error
