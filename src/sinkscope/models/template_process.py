"""A process of its own in which chat templates are rendered. A template is a program of the checkpoint: only a process can be ended
whatever it does, and only with one can its memory be limited. It begins with the first template and ends with this process.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import Any

from sinkscope.errors import first_line
from sinkscope.models.own_limits import limit_memory, limit_time

SECONDS = 2.0
"""Processor time of a template; one takes a millisecond."""
MEMORY_MB = 512
"""Address space that a template may take beside what the process has."""
MOST_LETTERS = 10_000_000
CLOCK_S = 60.0  # for the process to begin, and for a template that waits
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from sinkscope.models.template_process import serve; serve()"


def render(template: str, messages: list[dict[str, Any]], **names: Any) -> dict[str, Any]:
    """Return what comes of a template.

    Args:
        messages: of a conversation; plain data, as are the other names that the template sees.

    Returns:
        ``{"text": …}``; ``{"mistake": …, "line": …}`` where it is no Jinja; ``{"refused": …}`` where it raises an error; nothing where it
        ends neither in `SECONDS` nor within `MEMORY_MB`, or writes more than `MOST_LETTERS`.

    Raises:
        OSError: the process cannot be started.
    """
    global _own
    if _own is None or _own.owner != os.getpid():  # a forked process needs one of its own
        _left.append(_own)
        _own = _Renderer()
    return _own.render(json.dumps({"chat_template": template, "conversations": [messages], **names}))


class _Renderer:
    """The process, seen from here."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def render(self, request: str) -> dict[str, Any]:
        with self._lock:
            if self._process is not None and self._process.poll() is not None:  # somebody has ended it
                self.end()
            if self._process is None:
                self._process = self._start()
            reply = None
            try:
                reply = _ask(self._process, request)
            finally:
                if not reply:  # also after Ctrl-C: what the process answers later is not for the next request
                    self.end()
            return reply or {}

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable or "python3", "-I", "-X", "utf8", "-c", _START, json.dumps([*map(str, sys.path)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        if _ask(process, None) is None:
            _end(process)
            raise OSError(0, "the process for chat templates ended before it began")
        return process

    def end(self) -> None:
        if self._process is not None and self.owner == os.getpid():
            _end(self._process)
            self._process = None


_own: _Renderer | None = None
_left: list[_Renderer | None] = []  # held, because they belong to the process that was forked
atexit.register(lambda: _own.end() if _own is not None else None)


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    with contextlib.suppress(OSError):  # what was to be written to it
        process.communicate()


def _ask(process: "subprocess.Popen[str]", request: str | None) -> dict[str, Any] | None:
    """Send a request, if there is one, and return the next line; None where the process ends or waits too long instead."""
    assert process.stdin is not None and process.stdout is not None
    watch = threading.Timer(CLOCK_S, process.kill)
    watch.daemon = True
    watch.start()
    try:
        if request is not None:
            process.stdin.write(request + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
    except OSError:
        return None
    finally:
        watch.cancel()
    return json.loads(line) if line.endswith("\n") else None


def serve() -> None:
    """Render what standard input asks for, a line of JSON each, until it ends."""
    from transformers.utils.chat_template_utils import render_jinja_template  # type: ignore[import-untyped]

    limit_memory(MEMORY_MB)
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(_render(render_jinja_template, json.loads(line))), flush=True)


def _render(work: Any, request: dict[str, Any]) -> dict[str, Any]:
    from jinja2 import TemplateSyntaxError

    try:
        limit_time(SECONDS)
        text = work(**request)[0][0]
        return {"text": text} if len(text) <= MOST_LETTERS else {}
    except MemoryError:
        return {}
    except TemplateSyntaxError as error:
        return {"mistake": str(error.message)[:1000], "line": error.lineno}
    except Exception as error:  # a template may raise any
        return {"refused": first_line(error)}
    finally:
        limit_time(0)
