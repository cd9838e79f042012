"""One recorded step of one prompt with what Eq. 3 says of it, from which every statistic of a step is computed.

A few columns in a hundred are candidates, sinks at the loosest threshold; every statistic of sinks, at every threshold,
is read from this short list. The histogram of one prompt has exact quarters of a query's worth, that of many prompts a
fixed number of bins: up to 64 queries' worth quarters too; beyond, eight to an octave, up to 65,536.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.axes import by_query_head, lacks_key_heads
from sinkscope.errors import CallError
from sinkscope.sinks.definition import excess_of, in_unit
from sinkscope.sinks.query_counts import count_queries
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.thresholds import EPSILON_STEP, EPSILONS, UNITS, Threshold

NORMS = ("value_norms", "key_norms", "hidden_norms")
OUTPUT_NORMS = "output_norms"
SINK_TOKEN = "sink_token_columns"
QUERY_GROUPS = ("masked", "prompt")
"""Groups of queries whose column sums are recorded apart."""
NEWEST = ("last_query", "newest_columns")
"""Of autoregressive models and of block diffusion, whose running sums can hardly move: what sinks are followed in."""
PER_LAYER = (
    "column_sums",
    *(f"column_sums_{group}" for group in QUERY_GROUPS),
    "self_attention",
    *NEWEST,
    *NORMS,
    OUTPUT_NORMS,
    SINK_TOKEN,
)
PER_STEP = ("tokens", "masked", "written", *PER_LAYER)
"""Tensors of a trace that are read, as `axes.TRACE_AXES` names them."""
BINS_PER_QUERY = 4
LINEAR_BINS = 256
OCTAVES, BINS_PER_OCTAVE = 10, 8
FAR_BINS = OCTAVES * BINS_PER_OCTAVE + 1


@dataclass(frozen=True, eq=False)
class Candidates:
    """Columns of one step that exceed the loosest threshold, ordered by layer, head, key; units as `SummedColumns`."""

    layer: Int[np.ndarray, " candidate"]
    head: Int[np.ndarray, " candidate"]
    key: Int[np.ndarray, " candidate"]
    column: Float[np.ndarray, " candidate"]
    excess: Float[np.ndarray, " candidate"]
    percent: Float[np.ndarray, " candidate"]
    thresholds: tuple[Threshold, ...]

    def at(self, threshold: Threshold) -> Bool[np.ndarray, " candidate"]:
        """Return which of them are sinks at a threshold."""
        return (self.excess if threshold.unit == "queries" else self.percent) > threshold.excess

    @cached_property
    def levels(self) -> dict[str, Int[np.ndarray, " candidate"]]:
        """For each unit, how many of its rising thresholds each candidate exceeds; see `level_of`."""
        return {
            unit: np.searchsorted(np.array(rising_excesses(self.thresholds, unit), size.dtype), size)
            for unit, size in (("queries", self.excess), ("percent", self.percent))
        }

    def tally(
        self, place: Int[np.ndarray, " candidate"], places: int, weights: Float[np.ndarray, " candidate"] | None = None
    ) -> Float[np.ndarray, "threshold place"] | Int[np.ndarray, "threshold place"]:
        """Return how many sinks there are at each threshold and place, or what they weigh together: ``np.bincount`` at
        every threshold.
        """
        above = {}
        for unit in UNITS:
            excesses = rising_excesses(self.thresholds, unit)
            kinds = len(excesses) + 1
            table = np.bincount(place * kinds + self.levels[unit], weights, places * kinds).reshape(places, kinds)
            exceeding = table[:, ::-1].cumsum(axis=1)[:, ::-1]
            above |= {(unit, excess): exceeding[:, number + 1] for number, excess in enumerate(excesses)}
        return np.array([above[threshold.unit, threshold.excess] for threshold in self.thresholds])


def rising_excesses(thresholds: Sequence[Threshold], unit: str) -> list[float]:
    """Return the ε of all thresholds in a unit, in rising order."""
    return sorted({threshold.excess for threshold in thresholds if threshold.unit == unit})


def level_of(threshold: Threshold, thresholds: Sequence[Threshold]) -> int:
    """Return the level from which a candidate is a sink at a threshold."""
    return rising_excesses(thresholds, threshold.unit).index(threshold.excess) + 1


def find_candidates(
    columns: Float[np.ndarray, "layer head key"],
    excess: Float[np.ndarray, "layer head key"],
    percent: Float[np.ndarray, "layer head key"],
    thresholds: Sequence[Threshold],
) -> Candidates:
    """Return the columns of one step, of such an excess, that are sinks at any of the thresholds."""
    chosen = np.zeros(columns.shape, dtype=bool)
    for unit, size in (("queries", excess), ("percent", percent)):
        if excesses := rising_excesses(thresholds, unit):
            chosen |= size > excesses[0]
    place = np.flatnonzero(chosen)
    layer, head, key = np.unravel_index(place, chosen.shape)
    return Candidates(
        layer, head, key, columns.ravel()[place], excess.ravel()[place], percent.ravel()[place], tuple(thresholds)
    )


@dataclass(frozen=True, eq=False)
class SummedColumns:
    """Column sums of one step in queries' worth; the excess of each over the mean of the others, in queries' worth and
    in percent of all attention; the sum of a head's columns; the sinks at the loosest threshold; and the position of
    the largest column of each head, ties to the lower one.
    """

    sums: Float[np.ndarray, "layer head key"]
    excess: Float[np.ndarray, "layer head key"]
    percent: Float[np.ndarray, "layer head key"]
    total: Float[np.ndarray, "layer head"]
    candidates: Candidates
    top: Int[np.ndarray, "layer head"]

    @classmethod
    def of(cls, sums: Float[np.ndarray, "layer head key"], thresholds: Sequence[Threshold]) -> "SummedColumns":
        """Return column sums with their excesses, candidates and largest columns."""
        excess, percent = excess_of(sums), excess_of(in_unit(sums, "percent"))
        found = find_candidates(sums, excess, percent, thresholds)
        return cls(sums, excess, percent, sums.sum(axis=-1), found, sums.argmax(axis=-1))

    def at_top(self, array: Float[np.ndarray, "layer head key"]) -> Float[np.ndarray, "layer head"]:
        """Return what an array has at the largest column of each head."""
        return np.take_along_axis(array, self.top[..., None], axis=-1)[..., 0]


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One step of one prompt, cut to the tokens of its canvas.

    Attributes:
        columns: column sums of all queries.
        followed: the columns in which sinks are followed from step to step: ``columns`` itself, or for autoregressive
            models, whose running sums can hardly move, those of the 16 newest queries (in block diffusion those of the
            running block, and as many finished blocks before it as make 16).
        written: tokens committed in this step, −1 where none; None where not recorded.
        prompt_length, causal, crossing: see `PromptSettings`.
        queries: of each layer, whose attention the columns are; fewer than tokens behind a cache.
        group_sums: {group of queries: column sums of these queries only}, those of `QUERY_GROUPS` that were recorded.
        self_attention: attention of each query on itself; None where not recorded.
        norms: {name of `NORMS`, and `OUTPUT_NORMS`: norms as recorded}; hidden norms are the same for all heads and
            have one kv head, output norms have as many as there are query heads, and so have all where layers have
            different numbers of key heads.
    """

    columns: SummedColumns
    followed: SummedColumns
    tokens: Int[np.ndarray, " key"]
    masked: Bool[np.ndarray, " key"]
    written: Int[np.ndarray, " position"] | None
    prompt_length: int
    causal: bool
    crossing: bool
    queries: Int[np.ndarray, " layer"]
    group_sums: Mapping[str, Float[np.ndarray, "layer head key"]]
    self_attention: Float[np.ndarray, "layer head key"] | None
    norms: Mapping[str, Float[np.ndarray, "layer kv_head key"]]

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, np.ndarray],
        thresholds: Sequence[Threshold],
        settings: PromptSettings,
        newest: Float[np.ndarray, "layer head key"] | None = None,
    ) -> "RecordedStep":
        """Return a step as it was recorded, with what Eq. 3 says of it.

        Args:
            arrays: as in `axes.TRACE_AXES`, without the step axis and without positions beyond the canvas.
            newest: columns of the newest queries, for autoregressive models and block diffusion.

        Raises:
            CallError: columns that are not those of the canvas, or not finite.
        """
        if arrays["tokens"].shape != arrays["column_sums"].shape[2:]:
            raise CallError("arrays: expected tokens [key] and column_sums [layer, head, key] of one canvas")
        if not np.isfinite(arrays["column_sums"]).all():
            raise CallError("column_sums: expected finite numbers for every token of the canvas")
        sums, tokens, masked = np.asarray(arrays["column_sums"], np.float32), arrays["tokens"], arrays.get("masked")
        columns, hidden = SummedColumns.of(sums, thresholds), arrays.get("hidden_norms")
        queries = np.full(len(sums), len(tokens))
        if hidden is not None and not settings.crossing:
            queries = count_queries(sums, np.asarray(hidden).reshape(len(sums), -1))
        elif settings.crossing or settings.kept is not None:
            queries = count_queries(sums, sink_token=arrays.get(SINK_TOKEN))
        norms = {name: np.asarray(arrays[name]) for name in (*NORMS, OUTPUT_NORMS) if arrays.get(name) is not None}
        for name in {"value_norms", "key_norms"} & norms.keys():
            if lacks_key_heads(norms[name]):
                norms[name] = np.stack([by_query_head(one, sums.shape[1]) for one in norms[name]])
        return cls(
            columns,
            columns if newest is None else SummedColumns.of(newest, thresholds),
            np.asarray(tokens),
            np.zeros(tokens.shape, bool) if masked is None else np.asarray(masked).astype(bool),
            arrays.get("written"),
            settings.prompt_length,
            settings.causal,
            settings.crossing,
            queries,
            {group: arrays[name] for group in QUERY_GROUPS if arrays.get(name := f"column_sums_{group}") is not None},
            arrays.get("self_attention"),
            {name: one[:, None] if one.ndim == 2 else one for name, one in norms.items()},
        )

    def queries_of(
        self, members: Bool[np.ndarray, " key"], sums: Float[np.ndarray, "layer head key"]
    ) -> Int[np.ndarray, " layer"]:
        """Return how many of a group's tokens are queries of each layer: behind a cache those that were computed. Its
        column sums tell where nothing else does.
        """
        if (self.queries == self.length).all():
            return np.full(len(sums), int(members.sum()))
        hidden = self.norms.get("hidden_norms")
        if hidden is not None and not self.crossing:
            return (~np.isnan(hidden[:, 0]) & members).sum(axis=-1)
        return np.rint(sums.sum(axis=-1).max(axis=-1)).astype(np.int64)

    @property
    def length(self) -> int:
        """Tokens of the canvas."""
        return len(self.tokens)


