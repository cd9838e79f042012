"""What figures, page and summary need of a trace, read in one pass, a layer at a time.

What is followed over steps: the column sums; for autoregressive traces the columns of the 16 newest queries, because
a running sum over all queries can hardly move (`sinks.last_query_window`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import TraceError
from sinkscope.figures.counts import BINS_PER_QUERY, Counted
from sinkscope.figures.highlights import Flash, Jump, Split, clearest_split, largest_jump, leftmost_drift, strongest_flash
from sinkscope.figures.labels import model_label
from sinkscope.sinks import (
    HeadMovement,
    MovementTest,
    excess_of,
    find_sinks,
    in_unit,
    is_sink,
    last_query_window,
    movement_test,
    sink_rates,
    track,
)
from sinkscope.sinks.accumulators import count_above
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
        label: what the model is called.
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
        jumps, splits, flashes: the most telling one of each layer that has one.
        over_third: share of steps × layers × heads in which some key's mean α exceeds 0.3 (Gu et al., Sink_*).
    """

    trace: Trace
    label: str
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
    jumps: tuple[Jump, ...] = field(repr=False)
    splits: tuple[Split, ...] = field(repr=False)
    flashes: tuple[Flash, ...] = field(repr=False)

    @property
    def steps(self) -> int:
        """Whole steps."""
        return len(self.main)

    @property
    def causal(self) -> bool:
        """Whether the model is autoregressive."""
        return self.trace.causal

    @property
    def heading(self) -> str:
        """What panels are called."""
        return f"{self.label}{'' if self.trace.complete else ' (incomplete)'}, prompt of {self.prompt_length} tokens"

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt; 0 where the trace does not say."""
        return int(self.trace.manifest.get("prompt_length") or 0)

    @property
    def threshold(self) -> float:
        """Eq. 3 on a column sum, 1 + ε(1 − 1/S), at the longest canvas."""
        return 1 + self.excess * (1 - 1 / self.positions)

    @property
    def positions(self) -> int:
        """Tokens of the longest canvas."""
        return int(self.lengths.max())

    @property
    def positions_text(self) -> str:
        """The same as text, a range where canvases differ."""
        low = int(self.lengths.min())
        return str(low) if low == self.positions else f"{low}…{self.positions}"

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
    def rows(self) -> Float[np.ndarray, " step"]:
        """How many queries the followed columns add up over: what they sum to."""
        return np.nansum(self.mean, axis=-1)

    @cached_property
    def written(self) -> Int[np.ndarray, "commit 3"]:
        """(step, position, token) of every commit, as far as recorded."""
        if "written" not in self.trace.tensors:
            return np.zeros((0, 3), int)
        written = self.trace.written[:]
        step, position = np.nonzero(written >= 0)
        return np.stack([step, position, written[step, position]], axis=-1).astype(int)

    @cached_property
    def canvas(self) -> Int[np.ndarray, " position"]:
        """The last canvas, with everything that was committed."""
        width = max(self.tokens.shape[1], int(self.written[:, 1].max(initial=-1)) + 1)
        canvas = np.full(width, -1)
        canvas[: self.tokens.shape[1]] = self.tokens[-1]
        for _, position, token in self.written:
            canvas[position] = token
        return canvas

    @cached_property
    def movement(self) -> MovementTest:
        """Moves and drift beside the same steps shuffled."""
        return movement_test(self.main)

    def head_columns(self, layer: int, head: int) -> Float[np.ndarray, "step key"]:
        """The columns followed, of one head, read now."""
        if not self.causal:
            return self.trace.column_sums[:, layer, head]
        return last_query_window(self.trace.last_query[:, layer, head][:, None, None])[:, 0, 0]

    def _best(self, merit: Callable[[HeadMovement], Any]) -> HeadMovement | None:
        with_sinks = [head for head in self.heads if head.steps_with_sink]
        return max(with_sinks, key=lambda head: (merit(head), -head.layer, -head.head), default=None)

    def places(self, head: HeadMovement) -> int:
        """At how many different positions the main sink of a head stands."""
        main = self.main[:, head.layer, head.head]
        return len(np.unique(main[main >= 0]))

    def residence(self, head: HeadMovement) -> int:
        """In how many steps the main sink of a head stands where it stands most often."""
        main = self.main[:, head.layer, head.head]
        return int(np.bincount(main[main >= 0]).max(initial=0))

    @cached_property
    def most_moves(self) -> HeadMovement | None:
        """The head whose main sink moves most often; ties to more positions."""
        return self._best(lambda head: (head.moves, self.places(head)))

    @cached_property
    def most_positions(self) -> HeadMovement | None:
        """The head whose main sink stands at most different positions; ties to more moves."""
        return self._best(lambda head: (self.places(head), head.moves))

    @cached_property
    def jump(self) -> Jump | None:
        """The longest jump of a main sink, clean ones before others."""
        return max(self.jumps, key=lambda jump: (jump.clean, abs(jump.distance), -jump.layer), default=None)

    @cached_property
    def split(self) -> Split | None:
        """The clearest split between masked and unmasked queries."""
        return max(self.splits, key=lambda split: (split.clarity, -split.layer), default=None)

    @cached_property
    def flash(self) -> Flash | None:
        """The strongest sink that lives for one step."""
        return max(self.flashes, key=lambda flash: (flash.column_sum, -flash.layer), default=None)

    @cached_property
    def leftmost(self) -> HeadMovement | None:
        """The head whose main sink drifts left the fastest; where none does, right."""
        return leftmost_drift(self.heads, self.steps)

    @cached_property
    def most_static(self) -> HeadMovement | None:
        """The head whose main sink stands longest at one position; ties to the stronger sink."""
        return self._best(lambda head: (self.residence(head), float(self.largest[head.layer, head.head])))


def digest(trace: Trace, excess: float = 3.0, label: str | None = None) -> Digest:
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
    masked = trace.masked[:].astype(bool) if "masked" in trace.tensors else np.zeros(tokens.shape, bool)
    above: Any = 0
    norms: list[dict[str, np.ndarray]] = []
    jumps, splits, flashes = [], [], []
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
        jumps.append(largest_jump(tracks.main[:, 0], found.moving[:, 0], layer))
        flashes.append(strongest_flash(tracks.tracks, found.columns[:, 0], layer))
        if "column_sums_masked" in trace.tensors:
            splits.append(clearest_split(view.column_sums[:, 0], trace.column_sums_masked[:, layer], masked, lengths, layer))
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
        label=model_label(trace.manifest) if label is None else label,
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
        jumps=tuple(one for one in jumps if one is not None),
        splits=tuple(one for one in splits if one is not None),
        flashes=tuple(one for one in flashes if one is not None),
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


def titled(what: str, digests: Sequence[Counted]) -> str:
    """A title that names the models; figure numbers are those of paper 1."""
    return f"{what} ({', '.join(one.label for one in digests)})"


def _strongest(columns: Float[np.ndarray, "step head key"], excess: float) -> Float[np.ndarray, "step head"]:
    largest = np.where(is_sink(columns, excess), columns, -np.inf).max(axis=-1)
    return np.where(np.isinf(largest), np.nan, largest)


def _tally(tokens: np.ndarray) -> Counter[int]:
    values, counts = np.unique(tokens, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
