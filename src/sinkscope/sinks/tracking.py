"""Following sinks over steps: tracks, main sinks, moves, and the null in which the steps are shuffled.

A track is a maximal run of steps in which one position is a sink in one head. Its kind:

static      it covers at least 95 % of the steps
one_step    it lives for one step
moved       another track of its head starts within one step of its end (its ``successor``)
reappeared  the same position becomes a sink again later
vanished    none of these, and it ends before the last step
lasting     none of these, and it is still a sink in the last step
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks.finding import Sinks

STATIC_SHARE = 0.95
KINDS = ("static", "moved", "vanished", "reappeared", "one_step", "lasting")


@dataclass(frozen=True)
class Track:
    """One sink from its first to its last step.

    Attributes:
        successor: number of the track it moved to, None where it did not.
        distance: positions to the successor, to the right positive; None where it did not move.
    """

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
    """How the main sink of one head moves.

    Attributes:
        moves: how often the main sink stands elsewhere than in the step before, over steps in a row that have one.
        drift_per_step: least-squares slope of its position against the step, in positions per step; None with fewer
            than two steps that have one.
        steps_with_sink: steps in which Eq. 3 holds in this head.
    """

    layer: int
    head: int
    moves: int
    drift_per_step: float | None
    steps_with_sink: int


@dataclass(frozen=True)
class Tracks:
    """All tracks of a trace, and how its heads move.

    Attributes:
        main: int [step, layer, head], position of the main sink, −1 where no sink.
        source: which columns were followed.
    """

    tracks: tuple[Track, ...]
    heads: tuple[HeadMovement, ...]
    main: np.ndarray
    source: str

    @property
    def kinds(self) -> dict[str, int]:
        """How many tracks of each kind."""
        counts = Counter(track.kind for track in self.tracks)
        return {kind: counts[kind] for kind in KINDS}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``sinkscope tracks --json`` prints them."""
        return {
            "tracks": [vars(track) for track in self.tracks],
            "kinds": self.kinds,
            "heads": [vars(head) for head in self.heads],
            "followed": self.source,
        }


def main_sinks(
    columns: Float[np.ndarray, "step layer head key"], selected: Bool[np.ndarray, "step layer head key"]
) -> Int[np.ndarray, "step layer head"]:
    """Position of the strongest sink, ties to the lower position; −1 where Eq. 3 does not hold."""
    strongest = np.where(selected, columns, -np.inf).argmax(axis=-1)
    return np.where(selected.any(axis=-1), strongest, -1)


def track(sinks: Sinks) -> Tracks:
    """Follows the sinks of a trace."""
    steps = sinks.moving.shape[0]
    found: list[Track] = []
    for layer in range(sinks.moving.shape[1]):
        for head in range(sinks.moving.shape[2]):
            found += _head_tracks(sinks.moving[:, layer, head], layer, head, steps, len(found))
    main = main_sinks(sinks.columns, sinks.moving)
    return Tracks(tuple(found), tuple(head_movement(main)), main, sinks.source)


def _head_tracks(selected: Bool[np.ndarray, "step key"], layer: int, head: int, steps: int, offset: int) -> list[Track]:
    runs = sorted(_runs(selected), key=lambda run: (run[1], run[0]))
    starts: dict[int, list[int]] = defaultdict(list)
    for number, (_, first, _) in enumerate(runs):
        starts[first].append(number)
    again = defaultdict(list)
    for position, first, _ in runs:
        again[position].append(first)
    tracks = []
    for number, (position, first, last) in enumerate(runs):
        static = last - first + 1 >= STATIC_SHARE * steps
        successor = None if static or last == steps - 1 else _successor(runs, starts, number)
        distance = None if successor is None else runs[successor][0] - position
        if static:
            kind = "static"
        elif first == last:
            kind = "one_step"
        elif successor is not None:
            kind = "moved"
        elif any(start > last for start in again[position]):
            kind = "reappeared"
        else:
            kind = "vanished" if last < steps - 1 else "lasting"
        tracks.append(Track(layer, head, position, first, last, kind, None if successor is None else successor + offset, distance))
    return tracks


