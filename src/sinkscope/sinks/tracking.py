"""Sinks over steps: tracks, main sinks, moves, and a null hypothesis in which the steps are shuffled.

A track is a longest stretch of steps in which one position is a sink in one head, of a kind of `KIND_MEANINGS`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.counts import counted
from sinkscope.notebook_card import MOST_ROWS, card
from sinkscope.sinks.definition import excess_in, last_query_window, uniform_rows
from sinkscope.sinks.drift import KINDS, IsSink, MainMoves, as_positions, find_episodes, slopes
from sinkscope.sinks.finding import Sinks
from sinkscope.sinks.followed_columns import WINDOW, Followed, Recorded, mean_share
from sinkscope.traces.reading import as_trace, expect_steps

KIND_MEANINGS = {
    "static": "a sink in at least 95 % of the steps that count",
    "moved": "ends, and another track of its head, which began later and ends later (its successor), starts within one "
    "step of that end",
    "vanished": "ends before the last step, and is none of the others",
    "reappeared": "ends, and the same position becomes a sink again later",
    "one_step": "lives for one step",
    "lasting": "still a sink in the last step, and none of the others",
}
FEW_BLOCKS = 10
"""With fewer blocks of steps to shuffle, a trace tells little of whether a drift is chance."""


@dataclass(frozen=True)
class Track:
    """One sink from its first to its last step; number of the track it moved to and the distance, or None."""

    layer: int
    head: int
    position: int
    first_step: int
    last_step: int
    kind: str
    successor: int | None
    distance: int | None


@dataclass(frozen=True)
class HeadMovement:
    """Movement of the main sink of one head (see `drift`), over the steps that have one; a slope only with two."""

    layer: int
    head: int
    moves: int
    swaps: int
    drift_per_step: float | None
    steps_with_sink: int


@dataclass(frozen=True, eq=False)
class Tracks:
    """All tracks of a trace, and the movement of its heads, in the columns ``source``; ``main``: position of the main
    sink, −1 without; ``uncounted``: the first steps; ``is_sink``: the rule at any steps, layers, heads, positions.
    """

    tracks: tuple[Track, ...]
    heads: tuple[HeadMovement, ...]
    main: Int[np.ndarray, "step layer head"]
    source: str
    is_sink: IsSink = field(repr=False)
    uncounted: int = 0

    def __repr__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items() if count)
        return f"Tracks({counted(len(self.tracks), 'track')}{f': {kinds}' if kinds else ''}; followed in {self.source})"

    @property
    def kinds(self) -> dict[str, int]:
        counts = Counter(track.kind for track in self.tracks)
        return {kind: counts[kind] for kind in KINDS}

    @property
    def moving(self) -> list[HeadMovement]:
        found = [one for one in self.heads if one.moves + one.swaps]
        return sorted(found, key=lambda one: (-one.moves, -one.swaps, one.layer, one.head))

    def _repr_html_(self) -> str:
        counts = {kind: count for kind, count in self.kinds.items() if count}
        facts = {kind.replace("_", " "): f"{count:,} ({KIND_MEANINGS[kind]})" for kind, count in counts.items()}
        rows = []
        for one in self.moving[:MOST_ROWS]:
            drift = None if one.drift_per_step is None else f"{one.drift_per_step:+.2f}"
            rows.append((one.layer, one.head, one.moves, one.swaps, drift, one.steps_with_sink))
        columns = ("layer", "head", "moves", "swaps", "drift", "steps with a sink")
        title = f"{counted(len(self.tracks), 'track', ',')}, followed in {self.source}; the heads that move most"
        return card(title, facts, columns, rows, len(self.moving) - len(rows))

    def as_dict(self) -> dict[str, Any]:
        return {
            "tracks": [vars(track) for track in self.tracks],
            "kinds": self.kinds,
            "heads": [vars(head) for head in self.heads],
            "followed": self.source,
        }


def main_sinks(
    columns: Float[np.ndarray, "step layer head key"], selected: Bool[np.ndarray, "step layer head key"]
) -> Int[np.ndarray, "step layer head"]:
    """Return the position of the largest column that is a sink, ties to the lower position; −1 where none is."""
    lowest = np.finfo(columns.dtype).min  # so that a sink is chosen whatever its column
    strongest = np.where(selected, np.maximum(columns, lowest), -np.inf).argmax(axis=-1)
    return np.where(selected.any(axis=-1), strongest, -1)


def track(sinks: Sinks, tolerance: int = 0) -> Tracks:
    """Return the tracks and main sinks of a trace; dips of at most ``tolerance`` steps end neither."""
    before, (steps, _, heads) = sinks.uncounted, sinks.moving.shape[:3]
    step, layer, head, position = np.nonzero(sinks.moving[before:])
    episodes = find_episodes(step, layer * heads + head, position, steps - before, tolerance)
    found, columns = [], (getattr(episodes, name).tolist() for name in vars(episodes))
    for number, at, first, last, kind, successor in zip(*columns, strict=True):
        following = successor if successor >= 0 else None
        distance = None if following is None else int(episodes.position[following]) - at
        place = (number // heads, number % heads, at, before + first, before + last)
        found.append(Track(*place, KINDS[kind], following, distance))
    main = fill_dips(main_sinks(sinks.ranked, sinks.moving), tolerance)
    is_sink = SinksIn(sinks.moving)
    return Tracks(tuple(found), tuple(head_movement(main, is_sink)), main, sinks.source, is_sink, before)


@dataclass(frozen=True, eq=False)
class SinksIn:
    """Looks sinks up in an array; a class, so that tracks can be pickled."""

    selected: Bool[np.ndarray, "step layer head key"]

    def __call__(self, step: np.ndarray, layer: np.ndarray, head: np.ndarray, position: np.ndarray) -> np.ndarray:
        return self.selected[step, layer, head, position]


def fill_dips(main: Int[np.ndarray, "step *head"], tolerance: int) -> Int[np.ndarray, "step *head"]:
    """Fill dips of main sinks: up to ``tolerance`` steps without one between two steps with the same one."""
    if not tolerance:
        return main
    steps, there = np.arange(len(main)).reshape(-1, *[1] * (main.ndim - 1)), main >= 0
    before = np.maximum.accumulate(np.where(there, steps, -1), axis=0)
    after = np.minimum.accumulate(np.where(there, steps, len(main))[::-1], axis=0)[::-1]
    known = (before >= 0) & (after < len(main)) & (after - before <= tolerance + 1)
    left = np.take_along_axis(main, np.maximum(before, 0), axis=0)
    right = np.take_along_axis(main, np.minimum(after, len(main) - 1), axis=0)
    return np.where(known & (left == right), left, main)


def head_movement(main: Int[np.ndarray, "step layer head"], is_sink: IsSink | None = None) -> list[HeadMovement]:
    """Return the movement of every head; arguments as those of `MainMoves.of`."""
    found, with_sink = MainMoves.of(main, is_sink), (main >= 0).sum(axis=0)
    heads = []
    for layer, head in np.ndindex(found.drift.shape):
        moves, swaps, drift, steps = (
            one[layer, head].item() for one in (found.moves, found.swaps, found.drift, with_sink)
        )
        heads.append(HeadMovement(layer, head, moves, swaps, None if np.isnan(drift) else drift, steps))
    return heads


@dataclass(frozen=True)
class MovementTest:
    """Movement of a trace beside nulls in which its steps are shuffled: singly for moves, in blocks for drift.

    Means (and the median drift, and the share that drifts right) are over ``heads`` with a main sink in two steps.
    Nulls are (mean, 2.5th, 97.5th percentile) over the shuffles. p_moves: share with as few moves or fewer, as
    shuffling destroys residence; p_drift: with a drift as far from zero. Fewer blocks than `FEW_BLOCKS` tell little.
    """

    moves_per_head: float
    swaps_per_head: float
    drift_per_step: float
    drift_median: float
    drift_right: float
    null_moves: tuple[float, float, float]
    null_drift: tuple[float, float, float]
    p_moves: float
    p_drift: float
    heads: int
    shuffles: int
    block_steps: int
    blocks: float


@dataclass(frozen=True)
class MainPlace:
    """The place at which most ``heads`` have their main sink in more steps than elsewhere, with its mean share."""

    position: int
    token: int
    heads: int
    of_heads: int
    share: float

    def text(self, token: str, queries: str) -> str:
        """Return the words for it; ``queries`` that are followed are `Followed.queries_text`."""
        where = f"main sink of {self.heads} of {counted(self.of_heads, 'head')}"
        return f"position {self.position}, {token!r}: {where}, with {self.share:.1%} of the attention of {queries}"


def main_place(
    main: Int[np.ndarray, "step layer head"],
    columns: Float[np.ndarray, "step key"],
    tokens: Int[np.ndarray, "step position"],
) -> MainPlace | None:
    """Return the place of most heads' main sink (−1: none), ties to the lower one; ``columns`` are means over heads."""
    step, layer, head = there = np.nonzero(main >= 0)
    if not len(step):
        return None
    counts = np.zeros((*main.shape[1:], int(main.max()) + 1), np.int64)
    np.add.at(counts, (layer, head, main[there]), 1)
    usual = np.where(counts.any(axis=-1), counts.argmax(axis=-1), -1)
    position = int(np.bincount(usual[usual >= 0]).argmax())
    token = int(tokens[step[main[there] == position][-1], position])
    share = float(mean_share(columns)[position])
    return MainPlace(position, token, int((usual == position).sum()), usual.size, share)


