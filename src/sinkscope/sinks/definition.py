"""The definition of a sink: Eq. 3 of paper 1 in two units, on column sums.

c_j = Σ_i A_ij is the attention key j receives, in queries' worth. Its excess is c_j − mean of the other columns.

Quirk: paper 1's text divides by the number of queries, with which Eq. 3 and ε = 3 can never hold; its figures have
axes up to 50. Sums (``queries``) and percent of all attention are offered, and the mean form is refused for ε ≥ 1.
"""

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
