"""One recorded step of one prompt with its sinks, and the sinks that are followed over all its steps.

Few columns are candidates, sinks at the loosest threshold, from which every statistic at every threshold is read. Bins
are quarters of a query's worth, of many prompts up to 64; beyond, eight to an octave, up to 65,536.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.axes import by_query_head, lacks_key_heads
from sinkscope.errors import CallError
from sinkscope.sinks.definition import excess_in, reach_of, uniform_columns
from sinkscope.sinks.followed_columns import count_queries
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.thresholds import EPSILON_STEP, EPSILONS, Threshold

NORMS = ("value_norms", "key_norms", "hidden_norms")
OUTPUT_NORMS = "output_norms"
QUERY_GROUPS = ("masked", "prompt")
PER_LAYER = ("column_sums", "column_sums_masked", "column_sums_prompt", "self_attention", "last_query")
PER_LAYER += ("newest_columns", *NORMS, OUTPUT_NORMS, "sink_token_columns")
BINS_PER_QUERY = 4
LINEAR_BINS = 256
OCTAVES, BINS_PER_OCTAVE = 10, 8
FAR_BINS = OCTAVES * BINS_PER_OCTAVE + 1


def excess_over_others(columns: Any, total: Any, others: Any) -> Any:
    """Return columns minus the mean of the ``others``, so many, of a head with that sum; arrays or tensors."""
    return columns - (total - columns) / others


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
        return (self.excess if threshold.unit == "queries" else self.percent) > threshold.excess

    @classmethod
    def of_reduced(
        cls, reduced: Mapping[str, np.ndarray], tokens: int, thresholds: Sequence[Threshold]
    ) -> "Candidates":
        """Return the candidates of a step that `recorder.reduced_statistics` reduced."""
        chosen = np.unpackbits(reduced["bits"], axis=-1)[..., -tokens:]
        layer, head, key = (one.astype(np.int32) for one in np.nonzero(chosen))
        kept = np.arange(reduced["column"].shape[-1]) < chosen.sum(axis=(1, 2))[:, None]
        column, others = reduced["column"][kept], np.full(len(layer), max(tokens - 1, 1))
        total, all_percent = (reduced[name][layer, head] for name in ("total", "all_percent"))
        percent = excess_over_others(column / total * 100, all_percent, others)
        excess = excess_over_others(column, total, others)
        return cls(layer, head, key, column, excess, percent, tuple(thresholds))

    def tally(
        self, place: Int[np.ndarray, " candidate"], places: int, weights: Float[np.ndarray, " candidate"] | None = None
    ) -> Float[np.ndarray, "threshold place"] | Int[np.ndarray, "threshold place"]:
        """Return how many sinks there are at each threshold and place, or the sum of their weights."""
        found = np.zeros((len(self.thresholds), places), np.int64 if weights is None else np.float64)
        for numbers, level in self._levels:
            table = np.bincount(place + level.astype(np.int64) * places, weights, (len(numbers) + 1) * places)
            found[numbers] = table.reshape(-1, places)[:0:-1].cumsum(axis=0)[::-1]
        return found

    @cached_property
    def _levels(self) -> list[tuple[list[int], Int[np.ndarray, " candidate"]]]:
        """The numbers of the thresholds of each unit, by their ε, and how many of these each candidate exceeds."""
        found = []
        for unit, size in (("queries", self.excess), ("percent", self.percent)):
            here = [number for number, one in enumerate(self.thresholds) if one.unit == unit]
            here.sort(key=lambda number: self.thresholds[number].excess)
            edges = np.array([self.thresholds[number].excess for number in here])
            found.append((here, np.searchsorted(edges, size).astype(np.int8)))
        return found


@dataclass(frozen=True, eq=False)
class SummedColumns:
    """Column sums of one step in queries' worth; each one's excess, also in percent; a head's sum; its candidates, and
    the largest column (by the rule ``uniform`` of the largest excess), ties to the lower one.
    """

    sums: Float[np.ndarray, "layer head key"]
    excess: Float[np.ndarray, "layer head key"]
    percent: Float[np.ndarray, "layer head key"]
    total: Float[np.ndarray, "layer head"]
    candidates: Candidates
    top: Int[np.ndarray, "layer head"]

    @classmethod
    def of(
        cls,
        sums: Float[np.ndarray, "layer head key"],
        thresholds: Sequence[Threshold],
        uniform: Float[np.ndarray, "layer one key"] | None = None,
        filled: float = 1.0,
    ) -> "SummedColumns":
        """Return the excess over ``uniform`` columns, by Eq. 3 without them; ``filled``: how full a window is."""
        excess, percent = excess_in(sums, "queries", uniform) / np.float32(filled), excess_in(sums, "percent", uniform)
        chosen = np.zeros(sums.shape, dtype=bool)
        for unit, size in (("queries", excess), ("percent", percent)):
            chosen |= size > min((one.excess for one in thresholds if one.unit == unit), default=np.inf)
        place = np.flatnonzero(chosen)
        layer, head, key = (one.astype(np.int32) for one in np.unravel_index(place, chosen.shape))  # many are kept
        column, over, share = (one.ravel()[place] for one in (sums, excess, percent))
        found = Candidates(layer, head, key, column, over, share, tuple(thresholds))
        top = (sums if uniform is None else excess).argmax(axis=-1)
        return cls(sums, excess, percent, sums.sum(axis=-1), found, top)

    def least_known(self, kept: int) -> tuple[float, float]:
        """Return the least ε, in each unit, at which no column can be a sink but the ``kept`` largest of each head."""
        least, keys = np.partition(self.sums, -kept, axis=-1)[..., -kept, None], self.sums.shape[-1]
        more = (least - self.sums) * keys / max(keys - 1, 1)  # were any key to have the least column that was kept
        percent = self.percent + more * 100 / np.maximum(self.total, 1e-9)[..., None]
        return float((self.excess + more).max()), float(percent.max())

    def at_top(self, array: Float[np.ndarray, "layer head key"]) -> Float[np.ndarray, "layer head"]:
        return np.take_along_axis(array, self.top[..., None], axis=-1)[..., 0]


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One step of one prompt, cut to its canvas; sinks are ``followed`` in ``columns`` or those of the newest queries.

    written is −1 where no token was committed, None if not recorded; queries are each layer's, fewer behind a cache;
    reach: see `reach_of`; group_sums: by `QUERY_GROUPS`; hidden norms have one kv head, output norms one a query head.
    """

    columns: SummedColumns
    followed: SummedColumns
    tokens: Int[np.ndarray, " key"]
    masked: Bool[np.ndarray, " key"]
    written: Int[np.ndarray, " position"] | None
    settings: PromptSettings
    queries: Int[np.ndarray, " layer"]
    reach: Int[np.ndarray, " layer"] | None
    group_sums: Mapping[str, Float[np.ndarray, "layer head key"]]
    self_attention: Float[np.ndarray, "layer head key"] | None
    norms: Mapping[str, Float[np.ndarray, "layer kv_head key"]]

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, np.ndarray],
        thresholds: Sequence[Threshold],
        settings: PromptSettings,
        newest: SummedColumns | None = None,
    ) -> "RecordedStep":
        """Return a step of arrays as in `axes.TRACE_AXES`; CallError for columns that are not finite."""
        if not np.isfinite(arrays["column_sums"]).all():
            raise CallError("column_sums: expected finite numbers for every token of the canvas")
        sums, tokens, masked = np.asarray(arrays["column_sums"], np.float32), arrays["tokens"], arrays.get("masked")
        reach = reach_of(arrays["last_query"]) if settings.causal and not settings.crossing else None
        uniform = uniform_columns(len(tokens), reach) if reach is not None and settings.rule == "uniform" else None
        columns, hidden = SummedColumns.of(sums, thresholds, uniform), arrays.get("hidden_norms")
        queries = np.full(len(sums), len(tokens))
        if hidden is not None and not settings.crossing:
            queries = count_queries(sums, np.asarray(hidden).reshape(len(sums), -1))
        elif settings.crossing or settings.kept is not None:
            queries = count_queries(sums, sink_token=arrays.get("sink_token_columns"))
        norms = {name: np.asarray(arrays[name]) for name in (*NORMS, OUTPUT_NORMS) if arrays.get(name) is not None}
        for name in {"value_norms", "key_norms"} & norms.keys():
            if lacks_key_heads(norms[name]):
                norms[name] = np.stack([by_query_head(one, sums.shape[1]) for one in norms[name]])
        return cls(
            columns,
            columns if newest is None else newest,
            np.array(tokens),
            np.zeros(tokens.shape, bool) if masked is None else np.asarray(masked).astype(bool),
            None if arrays.get("written") is None else np.array(arrays["written"]),
            settings,
            queries,
            reach,
            {group: arrays[name] for group in QUERY_GROUPS if arrays.get(name := f"column_sums_{group}") is not None},
            arrays.get("self_attention"),
            {name: one[:, None] if one.ndim == 2 else one for name, one in norms.items()},
        )

    def queries_of(
        self, members: Bool[np.ndarray, " key"], sums: Float[np.ndarray, "layer head key"]
    ) -> Int[np.ndarray, " layer"]:
        """Return how many of a group's tokens are queries of each layer; else its column sums tell."""
        if (self.queries == self.length).all():
            return np.full(len(sums), int(members.sum()))
        hidden = self.norms.get("hidden_norms")
        if hidden is not None and not self.settings.crossing:
            return (~np.isnan(hidden[:, 0]) & members).sum(axis=-1)
        return np.rint(sums.sum(axis=-1).max(axis=-1)).astype(np.int64)

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class LayerSinks:
    """Sinks or candidates over all steps, ordered by head (counted on from layer to layer), key, step."""

    step: Int[np.ndarray, " sink"]
    head: Int[np.ndarray, " sink"]
    key: Int[np.ndarray, " sink"]
    column: Float[np.ndarray, " sink"]
    excess: Float[np.ndarray, " sink"]
    percent: Float[np.ndarray, " sink"]

    def at(self, threshold: Threshold) -> "LayerSinks":
        chosen = (self.excess if threshold.unit == "queries" else self.percent) > threshold.excess
        return LayerSinks(*(one[chosen] for one in vars(self).values()))

    def contains(self, step: np.ndarray, head: np.ndarray, key: np.ndarray) -> Bool[np.ndarray, " asked"]:
        """Return whether keys are sinks in these steps and heads."""
        mine, asked = (self.step, self.head, self.key), (step, head, key)
        size = 1 + max(int(one.max(initial=0)) for one in (*mine, *asked))
        codes, wanted = ((one[0] * size + one[1]) * size + one[2] for one in (mine, asked))
        return np.isin(wanted, codes)


