"""Documents: files that enter from outside, read with bounds and checked before any of their fields is used.

A file that is read whole must be a regular file and no larger than it can be. JSON must be UTF-8, with or without a byte order mark, not
nested deeper than `DEEPEST`, with whole numbers of 128 bits, finite numbers, and text without lone surrogates. Fields are checked against
one schema for each kind of document, a class that extends `pydantic.BaseModel` and stands beside the code that owns the kind. Every
message names the file, the field, what was expected and what was found.

Functions take ``failure``, the class of the exception that they raise, and ``advice``, which ends its message.
"""

import errno
import fnmatch
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, SinkscopeError

MOST = 64 << 20
"""Bytes of the largest document that is read, unless its reader says otherwise."""
DEEPEST = 64
BYTE_ORDER_MARK = "\ufeff"
"""What some editors write in front of a text; it is no part of it."""
LARGEST_NUMBER = 1 << 128
SHOWN = 60
"""Characters of what was found in a message."""
_TAG = re.compile("<(?! )")

Failure = type[SinkscopeError]
_ENDS = 1 << 16
_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def exists(path: Path) -> bool:
    """Return whether there is anything at a path, also what cannot be looked into or a link that leads nowhere."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def check_regular(path: Path, failure: Failure, advice: str = "", most: int | None = None) -> os.stat_result:
    """Return what the system knows of a regular file; a link to one is one.

    Raises:
        failure: there is none, or another kind of file, which could block or never end, or it has more than ``most`` bytes.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise failure(_unreadable(path, error, advice)) from error
    kind = next((name for is_kind, name in _KINDS.items() if is_kind(found.st_mode)), None)
    if kind is not None:
        raise failure(_message(path, f"expected a regular file, found {kind}", advice))
    if not os.access(path, os.R_OK):
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        raise failure(_unreadable(path, denied, advice)) from denied
    if most is not None and found.st_size > most:
        raise failure(_message(path, f"expected at most {most:,} bytes, found {found.st_size:,}", advice))
    return found


def check_plain(path: Path, failure: Failure, purpose: str) -> None:
    """Raise an error where anything but a plain file stands, a link to one included; there may be nothing.

    Args:
        purpose: what the file is for, such as ``a file that can be locked``.
    """
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        return  # whoever opens it says why it cannot be
    if not stat.S_ISREG(mode):
        kind = (
            "a link"
            if stat.S_ISLNK(mode)
            else next((name for is_kind, name in _KINDS.items() if is_kind(mode)), "something else")
        )
        raise failure(f"{path}: expected {purpose}, found {kind}; remove it, or choose another folder")


def check_replaceable(path: Path, mark: bytes, purpose: str) -> None:
    """Raise CallError for a file that holds something else than sinkscope writes there; an empty one may be replaced.

    Args:
        mark: bytes near the beginning or the end of what sinkscope writes.
        purpose: what it writes, such as ``an explorer page``.
    """
    try:
        size = path.stat().st_size if stat.S_ISREG(path.lstat().st_mode) else 0
        if not size:
            return
        with path.open("rb") as file:
            found = file.read(_ENDS)
            file.seek(max(len(found), size - _ENDS))
            found += file.read(_ENDS)
    except (OSError, ValueError):
        return  # whoever writes it says why it cannot be
    if mark not in found:
        raise CallError(
            f"{path}: expected a new file, or {purpose} to replace, found something else; choose another name or delete it"
        )


