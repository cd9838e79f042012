"""Conversations written by a chat template, a program of the checkpoint with a limit of time and memory; it must write what was asked."""

import contextlib
import ctypes
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, ModelError, first_line

SECONDS = 2.0
"""Processor time of a template; one takes a millisecond."""
MEMORY_MB = 512
"""Address space that a template may take; what Python does in one piece, such as to repeat a text, can be ended in no other way."""
_OF_TEMPLATES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
_DRAWS = re.compile(r"\|\s*random\b|\blipsum\s*\(")


def write_conversation(
    name: str, tokenizer: Any, messages: Sequence[Mapping[str, Any]], begun: bool, template: str | None, instead: str
) -> str:
    """Return a conversation as text, as a tokenizer's template writes it.

    Args:
        name: of the model.
        begun: whether the last message is the beginning of the answer.
        template: in place of the tokenizer's own.
        instead: what an error advises to do without a template.

    Raises:
        ModelError: a template that is no Jinja, does not end, draws at random, or does not write the question.
        CallError: a conversation that the template refuses.
    """
    from jinja2 import TemplateError, TemplateSyntaxError

    given = {"chat_template": template, "add_generation_prompt": not begun, "continue_final_message": begun}
    where = f"{name}: chat_template of its tokenizer: expected"
    own = getattr(tokenizer, "chat_template", None)
    written = str(own.get("default") if isinstance(own, Mapping) else own)
    if _DRAWS.search(written):
        raise ModelError(f"{where} the same prompt each time, found one that draws at random; correct it or {instead}")
    if _has_power(written):
        raise ModelError(f"{where} no powers of numbers (**), which may take for ever, found one; correct it or {instead}")
    try:
        with _bounded(MEMORY_MB << 20):
            text = _within(SECONDS, lambda: tokenizer.apply_chat_template(list(messages), tokenize=False, **given))
    except MemoryError as error:
        raise ModelError(f"{where} a prompt within {MEMORY_MB} MB, found none; correct it or {instead}") from error
    except TemplateSyntaxError as error:
        raise ModelError(f"{where} Jinja, found a mistake in line {error.lineno} ({error.message}); correct it or {instead}") from error
    except (*_OF_TEMPLATES, TemplateError) as error:
        raise CallError(
            f"messages: expected a conversation that the chat template of {name} can write, found one that it refuses "
            f"({first_line(error)}); {instead}"
        ) from error
    if text is None:
        raise ModelError(f"{where} a prompt within {SECONDS:g} seconds, found none; correct it or {instead}")
    if (
        parts := next((one["content"] for one in messages if isinstance(one["content"], list) and str(one["content"]) in text), None)
    ) is not None:
        raise CallError(f"messages: expected content as text, which is what the chat template of {name} writes, found parts, {parts!r:.60}")
    question = next((one["content"] for one in reversed(messages) if one["role"] == "user"), "") or ""
    asked = [question] if isinstance(question, str) else [str(part.get("text", "")) for part in question]
    if not all("".join(one.split()) in "".join(text.split()) for one in asked):
        raise ModelError(f"{where} it to write the question, found a prompt without it, {text[:60]!r}; correct it or {instead}")
    return text


def _has_power(template: str) -> bool:
    """Return whether a template computes a power, which cannot be ended; ``**`` in front of arguments is none."""
    from jinja2 import Environment, TemplateSyntaxError

    before = ""
    try:
        for _, kind, text in Environment().lex(template) if "**" in template else ():
            if kind == "operator" and text == "**" and before not in ("(", ","):
                return True
            before = before if kind == "whitespace" else text
    except TemplateSyntaxError:
        pass  # told by whoever renders it
    return False


_bounding = threading.Lock()
_STATUS = Path("/proc/self/statm")


@contextlib.contextmanager
def _bounded(size: int) -> Iterator[None]:
    """Let the process have so many more bytes of address space only, where the system tells what it has."""
    if not _STATUS.exists():
        yield
        return
    import resource

    with _bounding:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = int(_STATUS.read_text().split()[0]) * resource.getpagesize() + size
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _within(seconds: float, work: Callable[[], str]) -> str | None:
    """Return what a function returns; None where it takes longer, in processor time. It runs in a thread, which is then ended."""
    done: Future[str] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    began = time.monotonic()
    while not done.done():
        thread.join(0.1)
        if not done.done() and _spent(thread, began) > seconds:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
            return None
    return done.result()


def _spent(thread: threading.Thread, began: float) -> float:
    """Return the seconds of the processor that a thread has taken; those of the clock where the system does not tell."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    except (AttributeError, OSError):
        return time.monotonic() - began
