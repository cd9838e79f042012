"""Movement of the main sinks: moves, distances, residence, kinds and drift, by depth and relative to the frontier."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.candidates import Candidates
from sinkscope.sinks.concentration import depth_slope
from sinkscope.sinks.drift import FRONTIERS, as_positions, block_edges, blocks_of, relative_positions, slopes
from sinkscope.sinks.layers import Canvas
from sinkscope.sinks.points import Point, Values
from sinkscope.sinks.runs import KINDS, find_runs

if TYPE_CHECKING:
    from sinkscope.sinks.profile import Profile

HEAD_KINDS = (*KINDS, "none")


@dataclass(frozen=True)
class Kinds:
    """Tracks of all sinks of a layer, not only the main ones.

    Attributes:
        tracks: [point, …, kind], how many of each kind.
        steps: [point, …, kind], the steps they live, together.
        heads: [point, …, kind], heads by the kind of their longest track, the last one without any.
    """

    tracks: Int[np.ndarray, "point *layer kind"]
    steps: Int[np.ndarray, "point *layer kind"]
    heads: Int[np.ndarray, "point *layer kind"]


def layer_kinds(sinks: Candidates, points: Sequence[Point], steps: int, heads: int, tolerance: int) -> Kinds:
    """One layer's; ``sinks`` are candidates of the columns that are followed."""
    tracks, lived, longest = [], [], []
    for point in points:
        chosen = sinks.at(point)
        runs = find_runs(sinks.step[chosen], sinks.head[chosen], sinks.key[chosen], steps, tolerance, short_too=False)
        tracks.append(np.bincount(runs.kind, minlength=len(HEAD_KINDS)))
        lived.append(np.bincount(runs.kind, weights=runs.durations, minlength=len(HEAD_KINDS)).astype(np.int64))
        order = np.lexsort((np.arange(len(runs)), -runs.durations, runs.head))
        _, first = np.unique(runs.head[order], return_index=True)
        kinds = np.bincount(runs.kind[order][first], minlength=len(HEAD_KINDS))
        kinds[-1] = heads - len(first)
        longest.append(kinds)
    return Kinds(np.array(tracks), np.array(lived), np.array(longest))


def fill_dips(main: Int[np.ndarray, "step *head"], tolerance: int) -> Int[np.ndarray, "step *head"]:
    """Main sinks with short dips filled: up to ``tolerance`` steps without any between two with the same one."""
    if not tolerance:
        return main
    steps = np.arange(len(main)).reshape(-1, *[1] * (main.ndim - 1))
    there = main >= 0
    before = np.maximum.accumulate(np.where(there, steps, -1), axis=0)
    after = np.minimum.accumulate(np.where(there, steps, len(main))[::-1], axis=0)[::-1]
    known = (before >= 0) & (after < len(main)) & (after - before <= tolerance + 1)
    left = np.take_along_axis(main, np.maximum(before, 0), axis=0)
    right = np.take_along_axis(main, np.minimum(after, len(main) - 1), axis=0)
    return np.where(known & (left == right), left, main)


def main_sink_values(main: Int[np.ndarray, "step layer head"], canvas: Canvas) -> Values:
    """How main sinks move, −1 where Eq. 3 does not hold."""
    there = main >= 0
    moved = there[1:] & there[:-1] & (main[1:] != main[:-1])
    distance = np.where(moved, main[1:] - main[:-1], 0)
    drift = slopes(as_positions(main))
    counted = ~np.isnan(drift)
    begun = there[0].astype(np.int64) + (there[1:] & (main[1:] != main[:-1])).sum(axis=0)
    moves = moved.sum(axis=0)
    values: Values = {
        ("movement.steps_with_sink", ()): float(there.mean()),
        ("movement.moves_per_head", ()): _mean(moves[counted]),
        ("movement.distance", ()): _ratio(np.abs(distance).sum(), moves.sum()),
        ("movement.rightward", ()): _ratio((distance > 0).sum(), moves.sum()),
        ("movement.residence", ()): _ratio(there.sum(), begun.sum()),
        ("movement.drift", ()): _mean(drift[counted]),
        ("movement.drift_by_depth", ()): depth_slope(layer_means(drift)),
        ("movement.moves_by_depth", ()): depth_slope(layer_means(np.where(counted, moves, np.nan))),
    }
    for layer in range(main.shape[1]):
        at = (("layer", layer),)
        values["movement.moves_in", at] = _mean(moves[layer][counted[layer]])
        values["movement.drift_in", at] = _mean(drift[layer][counted[layer]])
        values["movement.distance_in", at] = _ratio(np.abs(distance[:, layer]).sum(), moves[layer].sum())
        values["movement.residence_in", at] = _ratio(there[:, layer].sum(), begun[layer].sum())
    for frontier, relative in _relative_drifts(main, canvas).items():
        values["movement.drift_relative", (("frontier", frontier),)] = _mean(relative[~np.isnan(relative)])
        for layer, mean in enumerate(layer_means(relative).tolist()):
            values["movement.drift_relative_in", (("layer", layer), ("frontier", frontier))] = mean
    return values


def movement_values(profile: "Profile", point: Point) -> Values:
    """How the main sinks of one prompt move, and what all its tracks are."""
    values, number = main_sink_values(profile.main_at(point), profile.canvas), profile.points.index(point)
    tracks, by_layer = profile.kinds.tracks[number].sum(axis=0), profile.kinds.heads[number]
    heads = by_layer.sum(axis=0)
    lived = profile.kinds.steps[number].sum(axis=0)
    values["movement.track_steps", ()] = float(lived.sum() / tracks.sum()) if tracks.any() else float("nan")
    for one, kind in enumerate(HEAD_KINDS):
        values["movement.heads", (("kind", kind),)] = float(heads[one] / heads.sum())
        for layer, share in enumerate((by_layer[:, one] / by_layer.sum(axis=1)).tolist()):
            values["movement.heads_in", (("layer", layer), ("kind", kind))] = share
        if kind != "none":
            values["movement.tracks", (("kind", kind),)] = float(tracks[one] / tracks.sum()) if tracks.any() else float("nan")
    return values


def layer_means(by_head: Float[np.ndarray, "layer head"]) -> Float[np.ndarray, " layer"]:
    """Means over the heads that are not NaN."""
    count = (~np.isnan(by_head)).sum(axis=1)
    return np.where(count > 0, np.nansum(by_head, axis=1) / np.maximum(count, 1), np.nan)


def _relative_drifts(main: np.ndarray, canvas: Canvas) -> dict[str, np.ndarray]:
    edges = np.full(len(main), np.nan)
    if canvas.block and canvas.written is not None:
        edges = block_edges(blocks_of(canvas.written, canvas.prompt_length, canvas.block), canvas.prompt_length, canvas.block)
    return {one: slopes(relative_positions(main, one, canvas.masked, edges)) for one in FRONTIERS}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def _ratio(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part / whole) if whole > 0 else float("nan")
