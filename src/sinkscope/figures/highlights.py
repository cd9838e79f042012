"""Highlights: the heads and steps of a trace that figures show, because an effect is clearest there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.counts import counted
from sinkscope.sinks import HeadMovement
from sinkscope.sinks.followed_columns import followed_queries
from sinkscope.sinks.tracking import head_movement
from sinkscope.statistics import PromptSummary, Threshold
from sinkscope.statistics.groups import GroupSinks
from sinkscope.traces import Trace

Place = tuple[int | None, int | None]
"""A layer and a head; None stands for all."""


@dataclass(frozen=True)
class Jump:
    """The main sink of a head is at another position one step later.

    Attributes:
        step: the step before.
        clean: whether the old position is no longer a sink, and the new one was not one before.
        swap: whether both positions are sinks before and after.
        held: the attention that the place before and the place after hold while the main sink stays there, in steps'
            worth (1: all attention of the head in one step); the smaller of the two.
    """

    step: int
    layer: int
    head: int
    before: int
    after: int
    clean: bool
    swap: bool
    held: float = field(compare=False)

    @property
    def distance(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class Split:
    """A step in which the masked and the unmasked queries of a head attend most to different keys; each key gets a
    larger share of attention from its own group than from the other, by ``clarity`` or more.
    """

    step: int
    layer: int
    head: int
    masked_key: int
    unmasked_key: int
    clarity: float


@dataclass(frozen=True)
class Flash:
    """A sink that lives for one step, neither the first nor the last."""

    step: int
    layer: int
    head: int
    position: int
    column_sum: float


@final
@dataclass(frozen=True)
class Highlights:
    """The heads and steps of one trace where each effect is clearest. Ties go to the lower layer, then the lower head.

    Attributes:
        prompt: the numbers of the trace.
        threshold: of Eq. 3.
        place: the layer and the head to look at; None for all of them.
    """

    trace: Trace = field(repr=False)
    prompt: PromptSummary = field(repr=False)
    threshold: Threshold
    place: Place = (None, None)

    @cached_property
    def main(self) -> Int[np.ndarray, "step layer head"]:
        """Position of the main sink of each head, −1 where Eq. 3 does not hold."""
        return self.prompt.main_at(self.threshold)

    @cached_property
    def asked(self) -> Bool[np.ndarray, "layer head"]:
        asked = np.zeros((self.prompt.layers, self.prompt.heads), bool)
        asked[tuple(slice(None) if at is None else at for at in self.place)] = True
        return asked

    @cached_property
    def heads(self) -> list[HeadMovement]:
        moving = head_movement(self.main, self.prompt.is_sink_at(self.threshold))
        return [one for one in moving if self.asked[one.layer, one.head]]

    @property
    def only(self) -> HeadMovement | None:
        """The head that was asked for; None where the highlights choose."""
        return None if None in self.place else self.heads[0]

    @cached_property
    def largest(self) -> Float[np.ndarray, "layer head"]:
        """Largest column followed, sink or not, mean over steps; −1 in heads that were not asked for."""
        return np.where(self.asked, self.prompt.by_step.main_column.mean(axis=0), -1)

    def places(self, head: HeadMovement) -> int:
        """Return at how many positions the main sink of a head is."""
        main = self.main[:, head.layer, head.head]
        return len(np.unique(main[main >= 0]))

    def movement_text(self, head: HeadMovement) -> str:
        swaps = f", {counted(head.swaps, 'swap')}" if head.swaps else ""
        return f"{counted(self.places(head), 'position')}, {counted(head.moves, 'move')}{swaps}"

    def residence(self, head: HeadMovement) -> int:
        """Return in how many steps the main sink of a head is at its most frequent position."""
        main = self.main[:, head.layer, head.head]
        return int(np.bincount(main[main >= 0]).max(initial=0))

    @cached_property
    def clearest(self) -> HeadMovement | None:
        """The head with the clearest move (the largest `Jump.held`); without moves, the one with the strongest sink."""
        if self.moves:
            best = max(self.moves, key=lambda move: (move.held, -move.layer, -move.head))
            return next(one for one in self.heads if (one.layer, one.head) == (best.layer, best.head))
        return self._best(lambda head: float(self.largest[head.layer, head.head]))

    @cached_property
    def jumps(self) -> list[Jump]:
        """Every change of place of a main sink from one step to the next, by layer, head and step."""
        shares = self.prompt.by_step.main_column / followed_queries(self.trace)[:, None, None]
        rows, held = [], []
        for one in self.heads:
            share = shares[:, one.layer, one.head]
            for (old, first, last), (new, begin, end) in pairwise(stays_of(self.main[:, one.layer, one.head])):
                if begin == last + 1:
                    rows.append((last, one.layer, one.head, old, new))
                    held.append(min(float(share[first:begin].sum()), float(share[begin : end + 1].sum())))
        step, layer, head, old, new = np.array(rows, int).reshape(-1, 5).T
        is_sink = self.prompt.is_sink_at(self.threshold)
        stays, was = is_sink(step + 1, layer, head, old), is_sink(step, layer, head, new)
        return [
            Jump(*row, clean=clean, swap=swap, held=much)
            for row, clean, swap, much in zip(rows, (~stays & ~was).tolist(), (stays & was).tolist(), held, strict=True)
        ]

    @cached_property
    def moves(self) -> list[Jump]:
        return [one for one in self.jumps if not one.swap]

    @cached_property
    def most_moves(self) -> HeadMovement | None:
        """The head whose main sink moves most often; ties to more positions."""
        return self._best(lambda head: (head.moves, self.places(head)))

    @cached_property
    def most_positions(self) -> HeadMovement | None:
        """The head whose main sink is at the most positions; ties to more moves."""
        return self._best(lambda head: (self.places(head), head.moves))

    @cached_property
    def most_static(self) -> HeadMovement | None:
        """The head whose main sink is at one position for the most steps; ties to the larger column."""
        return self._best(lambda head: (self.residence(head), float(self.largest[head.layer, head.head])))

    def _best(self, merit: Callable[[HeadMovement], Any]) -> HeadMovement | None:
        with_sinks = [head for head in self.heads if head.steps_with_sink]
        return max(with_sinks, key=lambda head: (merit(head), -head.layer, -head.head), default=None)

    @cached_property
    def leftmost(self) -> HeadMovement | None:
        """The head whose main sink drifts left the fastest over half of the steps or more; where none does, right."""
        least = max(2, len(self.main) // 2)
        drifting = [head for head in self.heads if head.drift_per_step and head.steps_with_sink >= least and head.moves]
        left = [head for head in drifting if (head.drift_per_step or 0) < 0]
        return max(
            left or drifting, key=lambda head: (abs(head.drift_per_step or 0), -head.layer, -head.head), default=None
        )

    @cached_property
    def jump(self) -> Jump | None:
        """The longest jump of a main sink: clean ones first, swaps last; ties to the lower layer, then earlier step."""
        return max(
            self.jumps,
            key=lambda one: (one.clean, not one.swap, abs(one.distance), -one.layer, -one.step, -one.head),
            default=None,
        )

    @cached_property
    def flash(self) -> Flash | None:
        """The strongest sink that lives for one step; ties to the lower layer, then earlier step, head and position."""
        found = []
        for layer in np.flatnonzero(self.asked.any(axis=1)).tolist():
            sinks = self.prompt.followed.of_layer(layer).at(self.threshold)
            step, head, key = sinks.step, sinks.head, sinks.key
            alone = (
                ~sinks.contains(step - 1, head, key) & ~sinks.contains(step + 1, head, key) & self.asked[layer, head]
            )
            alone &= (step > 0) & (step < self.prompt.steps - 1)
            rows = zip(*(one[alone].tolist() for one in (step, head, key, sinks.column)), strict=True)
            found += [Flash(step, layer, head, key, column) for step, head, key, column in rows]
        return max(
            found, key=lambda one: (one.column_sum, -one.layer, -one.step, -one.head, -one.position), default=None
        )

    @cached_property
    def split(self) -> Split | None:
        """The clearest split of masked and unmasked queries; None where the trace has no sums of masked queries."""
        if "column_sums_masked" not in self.trace.tensors or "masked" not in self.trace.tensors:
            return None
        groups = self.prompt.kept(GroupSinks)
        clarity = np.where(self.asked, np.nan_to_num(groups.clarity, nan=-np.inf), -np.inf)
        step, layer, head = (int(one) for one in np.unravel_index(int(clarity.argmax()), clarity.shape))
        if clarity[step, layer, head] <= 0:
            return None
        masked, unmasked = (int(one) for one in groups.position[step, :2, layer, head])
        return Split(step, layer, head, masked, unmasked, float(clarity[step, layer, head]))


def stays_of(main: Int[np.ndarray, " step"]) -> list[tuple[int, int, int]]:
    """Return (position, first step, last step) of a head's main sink, for each time that it stays in one place."""
    edges = (np.flatnonzero(np.diff(main)) + 1).tolist()
    bounds = zip([0, *edges], [*edges, len(main)], strict=True)
    return [(int(main[first]), first, end - 1) for first, end in bounds if main[first] >= 0]
