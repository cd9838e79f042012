"""What a trace of ``keep="top"`` cannot tell: numbers of all columns, and of all sinks where a head may have more than were kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.thresholds import UNITS

OF_ALL_COLUMNS = ("concentration.entropy", "concentration.gini")
OVER_QUERIES = ("concentration.gu_rate", "concentration.gu_rate_first")
"""In causal models a key that few queries see may be above 0.3 without being among the largest; where weights were zeroed, the columns
that were kept do not tell how many queries there are."""
MOST_OVER_THIRD = 3
"""Keys of one head that may be above 0.3 at once; the first token is among the kept ones if so many were."""
OF_LARGEST = (
    *("concentration.strength", "concentration.strength_by_depth", "concentration.layers_without"),
    *("composition.share_of_canvas", "composition.token_on_canvas"),
    *(
        "movement.steps_with_sink",
        "movement.residence",
        "movement.drift",
        "movement.drift_median",
        "movement.drift_right",
    ),
    *("movement.drift_relative", "movement.drift_by_depth"),
)
"""Numbers at a threshold that the largest column of each head, which is always kept, or the canvas decides."""
FAMILIES_OF_LARGEST = ("agreement.", "triggers.", "choice.")


def is_known(prompt: PromptSummary, name: str, place: Mapping[str, Any]) -> bool:
    """Return whether the columns that were kept of a prompt decide a number.

    Args:
        name: without an ending.
    """
    if name in OF_ALL_COLUMNS or (name in OVER_QUERIES and (prompt.canvas.causal or prompt.canvas.settings.zeroed)):
        return False
    if name == OVER_QUERIES[1] and (prompt.canvas.settings.kept or MOST_OVER_THIRD) < MOST_OVER_THIRD:
        return False
    return has_every_sink([prompt.known_from], name, place)


def has_every_sink(known_from: Sequence[tuple[float, ...]], name: str, place: Mapping[str, Any]) -> bool:
    """Return whether every sink that a number counts was kept, of every prompt.

    A mean over the prompts of which all were kept would be one over the prompts with few sinks.

    Args:
        known_from: of each prompt, see `PromptSummary`.
        name: without an ending.
    """
    if "excess" not in place or name in OF_LARGEST or name.startswith(FAMILIES_OF_LARGEST):
        return True
    return all(one[UNITS.index(place["unit"])] <= place["excess"] for one in known_from)
