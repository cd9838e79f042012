"""The process in which a program runs: it executes what the supervisor sends, piece by piece, and answers with plain data.

Nothing it says is trusted, since the program runs in this very process and can say it too.
Standard library only: this runs inside the sandbox.
"""

import base64
import json
import marshal
import os
import signal
import sys
import types
from typing import Any

from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent
from sinkscope.evaluation.sandbox.plain_values import pack


def work(requests: int, replies: int, output: int, isolation: Isolation, memory_mb: int, cpu_s: int) -> None:
    """Serves the supervisor until it hangs up; never returns.

    A request is ``{"run": code}`` or ``{"value": code}`` with a ``token`` that the reply repeats.
    """
    die_with_parent()
    requests, replies = _keep_only(requests, replies, output)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.environ.clear()
    sys.path[:] = [path for path in sys.path if "site-packages" not in path]
    isolation.limit(memory_mb, cpu_s)
    _reply(replies, {"not_enforced": isolation.not_enforced()})
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    with open(requests, "rb", buffering=0) as lines:
        while request := _next_request(lines):
            # The token must not be a variable that the program could read off this frame.
            _reply(replies, {"token": request.pop("token"), **_serve(request, module.__dict__)})
    os._exit(0)


def _serve(request: dict[str, str], namespace: dict[str, Any]) -> dict[str, Any]:
    ((verb, text),) = request.items()
    try:
        code = marshal.loads(base64.b64decode(text))
        if verb == "value":
            value = eval(code, namespace)
            try:
                return {"value": pack(value)}
            except TypeError:
                return {"foreign": type(value).__name__}
        exec(code, namespace)
        sys.stdout.flush()
        return {}
    except BaseException as error:  # SystemExit and KeyboardInterrupt end a program too
        return {"error": _describe(error)}


def _describe(error: BaseException) -> str:
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


def _next_request(file: Any) -> dict[str, str]:
    """The next line, read without reading ahead; empty when the supervisor has hung up."""
    parts = []
    while (part := file.read(1 << 16)) and not part.endswith(b"\n"):
        parts.append(part)
    return json.loads(b"".join([*parts, part]) or b"{}")


def _reply(replies: int, answer: dict[str, Any]) -> None:
    content = json.dumps(answer).encode() + b"\n"
    while content:
        content = content[os.write(replies, content) :]
