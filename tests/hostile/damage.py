"""Damage: JSON documents with one field changed, files with bytes changed, safetensors files with another header."""

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sinkscope.runs.files import CHECKSUM, sealed, with_checksum

DEEP = "__deep__"
WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**12, 10**40, "x", "", [], {}, [[]], {"x": 1}, float("nan"), float("inf"), "\ud800", "a\nb", "../x", DEEP,
)  # fmt: skip


def paths_of(value: Any, most: int = 3) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every field of a document: of lists and long objects the first ones."""
    items = (
        list(value.items())[:80]
        if isinstance(value, dict)
        else list(enumerate(value))[:1]
        if isinstance(value, list)
        else []
    )
    for key, item in items:
        yield (key,)
        if most > 1:
            for rest in list(paths_of(item, most - 1))[:12]:
                yield (key, *rest)


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a document with another value at a place."""
    copy = json.loads(json.dumps(document))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


def without(document: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of a document without a field."""
    copy = json.loads(json.dumps(document))
    at = copy
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return copy


def changed_documents(document: dict[str, Any], source: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Yield name and text of documents with one field of a wrong value, or without one; their checksums are right."""
    places = [path for path in paths_of(document) if path[0] != CHECKSUM]
    cases = [(path, value) for path in places for value in WRONG] + [(path, ...) for path in places]
    source.shuffle(cases)
    for path, value in cases[:count]:
        name = ".".join(map(str, path))
        if value is ...:
            yield f"{name} missing", _text(without(document, path), document)
        else:
            text = _text(changed(document, path, value), document)
            yield (
                f"{name} = {value!r}"[:60],
                text.replace(f'"{DEEP}"', "[" * 3000 + "]" * 3000) if value == DEEP else text,
            )


def _text(document: Any, model: dict[str, Any]) -> str:
    return json.dumps(with_checksum(document) if CHECKSUM in model else document)


def broken_texts() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of files that are no document at all."""
    yield "empty", b""
    yield "blank", b" \n\n"
    yield "no UTF-8", b'{"a": "\xff\xfe"}'
    yield "cut", b'{"format": 1, "com'
    yield "a list", b"[1, 2]"
    yield "null", b"null"
    yield "text", b'"x"'
    yield "zeros", bytes(1000)
    yield "noise", bytes(random.Random(0).randbytes(1000))
    yield "deep", b"[" * 100_000 + b"]" * 100_000
    yield "deep objects", b'{"a":' * 5000 + b"1" + b"}" * 5000
    yield "digits", b'{"format": ' + b"9" * 5000 + b"}"
    yield "exponent", b'{"format": 1e999}'
    yield "NaN", b'{"format": NaN}'
    yield "HTML", b"<!doctype html><html></html>"
    yield "byte order mark", b'\xef\xbb\xbf{"format": 1}'


def flipped(content: bytes, source: random.Random) -> tuple[str, bytes]:
    """Return name and content of a file with a bit flipped, a piece cut out, doubled, zeroed, or the end missing."""
    at = source.randrange(len(content)) if source.random() < 0.5 else source.randrange(min(len(content), 2000))
    kind = source.randrange(6)
    if kind < 3:
        bit = 1 << source.randrange(8)
        return f"bit at {at}", content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
    if kind == 3:
        return f"cut at {at}", content[:at]
    if kind == 4:
        return f"zeros at {at}", content[:at] + bytes(min(16, len(content) - at)) + content[at + 16 :]
    return f"doubled at {at}", content[:at] + content[max(0, at - 16) :]


def changed_headers(content: bytes, source: random.Random, count: int, seal: bool) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of safetensors files with one field of the header changed; sealed anew where they were sealed."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    places = list(paths_of(header))
    cases = [
        (path, value)
        for path in places
        for value in (None, -1, 0, "x", "F64", "I64", [], [1], [10**9], 10**12, {}, "1e9", "-1", "9" * 30)
    ]
    source.shuffle(cases)
    for path, value in cases[:count]:
        text = json.dumps(changed(header, path, value)).encode()
        made = len(text).to_bytes(8, "little") + text + data
        if seal:
            with contextlib.suppress(TypeError, AttributeError, ValueError):
                made = b"".join(sealed(made))
        yield f"{'.'.join(map(str, path))} = {value!r}"[:60], made


def write(path: Path, content: bytes | str) -> None:
    """Write a damaged file."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
