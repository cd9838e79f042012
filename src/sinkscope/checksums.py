"""Checksums in the files that sinkscope writes, and their comparison when a file is read, once per file and process.

A JSON object has a field ``checksum``, the sha256 of its other fields. A safetensors file has ``sha256`` among its metadata, over its
other metadata and all of its tensors, so that the file can be copied and renamed. Files of earlier versions have neither and are
read without. ``verify=False`` of a reader skips the comparison.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope.documents import check_regular
from sinkscope.errors import SinkscopeError

CHECKSUM, SHA256 = "checksum", "sha256"
DAMAGED = "the file was damaged or changed"
LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format."""
_PIECE = 1 << 22

Failure = type[SinkscopeError]
Identity = tuple[str, int, int, int]  # device and number, time of change, size, time of renaming
_compared: set[tuple[Identity, str]] = set()


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the sha256 of the fields of an object but its own checksum, hexadecimal."""
    plain = {key: value for key, value in content.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its checksum as the last field."""
    plain = json.loads(json.dumps({key: value for key, value in content.items() if key != CHECKSUM}))
    return {**plain, CHECKSUM: checksum_of(plain)}


def compare_checksum(content: Mapping[str, Any], where: Path | str, failure: Failure, advice: str = "") -> None:
    """Compare an object with its checksum, where it has one.

    Raises:
        failure: it has other values than were written.
    """
    if CHECKSUM in content and content[CHECKSUM] != checksum_of(content):
        raise failure(f"{where}: expected the values whose checksum it holds, found others; {advice or DAMAGED}")


def sealed(content: bytes) -> list[bytes | memoryview]:
    """Return a safetensors file with its checksum, in pieces; ``content`` is one as `safetensors` makes it."""
    header, data = _split(content)
    metadata = dict(sorted(header.get("__metadata__", {}).items()))  # safetensors gives them in any order
    metadata.pop(SHA256, None)
    header = {"__metadata__": metadata, **{name: one for name, one in header.items() if name != "__metadata__"}}
    metadata[SHA256] = _digest(header, [data])
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, data]


def compare_sealed(path: Path, failure: Failure, advice: str = "") -> None:
    """Compare a safetensors file with its checksum, where it has one; once a file and process.

    Raises:
        failure: it has other bytes than were written, or is no safetensors file.
    """
    identity = _identity(path, failure)
    if (identity, SHA256) in _compared:
        return
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(LONGEST_HEADER, identity[2]):
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
            expected = header.get("__metadata__", {}).get(SHA256)
            found = None if expected is None else _digest(header, iter(lambda: file.read(_PIECE), b""))
    except OSError as error:
        raise failure(f"{path} cannot be read ({error.strerror or error})") from error
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise failure(f"{path}: expected a safetensors file, found something else; {advice or DAMAGED}") from error
    if found != expected:
        raise failure(f"{path}: expected the tensors whose sha256 it holds, found others; {advice or DAMAGED}")
    _compared.add((identity, SHA256))


def compare_update(path: Path, update: int, failure: Failure) -> None:
    """Compare the update that a file holds with the one that its name says; files of earlier versions hold neither it nor a checksum.

    Raises:
        failure: it holds another one, or is sealed and holds none.
    """
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    held = header.get("__metadata__", {})
    found = str(held.get("update", "none" if SHA256 in held else update))
    if found != str(update):
        raise failure(
            f"{path}: expected update {update}, as its name says, found {found[:20]}; give it the name that it had"
        )


def sha256_of(path: Path) -> str:
    """Return the sha256 of all bytes of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compare_file(path: Path, sha256: str, failure: Failure, whose: str, advice: str = "") -> None:
    """Compare all bytes of a file with a sha256 that stands elsewhere; once a file and process.

    Args:
        whose: what gives the checksum, for the message: ``its manifest``.

    Raises:
        failure: it has other bytes than were written.
    """
    identity = _identity(path, failure)
    if (identity, sha256) in _compared:
        return
    try:
        found = sha256_of(path)
    except OSError as error:
        raise failure(f"{path} cannot be read ({error.strerror or error})") from error
    if found != sha256:
        raise failure(f"{path}: expected the bytes whose sha256 {whose} gives, found others; {advice or DAMAGED}")
    _compared.add((identity, sha256))


def _identity(path: Path, failure: Failure) -> Identity:
    """Return a fingerprint that changes with the file, as far as the system knows."""
    found = check_regular(path, failure)
    return f"{found.st_dev}:{found.st_ino}", found.st_mtime_ns, found.st_size, found.st_ctime_ns


def _split(content: bytes) -> tuple[dict[str, Any], memoryview]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), memoryview(content)[8 + length :]


def _digest(header: Mapping[str, Any], data: Any) -> str:
    """Return the sha256 over names, types, shapes, places and metadata but the checksum, then over the data."""
    metadata = {key: value for key, value in header.get("__metadata__", {}).items() if key != SHA256}
    plain = {**header, "__metadata__": metadata}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for piece in data:
        digest.update(piece)
    return digest.hexdigest()
