"""The process in which a program runs: it executes what the supervisor sends, piece by piece, and answers with plain data.

Nothing it says is trusted, since the program runs in this very process and can say it too.
Standard library only: this runs inside the sandbox.
"""

import base64
import contextlib
import json
import marshal
import os
import signal
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent
from sinkscope.evaluation.sandbox.plain_values import pack, unpack

Serve = Callable[[Any, int], None]
"""What a process does with its requests, line by line, and the descriptor for its replies."""


def work(requests: int, replies: int, output: int, isolation: Isolation, memory_mb: int, cpu_s: int, serve: Serve) -> None:
    """Limits this process, then serves the supervisor until it hangs up; never returns."""
    die_with_parent()
    requests, replies = _keep_only(requests, replies, output)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.environ.clear()
    sys.path[:] = [path for path in sys.path if "site-packages" not in path]
    isolation.limit(memory_mb, cpu_s)
    send_reply(replies, {"not_enforced": isolation.not_enforced()})
    with open(requests, "rb", buffering=0) as lines:
        serve(lines, replies)
    os._exit(0)


def serve_program(lines: Any, replies: int) -> None:
    """Runs the pieces of a program.

    A request is ``{"run": code}``, ``{"value": code}`` or ``{"call": name, "arguments": packed}`` with a ``token`` that the reply repeats.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    while request := next_request(lines):
        # The token must not be a variable that the program could read off this frame.
        send_reply(replies, {"token": request.pop("token"), **_serve(request, module.__dict__)})


def _serve(request: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    try:
        if "call" in request:
            return _call(eval(request["call"], namespace), unpack(request["arguments"]))
        ((verb, text),) = request.items()
        code = marshal.loads(base64.b64decode(text))
        if verb == "value":
            return _describe_value(eval(code, namespace))
        exec(code, namespace)
        _flush()
        return {}
    except BaseException as error:  # SystemExit and KeyboardInterrupt end a program too
        return {"error": describe_error(error)}


def _call(function: Callable[..., Any], arguments: tuple[list[Any], dict[str, Any]]) -> dict[str, Any]:
    """What a function returns, and what it made of the arguments it was given."""
    positional, named = arguments
    value = function(*positional, **named)
    reply = _describe_value(value)
    if "foreign" in reply:
        reply["truth"] = bool(value)
        with contextlib.suppress(TypeError):
            reply["items"] = pack(list(value)) if isinstance(value, Iterable) else None
    _flush()
    with contextlib.suppress(TypeError):
        reply["arguments"] = pack(positional)
    return reply


def _describe_value(value: Any) -> dict[str, Any]:
    try:
        return {"value": pack(value)}
    except TypeError:
        return {"foreign": type(value).__name__}


def _flush() -> None:
    with contextlib.suppress(Exception):  # a program may have closed it
        sys.stdout.flush()


def describe_error(error: BaseException) -> str:
    """An exception in one line."""
    try:
        text = str(error).strip()
    except BaseException:
        text = "?"
    kind = type(error).__name__
    return f"{kind}: {text}"[:500] if text else kind


def _keep_only(requests: int, replies: int, output: int) -> tuple[int, int]:
    """Standard input is empty, what is printed goes to ``output``, and no other file is open but the two pipes."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((requests, 20), (replies, 21), (nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.closerange(3, 20)
    os.closerange(22, 4096)
    return 20, 21


def next_request(file: Any) -> dict[str, Any]:
    """The next line, read without reading ahead; empty when the supervisor has hung up."""
    parts = []
    while (part := file.read(1 << 16)) and not part.endswith(b"\n"):
        parts.append(part)
    return json.loads(b"".join([*parts, part]) or b"{}")


def send_reply(replies: int, answer: dict[str, Any]) -> None:
    """Writes one line to the supervisor."""
    content = json.dumps(answer).encode() + b"\n"
    while content:
        content = content[os.write(replies, content) :]
