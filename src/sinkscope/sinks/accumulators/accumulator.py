"""The base of everything that accumulates, and the record of a step it is updated with."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Bool, Float, Int

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class SeenStep:
    """One step of one prompt, with what Eq. 3 says of it.

    Attributes:
        columns: column sums of all queries.
        excess, percent_excess: over the mean of the other columns, in queries' worth and in percent of all attention.
        selected: Eq. 3 on ``excess``.
        main: position of the strongest sink, −1 where none; from the columns that movement is read from.
        tokens, masked: the canvas.
        masked_columns, prompt_columns: column sums of masked queries, and of the prompt's; None for autoregressive models.
        prompt_length: tokens of the prompt; 0 where unknown.
        top, top_excess, top_percent: the largest of the columns that movement is read from, and its excess in both units.
        written: tokens committed in the step, −1 where none; None where nobody says.
        value_norms, key_norms: of every key head.
        hidden_norms: of what enters each layer; None where the model does not show it.
    """

    columns: Float[np.ndarray, "layer head key"]
    excess: Float[np.ndarray, "layer head key"]
    percent_excess: Float[np.ndarray, "layer head key"]
    selected: Bool[np.ndarray, "layer head key"]
    main: Int[np.ndarray, "layer head"]
    top: Int[np.ndarray, "layer head"]
    top_excess: Float[np.ndarray, "layer head"]
    top_percent: Float[np.ndarray, "layer head"]
    tokens: Int[np.ndarray, " key"]
    masked: Bool[np.ndarray, " key"]
    masked_columns: Float[np.ndarray, "layer head key"] | None
    value_norms: Float[np.ndarray, "layer kv_head key"]
    key_norms: Float[np.ndarray, "layer kv_head key"]
    hidden_norms: Float[np.ndarray, "layer key"] | None
    prompt_columns: Float[np.ndarray, "layer head key"] | None = None
    prompt_length: int = 0
    written: Int[np.ndarray, " position"] | None = None


class Accumulator(ABC):
    """Counts (int64) and sums (float64) in arrays of fixed shape; merging adds them, in any order and grouping."""

    name: ClassVar[str]

    def __init__(self, layers: int, heads: int) -> None:
        self.layers, self.heads = layers, heads
        self.arrays: Arrays = self.empty(layers, heads)

    @staticmethod
    @abstractmethod
    def empty(layers: int, heads: int) -> Arrays:
        """The arrays before the first step."""

    @abstractmethod
    def update(self, step: SeenStep) -> None:
        """Takes in one step of the prompt that is being written."""

    def finish(self) -> None:  # noqa: B027
        """The prompt is written; what only a whole prompt shows is added now."""

    def merge(self, other: Self) -> None:
        """Adds what another one has counted, of other prompts."""
        for name, array in other.arrays.items():
            self.arrays[name] = self.arrays[name] + array

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Plain numbers and arrays."""


def ratio(total: Any, count: Any) -> np.ndarray:
    """The quotient, NaN where nothing was counted."""
    total, count = np.asarray(total, np.float64), np.asarray(count, np.float64)
    return np.divide(total, count, out=np.full(np.broadcast(total, count).shape, np.nan), where=count > 0)
