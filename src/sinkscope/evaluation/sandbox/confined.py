"""What runs inside the confined processes of the sandbox: the one of the program, and the one of its tests.

The program's process executes what the supervisor sends and answers with plain data. Nothing it says is trusted, since the program
runs in that very process and can say it too. The tests' process has the tests, while the function that they call stays in the
program's process. What it says is trusted, since nothing of the program gets in there but plain data.
Standard library only: this runs where `sinkscope` cannot be seen.
"""

import base64
import contextlib
import json
import marshal
import os
import signal
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sinkscope.evaluation.sandbox.foreign import Foreign
from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent
from sinkscope.evaluation.sandbox.plain_data import DEEPEST, Numbering, deeper, pack, pack_contents, unpack
from sinkscope.evaluation.sandbox.replies import read_reply

Serve = Callable[[Any, int], None]
"""What a process does with its requests, line by line, and the descriptor for its replies."""

# Both processes


def work(
    requests: int, replies: int, output: int, isolation: Isolation, memory_mb: int, cpu_s: int, serve: Serve
) -> None:
    """Confine this process, then serve the supervisor until it closes the pipe; never return."""
    die_with_parent()
    requests, replies = _keep_only(requests, replies, output)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.environ.clear()
    sys.argv[1:] = []
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
    try:
        content = json.dumps(answer).encode() + b"\n"
    except RecursionError:
        refused = {
            "token": answer.get("token"),
            "error": "RecursionError: a value is nested too deeply to leave the program",
        }
        content = json.dumps(refused).encode() + b"\n"
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

    A request has a ``token`` that the reply repeats, and is one of ``{"run": code}``, ``{"value": code, "assertion": number}``,
    ``{"call": name, "arguments": packed}``, ``{"iter": number}``, ``{"next": number, "sent": packed}``,
    ``{"close": number}``.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    program = _Program(module.__dict__)
    sys.setrecursionlimit(DEEPEST)
    while request := _receive(lines):
        # The token must not be a variable that the program could read off this frame.
        _send(replies, {"token": request.pop("token"), **program.answer(request)})


class _Program:
    """A program that runs here.

    Attributes:
        held: its values that are no plain data and that others know by number.
        limit: how deeply it may recurse, as it has set that itself.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.limit = sys.getrecursionlimit()
        self.namespace = namespace
        self.held: dict[int, Any] = {}
        self._calls: list[Numbering] = []  # that gave each of them
        self._numbers: dict[int, int] = {}
        self._assertion, self._of_assertion = -1, Numbering()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request."""
        numbering = Numbering(foreign=self.held)
        try:
            match request:
                case {"run": text}:
                    self._run(lambda: exec(_code(text), self.namespace))
                    _flush()
                    return {}
                case {"value": text, "assertion": assertion}:
                    if assertion != self._assertion:
                        self._assertion, self._of_assertion = assertion, numbering
                    return self._reply(self._of_assertion, lambda: eval(_code(text), self.namespace))
                case {"call": name, "arguments": packed}:
                    positional, named = unpack(packed, numbering)
                    numbering.given = len(numbering.objects)
                    function = eval(name, self.namespace)
                    return self._reply(
                        numbering,
                        lambda: function(*positional, **dict(named)),
                        [*positional, *(one for _, one in named)],
                    )
                case {"iter": number}:
                    return self._reply(self._calls[number], lambda: iter(self.held[number]))
                case {"next": number, "sent": packed}:
                    held, sent = self.held[number], unpack(packed)
                    return self._reply(self._calls[number], lambda: next(held) if sent is None else held.send(sent))
                case {"close": number}:
                    return self._reply(self._calls[number], lambda: self.held[number].close())
                case _:
                    raise ValueError("no request")
        except BaseException as error:  # SystemExit and KeyboardInterrupt end a program too
            return {"error": _describe_error(error), "raised": pack(error)}

    def _reply(self, numbering: Numbering, compute: Callable[[], Any], given: Iterable[Any] = ()) -> dict[str, Any]:
        """Return a value or what was raised, and the contents of the objects that the other side knows and that may have changed."""
        numbering.begin()
        try:
            value = self._run(compute)
            reply = self._pack_value(value, numbering)
            reply["same"] = next((number for number, one in enumerate(given) if one is value), None)
        except BaseException as error:
            reply = {"error": _describe_error(error), "raised": pack(error)}
        _flush()
        reply["contents"] = _contents(numbering)
        return reply

    def _run(self, compute: Callable[[], Any]) -> Any:
        sys.setrecursionlimit(self.limit)
        try:
            return compute()
        finally:
            self.limit = sys.getrecursionlimit()
            sys.setrecursionlimit(max(self.limit, DEEPEST))

    def _pack_value(self, value: Any, numbering: Numbering) -> dict[str, Any]:
        """Return a value as plain data; of any other one its number, its truth, and whether it can be iterated over."""
        count = len(numbering.objects)
        try:
            return {"value": pack(value, numbering)}
        except TypeError:
            numbering.forget(count)
        if id(value) not in self._numbers:
            number = self._numbers[id(value)] = len(self.held)
            self.held[number] = value
            self._calls.append(numbering)
        kinds = {"iterates": isinstance(value, Iterable), "iterator": isinstance(value, Iterator)}
        return {"foreign": self._numbers[id(value)], "kind": type(value).__name__, "truth": bool(value), **kinds}


