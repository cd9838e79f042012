"""Triggers of moves: a commit at the position left or entered, a block change, or neither, against shifted commits.

A move at step t is seen beside the commits of step t − 1. The null shifts the commit times of a prompt circularly in
the transitions between steps, block changes with them: only the alignment of commits and moves is lost.
"""

import zlib
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.drift import blocks_of
from sinkscope.statistics.intervals import LEVEL
from sinkscope.statistics.movement import MOVING
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.prompt_canvas import PromptCanvas
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds
from sinkscope.statistics.thresholds import Threshold

TRIGGERS = ("own", "left", "entered", "block", "neither")
DRAWS = 999
MOST_SHIFTED = 1 << 26


class Triggers(Statistic):
    """Shares of the moves with each trigger, and their excess over the mean under all shifts of the commits."""

    order = 2
    definitions: ClassVar = {
        "triggers.share": Definition(
            "moves and swaps after each event: own commit, block change, neither", "share of changes", MOVING
        ),
        "triggers.over_chance": Definition(
            "that share minus its mean over all circular shifts of the commits", "share of changes", MOVING
        ),
    }

    def values(self, prompt: PromptSummary) -> Values:
        return at_thresholds(prompt, lambda *at: trigger_values(shares_of(*at)))


def trigger_shares(
    main: Int[np.ndarray, "step layer head"],
    written: Int[np.ndarray, "step position"],
    blocks: Int[np.ndarray, " step"] | None,
) -> Float[np.ndarray, "trigger shift"] | None:
    """Return the share of the moves with each trigger under every circular shift of the commits, shift 0 as it was.

    own: the position left or entered was committed in the step before; left, entered: that one was; block: not own, and
    the block changed with the step; neither: none of these. None where nothing moves; ``blocks``: of each step.
    """
    transitions = len(main) - 1
    step, layer, head = np.nonzero((main[1:] >= 0) & (main[:-1] >= 0) & (main[1:] != main[:-1]))
    if not len(step):
        return None
    changes = np.zeros(0, int) if blocks is None else np.flatnonzero((np.diff(blocks) != 0) & (blocks[:-1] >= 0))
    positions = max(written.shape[1], int(main.max()) + 1)
    where, committed = np.nonzero((written[:transitions] >= 0).T)  # a sampler may commit a position more than once
    begins = np.searchsorted(where, np.arange(positions + 1))

    def before(when: np.ndarray, place: np.ndarray) -> Int[np.ndarray, " pair"]:
        """Return the moves and shifts under which a place is committed in the step before the move."""
        many = np.diff(begins)[place]
        move = np.repeat(np.arange(len(place)), many)
        each = np.arange(len(move)) - np.repeat(np.cumsum(many) - many, many)
        return move * transitions + (when[move] - committed[begins[place][move] + each]) % transitions

    counts = np.zeros((len(TRIGGERS), transitions), np.int64)
    at_once = max(1, MOST_SHIFTED // transitions)
    for begin in range(0, len(step), at_once):
        some = slice(begin, begin + at_once)
        when, heads = step[some], (layer[some], head[some])
        # A move and a shift under which an event comes right before it are one number: move · transitions + shift.
        left, entered = (before(when, main[when + later, *heads]) for later in (0, 1))
        own = np.zeros(len(when) * transitions, bool)
        own[left] = True
        both = own[entered]
        own[entered] = True
        block = (np.arange(len(when))[:, None] * transitions + (when[:, None] - changes) % transitions).ravel()
        found = {"left": left, "entered": entered, "both": entered[both], "block": block[~own[block]]}
        by_shift = {name: np.bincount(one % transitions, minlength=transitions) for name, one in found.items()}
        by_shift["own"] = by_shift["left"] + by_shift["entered"] - by_shift["both"]
        by_shift["neither"] = len(when) - by_shift["own"] - by_shift["block"]
        counts += np.array([by_shift[name] for name in TRIGGERS])
    return counts / len(step)


def shares_of(prompt: PromptSummary, threshold: Threshold) -> Float[np.ndarray, "trigger shift"] | None:
    """Return `trigger_shares` of a prompt; None also where there are no commits to shift."""
    canvas = prompt.canvas
    if canvas.settings.causal or canvas.written is None:
        return None
    block, mask = canvas.settings.block, canvas.settings.mask_id
    written = canvas.written if mask is None else np.where(canvas.written == mask, -1, canvas.written)  # masked again
    blocks = blocks_of(written, canvas.settings.first_block, block) if block else None
    return trigger_shares(prompt.main_at(threshold), written, blocks)


def trigger_values(shares: Float[np.ndarray, "trigger shift"] | None) -> Values:
    """Return the shares as they were, and minus their mean under all shifts; nothing without shares."""
    values: Values = {}
    if shares is None:
        return values
    for name, by_shift in zip(TRIGGERS, shares, strict=True):
        at = (("trigger", name),)
        values["triggers.share", at] = float(by_shift[0])
        values["triggers.over_chance", at] = float(by_shift[0] - by_shift.mean())
    return values


def draws_of(canvas: PromptCanvas) -> int:
    """Return the seed of a prompt's shifts, made of its tokens, so that it is the same in any process and order."""
    return zlib.crc32(np.ascontiguousarray(canvas.tokens, np.int64).tobytes())


@dataclass(eq=False)
class TriggerTest:
    """Sums over the prompts in which something moves: shares as they were, one of the draws so that p is exact, and
    with their commits shifted at random.
    """

    prompts: int = 0
    observed: Float[np.ndarray, " trigger"] = field(default_factory=lambda: np.zeros(len(TRIGGERS)))
    null: Float[np.ndarray, "trigger draw"] = field(default_factory=lambda: np.zeros((len(TRIGGERS), DRAWS)))

    def add(self, shares: Float[np.ndarray, "trigger shift"], draws: int, seed: int = 0) -> None:
        """Take in one prompt's `trigger_shares`; ``draws`` is that of `draws_of`."""
        rng = np.random.default_rng([draws, seed])
        self.null = self.null + shares[:, rng.integers(0, shares.shape[1], self.null.shape[1])]
        self.observed = self.observed + shares[:, 0]
        self.prompts += 1

    def p_value(self, trigger: str) -> float:
        """Return the share of draws at least as common, of ``neither`` at most as common; 1 without prompts."""
        number, sign = TRIGGERS.index(trigger), -1 if trigger == "neither" else 1
        as_far = (sign * self.null[number] >= sign * self.observed[number] - 1e-9).sum()
        return float((1 + as_far) / (1 + self.null.shape[1]))

    def widened(self, trigger: str, low: float, high: float) -> tuple[float, float]:
        """Return the wider of an interval and of chance's: a bootstrap of prompts without a rare trigger is narrow."""
        number = TRIGGERS.index(trigger)
        upper, lower = np.quantile(self.null[number], [(1 + LEVEL) / 2, (1 - LEVEL) / 2])
        around = (self.observed[number] - np.array([upper, lower])) / max(1, self.prompts)
        return min(low, float(around[0])), max(high, float(around[1]))
