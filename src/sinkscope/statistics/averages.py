"""Averages that leave out what is missing, parts of a trace to average over (layers by depth, steps in thirds), and
products.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sinkscope.sinks.drift import slopes

THIRDS = ("first", "middle", "last")


def thirds(steps: int) -> dict[str, slice]:
    """Return the steps in three parts, as even as can be."""
    edges = [round(steps * part / 3) for part in range(4)]
    return {name: slice(low, high) for name, low, high in zip(THIRDS, edges[:-1], edges[1:], strict=True)}


def depth_slope(by_layer: Float[np.ndarray, " layer"]) -> float:
    """Return the least-squares slope against relative depth, from 0 (first layer) to 1 (last); NaN with fewer than two
    layers.
    """
    return float(slopes(by_layer)) * (len(by_layer) - 1)


def mean(values: Float[np.ndarray, "*any"], where: Bool[np.ndarray, "*any"] | None = None) -> float:
    """Return the mean of the values that are not NaN, of those at ``where`` if it is given; NaN where none is left."""
    chosen = ~np.isnan(values) if where is None else where & ~np.isnan(values)
    return float(values[chosen].mean(dtype=np.float64)) if chosen.any() else float("nan")


def layer_means(by_head: Float[np.ndarray, "layer head"]) -> Float[np.ndarray, " layer"]:
    """Return the mean of each layer over the heads that are not NaN."""
    count = (~np.isnan(by_head)).sum(axis=1)
    return np.where(count > 0, np.nansum(by_head, axis=1) / np.maximum(count, 1), np.nan)


def product(left: Float[np.ndarray, "..."], right: Float[np.ndarray, "..."]) -> Any:
    """Return left @ right, without the warning of an "invalid value" that NumPy gives at times although all numbers are
    finite.

    The kernels of BLAS compute on padding too, and NumPy reads the processor's flag behind them (numpy/numpy#13173 and
    #24067). What is not a number in the operands is not a number in the product, as ever.
    """
    with np.errstate(invalid="ignore"):
        return left @ right


def quotient(part: Any, whole: Any) -> float:
    """Return part over whole, NaN where the whole is not above 0."""
    return float(part / whole) if whole > 0 else float("nan")


def ratio(total: Any, count: Any) -> Float[np.ndarray, "*any"]:
    """Return totals over counts, NaN where nothing was counted."""
    total, count = np.asarray(total, np.float64), np.asarray(count, np.float64)
    return np.divide(total, count, out=np.full(np.broadcast(total, count).shape, np.nan), where=count > 0)