def _code(text: str) -> types.CodeType:
    code: types.CodeType = marshal.loads(base64.b64decode(text))
    return code


def _contents(numbering: Numbering) -> list[Any]:
    """Return the contents of the arguments of a call, and of what was met again, by number; not of those that hold no plain data."""
    found, done = [], set()
    while left := sorted({*range(numbering.given), *numbering.met_again} - done):
        for number in left:
            done.add(number)
            count = len(numbering.objects)
            try:
                found.append([number, pack_contents(numbering.objects[number], numbering)])
            except (TypeError, RecursionError):
                numbering.forget(count)
    return found


def _flush() -> None:
    with contextlib.suppress(Exception):  # a program may have closed it
        sys.stdout.flush()


# The process of the tests


class _CannotBeSent(BaseException):
    """The tests pass something that is not plain data; no test may catch it."""


def serve_tests(lines: Any, replies: int) -> None:
    """Run the tests of one request, ``{"tests": source, "function": name}``.

    For each call of the function, send ``{"call": arguments}``, and for each item of what it gave ``{"next": number}``, and receive the
    answer of the program's process. At the end send ``{"held": True}``, ``{"error": …}``, or ``{"unsendable": …}``.
    """
    request = _receive(lines)
    foreign: dict[int, Foreign] = {}

    def ask(request: dict[str, Any], numbering: Numbering, given: list[Any]) -> Any:
        with deeper():
            _send(replies, request)
            return read_reply(
                _receive(lines), numbering, foreign, given, lambda more: ask(_packed(more), numbering, given)
            )

    def call(*positional: Any, **named: Any) -> Any:
        numbering = Numbering(exact=True)
        try:
            with deeper():
                arguments = pack((positional, tuple(named.items())), numbering)
        except TypeError as error:
            if foreign:  # it may well be the program's own
                raise
            raise _CannotBeSent(str(error)) from error
        return ask({"call": arguments}, numbering, [*positional, *named.values()])

    call.__name__ = request["function"]
    module = types.ModuleType("__main__")
    module.__dict__[request["function"]] = call
    sys.modules["__main__"] = module
    try:
        exec(compile(request["tests"], "<tests>", "exec", dont_inherit=True), module.__dict__)
        verdict: dict[str, Any] = {"held": True}
    except _CannotBeSent as error:
        verdict = {"unsendable": str(error)}
    except BaseException as error:
        verdict = {"error": _describe_error(error)}
    _send(replies, verdict)


def _packed(request: dict[str, Any]) -> dict[str, Any]:
    return request | {"sent": pack(request["sent"])} if "sent" in request else request
