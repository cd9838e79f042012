"""Moments of a training, as they are measured and kept: arrays of numbers, without torch."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import CallError

NO_ROLE = -1
"""Of a head without a lasting sink, in `Moment.role`."""


@dataclass(frozen=True, eq=False)
class Moment:
    """One moment. The *top key* of a head is the key with the largest column on a canvas.

    Attributes:
        loss: mean cross-entropy of the readers, in nats; without the top key in all heads (``_top``), or without random
            keys that hold as much of the readers' attention (``_rowmass``).
        place: of the top key. share: of the readers' attention that it takes, and the first token, and masks.
        value_ratio: value norm of the top key over the median of its canvas; output_ratio: behind the output
            projection.
        sinks: keys that are sinks by Eq. 3, at ε = 3.
        role: index in `ROLES` of the head's role, `NO_ROLE` without a lasting sink; None where it was not measured.
    """

    loss: Float[np.ndarray, " canvas"]
    loss_without_top: Float[np.ndarray, " canvas"]
    loss_without_rowmass: Float[np.ndarray, " canvas"]
    place: Int[np.ndarray, "canvas layer head"]
    share: Float[np.ndarray, "canvas layer head"]
    first_share: Float[np.ndarray, "canvas layer head"]
    masks_share: Float[np.ndarray, "canvas layer head"]
    value_ratio: Float[np.ndarray, "canvas layer head"]
    output_ratio: Float[np.ndarray, "canvas layer head"]
    sinks: Int[np.ndarray, "canvas layer head"]
    role: Int[np.ndarray, "layer head"] | None = None


SHARE = 0.1
"""Of a head's attention, from which its top key counts as a sink that has been born."""
ARRAYS = tuple(field.name for field in fields(Moment))


@dataclass(frozen=True)
class Emergence:
    """The moments of one training by rising updates; ``manifest``: name, causal, layers, heads, canvases."""

    manifest: Mapping[str, Any]
    updates: tuple[int, ...]
    moments: tuple[Moment, ...]

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.manifest["name"]

    def stacked(self, name: str) -> np.ndarray:
        """Return one array of all moments, [moment, …].

        Raises:
            CallError: some moments have none.
        """
        arrays = [getattr(moment, name) for moment in self.moments]
        if any(array is None for array in arrays):
            raise CallError(f"name: {name} was not measured at every moment; measure with roles=True")
        return np.stack(arrays)

    @property
    def shares(self) -> Float[np.ndarray, "moment layer head"]:
        """Return how much of the readers' attention the top key takes, mean over canvases."""
        return self.stacked("share").mean(1)

    @property
    def ratios(self) -> Float[np.ndarray, "moment layer head"]:
        """Return the value norm of the top key over the median of its canvas; the median over canvases."""
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # NaN where all norms are 0
            return np.nanmedian(self.stacked("value_ratio"), axis=1)

    @property
    def stayed(self) -> Float[np.ndarray, "moment layer head"]:
        """Return the share of canvases on which the top key stands where it stood a moment before; NaN at first."""
        places = self.stacked("place")
        same = (places[1:] == places[:-1]).mean(1)
        return np.concatenate([np.full((1, *same.shape[1:]), np.nan), same])

    def born(self, share: float = SHARE) -> Int[np.ndarray, "layer head"]:
        """Return the update from which the share of each head's top key stays at or above ``share``; −1 without one."""
        reached = self.shares >= share
        lasting = np.logical_and.accumulate(reached[::-1])[::-1]
        first = np.array(self.updates)[lasting.argmax(0)]
        return np.where(lasting.any(0), first, -1)
