"""Tests whether a head's main sink moves or drifts more than it would with its steps, or its stays, in random order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from sinkscope.sinks.drift import slopes

SHUFFLES = 999
LEVEL = 0.05


def beyond_chance(heads: Sequence[Any], p: Any) -> list[Any]:
    """Return the heads whose p-values hold at `LEVEL` by Benjamini and Hochberg's rule over all of them."""
    from scipy.stats import false_discovery_control

    return [head for head, q in zip(heads, false_discovery_control(p) if heads else (), strict=True) if q <= LEVEL]


def p_of_move(main: Int[np.ndarray, " step"], stayed: int) -> float:
    """Return the share of orders of the steps in which a main sink (−1: none) stays ``stayed`` steps before and after a
    change of place. Changes of rank count in shuffled steps only: conservative.
    """
    orders = np.random.default_rng(0).permuted(np.tile(main, (SHUFFLES, 1)), axis=1)
    before, after = _run_lengths(orders), _run_lengths(orders[:, ::-1])[:, ::-1]
    changed = (orders[:, 1:] != orders[:, :-1]) & (orders[:, 1:] >= 0) & (orders[:, :-1] >= 0)
    as_long = (changed & (np.minimum(before[:, :-1], after[:, 1:]) >= stayed)).any(axis=1)
    return float((1 + as_long.sum()) / (1 + SHUFFLES))


def p_of_drift(stays: Sequence[tuple[int, int, int]]) -> float:
    """Return the share of orders of the stays whose slope is as steep: only several moves one way make a drift."""
    position, length = np.array([at for at, *_ in stays], float), [end - first + 1 for _, first, end in stays]
    rng, every = np.random.default_rng(0), np.arange(len(stays))
    orders = [every, *(rng.permutation(every) for _ in range(SHUFFLES))]
    slope = np.abs(slopes(np.stack([np.repeat(position[order], np.take(length, order)) for order in orders], axis=-1)))
    return float((slope >= slope[0]).mean())


def _run_lengths(rows: Int[np.ndarray, "order step"]) -> Int[np.ndarray, "order step"]:
    """Return for how many steps each place has been held, this step included."""
    held = np.ones(rows.shape, int)
    for step in range(1, rows.shape[1]):
        held[:, step] += np.where(rows[:, step] == rows[:, step - 1], held[:, step - 1], 0)
    return held
