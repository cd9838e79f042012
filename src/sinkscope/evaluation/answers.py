"""Answers under a rule, whose effect is measured, cut at the first stop string."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch

from sinkscope.decoding import Settings
from sinkscope.errors import CallError
from sinkscope.interventions import Composed, Intervention
from sinkscope.interventions.effect import Effect
from sinkscope.models import Model

Rule = Intervention | Composed
Effects = Callable[..., dict[str, Any] | None]


@contextmanager
def rule_in_force(rule: Rule, model: Model) -> Iterator[Effects]:
    """Hide by a rule while the body runs.

    Yields:
        A function from the row of a generation, or None for a likelihood, to the effect on it, as `Effect.as_dict` has
        it, over so many passes of the same prompts; None under a rule that hides nothing. A likelihood has a single
        step; for one, the function raises CallError where the rule asked for the step before or was never in force.
    """
    with rule(model) as running:

        def effects(row: int | None, passes: int = 1) -> dict[str, Any] | None:
            if rule.idle:
                return None
            found = running.effect
            if row is not None:  # of each pass, whose prompts stand behind those of the pass before
                every = slice(row, None, max(1, len(found.steps) // passes))
                found = Effect(*(values[every] for values in vars(found).values()))
            elif running.asked_previous or not found.steps.any():
                what = "asked for the step before" if running.asked_previous else "was never in force"
                raise CallError(f"hide: {rule} {what}, and a likelihood has one step; observe=current hides in it")
            return found.as_dict()

        yield effects


def reseeded(settings: Settings, by: int) -> Settings:
    """Return a sampler's settings with its seed raised by a number; settings without a seed are returned unchanged."""
    values = asdict(settings)
    return replace(settings, seed=values["seed"] + by) if "seed" in values else settings


def answer_until(model: Model, answer: torch.Tensor, stops: Sequence[str]) -> str:
    """Return the text of an answer, int64 [position], as lm-eval's tasks read it: before the first EOS or stop string.

    Leading white space is kept, because the completion of a program needs it. A stop string that is a special token of
    the tokenizer ends the answer as a token, since special tokens are left out of the text.
    """
    known = model.tokenizer.get_added_vocab()
    ends = {known[stop] for stop in stops if stop in known} | {model.card.eos_id, *getattr(model.card, "eos_ids", ())}
    ids: list[int] = answer.tolist()
    length = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    text = model.decode([token for token in ids[:length] if token != model.card.mask_id])
    for stop in filter(None, stops):
        text = text.split(stop, 1)[0]
    return text
