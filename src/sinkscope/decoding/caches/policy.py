"""The base class of cache policies: a policy decides which positions a step computes.

A step computes some positions of the canvas, the *fresh* ones: their queries, keys, values and hidden states. Of all
other positions the stored keys and values are used as they were. A *refresh* is a step in which all positions are
fresh. Every block begins with one, so that no row of a batch depends on what another row did in an earlier block.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.attention import Columns, LayerCall
from sinkscope.decoding.canvas import Batch
from sinkscope.decoding.settings import Settings, out_of_range
from sinkscope.errors import CallError
from sinkscope.models.families.encoder_family import NAME as ENCODER
from sinkscope.models.family import Family

Places = Tensor | slice
"""Positions of a canvas: a slice of columns for all rows, or bool [batch, position]."""


MEASURED = ("confidence", "entropy", "surveyed", "now", "before", "at_refresh", "scores", "values")
"""What `Moment.of_rows` leaves out."""


@dataclass(frozen=True, eq=False)
class Moment:
    """The state before a step.

    Attributes:
        number: of the step in its block, from 0.
        start, stop: first position of the block, and the one behind its last.
        tokens: int64 [batch, position], the canvas.
        masked: bool [batch, position], where it is masked.
        real: bool [batch, position], False on padding.
        commits: committed places of each earlier step of this block, bool [batch, position] each.
        confidence: float32 [batch, position], of the tokens that the step before has committed or could have; NaN
            elsewhere, None in the first step of a generation.
        entropy: of the distributions of those tokens in nats, like ``confidence``; None unless the policy `judges`.
        surveyed: float32 [batch, position], the probability of the likeliest token of every mask in the first step of
            the generation, NaN elsewhere; None unless the policy `surveys`.
        now, before, at_refresh: results of `CachePolicy.watch` in the last step, in the one before it, and in the last
            refresh of each row, [batch, layer, …]; None where there was no such step.
        scores: results of `CachePolicy.measure` for each layer of a refresh; only for `CachePolicy.kept`.
        values: norms of the stored values of each layer, float32 [batch, kv_head, position]; where there are scores.
        heads: number of layers, and of heads of keys in each.
        shift: whether the family reads a token one position to its left.
        settings: of the sampler.
        width: positions in front of the answer, padding counted.
    """

    number: int
    start: int
    stop: int
    tokens: Tensor
    masked: Tensor
    real: Tensor
    commits: Sequence[Tensor] = ()
    confidence: Tensor | None = None
    entropy: Tensor | None = None
    surveyed: Tensor | None = None
    now: Tensor | None = None
    before: Tensor | None = None
    at_refresh: Tensor | None = None
    scores: Sequence[Tensor] | None = None
    values: Sequence[Tensor] | None = None
    heads: tuple[int, int] = (1, 1)
    shift: bool = False
    settings: Any = None
    width: int = 0

    def of_rows(self, rows: Sequence[int]) -> "Moment":
        """Return the moment of some rows, without measurements."""
        chosen = list(rows)
        tokens, masked, real = self.tokens[chosen], self.masked[chosen], self.real[chosen]
        commits = tuple(one[chosen] for one in self.commits)
        return replace(self, tokens=tokens, masked=masked, real=real, commits=commits, **dict.fromkeys(MEASURED))


@dataclass(frozen=True, eq=False)
class Plan:
    """The positions that a step computes, all when None; where it may commit tokens, the fresh positions when None."""

    fresh: Places | None = None
    open: Places | None = None


@dataclass(frozen=True)
class CachePolicy(ABC):
    """Decides the work of a step; subclasses are frozen dataclasses, whose fields are the options of the text form.

    A subclass with a `name`, in a module of this package or in one that an installed package declares as an entry point
    of the group ``sinkscope.caches``, is found by `parse_cache` and ``--cache``.
    """

    name: ClassVar[str] = ""
    """The policy's name in the text form."""
    double: ClassVar[bool] = False
    """Whether confidences are taken in float64, as the published code of the policy does."""
    lasting: ClassVar[bool] = False
    """Whether a block begins without a refresh; the plan of a step is then made at the end of the one before."""
    surveys: ClassVar[bool] = False
    """Whether the first step of a generation takes the confidence of every mask, see `Moment.surveyed`."""
    own_places: ClassVar[bool] = False
    """Whether it only goes with a family that reads a token at its own position."""
    rightward: ClassVar[bool] = False
    """Whether it only goes with blocks from left to right."""
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Least and largest value of options."""

    def __post_init__(self) -> None:
        for wrong in chain(out_of_range(self, self.ranges), self.contradictions()):
            raise self.refuse(wrong)

    def contradictions(self) -> Iterator[str]:
        """Yield which options do not fit together, and why."""
        yield from ()

    def first(self, moment: Moment) -> Plan:
        """Return the plan of the first step of a block, a refresh; it may say where tokens may be committed."""
        return Plan()

    @abstractmethod
    def plan(self, moment: Moment) -> Plan:
        """Return the plan of the next step of a block; not asked for its first one."""

    def kept(self, moment: Moment) -> Tensor | None:
        """Return which stored keys are read until the next refresh; called after each refresh.

        Returns:
            int64 [batch, 1 or layer, 1 or kv_head, key], positions, each once, the block among them, without padding; a
            row with fewer keys than others ends in −1. None for all.
        """
        return None

    def measure(self, call: LayerCall, columns: Columns, moment: Moment) -> Tensor:
        """Measure a layer in a refresh, [batch, …]: by default the column sums of each head."""
        return columns.sums[:, :, 0]

    def watch(self, call: LayerCall, moment: Moment) -> Tensor:
        """Return the measurement of a layer for the plan of the next step, [row, …]; see `watches`."""
        raise NotImplementedError

    def follow(self, so_far: Tensor | None, call: LayerCall, moment: Moment) -> Tensor:
        """Return the measurements up to this layer, [row, …]; those of the last one become `Moment.now`."""
        found = self.watch(call, moment)[:, None]
        return found if so_far is None else torch.cat([so_far, found], dim=1)

    def watches(self, refresh: bool) -> bool:
        """Whether `watch` is asked in every layer of a refresh, or of another step."""
        return False

    @property
    def judges(self) -> bool:
        """Whether `Moment.entropy` is needed."""
        return False

    @property
    def measures(self) -> bool:
        """Whether `kept` needs the results of `measure`."""
        return False

    @property
    def selects(self) -> bool:
        """Whether `kept` may leave keys out."""
        return False

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        """Yield why the policy does not go with a family or with the settings of its sampler."""
        if self.own_places and family.shift:
            yield f"expected a family that reads a token at its own position, found {family.name}; use dkv-decode"
        if self.rightward and getattr(settings, "block_order", "") == "right_to_left":
            yield "expected blocks from left to right, found right_to_left"

    def check(self, family: Family, settings: Settings) -> None:
        """Raise `CallError` where the policy does not go with a family or with the settings of its sampler."""
        if family.name == ENCODER:
            raise self.refuse("an encoder keeps no keys and values; leave --cache out")
        for wrong in self.misfits(family, settings):
            raise self.refuse(wrong)

    def check_canvas(self, batch: Batch, settings: Any) -> None:  # noqa: B027
        """Raise `CallError` where the policy does not fit the canvases of a batch."""

    @property
    def text(self) -> str:
        """The policy as text, which `parse_cache` reads."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        options = ",".join(f"{name}={value}" for name, value in given.items())
        return f"{self.name}:{options}" if options else self.name

    def refuse(self, what: str) -> CallError:
        """Return the error of this policy."""
        return CallError(f"cache {self.text}: {what}")


@dataclass(frozen=True)
class LayeredPolicy(CachePolicy):
    """Decides in every layer by itself which positions it computes; the others get the layer's stored outputs."""

    def plan(self, moment: Moment) -> Plan:
        return Plan()

    @abstractmethod
    def whole_parts(self, layer: int, number: int) -> tuple[bool, bool]:
        """Return whether a layer computes the whole prompt, and the whole answer, in a step of the generation."""

    @abstractmethod
    def share(self, length: int) -> int:
        """Return how many of the positions of an answer a layer computes where it does not compute all of them."""

    @abstractmethod
    def choose(self, values: Tensor, before: Tensor) -> Tensor:
        """Return these positions, int64 [row, chosen], by the new and the stored values [row, position, width]."""
