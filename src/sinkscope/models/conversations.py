"""Conversations written by a chat template, a program of the checkpoint with a limit of time and memory; it must write what was asked."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sinkscope.errors import CallError, ModelError, first_line
from sinkscope.models.template_process import MEMORY_MB, MOST_LETTERS, SECONDS, render

_DRAWS = re.compile(r"\|\s*random\b|\blipsum\s*\(")


def write_conversation(
    name: str, tokenizer: Any, messages: Sequence[Mapping[str, Any]], begun: bool, template: str | None, instead: str
) -> str:
    """Return a conversation as text, as a tokenizer's template writes it, rendered in a process of its own.

    Args:
        name: of the model.
        begun: whether the last message is the beginning of the answer.
        template: in place of the tokenizer's own.
        instead: what an error advises to do without a template.

    Raises:
        ModelError: a template that is no Jinja, does not end, draws at random, or does not write the question; or no process for it.
        CallError: a conversation that the template refuses, or that is no plain data.
    """
    where = f"{name}: chat_template of its tokenizer: expected"
    own = getattr(tokenizer, "chat_template", None)
    template = template or str(own.get("default") if isinstance(own, Mapping) else own)
    if _DRAWS.search(template):
        raise ModelError(f"{where} the same prompt each time, found one that draws at random; correct it or {instead}")
    try:
        plain = json.loads(
            json.dumps([{key: one for key, one in message.items() if one is not None} for message in messages])
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(
            f"messages: expected texts, numbers, lists and objects, found something else ({first_line(error)})"
        ) from error
    try:
        found = render(
            template,
            plain,
            add_generation_prompt=not begun,
            continue_final_message=begun,
            **tokenizer.special_tokens_map,
        )
    except OSError as error:
        raise ModelError(
            f"{name}: a process for its chat template cannot be started ({error.strerror}); {instead}"
        ) from error
    if "mistake" in found:
        raise ModelError(
            f"{where} Jinja, found a mistake in line {found['line']} ({found['mistake']}); correct it or {instead}"
        )
    if "refused" in found:
        raise CallError(
            f"messages: expected a conversation that the chat template of {name} can write, found one that it refuses "
            f"({found['refused']}); {instead}"
        )
    if "text" not in found:
        limits = f"{SECONDS:g} seconds, {MEMORY_MB} MB and {MOST_LETTERS:,} letters"
        raise ModelError(f"{where} a prompt within {limits}, found none; correct it or {instead}")
    text: str = found["text"]
    if (
        parts := next(
            (one["content"] for one in messages if isinstance(one["content"], list) and str(one["content"]) in text),
            None,
        )
    ) is not None:
        raise CallError(
            f"messages: expected content as text, which is what the chat template of {name} writes, found parts, {parts!r:.60}"
        )
    question = next((one["content"] for one in reversed(messages) if one["role"] == "user"), "") or ""
    asked = [question] if isinstance(question, str) else [str(part.get("text", "")) for part in question]
    if not all("".join(one.split()) in "".join(text.split()) for one in asked):
        raise ModelError(
            f"{where} it to write the question, found a prompt without it, {text[:60]!r}; correct it or {instead}"
        )
    return text