def files_in(folder: Path, pattern: str, failure: Failure) -> list[Path]:
    """Return the paths in a folder whose names match a pattern such as ``*.json``, in order; none where there is no folder.

    `Path.glob` finds nothing in a folder that may not be read, as if it were empty.

    Raises:
        failure: the folder cannot be read.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        raise failure(_unreadable(folder, error, "")) from error
    return [folder / name for name in sorted(names) if fnmatch.fnmatchcase(name, pattern)]


def read_bytes(path: Path, failure: Failure, advice: str = "", most: int = MOST) -> bytes:
    """Return the content of a regular file.

    Raises:
        failure: it cannot be read, see `check_regular`.
    """
    check_regular(path, failure, advice, most)
    try:
        # Not blocking: should a pipe take the place of the file, it is read as empty.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise failure(_unreadable(path, error, advice)) from error
    if len(content) > most:
        raise failure(_message(path, f"expected at most {most:,} bytes, found more", advice))
    return content


def read_text(path: Path, failure: Failure, advice: str = "", most: int = MOST) -> str:
    """Return the text of a regular UTF-8 file.

    Raises:
        failure: it cannot be read, or is no UTF-8.
    """
    return _decoded(read_bytes(path, failure, advice, most), path, failure, advice)


def read_json(path: Path, failure: Failure, advice: str = "", most: int = MOST, any_number: bool = False) -> Any:
    """Return the JSON value in a file; ``any_number`` as in `parse_json`.

    Raises:
        failure: it cannot be read, or is no JSON within the bounds.
    """
    return parse_json(read_bytes(path, failure, advice, most), str(path), failure, advice, any_number)


def read_json_object(
    path: Path, failure: Failure, advice: str = "", most: int = MOST, any_number: bool = False
) -> dict[str, Any]:
    """Return the JSON object in a file; ``any_number`` as in `parse_json`.

    Raises:
        failure: as `read_json`, or another value.
    """
    found = read_json(path, failure, advice, most, any_number)
    if not isinstance(found, dict):
        raise failure(_message(path, f"expected a JSON object, found {describe(found)}", advice))
    return found


def read_lines(path: Path, failure: Failure, advice: str = "", most: int = 1 << 32) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank; only a line feed ends a line, as in JSON lines.

    Raises:
        failure: it cannot be read, or is no UTF-8.
    """
    for number, line in enumerate(read_text(path, failure, advice, most).split("\n"), 1):
        if line.strip():
            yield number, line


def parse_json(content: bytes | str, where: str, failure: Failure, advice: str = "", any_number: bool = False) -> Any:
    """Return the value of JSON text.

    Args:
        where: names it in messages.
        any_number: allows large and infinite numbers, for files whose fields are all checked where they are used.

    Raises:
        failure: no JSON, or beyond the bounds; a name that stands twice in one object.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            twice = next(name for name, _ in pairs if found.pop(name, pairs) is pairs)
            raise failure(
                _message(where, f"expected each name once in an object, found {_shorten(ascii(twice))} twice", advice)
            )
        return found

    text = content if isinstance(content, str) else _decoded(content, where, failure, advice)
    try:
        found = json.loads(text, object_pairs_hook=once)
    except failure:
        raise
    except json.JSONDecodeError as error:
        found = (
            "nothing"
            if not text.strip()
            else f"{_shorten(text)!r}"
            if "\n" not in text
            else f"something else in line {error.lineno}"
        )
        raise failure(_message(where, f"expected JSON, found {found}", advice)) from error
    except RecursionError as error:
        raise failure(_message(where, f"expected at most {DEEPEST} levels of nesting, found more", advice)) from error
    except ValueError as error:  # a number with more digits than Python reads
        raise failure(
            _message(where, "expected whole numbers of at most 128 bits, found one of thousands of digits", advice)
        ) from error
    _check_values(found, where, failure, advice, any_number)
    return found


def _check_values(value: Any, where: str, failure: Failure, advice: str, any_number: bool) -> None:
    """Raise an error for a value that is nested too deeply, too large, not finite, or no text that can be written."""
    waiting: list[tuple[Any, str, int]] = [(value, "", 0)]
    while waiting:
        one, name, depth = waiting.pop()
        if depth > DEEPEST:
            raise failure(_message(where, f"expected at most {DEEPEST} levels of nesting, found more", advice))
        if isinstance(one, dict):
            for key, item in one.items():
                if not _is_text(key):
                    raise failure(
                        _message(
                            where,
                            f"{name or 'its fields'}: expected names without lone surrogates, found {key!a}",
                            advice,
                        )
                    )
                waiting.append((item, f"{name}.{key}" if name else key, depth + 1))
        elif isinstance(one, list):
            waiting += [(item, f"{name}[{number}]", depth + 1) for number, item in enumerate(one)]
        elif isinstance(one, str):
            if not _is_text(one):
                raise failure(
                    _message(
                        where,
                        f"{_named(name)}expected text without lone surrogates, found {_shorten(ascii(one))}",
                        advice,
                    )
                )
        elif isinstance(one, float) and not any_number:
            if not abs(one) < float("inf"):
                raise failure(_message(where, f"{_named(name)}expected a finite number, found {one}", advice))
        elif isinstance(one, int) and not any_number and abs(one) >= LARGEST_NUMBER:
            raise failure(
                _message(
                    where, f"{_named(name)}expected a whole number of at most 128 bits, found {describe(one)}", advice
                )
            )


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def json_text(document: Any) -> str:
    """Return a document as the JSON that commands print: a number that is not finite does not apply, and is null."""
    text = json.dumps(_finite(document), ensure_ascii=False, allow_nan=False)
    return text.translate(_CONTROLS)  # JSON escapes those below them itself


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_fields(
    document: Mapping[str, Any], schema: type[Any], where: str, failure: Failure, advice: str = ""
) -> None:
    """Check the fields of a document against its schema.

    Args:
        schema: a class that extends `pydantic.BaseModel`.

    Raises:
        failure: a field is missing, of another type, or out of bounds; the message names the first one.
    """
    from pydantic import ValidationError

    try:
        schema.model_validate(document, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in wrong["loc"] if part != "[key]"
        ).removeprefix(".")
        found = "none" if wrong["type"] == "missing" else wrong.get("ctx", {}).get("found") or describe(wrong["input"])
        whole = (
            wrong["type"] == "value_error" and found == "an object"
        )  # several fields that contradict each other, which the error names
        raise failure(
            _message(
                where, f"{_named(name)}expected {_expectation(wrong)}" + ("" if whole else f", found {found}"), advice
            )
        ) from error


_EXPECTED = {
    "missing": "a value",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "none_required": "null",
    "extra_forbidden": "no such field",
}
_BOUNDS = {
    "greater_than_equal": ("a number from {} upwards", "ge"),
    "greater_than": ("a number above {}", "gt"),
    "less_than_equal": ("a number up to {}", "le"),
    "less_than": ("a number below {}", "lt"),
    "literal_error": ("{}", "expected"),
    "string_pattern_mismatch": ("text of the form {}", "pattern"),
    "string_too_short": ("at least {} characters", "min_length"),
    "string_too_long": ("at most {} characters", "max_length"),
    "too_short": ("at least {} values", "min_length"),
    "too_long": ("at most {} values", "max_length"),
    "value_error": ("{}", "error"),
}


def _expectation(wrong: Mapping[str, Any]) -> str:
    """Return in words what a field should be."""
    text, name = _BOUNDS.get(wrong["type"], ("", ""))
    return text.format(wrong.get("ctx", {}).get(name)) if text else _EXPECTED.get(wrong["type"], "another value")


def describe(value: Any) -> str:
    """Return a JSON value in a few words, for a message."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"
    return _shorten(ascii(value)) if isinstance(value, str) and not _is_text(value) else shown(value)


