"""Moves of main sinks at an equal share of the attention of an equal number of queries, in any kind of model.

The more queries a column averages, the less its largest key moves, and three queries' worth are 19 % of a window of 16
queries but 3 % of a canvas of 87: what `tracking` says of a causal and a diffusion model cannot be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sinkscope.sinks.definition import excess_in, last_query_window, uniform_rows
from sinkscope.sinks.drift import MainMoves
from sinkscope.sinks.followed_columns import WINDOW, Followed, Recorded
from sinkscope.sinks.tracking import SinksIn, main_sinks
from sinkscope.traces.reading import as_trace, expect_steps

SHARE = 3 / WINDOW
"""Share of the attention by which a sink exceeds others where moves are compared: ε = 3 of 16 queries."""


@dataclass(frozen=True)
class AveragedMoves:
    """Moves of main sinks that exceed others by one ``share`` of the attention of ``queries``, averaged in each step:
    means over ``heads``, None without. Compare equal numbers of queries only.
    """

    queries: int
    share: float
    moves_per_head: float | None
    swaps_per_head: float | None
    heads: int
    steps: int


def averaged_moves(
    trace: Recorded | str | Path, windows: Sequence[int] = (1, 2, 4, 8, 16, 32), share: float = SHARE
) -> list[AveragedMoves]:
    """Return the moves at one share of attention, averaged over as many queries as windows say: in a causal trace, by
    ``uniform``, over the newest ones; in a diffusion trace over W / S steps, at least one, of canvases of S.
    """
    recorded: Recorded = as_trace(trace)
    expect_steps(recorded, "compare moves in")
    uniform, queries = None, 1
    if recorded.causal:
        rows = np.asarray(recorded.last_query[:], np.float32)
        uniform = uniform_rows(rows)
    else:
        rows = Followed.of(recorded).columns(recorded)
        queries = max(1, round(float(np.nansum(rows, axis=-1).mean())))
    most = (recorded.steps + 1) // 2
    sizes = sorted({max(1, round(window / queries)) for window in windows if window <= most * queries} or {1})
    found = []
    for size in sizes:
        newest = last_query_window(rows, size)[sizes[-1] - 1 :]
        expected = None if uniform is None else last_query_window(uniform, size)[sizes[-1] - 1 :]
        excess = excess_in(newest, "mean", expected)
        with np.errstate(invalid="ignore"):
            there = excess > share
        moved = MainMoves.of(main_sinks(excess, there), SinksIn(there))
        heads = ~np.isnan(moved.drift)
        means = (float(one[heads].mean()) if heads.any() else None for one in (moved.moves, moved.swaps))
        found.append(AveragedMoves(size * queries, share, *means, int(heads.sum()), len(newest)))
    return found