def _runs(selected: Bool[np.ndarray, "step key"]) -> list[tuple[int, int, int]]:
    """(position, first step, last step) of every maximal run."""
    edges = np.diff(np.pad(selected.astype(np.int8), ((1, 1), (0, 0))), axis=0)
    runs = []
    for position in np.flatnonzero(selected.any(axis=0)).tolist():
        first = np.flatnonzero(edges[:, position] == 1).tolist()
        last = (np.flatnonzero(edges[:, position] == -1) - 1).tolist()
        runs += [(position, a, b) for a, b in zip(first, last, strict=True)]
    return runs


def _successor(runs: list[tuple[int, int, int]], starts: dict[int, list[int]], number: int) -> int | None:
    """The nearest track of another position that starts within one step of this one's end."""
    position, first, last = runs[number]
    near = [
        other
        for step in (last - 1, last, last + 1)
        for other in starts.get(step, ())
        if runs[other][0] != position and runs[other][1] > first and runs[other][2] > last
    ]
    return min(near, key=lambda other: (abs(runs[other][0] - position), other), default=None)


def head_movement(main: Int[np.ndarray, "step layer head"]) -> list[HeadMovement]:
    """Moves and drift of every head."""
    moves = ((main[1:] != main[:-1]) & (main[1:] >= 0) & (main[:-1] >= 0)).sum(axis=0)
    heads = []
    for layer in range(main.shape[1]):
        for head in range(main.shape[2]):
            step = np.flatnonzero(main[:, layer, head] >= 0)
            drift = _slope(step, main[step, layer, head])
            heads.append(HeadMovement(layer, head, int(moves[layer, head]), drift, len(step)))
    return heads


def _slope(step: np.ndarray, position: np.ndarray) -> float | None:
    if len(step) < 2:
        return None
    centred = step - step.mean()
    return float((centred * (position - position.mean())).sum() / (centred**2).sum())


@dataclass(frozen=True)
class MovementTest:
    """Movement of a trace beside a null in which its steps are shuffled.

    Attributes:
        moves_per_head, drift_per_step: means over heads that have a main sink in at least two steps.
        null_moves, null_drift: (mean, 2.5th, 97.5th percentile) over the shuffles.
        p_moves: share of shuffles with as few or fewer moves (shuffling destroys residence, so a real trace moves less).
        p_drift: share of shuffles with a drift at least as far from zero.
        heads: how many heads counted.
    """

    moves_per_head: float
    drift_per_step: float
    null_moves: tuple[float, float, float]
    null_drift: tuple[float, float, float]
    p_moves: float
    p_drift: float
    heads: int
    shuffles: int


def movement_test(main: Int[np.ndarray, "step layer head"], shuffles: int = 200, seed: int = 0) -> MovementTest:
    """Compares moves and drift with what the same columns give when the order of the steps means nothing.

    All heads are shuffled together, because they see the same commits. What this null cannot tell: whether a drift
    only follows the tokens being committed from left to right.
    """
    observed = _summary(main)
    rng = np.random.default_rng(seed)
    null = (
        np.array([_summary(main[rng.permutation(len(main))])[:2] for _ in range(shuffles)]) if len(main) > 1 else np.array([observed[:2]])
    )
    moves, drift, heads = observed

    def spread(values: np.ndarray) -> tuple[float, float, float]:
        return float(values.mean()), *(float(value) for value in np.percentile(values, [2.5, 97.5]))  # type: ignore[return-value]

    return MovementTest(
        moves,
        drift,
        spread(null[:, 0]),
        spread(null[:, 1]),
        float((1 + (null[:, 0] <= moves).sum()) / (1 + len(null))),
        float((1 + (np.abs(null[:, 1]) >= abs(drift)).sum()) / (1 + len(null))),
        heads,
        shuffles,
    )


def _summary(main: np.ndarray) -> tuple[float, float, int]:
    heads = [(head.moves, head.drift_per_step) for head in head_movement(main) if head.drift_per_step is not None]
    if not heads:
        return 0.0, 0.0, 0
    moves, drifts = zip(*heads, strict=True)
    return float(np.mean(moves)), float(np.mean(drifts)), len(heads)