def check_encodable(text: str, what: str) -> None:
    """Raise CallError for a text with a lone surrogate, which no file can hold and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CallError(
            f"{what}: expected text, found the lone surrogate {text[error.start]!a} at character {error.start}"
        ) from error


def shown(value: Any) -> str:
    """Return what Python writes for a value, shortened for a message; the name of its class where that fails."""
    try:
        return _shorten(repr(value))
    except Exception:  # of a class of the caller's
        return type(value).__name__


def printable(text: str) -> str:
    """Return text without the characters that command a terminal or break a line: each as its escape sequence."""
    return (
        text
        if text.isprintable()
        else "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    )


def in_markdown(text: str) -> str:
    """Return text as Markdown in which it is neither markup nor a link."""
    return printable(_TAG.sub("&lt;", text).replace("](", "]\\("))


def markdown_cell(text: str) -> str:
    """Return text as a cell of a Markdown table, see `in_markdown`."""
    return in_markdown(text).replace("|", "\\|")


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _named(name: str) -> str:
    return f"{_shorten(name)}: " if name else ""


def _decoded(content: bytes, where: Path | str, failure: Failure, advice: str) -> str:
    try:
        return content.decode().removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise failure(
            _message(where, f"expected UTF-8 text, found byte {content[error.start]:#04x} at {error.start}", advice)
        ) from error


def _unreadable(path: Path, error: Exception, advice: str) -> str:
    """Return the message of what cannot be read; a file that is closed to a user is none that was damaged."""
    advice = "give yourself the permission to read it" if isinstance(error, PermissionError) else advice
    if getattr(error, "errno", None) == errno.ELOOP:
        return _message(path, "cannot be read (a link on this path leads to itself)", "remove the link", "")
    return _message(path, f"cannot be read ({getattr(error, 'strerror', None) or error})", advice, "")


def _message(where: Path | str, what: str, advice: str, colon: str = ":") -> str:
    return f"{where}{colon} {what}{f'; {advice}' if advice else ''}"