@dataclass(frozen=True)
class FollowedSinks:
    """The candidates of each step in which sinks are followed, none in the first ``uncounted``; ``heads`` a layer."""

    steps: Sequence[Candidates]
    layers: int
    heads: int
    uncounted: int = 0

    def of_layer(self, layer: int) -> LayerSinks:
        return self.of_layers(layer, layer + 1)

    def of_layers(self, first: int, last: int) -> LayerSinks:
        parts = [slice(*np.searchsorted(one.layer, (first, last)).tolist()) for one in self.steps]
        parts[: self.uncounted] = [slice(0, 0)] * self.uncounted
        step = np.repeat(np.arange(len(self.steps)), [part.stop - part.start for part in parts])

        def joined(name: str) -> Any:
            return np.concatenate([getattr(one, name)[part] for one, part in zip(self.steps, parts, strict=True)])

        head = (joined("layer") - first) * self.heads + joined("head").astype(np.int64)
        key = joined("key").astype(np.int64)
        order = np.argsort(head * (int(key.max(initial=0)) + 1) + key, kind="stable")  # the steps are in order already
        found = (step, head, key, joined("column"), joined("excess"), joined("percent"))
        return LayerSinks(*(one[order] for one in found))

    def contain(
        self, threshold: Threshold, step: np.ndarray, layer: np.ndarray, head: np.ndarray, key: np.ndarray
    ) -> Bool[np.ndarray, " asked"]:
        """Return whether keys are sinks in these steps, layers and heads."""
        found = np.zeros(len(step), bool)
        for first, last in self.groups_of_layers():
            here = (layer >= first) & (layer < last)
            if here.any():
                sinks = self.of_layers(first, last).at(threshold)
                found[here] = sinks.contains(step[here], (layer[here] - first) * self.heads + head[here], key[here])
        return found

    def groups_of_layers(self, most: int = 1 << 18) -> Iterator[tuple[int, int]]:
        """Yield the first and the last + 1 layer of groups that hold at most so many candidates, or one layer."""
        counts = np.sum([np.bincount(one.layer, minlength=self.layers) for one in self.steps], axis=0)
        first, held = 0, 0
        for layer, count in enumerate(counts.tolist()):
            if held and held + count > most:
                yield first, layer
                first, held = layer, 0
            held += count
        yield first, self.layers


