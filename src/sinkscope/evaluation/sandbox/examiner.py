"""The process in which tests run that call a program's function: it has the tests, and the function is in another process.

What it says of the tests is believed, since nothing of the program gets in here but plain data.
Standard library only: this runs inside the sandbox.
"""

import builtins
import types
from typing import Any

from sinkscope.evaluation.sandbox.plain_values import Foreign, pack, unpack, unpack_reply
from sinkscope.evaluation.sandbox.worker import describe_error, next_request, send_reply


class _CannotBeSent(BaseException):
    """The tests pass something that is not plain data; no test may catch it."""


def serve_tests(lines: Any, replies: int) -> None:
    """Runs the tests of one request, ``{"tests": source, "function": name}``.

    For each call it says ``{"call": arguments}`` and is told what the function's process answered. At the end it says
    ``{"held": True}``, ``{"error": …}``, or ``{"unsendable": …}``.
    """
    request = next_request(lines)
    foreign = False

    def call(*positional: Any, **named: Any) -> Any:
        nonlocal foreign
        try:
            arguments = pack([list(positional), named])
        except TypeError as error:
            if foreign:  # it may well be the program's own
                raise
            raise _CannotBeSent(str(error)) from error
        send_reply(replies, {"call": arguments})
        reply = next_request(lines)
        if "error" in reply:
            raise _as_exception(str(reply["error"]))
        for mine, theirs in zip(positional, unpack(reply.get("arguments")) or (), strict=False):
            _update(mine, theirs)
        value = unpack_reply(reply)
        foreign = foreign or isinstance(value, Foreign)
        return value

    call.__name__ = request["function"]
    module = types.ModuleType("__main__")
    module.__dict__[request["function"]] = call
    try:
        exec(compile(request["tests"], "<tests>", "exec", dont_inherit=True), module.__dict__)
        said: dict[str, Any] = {"held": True}
    except _CannotBeSent as error:
        said = {"unsendable": str(error)}
    except BaseException as error:
        said = {"error": describe_error(error)}
    send_reply(replies, said)


def _as_exception(description: str) -> Exception:
    """What a program raised, for tests that expect it; of a class of its own only the text is left."""
    name, _, text = description.partition(": ")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text) if text else kind()
        except TypeError:  # one that wants more than a text
            pass
    return Exception(description)


def _update(mine: Any, theirs: Any) -> None:
    """What a function did to a list, a dictionary or a set that it was given."""
    if type(mine) is not type(theirs) or mine == theirs:
        return
    if isinstance(mine, list):
        mine[:] = theirs
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(theirs)
