"""The definition of a sink: Eq. 3 of paper 1 in two units, and the rates of Gu et al., on column sums.

c_j = Σ_i A_ij is the attention key j receives, in queries' worth. Its excess is c_j − mean of the other columns.

Quirk: paper 1's text divides by the number of queries, with which Eq. 3 and ε = 3 can never hold; its figures have
axes up to 50. Sums (``queries``) and percent of all attention are offered, and the mean form is refused for ε ≥ 1.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from sinkscope.errors import CallError

Unit = Literal["queries", "percent", "mean"]
UNITS: tuple[Unit, ...] = ("queries", "percent", "mean")


def in_unit(
    columns: Float[np.ndarray, "*step layer head key"], unit: Unit
) -> Float[np.ndarray, "*step layer head key"]:
    """Column sums in another unit: as they are, in percent of all attention, or as a share of it (mean)."""
    check_excess(0.0, unit)
    if unit == "queries":
        return columns
    total = np.nansum(columns, axis=-1, keepdims=True)
    share = np.divide(columns, total, out=np.zeros_like(columns), where=total > 0)
    share[np.isnan(columns)] = np.nan
    return share * 100 if unit == "percent" else share


def excess_of(columns: Float[np.ndarray, "*step layer head key"]) -> Float[np.ndarray, "*step layer head key"]:
    """c_j − mean over k ≠ j of c_k (paper 1, Eq. 3), over the positions that are not NaN; NaN stays NaN."""
    total = np.nansum(columns, axis=-1, keepdims=True)
    count = (~np.isnan(columns)).sum(axis=-1, keepdims=True)
    others = np.maximum(count - 1, 1)
    return columns - (total - columns) / others


def check_excess(excess: float, unit: str) -> None:
    """Raise CallError for an unknown unit, a threshold below 0 or NaN, or ε ≥ 1 on means."""
    if unit not in UNITS or not 0 <= excess < np.inf:
        raise CallError(f"expected an excess from 0 upwards in {', '.join(UNITS)}, found {excess} in {unit}")
    if unit == "mean" and excess >= 1:
        raise CallError(
            f"excess {excess:g} on means can never hold: a column mean is a share of attention, at most 1. "
            "Paper 1's epsilon = 3 is meant in sums: use unit='queries' (or 'percent')"
        )


def is_sink(
    columns: Float[np.ndarray, "*step layer head key"], excess: float = 3.0, unit: Unit = "queries"
) -> Bool[np.ndarray, "*step layer head key"]:
    """Eq. 3: which keys exceed the mean of the others by more than ``excess``, ε in that unit.

    Args:
        columns: column sums in queries' worth, NaN where there is no token.

    Raises:
        CallError: see `check_excess`.
    """
    check_excess(excess, unit)
    with np.errstate(invalid="ignore"):
        return excess_of(in_unit(columns, unit)) > excess


def visible_query_mean(
    columns: Float[np.ndarray, "*step layer head key"], causal: bool
) -> Float[np.ndarray, "*step layer head key"]:
    """Return column sums over the number of queries that may see the key: S − j for causal models, else S."""
    length = (~np.isnan(columns)).sum(axis=-1, keepdims=True)
    return columns / np.maximum(length - np.arange(columns.shape[-1]) if causal else length, 1)


LEAST_QUERIES = 64
"""Queries that must see a key before its mean α counts in a sink rate; Gu et al. take their rates over 64 tokens."""


def rated_keys(keys: int, causal: bool, least_queries: int = LEAST_QUERIES) -> int:
    """Return how many of the first keys at least ``least_queries`` queries see; all for bidirectional models."""
    return max(0, keys - least_queries + 1) if causal else keys


@dataclass(frozen=True, eq=False)
class SinkRates:
    """Shares of layers × heads whose mean α exceeds a threshold (Gu et al., ICLR 2025).

    Attributes:
        per_key: [step, key], Sink_k, of every key by itself, however few queries see it.
        any_key: [step], Sink_*, over the keys that ``least_queries`` queries see; NaN where there is no such key.
        first_key: [step], Sink_1, of the first token.
    """

    per_key: Float[np.ndarray, "step key"]
    any_key: Float[np.ndarray, " step"]
    first_key: Float[np.ndarray, " step"]


def sink_rates(
    columns: Float[np.ndarray, "step layer head key"],
    causal: bool,
    threshold: float = 0.3,
    least_queries: int = LEAST_QUERIES,
) -> SinkRates:
    """Sink_k, Sink_* and Sink_1 of Gu et al. (2410.10781), defined for causal models; bidirectional ones divide by S.

    Args:
        threshold: on α.
        least_queries: keys that fewer queries see do not count in Sink_*, in causal models, as their means are often
            large: the newest key has one query, its own.
    """
    with np.errstate(invalid="ignore"):
        over = visible_query_mean(columns, causal) > threshold
    lengths = (~np.isnan(columns[:, 0, 0])).sum(axis=-1)
    any_key = np.full(len(columns), np.nan)
    for step, length in enumerate(lengths.tolist()):
        if keys := rated_keys(length, causal, least_queries):
            any_key[step] = over[step, ..., :keys].any(axis=-1).mean()
    per_key = over.mean(axis=(1, 2))
    return SinkRates(per_key, any_key, per_key[:, 0])


def last_query_window(
    last_query: Float[np.ndarray, "step layer head key"], window: int = 16
) -> Float[np.ndarray, "step layer head key"]:
    """Column sums over the newest ``window`` queries of an autoregressive trace, one a step; the first steps sum fewer,
    and a key that came later counts 0 for the rows before it.
    """
    rows = np.nan_to_num(last_query)
    summed = np.cumsum(rows, axis=0, dtype=np.float64)
    summed[window:] = summed[window:] - summed[:-window].copy() if len(summed) > window else summed[window:]
    return np.where(np.isnan(last_query), np.nan, summed).astype(np.float32)


def running_mean(columns: Float[np.ndarray, "step layer head key"]) -> Float[np.ndarray, "step layer head key"]:
    """Columns averaged over all steps so far with this key, as an autoregressive model's running sums show them."""
    there = ~np.isnan(columns)
    total = np.cumsum(np.where(there, columns, 0), axis=0, dtype=np.float64)
    return np.where(there, total / np.maximum(np.cumsum(there, axis=0), 1), np.nan).astype(columns.dtype)
