"""What figures, page and summary need of a trace, read in one pass, a layer at a time.

What is followed over steps: the column sums; for autoregressive traces the columns of the 16 newest queries, because
a running sum over all queries can hardly move (`sinks.last_query_window`).
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import TraceError
from sinkscope.figures.counts import BINS_PER_QUERY
from sinkscope.sinks import (
    HeadMovement,
    MovementTest,
    excess_of,
    find_sinks,
    in_unit,
    is_sink,
    movement_test,
    sink_rates,
    track,
)
from sinkscope.statistics.thresholds import count_above
from sinkscope.traces import Trace


@dataclass(frozen=True)
class _Layer:
    """One layer of a trace, in memory; `find_sinks` takes it for a trace of one layer."""

    steps: int
    causal: bool
    tokens: np.ndarray
    column_sums: np.ndarray
    last_query: np.ndarray | None


@dataclass(frozen=True)
class Digest:
    """One trace, reduced.

    Attributes:
        excess: ε of Eq. 3, in queries' worth.
        main: [step, layer, head], position of the main sink, −1 where Eq. 3 does not hold.
        strength: [step, layer, head], column sum of the strongest sink over all queries; NaN where Eq. 3 does not hold.
        largest: [layer, head], mean over steps of the largest column followed, sink or not.
        mean: [step, key], mean over layers and heads of the columns followed; NaN beyond ``lengths``.
        counts: columns of all steps, layers and heads in bins of a quarter of a query's worth, from 0 upwards.
        sinks, sinks_percent: how many columns are sinks, with ε in queries' worth and in percent of all attention.
        columns: how many columns there are.
        sink_tokens, canvas_tokens: {token: count} over sinks, and over steps × positions.
        kinds: tracks of each kind.
        heads: how their main sinks move, by layer and head.
        layer_counts: the same counts for each layer.
        above: how many columns exceed the mean of the others by more than ε = 0, 0.25 … 10, in queries' worth and in percent.
        norms: of every kind that was recorded, [layer, sinks or others] means and standard deviations; see `layer_norms`.
        over_third: share of steps × layers × heads in which some key's mean α exceeds 0.3 (Gu et al., Sink_*).
    """

    trace: Trace
    excess: float
    tokens: Int[np.ndarray, "step position"]
    lengths: Int[np.ndarray, " step"]
    main: Int[np.ndarray, "step layer head"]
    strength: Float[np.ndarray, "step layer head"]
    largest: Float[np.ndarray, "layer head"]
    mean: Float[np.ndarray, "step key"]
    counts: Int[np.ndarray, " bin"]
    sinks: int
    sinks_percent: int
    columns: int
    sink_tokens: Counter[int] = field(repr=False)
    canvas_tokens: Counter[int] = field(repr=False)
    kinds: dict[str, int]
    heads: tuple[HeadMovement, ...] = field(repr=False)
    over_third: float
    layer_counts: Int[np.ndarray, "layer bin"] = field(repr=False)
    above: Int[np.ndarray, "unit epsilon"] = field(repr=False)
    norms: dict[str, Float[np.ndarray, "moment layer group"]] = field(repr=False)

    @property
    def steps(self) -> int:
        """Whole steps."""
        return len(self.main)

    @property
    def causal(self) -> bool:
        """Whether the model is autoregressive."""
        return self.trace.causal

    @property
    def positions(self) -> int:
        """Tokens of the longest canvas."""
        return int(self.lengths.max())

    @property
    def sink_steps(self) -> Int[np.ndarray, "layer head"]:
        """In how many steps each head has a main sink."""
        return (~np.isnan(self.strength)).sum(axis=0)

    @property
    def mean_strength(self) -> Float[np.ndarray, "layer head"]:
        """Column sum of the main sink, mean over those steps; NaN where there is none."""
        steps = self.sink_steps
        total = np.nansum(self.strength, axis=0, dtype=np.float64)
        return np.divide(total, steps, out=np.full(total.shape, np.nan), where=steps > 0)

    @cached_property
    def movement(self) -> MovementTest:
        """Moves and drift beside the same steps shuffled."""
        return movement_test(self.main)


def digest(trace: Trace, excess: float = 3.0) -> Digest:
    """Reads a trace, a layer at a time.

    Raises:
        TraceError: no whole step, or not every column was kept.
        CallError: a threshold that cannot hold.
    """
    if not trace.steps:
        raise TraceError(f"{trace.folder} holds no whole step yet; there is nothing to draw or to sum up")
    tokens, lengths = trace.tokens[:], trace.lengths[:]
    layers = trace.column_sums.shape[1]
    layer_counts = np.zeros((layers, BINS_PER_QUERY * (int(lengths.max()) + 1)), np.int64)
    above: Any = 0
    norms: list[dict[str, np.ndarray]] = []
    main, strength, largest, heads, over_third = [], [], [], [], []
    kinds: Counter[str] = Counter()
    sink_tokens: Counter[int] = Counter()
    total: Any = 0.0
    sinks = sinks_percent = columns = 0
    for layer in range(layers):
        view = _Layer(
            trace.steps,
            trace.causal,
            tokens,
            trace.column_sums[:, layer][:, None],
            trace.last_query[:, layer][:, None] if trace.causal else None,
        )
        found = find_sinks(view, excess)  # type: ignore[arg-type]  # a layer has what find_sinks reads
        tracks = track(found)
        sums = view.column_sums[~np.isnan(view.column_sums)]
        bins = layer_counts.shape[1]
        layer_counts[layer] = np.bincount(np.clip((sums * BINS_PER_QUERY).astype(np.int64), 0, bins - 1), minlength=bins)
        above = above + np.stack([count_above(excess_of(in_unit(view.column_sums, unit))[None])[0] for unit in ("queries", "percent")])
        norms.append(layer_norms(trace, layer, view.column_sums[:, 0], excess))
        sinks, columns = sinks + len(found), columns + len(sums)
        sinks_percent += int(is_sink(view.column_sums, excess, "percent").sum())
        sink_tokens.update(_tally(found.token))
        kinds.update(tracks.kinds)
        heads += [HeadMovement(layer, head.head, head.moves, head.drift_per_step, head.steps_with_sink) for head in tracks.heads]
        main.append(tracks.main[:, 0])
        strength.append(_strongest(view.column_sums[:, 0], excess))
        largest.append(np.nanmax(found.columns[:, 0], axis=-1).mean(axis=0))
        over_third.append(float(sink_rates(view.column_sums, trace.causal).any_key.mean()))
        total = total + found.columns[:, 0].mean(axis=1, dtype=np.float64)
    return Digest(
        trace=trace,
        excess=excess,
        tokens=tokens,
        lengths=lengths,
        main=np.stack(main, axis=1),
        strength=np.stack(strength, axis=1),
        largest=np.stack(largest),
        mean=total / layers,
        counts=layer_counts.sum(axis=0),
        sinks=sinks,
        sinks_percent=sinks_percent,
        columns=columns,
        sink_tokens=sink_tokens,
        canvas_tokens=_tally(tokens[tokens >= 0]),
        kinds=dict(kinds),
        heads=tuple(heads),
        over_third=float(np.mean(over_third)),
        layer_counts=layer_counts,
        above=above,
        norms={kind: np.stack([one[kind] for one in norms], axis=1) for kind in norms[0]},
    )


def layer_norms(trace: Trace, layer: int, columns: Float[np.ndarray, "step head key"], excess: float) -> dict[str, np.ndarray]:
    """Norms of one layer, [mean and standard deviation, sinks and others], over steps × heads × positions.

    ``value`` and ``key`` are those of each head's key head, ``hidden`` what enters the layer, ``contribution`` is c_j · ‖v_j‖.
    """
    selected, present = is_sink(columns, excess), ~np.isnan(columns)
    found = {}
    for kind in ("value", "key", "hidden", "contribution"):
        name = f"{'value' if kind == 'contribution' else kind}_norms"
        if name not in trace.tensors:
            continue
        norms = getattr(trace, name)[:, layer]
        norms = norms[:, None] if kind == "hidden" else np.repeat(norms, columns.shape[1] // norms.shape[1], axis=1)
        norms = np.broadcast_to(norms, columns.shape)
        values = norms * columns if kind == "contribution" else norms
        groups = [values[selected], values[present & ~selected]]
        moments = [[one.mean(dtype=np.float64), one.std(dtype=np.float64)] if one.size else [np.nan, np.nan] for one in groups]
        found[kind] = np.array(moments).T
    return found


def _strongest(columns: Float[np.ndarray, "step head key"], excess: float) -> Float[np.ndarray, "step head"]:
    largest = np.where(is_sink(columns, excess), columns, -np.inf).max(axis=-1)
    return np.where(np.isinf(largest), np.nan, largest)


def _tally(tokens: np.ndarray) -> Counter[int]:
    values, counts = np.unique(tokens, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
