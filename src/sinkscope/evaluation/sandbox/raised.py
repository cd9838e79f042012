"""Exceptions as JSON: their class, where it is Python's or its library's, arguments, attributes and causes. Standard library only."""

import contextlib
import sys
import types
from collections.abc import Callable
from typing import Any

_FIELDS = types.MemberDescriptorType | types.GetSetDescriptorType
_BEFORE = ("__cause__", "__context__", "__suppress_context__")


def pack_exception(error: BaseException, pack: Callable[[Any], Any]) -> dict[str, Any]:
    """Return what `unpack_exception` reads back: of its arguments and attributes those that `pack` takes."""
    kinds = [kind for kind in type(error).__mro__ if is_of_the_library(kind)]
    fields = {
        name
        for kind in kinds
        for name, field in vars(kind).items()
        if isinstance(field, _FIELDS) and not name.startswith("__")
    }
    packed: dict[str, Any] = {
        "own": type(error).__name__,
        "kinds": [[kind.__module__, kind.__qualname__] for kind in kinds],
        "attributes": [],
    }
    with contextlib.suppress(Exception):  # a class of the program may do anything
        packed["text"] = str(error)
    with contextlib.suppress(Exception):
        packed["arguments"] = pack(list(error.args))
    for name in [*vars(error), *fields - {"args"}, *_BEFORE]:
        with contextlib.suppress(Exception):
            packed["attributes"].append([name, pack(getattr(error, name))])
    return packed


def is_of_the_library(kind: type) -> bool:
    """Return whether a class is one of Python or its library, found under its own name."""
    module, name = kind.__module__, kind.__qualname__
    return isinstance(module, str) and _in_the_library(module, name) is kind


def _in_the_library(module: str, name: str) -> Any:
    """Return what a module of Python's library holds, where this process has it too."""
    return getattr(sys.modules.get(module), name, None) if module.partition(".")[0] in sys.stdlib_module_names else None


def unpack_exception(packed: Any, unpack: Callable[[Any], Any]) -> BaseException:
    """Return an exception of the nearest class that this process has too; one of the program's own is built on that.

    Raises:
        ValueError: `pack_exception` made something else.
    """
    if not isinstance(packed, dict):
        raise ValueError(f"not a packed exception: {str(packed)[:80]}")
    own, text, kinds, attributes = (packed.get(name) for name in ("own", "text", "kinds", "attributes"))
    text = text if isinstance(text, str) else ""
    arguments = [text] * bool(text)
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        found = unpack(packed.get("arguments"))
        arguments = found if isinstance(found, list) else arguments
    known = [
        kind for named in (kinds if isinstance(kinds, list) else ()) if (kind := _exception_named(named)) is not None
    ]
    for at, kind in enumerate(known):
        bases = tuple(
            one for one in known[at:] if not any(issubclass(other, one) for other in known[at:] if other is not one)
        )
        with contextlib.suppress(Exception):  # one that wants other arguments
            error = _made(
                kind if kind.__name__ == own else type(str(own), bases, {"__str__": lambda _: text}), arguments
            )
            _set(error, attributes, unpack)
            return error
    return Exception(text)


def _exception_named(named: Any) -> type[BaseException] | None:
    match named:
        case [str() as module, str() as name]:
            kind = _in_the_library(module, name)
            return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None
    return None


def _made(kind: type[BaseException], arguments: list[Any]) -> BaseException:
    try:
        return kind(*arguments)
    except TypeError:  # it is made of others than it keeps
        return kind.__new__(kind, *arguments)


def _set(error: BaseException, attributes: Any, unpack: Callable[[Any], Any]) -> None:
    for attribute in attributes if isinstance(attributes, list) else ():
        with contextlib.suppress(Exception):
            name, value = attribute
            setattr(error, name, unpack(value))
