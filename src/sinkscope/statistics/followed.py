"""The sinks that are followed over the steps of one prompt, and the episodes they form, kept in few bytes each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks.episodes import Episodes, find_episodes
from sinkscope.statistics.candidates import Candidates, level_of
from sinkscope.statistics.thresholds import Threshold


@dataclass(frozen=True)
class StepSinks:
    """Candidates of one step, compactly; ordered by layer, head, key.

    Attributes:
        begins: where each layer begins, and where the last one ends.
        head, key: where each candidate is.
        column: column sum in queries' worth.
        queries, percent: how many thresholds of that unit it exceeds; see `candidates.level_of`.
    """

    begins: Int[np.ndarray, " layer_edge"]
    head: Int[np.ndarray, " candidate"]
    key: Int[np.ndarray, " candidate"]
    column: Float[np.ndarray, " candidate"]
    queries: Int[np.ndarray, " candidate"]
    percent: Int[np.ndarray, " candidate"]

    @classmethod
    def of(cls, found: Candidates, layers: int) -> "StepSinks":
        """Return the candidates of one step."""
        return cls(
            np.searchsorted(found.layer, np.arange(layers + 1)),
            found.head.astype(np.uint16),
            found.key.astype(np.uint16 if not len(found.key) or found.key.max() < 1 << 16 else np.int32),
            found.column,
            *(found.levels[unit].astype(np.uint8) for unit in ("queries", "percent")),
        )


@dataclass(frozen=True)
class LayerSinks:
    """Followed sinks of one layer at one threshold, over all steps of a prompt; ordered by head, key, step."""

    step: Int[np.ndarray, " sink"]
    head: Int[np.ndarray, " sink"]
    key: Int[np.ndarray, " sink"]
    column: Float[np.ndarray, " sink"]

    def contains(
        self, step: Int[np.ndarray, " asked"], head: Int[np.ndarray, " asked"], key: Int[np.ndarray, " asked"]
    ) -> Bool[np.ndarray, " asked"]:
        """Return whether the keys asked for are sinks in these steps and heads."""
        size = 1 + max((int(one.max(initial=0)) for one in (self.step, self.head, self.key, step, head, key)), default=0)
        codes, asked = ((one[0] * size + one[1]) * size + one[2] for one in ((self.step, self.head, self.key), (step, head, key)))
        return np.isin(asked, codes)


@dataclass(frozen=True)
class FollowedSinks:
    """All followed sinks of a prompt, at any of the thresholds.

    Attributes:
        steps: one record a step.
        thresholds: at which sinks are told.
    """

    steps: Sequence[StepSinks]
    thresholds: tuple[Threshold, ...]

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.steps[0].begins) - 1

    def of_layer(self, layer: int) -> "LayerCandidates":
        """Return the candidates of one layer, over all steps."""
        parts = [slice(*one.begins[layer : layer + 2]) for one in self.steps]
        step = np.repeat(np.arange(len(self.steps)), [part.stop - part.start for part in parts])

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(one, name)[part] for one, part in zip(self.steps, parts, strict=True)])

        head, key = joined("head").astype(np.int64), joined("key").astype(np.int64)
        order = np.lexsort((step, key, head))
        return LayerCandidates(
            LayerSinks(step[order], head[order], key[order], joined("column")[order]),
            {unit: joined(unit)[order] for unit in ("queries", "percent")},
            self.thresholds,
            len(self.steps),
        )


@dataclass(frozen=True)
class LayerCandidates:
    """Candidates of one layer over all steps, from which the sinks at each threshold are chosen.

    Attributes:
        levels: {unit: how many thresholds of that unit each exceeds}.
        steps: of the prompt.
    """

    candidates: LayerSinks
    levels: dict[str, Int[np.ndarray, " candidate"]]
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
