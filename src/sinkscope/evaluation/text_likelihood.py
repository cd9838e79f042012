"""Nats per token of a text behind a context, while a rule hides keys from the queries of what follows.

A sink hidden from the first word on is rebuilt on the next token, which a cache without keys does not allow. So a
causal model reads the context unhidden, and the rest in a second call; a diffusion model's canvases are all hidden.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.decoding import log_likelihood
from sinkscope.decoding.likelihood import nats_behind
from sinkscope.errors import CallError, EvaluationError
from sinkscope.interventions import Composed, Intervention, compose, parse_rule
from sinkscope.interventions.effect import Received
from sinkscope.interventions.intervention import NOTHING
from sinkscope.models import Model
from sinkscope.models.fingerprints import weight_hash_of
from sinkscope.runs.files import numbered, parse_json, read_text, write_whole
from sinkscope.runs.folder import run_folder
from sinkscope.statistics.intervals import interval_of_means

SAMPLES = 32
FORMAT, ROWS, RUN = 2, "windows.jsonl", "likelihood.json"
Rule = Intervention | Composed


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file: of JSON lines, ``{"text": …}`` or ``{"prompt": …, "answer": …}``, else all of it."""
    text = read_text(path, CallError, 'expected a text, or JSON lines {"text": …}')
    if path.suffix != ".jsonl":
        return [text]
    lines = [parse_json(line, f"{path}, line {number}", CallError) for number, line in numbered(text)]
    return [one["text"] if "text" in one else f"{one['prompt']}{one['answer']}" for one in lines]


def cut_windows(model: Model, texts: Iterable[str], context: int, answer: int) -> list[list[int]]:
    """Return windows of ``context + answer`` tokens; the last one of a text may have a shorter answer."""
    if context < 1 or answer < 1 or context + answer > model.card.max_positions:
        raise CallError(f"context, answer: expected 1 and more, found {context} and {answer}; {model.limit}")
    windows = []
    for ids in map(model.tokenize, texts):
        cut = [ids[start : start + context + answer] for start in range(0, len(ids), context + answer)]
        windows += [window for window in cut if len(window) > context + answer // 4]
    if not windows:
        expected = f"more than --context {context} and a quarter of --answer {answer} tokens"
        raise CallError(f"text: expected {expected}, found less; give a longer text, or a smaller --context")
    return windows


def text_likelihood(
    model: Model,
    texts: Sequence[str],
    rules: Sequence[str | Rule],
    *,
    context: int = 64,
    answer: int = 64,
    everywhere: bool = False,
    limit: int | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Return the nats per token of texts under rules, each beside no rule on the same windows.

    Args:
        context, answer: tokens in front of each window's answer, read with all keys, and of the answer.
        everywhere: hides from the context's queries too (one call); of a diffusion model it always does.
        limit: number of windows; all if None.
        out: a folder, in which finished windows are kept; a second call goes on there.

    Returns ``{…, "rows": [{"hide", "nats", "difference", "interval", "removed_share", "moved", "without_effect"}]}``;
    the paired interval (95 %) is None under five windows; ``moved`` is the position whose share grew most, ``without``
    the rule and ``hidden``.
    """
    behind, named = model.family.causal and not everywhere, {NOTHING: compose()}
    for rule in map(parse_rule, rules):
        parts = rule.parts if isinstance(rule, Composed) else (rule,)
        if not behind:  # one call has no step before
            parts = [replace(part, observe="current") if part.waits else part for part in parts]
        named[str(compose(*parts))] = compose(*parts)
    windows = cut_windows(model, texts, context, answer)[:limit]
    keys = [hashlib.sha256(str(window).encode()).hexdigest()[:16] for window in windows]
    asked = {"context": context, "answer": answer, "everywhere": everywhere, "weights": weight_hash_of(model)}
    counts, run = [len(window) - context for window in windows], {**asked, "format": FORMAT}
    with nullcontext() if out is None else run_folder(out, RUN, run, EvaluationError, "another likelihood"):
        done = {} if out is None else _finished(out / ROWS)
        for hide, rule in named.items():
            for window, window_key in zip(windows, keys, strict=True):
                if (key := f"{hide} {window_key}") in done:
                    continue
                done[key] = {"key": key, **_one_window(model, rule, window, context, behind)}
                if out is not None:
                    with (out / ROWS).open("a", encoding="utf-8") as file:
                        file.write(json.dumps(done[key]) + "\n")
    found = {hide: [done[f"{hide} {key}"] for key in keys] for hide in named}
    document = {"model": model.card.name, **asked, "windows": len(windows), "tokens": sum(counts)}
    document["rows"] = [_row(hide, found[hide], found[NOTHING], counts) for hide in named]
    return document


def _finished(path: Path) -> dict[str, dict[str, Any]]:
    """Return the windows that a run of the same settings has finished; a line that was cut by a kill goes."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_whole(path, whole, EvaluationError, "make room")
    return {one["key"]: one for one in map(json.loads, whole.splitlines())}


def _one_window(model: Model, rule: Composed, window: Sequence[int], context: int, behind: bool) -> dict[str, Any]:
    if behind:  # sees the context's call, and hides nothing from it
        rule = compose(*(replace(part, steps=(1,)) if part.steps is None else part for part in rule.parts))
    with rule(model) as hiding, (received := Received(behind)).on(model.network):
        if behind:
            nats = nats_behind(model, window, context)
        else:
            nats = -log_likelihood(model, list(window[:context]), list(window[context:]), samples=SAMPLES).total
    shares = [round(share, 6) for share in received.shares]
    effect = hiding.effect
    idle = [one.replace("@steps=1", "").replace(",steps=1", "") for one in effect.without_effect]
    return {"nats": nats, "removed": effect.removed_share, "received": shares, "without_effect": idle}


def _row(hide: str, found: Sequence[Any], plain: Sequence[Any], counts: Sequence[int]) -> dict[str, Any]:
    tokens, widest = np.asarray(counts, dtype=float), max(len(one["received"]) for one in found)
    nats, unhidden = (np.array([one["nats"] for one in windows]) for windows in (found, plain))
    each = (nats - unhidden) / tokens.mean()  # so that their mean is that over all tokens
    means = interval_of_means(each[:, None])
    low, high = float(means.low[0]), float(means.high[0])
    shares = [[np.pad(one["received"], (0, widest - len(one["received"]))) for one in rows] for rows in (plain, found)]
    without, hidden = np.mean(shares, axis=1)
    place = int((hidden - without).argmax())
    moved = {"position": place, "without": float(without[place]), "hidden": float(hidden[place])}
    idle = [one for one in found[0]["without_effect"] if all(one in other["without_effect"] for other in found)]
    return {
        "hide": hide,
        "nats": float(nats.sum() / tokens.sum()),
        "difference": float(each.mean()),
        "interval": None if np.isnan(low) or hide == NOTHING else [low, high],
        "removed_share": float(np.mean([one["removed"] for one in found])),
        "moved": moved if any(one["removed"] for one in found) else None,
        "without_effect": idle,
    }