def place_of(sinks: Sinks, tokens: Int[np.ndarray, "step position"]) -> MainPlace | None:
    """Return where most heads of a trace have their main sink."""
    counted = slice(sinks.uncounted, None)
    main = main_sinks(sinks.ranked, sinks.moving)[counted]
    return main_place(main, sinks.columns[counted].mean(axis=(1, 2)), tokens[counted])


def movement_test(
    main: Int[np.ndarray, "step layer head"],
    is_sink: IsSink | None = None,
    *,
    uncounted: int = 0,
    shuffles: int = 200,
    seed: int = 0,
) -> MovementTest:
    """Return moves and drift beside those of the same main sinks with their steps in random order, all heads together.

    A sink that stays drifts in six of ten traces if single steps are shuffled, so blocks are, twice as long as sinks
    stay: one in twenty or fewer. Without ``is_sink`` every change of place is a move.
    """
    found, main = MainMoves.of(main, is_sink), main[uncounted:]
    counted = ~np.isnan(found.drift)
    moves = swaps = drift = median = right = 0.0
    null, block, rng = np.zeros((1, 2)), max(1, len(main)), np.random.default_rng(seed)
    if counted.any():
        moves, swaps, drifts = found.moves[counted].mean(), found.swaps[counted].mean(), found.drift[counted]
        drift, median, right = drifts.mean(), np.median(drifts), (drifts > 0).mean()
        block = min(block, int(np.ceil(2 * _stay(main))))
        places = _Places(main, is_sink, uncounted)
        null = np.empty((shuffles, 2))
        for row in null:
            row[0] = places.moves(rng.permutation(len(main)))[counted].mean()
            row[1] = slopes(as_positions(main[_blocks_shuffled(len(main), block, rng)]))[counted].mean()

    def spread(values: np.ndarray) -> tuple[float, float, float]:
        return float(values.mean()), *(float(value) for value in np.percentile(values, [2.5, 97.5]))  # type: ignore[return-value]

    return MovementTest(
        *map(float, (moves, swaps, drift, median, right)),
        null_moves=spread(null[:, 0]),
        null_drift=spread(null[:, 1]),
        p_moves=float((1 + (null[:, 0] <= moves).sum()) / (1 + len(null))),
        p_drift=float((1 + (np.abs(null[:, 1]) >= abs(drift) - 1e-12).sum()) / (1 + len(null))),
        heads=int(counted.sum()),
        shuffles=shuffles,
        block_steps=block,
        blocks=len(main) / block,
    )


