"""Rules of hiding by name, and what each took away while answers were written."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sinkscope.errors import CallError
from sinkscope.interventions import Composed, Intervention, parse_rule
from sinkscope.models import Model

Rule = Intervention | Composed
Effects = Callable[[int | None], dict[str, Any] | None]
_COUNT = re.compile(r"(top|random|mass|persistent|ranks|class):(\d+)(@.*)?")


def find_rules(texts: Sequence[str]) -> dict[str, Rule]:
    """Rules by their text, in order.

    Raises:
        CallError: no such rule.
    """
    return {text: parse_rule(text) for text in dict.fromkeys(texts)}


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
def hiding(rule: Rule, model: Model) -> Iterator[Effects]:
    """Applies a rule to a model while the body runs.

    It gives a function that says what was taken from a row of a generation, or from all that ran (None):
    ``removed_share`` of all attention, ``hit_rate`` of hidden keys that were still among the top ones, ``keys_per_head``;
    None under a rule that hides nothing.
    """
    with rule(model) as running:
        yield lambda row: None if rule.idle else (running.effect if row is None else running.effect.of(row)).as_dict()
