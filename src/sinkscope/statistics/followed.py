"""The sinks that are followed over the steps of one prompt, and the episodes they form, kept in few bytes each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from sinkscope.sinks.episodes import Episodes, find_episodes
from sinkscope.statistics.step import Candidates, level_of
from sinkscope.statistics.thresholds import Threshold


@dataclass(frozen=True, eq=False)
class StepSinks:
    """Candidates of one step, compactly; ordered by layer, head, key.

    Attributes:
        begins: where each layer begins, and where the last one ends.
        column: column sum in queries' worth.
        queries, percent: how many thresholds of that unit it exceeds; see `step.level_of`.
    """

    begins: Int[np.ndarray, " layer_edge"]
    head: Integer[np.ndarray, " candidate"]
    key: Integer[np.ndarray, " candidate"]
    column: Float[np.ndarray, " candidate"]
    queries: Integer[np.ndarray, " candidate"]
    percent: Integer[np.ndarray, " candidate"]

    @classmethod
    def of(cls, found: Candidates, layers: int) -> "StepSinks":
        """Return the candidates of one step."""
        return cls(
            np.searchsorted(found.layer, np.arange(layers + 1)),
            found.head.astype(np.uint16),
            found.key.astype(np.uint16 if not len(found.key) or found.key.max() < 1 << 16 else np.int32),
            found.column,
            *(found.levels[unit].astype(np.min_scalar_type(len(found.thresholds))) for unit in ("queries", "percent")),
        )


@dataclass(frozen=True, eq=False)
class LayerSinks:
    """Sinks over all steps of a prompt, ordered by head, key, step.

    Heads are counted on from layer to layer, where these are sinks of several layers; columns are in queries' worth.
    """

    step: Int[np.ndarray, " sink"]
    head: Int[np.ndarray, " sink"]
    key: Int[np.ndarray, " sink"]
    column: Float[np.ndarray, " sink"]

    def contains(
        self, step: Int[np.ndarray, " asked"], head: Int[np.ndarray, " asked"], key: Int[np.ndarray, " asked"]
    ) -> Bool[np.ndarray, " asked"]:
        """Return whether the keys asked for are sinks in these steps and heads."""
        mine, asked = (self.step, self.head, self.key), (step, head, key)
        size = 1 + max(int(one.max(initial=0)) for one in (*mine, *asked))
        codes, wanted = ((one[0] * size + one[1]) * size + one[2] for one in (mine, asked))
        return np.isin(wanted, codes)


@dataclass(frozen=True, eq=False)
class LayerCandidates:
    """Candidates over all steps of a prompt, from which the sinks at each threshold are chosen.

    Attributes:
        levels: {unit: how many thresholds of that unit each exceeds}.
    """

    candidates: LayerSinks
    levels: dict[str, Integer[np.ndarray, " candidate"]]
    thresholds: tuple[Threshold, ...]
    steps: int

    def at(self, threshold: Threshold) -> LayerSinks:
        """Return the sinks at a threshold."""
        chosen = self.levels[threshold.unit] >= level_of(threshold, self.thresholds)
        return LayerSinks(*(getattr(self.candidates, name)[chosen] for name in ("step", "head", "key", "column")))

    def episodes(self, threshold: Threshold, tolerance: int = 0, short_too: bool = True) -> Episodes:
        """Return the episodes of the sinks at a threshold; arguments as those of `episodes.find_episodes`."""
        found = self.at(threshold)
        return find_episodes(found.step, found.head, found.key, self.steps, tolerance, short_too, ordered=True)


@dataclass(frozen=True)
class FollowedSinks:
    """All followed sinks of a prompt, at any of the thresholds: one record a step; ``heads`` of each layer."""

    steps: Sequence[StepSinks]
    heads: int
    thresholds: tuple[Threshold, ...]

    def of_layer(self, layer: int) -> LayerCandidates:
        """Return the candidates of one layer."""
        return self.of_layers(layer, layer + 1)

    def of_layers(self, first: int, last: int) -> LayerCandidates:
        """Return the candidates of the layers from the first up to the last, which is not included."""
        parts = [slice(*one.begins[[first, last]].tolist()) for one in self.steps]
        step = np.repeat(np.arange(len(self.steps)), [part.stop - part.start for part in parts])
        in_layer = np.concatenate([np.diff(one.begins[first : last + 1]) for one in self.steps])
        layer = np.repeat(np.tile(np.arange(last - first), len(self.steps)), in_layer)

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(one, name)[part] for one, part in zip(self.steps, parts, strict=True)])

        head, key = layer * self.heads + joined("head"), joined("key").astype(np.int64)
        order = np.argsort(head * (int(key.max(initial=0)) + 1) + key, kind="stable")  # the steps are in order already
        return LayerCandidates(
            LayerSinks(step[order], head[order], key[order], joined("column")[order]),
            {unit: joined(unit)[order] for unit in ("queries", "percent")},
            self.thresholds,
            len(self.steps),
        )

    def contain(
        self,
        threshold: Threshold,
        step: Int[np.ndarray, " asked"],
        layer: Int[np.ndarray, " asked"],
        head: Int[np.ndarray, " asked"],
        key: Int[np.ndarray, " asked"],
    ) -> Bool[np.ndarray, " asked"]:
        """Return whether the keys asked for are sinks in these steps, layers and heads."""
        found = np.zeros(len(step), bool)
        for first, last in self.groups_of_layers():
            here = (layer >= first) & (layer < last)
            if here.any():
                sinks = self.of_layers(first, last).at(threshold)
                found[here] = sinks.contains(step[here], (layer[here] - first) * self.heads + head[here], key[here])
        return found

    def groups_of_layers(self, most: int = 1 << 18) -> Iterator[tuple[int, int]]:
        """Yield the first and the last + 1 layer of groups that hold at most so many candidates, or one layer."""
        counts = np.sum([np.diff(one.begins) for one in self.steps], axis=0)
        first, held = 0, 0
        for layer, count in enumerate(counts.tolist()):
            if held and held + count > most:
                yield first, layer
                first, held = layer, 0
            held += count
        yield first, len(counts)