class _Places:
    """Holds the places of each head's main sink and the steps in which they are sinks: moves in any order of steps."""

    def __init__(self, main: Int[np.ndarray, "step layer head"], is_sink: IsSink | None, first: int = 0) -> None:
        _, layer, head = there = np.nonzero(main >= 0)
        places, found = np.unique(np.stack([layer, head, main[there]]), axis=1, return_inverse=True)
        self.number = np.full(main.shape, -1)
        self.number[there] = found.ravel()
        self.sink = np.zeros((len(main), places.shape[1]), bool)
        if is_sink is not None and places.size:
            step = first + np.repeat(np.arange(len(main)), places.shape[1])
            self.sink = is_sink(step, *np.tile(places, len(main))).reshape(self.sink.shape)

    def moves(self, order: Int[np.ndarray, " step"]) -> Int[np.ndarray, "layer head"]:
        """Return how often each head's main sink moves with the steps in another order."""
        number, sink = self.number[order], self.sink[order]
        changed = (number[1:] >= 0) & (number[:-1] >= 0) & (number[1:] != number[:-1])
        step, layer, head = np.nonzero(changed)
        swapped = sink[step, number[step + 1, layer, head]] & sink[step + 1, number[step, layer, head]]
        changed[step[swapped], layer[swapped], head[swapped]] = False
        return changed.sum(axis=0)


def _stay(main: Int[np.ndarray, "step layer head"]) -> float:
    """Return for how many steps the main sink of a random step stays, over the heads in which it ever moves."""
    steps = len(main)
    change = np.ones((steps + 1, *main.shape[1:]), dtype=bool)
    change[1:-1] = main[1:] != main[:-1]
    flat, change = main.reshape(steps, -1).T, change.reshape(steps + 1, -1).T
    head, edge = np.nonzero(change)
    last = head[1:] == head[:-1]
    length = np.diff(edge)[last]
    moving, there = (change.sum(axis=1) > 2)[head[:-1][last]], flat[head[:-1][last], edge[:-1][last]] >= 0
    length = length[moving & there].astype(np.float64)
    return float((length**2).sum() / length.sum()) if len(length) else float(steps)


def _blocks_shuffled(steps: int, block: int, rng: "np.random.Generator") -> Int[np.ndarray, " step"]:
    """Return the steps with blocks in another order, cut at a random place: the first and last may be short."""
    if block >= steps:
        return np.arange(steps)
    cuts = np.arange(rng.integers(block), steps, block)
    parts = np.split(np.arange(steps), cuts[cuts > 0])
    return np.concatenate([parts[part] for part in rng.permutation(len(parts))])


SHARE = 3 / WINDOW


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
    trace: Any, windows: Sequence[int] = (1, 2, 4, 8, 16, 32), share: float = SHARE
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
        there = excess > share
        moved = MainMoves.of(main_sinks(excess, there), SinksIn(there))
        heads = ~np.isnan(moved.drift)
        moves, swaps = (float(one[heads].mean()) if heads.any() else None for one in (moved.moves, moved.swaps))
        found.append(AveragedMoves(size * queries, share, moves, swaps, int(heads.sum()), len(newest)))
    return found