def count_above(excess: Float[np.ndarray, "layer *columns"]) -> Int[np.ndarray, "layer epsilon"]:
    """Return how many columns of each layer exceed each ε of `EPSILONS`; a column that is NaN exceeds none."""
    layers, kinds = len(excess), len(EPSILONS) + 1
    with np.errstate(invalid="ignore"):
        above = np.flatnonzero(excess > 0)
    exceeded = np.minimum(np.ceil(excess.ravel()[above] * (1 / EPSILON_STEP)), kinds - 1).astype(
        np.int64
    )  # the first so many of the grid
    table = np.bincount(above // excess[0].size * kinds + exceeded, minlength=layers * kinds).reshape(layers, kinds)
    return table[:, ::-1].cumsum(axis=1)[:, -2::-1]


def histogram_edges() -> Float[np.ndarray, " bin"]:
    """Return the lower edges of the bins of many prompts, in queries' worth; the last bin has no upper end."""
    beyond = 64 * 2.0 ** (np.arange(1, OCTAVES * BINS_PER_OCTAVE + 1) / BINS_PER_OCTAVE)
    return np.concatenate([np.arange(LINEAR_BINS + 1) / BINS_PER_QUERY, beyond])


def count_quarters(columns: Float[np.ndarray, "layer head key"]) -> Int[np.ndarray, "layer quarter"]:
    """Return how many columns of each layer fall into each quarter of a query's worth, from 0 to the largest one."""
    quarter = (columns * BINS_PER_QUERY).astype(np.int32)
    layers, bins = len(columns), int(quarter.max()) + 1
    quarter += (np.arange(layers, dtype=np.int32) * bins)[:, None, None]
    return np.bincount(quarter.ravel(), minlength=layers * bins).reshape(layers, bins)


def count_far(columns: Float[np.ndarray, "layer head key"]) -> Int[np.ndarray, "layer far_bin"]:
    """Return how many columns of each layer fall into each bin beyond 64 queries' worth."""
    layer, _, _ = far = np.nonzero(columns >= LINEAR_BINS / BINS_PER_QUERY)
    beyond = np.floor(np.log2(columns[far] / (LINEAR_BINS / BINS_PER_QUERY)) * BINS_PER_OCTAVE).astype(np.int64)
    place = layer * FAR_BINS + np.clip(beyond, 0, FAR_BINS - 1)
    return np.bincount(place, minlength=len(columns) * FAR_BINS).reshape(len(columns), FAR_BINS)


def quarters_of(histogram: Int[np.ndarray, "layer bin"]) -> Int[np.ndarray, "layer quarter"]:
    """Return the histogram of many prompts in quarters of a query's worth.

    Columns in the wide bins beyond 64 are spread evenly over the quarters they span; each layer keeps its number of
    columns.
    """
    last = int(np.flatnonzero(histogram.any(axis=0)).max(initial=0)) + 1
    edges = np.append(histogram_edges(), np.inf)[: last + 1]
    edges[-1] = min(edges[-1], 2 * edges[-2] + 1)  # of the last bin of all, which has no upper end
    fine = np.arange(int(np.ceil(edges[-1] * BINS_PER_QUERY)) + 1) / BINS_PER_QUERY
    rising = np.concatenate([np.zeros((len(histogram), 1), np.int64), histogram[:, :last].cumsum(axis=1)], axis=1)
    return np.diff(np.rint([np.interp(fine, edges, one) for one in rising]).astype(np.int64), axis=1)
