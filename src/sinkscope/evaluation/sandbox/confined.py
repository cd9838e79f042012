"""What runs inside the confined processes of the sandbox: the one of the program, and the one of its tests.

The program's process executes what the supervisor sends and answers with plain data. Nothing it says is trusted, since the program
runs in that very process and can say it too. The tests' process has the tests, while the function that they call stays in the
program's process. What it says is trusted, since nothing of the program gets in there but plain data.
Standard library only: this runs where `sinkscope` cannot be seen.
"""

import base64
import builtins
import contextlib
import json
import marshal
import os
import signal
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent
from sinkscope.evaluation.sandbox.plain_data import Foreign, follow, pack, unpack, unpack_reply

MOST_ITEMS = 10_000
"""What is taken of a generator; it may have no end."""
Serve = Callable[[Any, int], None]
"""What a process does with its requests, line by line, and the descriptor for its replies."""

# Both processes


def work(requests: int, replies: int, output: int, isolation: Isolation, memory_mb: int, cpu_s: int, serve: Serve) -> None:
    """Confine this process, then serve the supervisor until it closes the pipe; never return."""
    die_with_parent()
    requests, replies = _keep_only(requests, replies, output)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.environ.clear()
    sys.path[:] = [path for path in sys.path if "site-packages" not in path]
    isolation.limit(memory_mb, cpu_s)
    _send(replies, {"not_enforced": isolation.not_enforced()})
    with open(requests, "rb", buffering=0) as lines:
        serve(lines, replies)
    os._exit(0)


def _keep_only(requests: int, replies: int, output: int) -> tuple[int, int]:
    """Close every file but the two pipes, empty the standard input, and let what is printed go to ``output``."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((requests, 20), (replies, 21), (nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.closerange(3, 20)
    os.closerange(22, 4096)
    return 20, 21


def _receive(file: Any) -> dict[str, Any]:
    """Return the next line, read without reading ahead; an empty message when the supervisor has closed the pipe."""
    parts = []
    while (part := file.read(1 << 16)) and not part.endswith(b"\n"):
        parts.append(part)
    return json.loads(b"".join([*parts, part]) or b"{}")


def _send(replies: int, answer: dict[str, Any]) -> None:
    """Write one line to the supervisor."""
    content = json.dumps(answer).encode() + b"\n"
    while content:
        content = content[os.write(replies, content) :]


def _describe_error(error: BaseException) -> str:
    """Return an exception in one line."""
    try:
        text = str(error).strip()
    except BaseException:
        text = "?"
    kind = type(error).__name__
    return f"{kind}: {text}"[:500] if text else kind


# The process of the program


def serve_program(lines: Any, replies: int) -> None:
    """Run the statements of a program, and compute its values.

    A request is ``{"run": code}``, ``{"value": code}`` or ``{"call": name, "arguments": packed}``, with a ``token`` that the reply
    repeats.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    while request := _receive(lines):
        # The token must not be a variable that the program could read off this frame.
        _send(replies, {"token": request.pop("token"), **_answer(request, module.__dict__)})


def _answer(request: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    try:
        if "call" in request:
            return _call(eval(request["call"], namespace), unpack(request["arguments"]))
        ((verb, text),) = request.items()
        code = marshal.loads(base64.b64decode(text))
        if verb == "value":
            return _pack_value(eval(code, namespace))
        exec(code, namespace)
        _flush()
        return {}
    except BaseException as error:  # SystemExit and KeyboardInterrupt end a program too
        return {"error": _describe_error(error), "raised": _pack_error(error)}


def _pack_error(error: BaseException) -> Any:
    """Return the arguments of an exception and the names of its classes, as far as they are plain data."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    try:
        return {"kinds": kinds, "arguments": pack(list(error.args))}
    except Exception:  # a class of the program may do anything
        return {"kinds": kinds}


def _call(function: Callable[..., Any], arguments: tuple[list[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return the value of a function, and the arguments as the function left them."""
    positional, named = arguments
    value = function(*positional, **named)
    reply = _pack_value(value)
    given = [*positional, *named.values()]
    reply["same"] = next((number for number, one in enumerate(given) if one is value), None)
    _flush()
    with contextlib.suppress(TypeError):
        reply["arguments"] = pack(given)
    return reply


def _pack_value(value: Any) -> dict[str, Any]:
    """Return a value as plain data; of any other one its truth, and what iterating over it gives."""
    try:
        return {"value": pack(value)}
    except TypeError:
        reply: dict[str, Any] = {"foreign": type(value).__name__, "truth": bool(value)}
    if not isinstance(value, Iterable):
        return reply
    items: list[Any] = []
    reply |= {"iterator": isinstance(value, Iterator), "more": False}
    try:
        for item in value:
            if len(items) == MOST_ITEMS:
                reply["more"] = True
                break
            items.append(pack(item))
    except TypeError:  # an item that is no plain data
        return {name: reply[name] for name in ("foreign", "truth")}
    except Exception as error:
        reply["ends"] = {"error": _describe_error(error), "raised": _pack_error(error)}
    return reply | {"items": items}


def _flush() -> None:
    with contextlib.suppress(Exception):  # a program may have closed it
        sys.stdout.flush()


# The process of the tests


class _CannotBeSent(BaseException):
    """The tests pass something that is not plain data; no test may catch it."""


def serve_tests(lines: Any, replies: int) -> None:
    """Run the tests of one request, ``{"tests": source, "function": name}``.

    For each call of the function, send ``{"call": arguments}`` and receive the answer of the program's process. At the end send
    ``{"held": True}``, ``{"error": …}``, or ``{"unsendable": …}``.
    """
    request = _receive(lines)
    foreign = False

    def call(*positional: Any, **named: Any) -> Any:
        nonlocal foreign
        try:
            arguments = pack([list(positional), named])
        except TypeError as error:
            if foreign:  # it may well be the program's own
                raise
            raise _CannotBeSent(str(error)) from error
        _send(replies, {"call": arguments})
        reply = _receive(lines)
        if "error" in reply:
            raise _as_exception(reply)
        given = [*positional, *named.values()]
        for mine, theirs in zip(given, unpack(reply.get("arguments")) or (), strict=False):
            follow(mine, theirs)
        value = unpack_reply(reply, _as_exception)
        if isinstance(same := reply.get("same"), int) and 0 <= same < len(given) and type(given[same]) is type(value):
            value = given[same]
        foreign = foreign or isinstance(value, Foreign)
        return value

    call.__name__ = request["function"]
    module = types.ModuleType("__main__")
    module.__dict__[request["function"]] = call
    try:
        exec(compile(request["tests"], "<tests>", "exec", dont_inherit=True), module.__dict__)
        verdict: dict[str, Any] = {"held": True}
    except _CannotBeSent as error:
        verdict = {"unsendable": str(error)}
    except BaseException as error:
        verdict = {"error": _describe_error(error)}
    _send(replies, verdict)


def _as_exception(reply: dict[str, Any]) -> Exception:
    """Return what a program raised, for tests that expect it; one of its own class becomes one of the class that it is built on."""
    raised, description = reply.get("raised"), str(reply["error"])
    if not isinstance(raised, dict):
        return Exception(description)
    own, _, text = description.partition(": ")
    arguments = [text] * bool(text)
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        found = unpack(raised.get("arguments"))
        arguments = found if isinstance(found, list) else arguments
    kinds = raised.get("kinds")
    for name in kinds if isinstance(kinds, list) else ():
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(Exception):  # one that wants other arguments
                return (kind if kind.__name__ == own else type(own, (kind,), {}))(*arguments)
    return Exception(description)
