"""Files that enter and leave: JSON, JSON lines, tensors with a checksum, all written atomically.

Functions take ``failure``, the class of the exception that they raise where a file cannot be read or written, and
``advice``, which ends its message.
"""

import contextlib
import gzip
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError

UNFINISHED = ".writing"
"""The name of a file ends in this while it is being written."""
CHECKSUM, SHA256 = "checksum", "sha256"
DAMAGED = "the file was damaged or changed"
_PIECE = 1 << 22
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}

Failure = type[SinkscopeError]


def read_text(path: Path, failure: Failure, advice: str = "") -> str:
    """Return the text of a UTF-8 file, plain or in gzip, without a byte order mark."""
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise failure(_message(path, f"cannot be read ({reason})", advice)) from error


def read_json_object(path: Path, failure: Failure, advice: str = "") -> dict[str, Any]:
    """Return the JSON object in a file; raise ``failure`` for anything else."""
    found = parse_json(read_text(path, failure, advice), str(path), failure, advice)
    if not isinstance(found, dict):
        raise failure(_message(path, f"expected a JSON object, found {shown(found)}", advice))
    return found


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None where there is no such file, or a damaged one."""
    try:
        return read_json_object(path, SinkscopeError)
    except SinkscopeError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        return None


def parse_json(text: bytes | str, where: str, failure: Failure, advice: str = "") -> Any:
    """Return the value of JSON text; ``where`` names it in messages."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise failure(_message(where, f"expected JSON, found something else ({error})", advice)) from error


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank; only a line feed ends a line, as in JSON lines."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def validated(kind: Any, document: Any, where: Path | str, failure: Failure, advice: str = "") -> Any:
    """Return a JSON value as the dataclass (or other type) that is its schema; name the first field that is wrong."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = "".join(f"{one}." for one in wrong["loc"])[:-1]
        text = f"{f'{place}: ' if place else ''}{wrong['msg']}, found {shown(wrong['input'])}"
        raise failure(_message(where, text, advice)) from error


def json_text(document: Any) -> str:
    """Return a document as the JSON that commands print: a number that is not finite does not apply, and is null."""
    return json.dumps(_finite(document), ensure_ascii=False, allow_nan=False).translate(_CONTROLS)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if hasattr(value, "dtype"):  # a number or an array of NumPy
        return _finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview], failure: Failure, advice: str) -> None:
    """Write a file, whole or in pieces, so that a reader sees all of it or nothing; of two writers the last wins."""
    write_together({path: content}, failure, advice)


def write_together(contents: Mapping[Path, Any], failure: Failure, advice: str) -> None:
    """Write several files as `write_whole` writes one; where one cannot be written, all earlier files stay."""
    written: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            written[path] = beside = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
            with beside.open("wb") as file:
                for piece in [content] if isinstance(content, bytes) else content:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        for path, beside in written.items():
            os.replace(beside, path)
    except OSError as error:
        raise failure(f"{path} cannot be written ({error.strerror or error}); {advice}") from error
    finally:
        for beside in written.values():
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """Return the sha256 of all bytes of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the sha256 of the fields of an object but its own checksum, hexadecimal."""
    plain = {key: value for key, value in content.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its checksum as the last field."""
    plain = json.loads(json.dumps({key: value for key, value in content.items() if key != CHECKSUM}))
    return {**plain, CHECKSUM: checksum_of(plain)}


def compare_checksum(content: Mapping[str, Any], where: Path | str, failure: Failure, advice: str = "") -> None:
    """Raise ``failure`` for an object with other values than its checksum, where it has one."""
    if CHECKSUM in content and content[CHECKSUM] != checksum_of(content):
        raise failure(f"{where}: expected the values whose checksum it holds, found others; {advice or DAMAGED}")


def sealed(content: bytes) -> list[bytes | memoryview]:
    """Return a file of safetensors with the sha256 of its header and tensors among its metadata, in pieces."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), memoryview(content)[8 + length :]
    metadata = {key: value for key, value in sorted(header.pop("__metadata__", {}).items()) if key != SHA256}
    header = {"__metadata__": metadata, **header}
    metadata[SHA256] = _digest(header, [data])
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, data]


def compare_sealed(path: Path, failure: Failure, advice: str = "", update: int | None = None) -> dict[str, str]:
    """Return the metadata of a safetensors file; raise ``failure`` where it has a checksum and other bytes, or is not
    of the ``update`` that its name says.
    """
    whole, metadata = False, {}
    with path.open("rb") as file, contextlib.suppress(ValueError, AttributeError):
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, os.fstat(file.fileno()).st_size)))
        metadata = header.get("__metadata__", {})
        whole = SHA256 not in metadata or metadata[SHA256] == _digest(header, iter(lambda: file.read(_PIECE), b""))
    if not whole:
        found = "others, or no safetensors file"
        raise failure(f"{path}: expected the tensors whose sha256 it holds, found {found}; {advice or DAMAGED}")
    found = metadata.get("update", "none" if SHA256 in metadata else update)
    if update is not None and str(found) != str(update):
        raise failure(f"{path}: expected update {update}, as its name says, found {found}; rename it back")
    return metadata


def compare_file(path: Path, sha256: str, failure: Failure, whose: str, advice: str = "") -> None:
    """Raise ``failure`` for a file with other bytes than the sha256 that ``whose``, such as ``its manifest``, gives."""
    found = "others" if path.exists() else "no file"
    if found != "others" or sha256_of(path) != sha256:
        raise failure(f"{path}: expected the bytes whose sha256 {whose} gives, found {found}; {advice or DAMAGED}")


def _digest(header: Mapping[str, Any], data: Any) -> str:
    """Return the sha256 over names, types, shapes, places and metadata but the checksum, then over the data."""
    metadata = {key: value for key, value in header.get("__metadata__", {}).items() if key != SHA256}
    digest = hashlib.sha256(json.dumps({**header, "__metadata__": metadata}, sort_keys=True).encode())
    for piece in data:
        digest.update(piece)
    return digest.hexdigest()


def shown(value: Any) -> str:
    """Return the representation of a value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def printable(text: str) -> str:
    """Return text without the characters that command a terminal or break a line: each as its escape sequence."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def in_markdown(text: str) -> str:
    """Return text as Markdown in which it is neither markup nor a link."""
    return printable(re.sub("<(?! )", "&lt;", text).replace("](", "]\\("))


def markdown_cell(text: str) -> str:
    """Return text as a cell of a Markdown table, see `in_markdown`."""
    return in_markdown(text).replace("|", "\\|")


def _message(where: Path | str, what: str, advice: str) -> str:
    return f"{where}: {what}{f'; {advice}' if advice else ''}"