def count_above(excess: Float[np.ndarray, "layer *columns"]) -> Int[np.ndarray, "layer epsilon"]:
    """Return how many columns of each layer exceed each ε of `EPSILONS`; a column that is NaN exceeds none."""
    layers, kinds = len(excess), len(EPSILONS) + 1
    above = np.flatnonzero(excess > 0)
    exceeded = np.minimum(np.ceil(excess.ravel()[above] * (1 / EPSILON_STEP)), kinds - 1).astype(np.int64)
    place = above // excess[0].size * kinds + exceeded  # it exceeds the first so many of the grid
    table = np.bincount(place, minlength=layers * kinds).reshape(layers, kinds)
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
    """Return a histogram of many prompts in quarters of a query's worth; wide bins are spread evenly over theirs."""
    last = int(np.flatnonzero(histogram.any(axis=0)).max(initial=0)) + 1
    edges = np.append(histogram_edges(), np.inf)[: last + 1]
    edges[-1] = min(edges[-1], 2 * edges[-2] + 1)  # of the last bin of all, which has no upper end
    fine = np.arange(int(np.ceil(edges[-1] * BINS_PER_QUERY)) + 1) / BINS_PER_QUERY
    rising = np.concatenate([np.zeros((len(histogram), 1), np.int64), histogram[:, :last].cumsum(axis=1)], axis=1)
    return np.diff(np.rint([np.interp(fine, edges, one) for one in rising]).astype(np.int64), axis=1)
