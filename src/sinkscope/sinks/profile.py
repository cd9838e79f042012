"""The profile of a trace: all that the statistics read of it, made in one pass, a layer at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import CallError
from sinkscope.sinks.candidates import find_candidates, percent_per_query
from sinkscope.sinks.composition import Composition, canvas_tally, layer_composition
from sinkscope.sinks.concentration import Concentration, layer_concentration
from sinkscope.sinks.finding import Recorded
from sinkscope.sinks.groups import Groups, layer_groups
from sinkscope.sinks.layers import Canvas, Layer, canvas_of, read_layers, stack_layers
from sinkscope.sinks.movement import Kinds, fill_dips, layer_kinds
from sinkscope.sinks.norms import Norms, layer_norms
from sinkscope.sinks.points import POINTS, Point, check_point
from sinkscope.sinks.tracking import check_tolerance


@dataclass(frozen=True)
class MainSinks:
    """The largest column of each step, (layer,) head, of the columns that are followed, and how far it exceeds the others.

    Attributes:
        excess, percent: in queries' worth and in percent of all attention.
    """

    position: Int[np.ndarray, "step *head"]
    excess: Float[np.ndarray, "step *head"]
    percent: Float[np.ndarray, "step *head"]


@dataclass(frozen=True)
class Profile:
    """One trace, reduced; arrays are step, layer, head.

    Attributes:
        points: where the statistics are told.
        tolerance: steps without a sink that a track and a main sink survive.
        token_ids, token_counts: tokens of the canvas and how often they stand on it; token_indices: [step, position].
    """

    canvas: Canvas = field(repr=False)
    points: tuple[Point, ...]
    tolerance: int
    main: MainSinks = field(repr=False)
    concentration: Concentration = field(repr=False)
    groups: Groups = field(repr=False)
    norms: Norms = field(repr=False)
    kinds: Kinds = field(repr=False)
    composition: Composition = field(repr=False)
    token_ids: Int[np.ndarray, " token"] = field(repr=False)
    token_counts: Int[np.ndarray, " token"] = field(repr=False)
    token_indices: Int[np.ndarray, "step position"] = field(repr=False)

    @property
    def steps(self) -> int:
        """Steps of the trace."""
        return len(self.main.position)

    def main_at(self, point: Point) -> Int[np.ndarray, "step layer head"]:
        """Position of the main sink, −1 where Eq. 3 does not hold; dips filled."""
        size = self.main.excess if point.unit == "queries" else self.main.percent
        return fill_dips(np.where(size > point.excess, self.main.position, -1), self.tolerance)


def profile_of(trace: Recorded, points: Sequence[Point] = POINTS, tolerance: int = 0) -> Profile:
    """Reads a trace once; memory is that of one layer over all steps, and a few numbers for each step and head.

    Raises:
        CallError: a point that cannot be told, no point, or a tolerance below 0.
        SinkscopeError: a trace without a whole step.
    """
    if not points:
        raise CallError("points: expected at least one Point(excess, unit), found none")
    for point in points:
        check_point(point)
    check_tolerance(tolerance)
    canvas = canvas_of(trace)
    ids, counts, indices = canvas_tally(canvas)
    parts = [_layer_parts(layer, canvas, points, indices, len(ids), tolerance) for layer in read_layers(trace)]
    main, concentration, groups, norms, kinds, composition = (stack_layers(part) for part in zip(*parts, strict=True))
    return Profile(canvas, tuple(points), tolerance, main, concentration, groups, norms, kinds, composition, ids, counts, indices)


def _layer_parts(
    layer: Layer, canvas: Canvas, points: Sequence[Point], indices: np.ndarray, tokens: int, tolerance: int
) -> tuple[MainSinks, Concentration, Groups, Norms, Kinds, Composition]:
    sinks = find_candidates(layer.sums, layer.excess, layer.total, points)
    followed = sinks
    if layer.followed is not layer.sums:
        followed = find_candidates(layer.followed, layer.followed_excess, layer.followed_total, points)
    concentration = layer_concentration(layer, sinks, canvas.lengths, canvas.causal)
    steps, heads, _ = layer.sums.shape
    return (
        largest_followed(layer),
        concentration,
        layer_groups(layer, canvas, concentration.top),
        layer_norms(layer, sinks, canvas.lengths, concentration.top),
        layer_kinds(followed, points, steps, heads, tolerance),
        layer_composition(sinks, indices, tokens),
    )


def largest_followed(layer: Layer) -> MainSinks:
    """One layer's."""
    position = np.where(np.isnan(layer.followed), -np.inf, layer.followed).argmax(axis=-1)
    excess = np.take_along_axis(layer.followed_excess, position[..., None], axis=-1)[..., 0]
    return MainSinks(position, excess, excess * percent_per_query(layer.followed_total).astype(np.float32))
