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

from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent
from sinkscope.evaluation.sandbox.plain_data import Foreign, Packing, fill_arguments, pack, pack_contents, unpack, unpack_reply

MOST_ITEMS = 10_000
"""What is taken of a generator; it may have no end."""
_FIELDS = types.MemberDescriptorType | types.GetSetDescriptorType
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
            return _call(eval(request["call"], namespace), request["arguments"])
        ((verb, text),) = request.items()
        code = marshal.loads(base64.b64decode(text))
        if verb == "value":
            return _pack_value(eval(code, namespace))
        exec(code, namespace)
        _flush()
        return {}
    except BaseException as error:  # SystemExit and KeyboardInterrupt end a program too
        return {"error": _describe_error(error), "raised": _pack_error(error)}


def _pack_error(error: BaseException) -> dict[str, Any]:
    """Return the names of the classes of an exception that others know, its arguments and attributes as far as they are plain data."""
    kinds = [kind for kind in type(error).__mro__ if _known(kind)]
    fields = {name for kind in kinds for name, field in vars(kind).items() if isinstance(field, _FIELDS) and not name.startswith("__")}
    raised: dict[str, Any] = {"kinds": [[kind.__module__, kind.__qualname__] for kind in kinds], "attributes": []}
    with contextlib.suppress(Exception):  # a class of the program may do anything
        raised["arguments"] = pack(list(error.args))
    for name in [*vars(error), *fields - {"args"}]:
        with contextlib.suppress(Exception):
            raised["attributes"].append([name, pack(getattr(error, name))])
    return raised


def _known(kind: type) -> bool:
    """Return whether a class is one of Python or its library, found under its own name."""
    module, name = kind.__module__, kind.__qualname__
    if not (isinstance(module, str) and module.partition(".")[0] in sys.stdlib_module_names):
        return False
    return getattr(sys.modules.get(module), name, None) is kind


def _call(function: Callable[..., Any], packed: Any) -> dict[str, Any]:
    """Return the value of a function, or what it raised, and the arguments as the function left them."""
    sent: list[Any] = []
    positional, named = unpack(packed, sent)
    packing = Packing()
    packing.add(sent)
    try:
        value = function(*positional, **dict(named))
    except BaseException as error:
        reply = {"error": _describe_error(error), "raised": _pack_error(error)}
    else:
        reply = _pack_value(value, packing)
        given = [*positional, *(one for _, one in named)]
        reply["same"] = next((number for number, one in enumerate(given) if one is value), None)
    _flush()
    with contextlib.suppress(TypeError):
        reply["arguments"] = [pack_contents(one, packing) for one in sent]
    return reply


def _pack_value(value: Any, packing: Packing | None = None) -> dict[str, Any]:
    """Return a value as plain data; of any other one its truth, and what iterating over it gives."""
    packing = packing or Packing()
    count = len(packing.objects)
    try:
        return {"value": pack(value, packing)}
    except TypeError:
        packing.forget(count)
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
            items.append(pack(item, packing))
    except TypeError:  # an item that is no plain data
        packing.forget(count)
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
        packing = Packing(exact=True)
        try:
            arguments = pack((positional, tuple(named.items())), packing)
        except TypeError as error:
            if foreign:  # it may well be the program's own
                raise
            raise _CannotBeSent(str(error)) from error
        _send(replies, {"call": arguments})
        reply = _receive(lines)
        sent, objects = [*packing.objects], packing.objects
        if "error" in reply:
            fill_arguments(sent, reply, objects)
            raise _as_exception(reply)
        value = unpack_reply(reply, objects, _as_exception)
        fill_arguments(sent, reply, objects)
        given = [*positional, *named.values()]
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


def _as_exception(reply: dict[str, Any]) -> BaseException:
    """Return what a program raised, for tests that expect it; one of its own class becomes one of the class that it is built on."""
    raised, description = reply.get("raised"), str(reply["error"])
    if not isinstance(raised, dict):
        return Exception(description)
    own, _, text = description.partition(": ")
    arguments = [text] * bool(text)
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        found = unpack(raised.get("arguments"))
        arguments = found if isinstance(found, list) else arguments
    kinds, attributes = raised.get("kinds"), raised.get("attributes")
    for named in kinds if isinstance(kinds, list) else ():
        if (kind := _exception_named(named)) is not None:
            with contextlib.suppress(Exception):  # one that wants other arguments
                error = _made(kind if kind.__name__ == own else type(own, (kind,), {}), arguments)
                for attribute in attributes if isinstance(attributes, list) else ():
                    with contextlib.suppress(Exception):
                        setattr(error, attribute[0], unpack(attribute[1]))
                return error
    return Exception(description)


def _exception_named(named: Any) -> type[BaseException] | None:
    """Return a class of exceptions of Python or its library that the tests have too."""
    match named:
        case [str() as module, str() as name] if module.partition(".")[0] in sys.stdlib_module_names:
            kind = getattr(sys.modules.get(module), name, None)
            return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None
    return None


def _made(kind: type[BaseException], arguments: list[Any]) -> BaseException:
    try:
        return kind(*arguments)
    except TypeError:  # it is made of others than it keeps
        return kind.__new__(kind, *arguments)
