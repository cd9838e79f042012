"""The base of everything that accumulates, and the record of a step it is updated with."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks.candidates import Candidates, find_candidates
from sinkscope.sinks.concentration import Concentration, layer_concentration
from sinkscope.sinks.definition import excess_of, in_unit
from sinkscope.sinks.layers import NORMS, Layer
from sinkscope.sinks.points import POINTS
from sinkscope.sinks.profile import MainSinks, largest_followed

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class SeenStep:
    """One step of one prompt, with what Eq. 3 says of it. Records of a layer hold layers here where they else hold steps.

    Attributes:
        columns: column sums of all queries.
        excess, percent_excess: over the mean of the other columns, in queries' worth and in percent of all attention.
        selected: Eq. 3 on ``excess``.
        main: position of the strongest sink, −1 where none; from the columns that movement is read from.
        tokens, masked: the canvas.
        prompt_length: tokens of the prompt; 0 where unknown.
        written: tokens committed in the step, −1 where none; None where nobody says.
        layers: all that was recorded by layer.
        sinks: candidates of the columns at `POINTS`.
        concentration: of the columns.
        followed: the largest of the columns that movement is read from.
    """

    columns: Float[np.ndarray, "layer head key"]
    excess: Float[np.ndarray, "layer head key"]
    percent_excess: Float[np.ndarray, "layer head key"]
    selected: Bool[np.ndarray, "layer head key"]
    main: Int[np.ndarray, "layer head"]
    tokens: Int[np.ndarray, " key"]
    masked: Bool[np.ndarray, " key"]
    prompt_length: int
    written: Int[np.ndarray, " position"] | None
    layers: Layer
    sinks: Candidates
    concentration: Concentration
    followed: MainSinks

    @classmethod
    def of(
        cls,
        step: Mapping[str, np.ndarray],
        excess: float,
        causal: bool,
        prompt_length: int,
        followed: Float[np.ndarray, "layer head key"] | None = None,
    ) -> Self:
        """A step as it is recorded, arrays as in `axes.TRACE_AXES` without the step axis.

        Args:
            excess: ε of Eq. 3, in queries' worth.
            followed: columns that movement is read from, where they are not the column sums.
        """
        columns = np.asarray(step["column_sums"], np.float32)
        over, total = excess_of(columns), columns.sum(axis=-1)
        moving = (columns, over, total) if followed is None else (followed, excess_of(followed), followed.sum(axis=-1))
        norms = {name: np.asarray(step[name]) for name in NORMS if step.get(name) is not None}
        layers = Layer(
            columns,
            over,
            total,
            *moving,
            {one: step[f"column_sums_{one}"] for one in ("masked", "prompt") if step.get(f"column_sums_{one}") is not None},
            step.get("self_attention"),
            {name: one[:, None] if one.ndim == 2 else one for name, one in norms.items()},
        )
        sinks = find_candidates(columns, over, total, POINTS)
        largest = largest_followed(layers)
        return cls(
            columns,
            over,
            excess_of(in_unit(columns, "percent")),
            over > excess,
            np.where(largest.excess > excess, largest.position, -1),
            np.asarray(step["tokens"]),
            np.asarray(step["masked"]).astype(bool),
            prompt_length,
            step.get("written"),
            layers,
            sinks,
            layer_concentration(layers, sinks, np.full(len(columns), columns.shape[-1]), causal),
            largest,
        )

    @classmethod
    def blank(cls, layers: int) -> Self:
        """A step of one head and two empty positions."""
        step = {"column_sums": np.zeros((layers, 1, 2)), "tokens": np.zeros(2, np.int64), "masked": np.zeros(2, bool)}
        return cls.of(step, 3.0, False, 0)


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

    def finish(self, texts: Mapping[int, str]) -> None:  # noqa: B027
        """The prompt is written; what only a whole prompt shows is added now. ``texts``: how the tokens of its canvas read."""

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
