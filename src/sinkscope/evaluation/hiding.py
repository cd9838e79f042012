"""Rules of hiding by name, and what each took away while answers were written."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sinkscope.errors import CallError
from sinkscope.models import Model

Rule = Any
Effects = Callable[[int], dict[str, Any] | None]
_COUNT = re.compile(r"(top|random|mass|persistent|ranks|class):(\d+)(@.*)?")


def split_rules(text: str) -> list[str]:
    """Rules separated by commas, each with its options: ``none,top:1@current,last_row`` is ``none`` and ``top:1@current,last_row``."""
    parts = re.split(r",(?=\s*(?:$|none\s*(?:,|$)|[a-z_]+:))", text)
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def find_rules(texts: Sequence[str]) -> dict[str, Rule | None]:
    """Rules by their text, in order, ``none`` as None.

    Raises:
        CallError: no such rule.
    """
    return {text: None if text == "none" else _parse(text) for text in dict.fromkeys(texts)}


def _parse(text: str) -> Rule:
    from sinkscope.interventions import parse_rule

    return parse_rule(text)


def check_count(text: str, canvases: Sequence[int]) -> None:
    """Refuses a rule that hides as many keys as the shortest canvas has tokens.

    Args:
        text: the rule.
        canvases: tokens of each problem's canvas when a rule first comes into force.

    Raises:
        CallError: it does.
    """
    count = _COUNT.fullmatch(text)
    if count is None:
        return
    shortest = min(canvases)
    ranks = 2 if count[1] == "ranks" else 1
    if ranks * int(count[2]) >= shortest:
        where = f"problem {canvases.index(shortest)} has {shortest} tokens"
        most = (shortest - 1) // ranks
        raise CallError(f"hide: {text} takes more keys than a canvas leaves: that of {where}; choose at most {count[1]}:{most}")


@contextmanager
def hiding(rule: Rule | None, model: Model) -> Iterator[Effects]:
    """Applies a rule to a model while the body runs.

    It gives a function that says, after a generation, what was taken from its row: ``removed_share`` of all attention,
    ``hit_rate`` of hidden keys that were still among the top ones, ``keys_per_head``; None without a rule.
    """
    if rule is None:
        yield lambda row: None
        return
    with rule(model) as running:
        yield lambda row: running.effect.of(row).as_dict()
