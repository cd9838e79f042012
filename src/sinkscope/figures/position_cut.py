"""`Cut`: an axis of positions that leaves out long stretches without anything to show."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
from jaxtyping import Float

from sinkscope.figures.style import spread_out

MARGIN = 4
"""Positions that are drawn beside each one that is kept."""
LEAST_CUT = 30
"""Fewer positions than this are never left out."""
GAP = 3
"""Room on the axis, in positions, for a stretch that is left out."""


@dataclass(frozen=True)
class Cut:
    """Which positions are drawn, and where: long stretches without anything to show are left out of a map.

    Attributes:
        windows: (first, end) of the stretches that are drawn.
        width: number of positions of the canvas.
    """

    windows: tuple[tuple[int, int], ...]
    width: int

    @classmethod
    def around(cls, kept: Iterable[int], width: int) -> "Cut":
        """Return the cut that draws these positions and `MARGIN` beside each; it leaves out more than `LEAST_CUT`."""
        windows = [[0, 0]]
        for position in sorted({position for position in kept if 0 <= position < width}) or [0]:
            if position - MARGIN - windows[-1][1] < LEAST_CUT:
                windows[-1][1] = position + MARGIN + 1
            else:
                windows.append([position - MARGIN, position + MARGIN + 1])
        windows[-1][1] = width if width - windows[-1][1] < LEAST_CUT else windows[-1][1]
        return cls(tuple((first, min(end, width)) for first, end in windows if end), width)

    @property
    def left_out(self) -> int:
        return self.width - sum(end - first for first, end in self.windows)

    @property
    def places(self) -> Float[np.ndarray, " position"]:
        """Where each position is drawn; NaN where it is left out."""
        places, at = np.full(self.width, np.nan), 0.0
        for first, end in self.windows:
            places[first:end] = at + np.arange(end - first)
            at += end - first + GAP
        return places

    def ticks(self, most: int = 9) -> list[int]:
        """Return positions for ticks: the first of each window, then round ones."""
        places = self.places
        drawn = np.nanmax(places) + 1
        round_steps = (one * 10**power for power in count() for one in (1, 2, 5))
        step = next(one for one in round_steps if drawn / one <= most)
        wanted = [*(first for first, _ in self.windows), *range(0, self.width, step)]
        there = {float(places[position]): position for position in wanted if not np.isnan(places[position])}
        return [there[place] for place in sorted(spread_out([*there], drawn / (1.6 * most), 2 * most))]
