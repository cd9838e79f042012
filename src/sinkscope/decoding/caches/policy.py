"""The base class of cache policies: a policy is given the state before a step, and returns which positions to compute.

A step computes some positions of the canvas, the *fresh* ones: their queries, keys, values and hidden states. Of all other positions the
stored keys and values are used as they were. A *refresh* is a step in which all positions are fresh. Every block begins with one, so
that no row of a batch depends on what another row did in an earlier block.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.argument_types import fits, in_words
from sinkscope.attention import Columns, LayerCall
from sinkscope.decoding.canvas import Batch
from sinkscope.decoding.settings import Settings
from sinkscope.errors import CallError
from sinkscope.models.family import Family

Places = Tensor | slice
"""Positions of a canvas: a slice of columns for all rows, or bool [batch, position]."""


MEASURED = ("confidence", "entropy", "surveyed", "now", "before", "at_refresh", "scores", "values")
"""What `Moment.of_rows` leaves out."""


@dataclass(frozen=True, eq=False)
class Moment:
    """What a policy knows before a step.

    Attributes:
        number: of the step in its block, from 0.
        start, stop: first position of the block, and the one behind its last.
        tokens: int64 [batch, position], the canvas.
        masked: bool [batch, position], where it is masked.
        real: bool [batch, position], False on padding.
        commits: what was committed in each earlier step of this block, bool [batch, position] each.
        scores: what `CachePolicy.measure` returned for each layer of a refresh; only for `CachePolicy.kept` of a policy that measures.
        confidence: float32 [batch, position], of the tokens that the step before has committed or could have; NaN elsewhere, None in the
            first step of a generation.
        entropy: float32 [batch, position], of the distributions of those tokens in nats, like ``confidence``; None unless the policy
            asks for it.
        surveyed: float32 [batch, position], the probability of the likeliest token of every mask in the first step of the generation, NaN
            elsewhere; None unless the policy asks for it.
        now, before, at_refresh: what `CachePolicy.watch` returned in the last step, in the one before it, and in the last refresh of each
            row, [batch, layer, …]; None where there was no such step.
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
        """Return the moment of some rows, without what was measured."""
        chosen = list(rows)
        tokens, masked, real = self.tokens[chosen], self.masked[chosen], self.real[chosen]
        commits = tuple(one[chosen] for one in self.commits)
        return replace(self, tokens=tokens, masked=masked, real=real, commits=commits, **dict.fromkeys(MEASURED))


@dataclass(frozen=True, eq=False)
class Plan:
    """What a step computes.

    Attributes:
        fresh: the positions that are computed; None for all of them.
        open: where tokens may be committed, if masked; the fresh positions when None.
    """

    fresh: Places | None = None
    open: Places | None = None


def check_plan(policy: "CachePolicy", plan: object, real: Tensor, first: bool = False) -> Plan:
    """Return the plan that a policy has made for canvases [batch, position].

    Args:
        first: whether it is that of the first step of a block.

    Raises:
        CallError: it is none, its places are no slice and no bool of this shape, or a first one is no refresh.
    """
    name, shape = f"{type(policy).__name__}.{'first' if first else 'plan'}", list(real.shape)
    if not isinstance(plan, Plan):
        raise CallError(f"{name}: expected a Plan, found {in_words(plan)}")
    if first and plan.fresh is not None:
        raise CallError(
            f"{name}: expected fresh None, as the first step of a block computes all positions, found {_shown(plan.fresh)}"
        )
    for what, places in (("fresh", plan.fresh), ("open", plan.open)):
        good = isinstance(places, Tensor) and places.dtype == torch.bool and places.shape == real.shape
        if not (good or places is None or isinstance(places, slice)):
            raise CallError(
                f"{name}: expected {what} as a slice, bool {shape} (batch, position) or None, found {in_words(places)}"
            )
        if isinstance(places, slice) and not (_is_run(places) and (what == "open" or range(real.shape[1])[places])):
            least = "at least one position" if what == "fresh" else "positions"
            raise CallError(
                f"{name}: expected {what} as a slice of {least}, one beside the other, found {_shown(places)}"
            )
    return plan


def _is_run(places: slice) -> bool:
    return all(fits(one, int | None) for one in (places.start, places.stop)) and places.step in (None, 1)


def _shown(places: object) -> str:
    return str(places) if isinstance(places, slice) else in_words(places)


def check_kept(policy: "CachePolicy", kept: object, moment: Moment) -> Tensor | None:
    """Return the keys that a policy leaves to be read.

    Raises:
        CallError: they are no positions by row, layer and head.
    """
    (rows, width), (layers, heads) = moment.real.shape, moment.heads
    name = f"{type(policy).__name__}.kept: expected int64 [{rows}, 1 or {layers}, 1 or {heads}, key] (batch, layer, kv_head, key) or None"
    if kept is None:
        return None
    good = isinstance(kept, Tensor) and kept.dtype == torch.int64 and kept.ndim == 4 and kept.shape[3] > 0
    if (
        not isinstance(kept, Tensor)
        or not good
        or kept.shape[0] != rows
        or kept.shape[1] not in (1, layers)
        or kept.shape[2] not in (1, heads)
    ):
        raise CallError(f"{name}, found {in_words(kept)}")
    if (wrong := kept[(kept < -1) | (kept >= width)]).numel():
        raise CallError(f"{name}, with positions below {width}, found {int(wrong[0])}")
    padding = ~moment.real[torch.arange(rows, device=kept.device)[:, None, None, None], kept.clamp(min=0)] & (kept >= 0)
    if padding.any():
        row, *_ = place = padding.nonzero()[0].tolist()
        raise CallError(
            f"{name}, with positions of tokens, found {int(kept[tuple(place)])} in row {row}, which is padding there"
        )
    return kept


def options_of(kind: "type[CachePolicy] | CachePolicy") -> tuple[Field[Any], ...]:
    """Return the fields of a policy, which are the options of its text form.

    Raises:
        CallError: it is no dataclass.
    """
    if not is_dataclass(kind):
        name = kind.__qualname__ if isinstance(kind, type) else type(kind).__qualname__
        raise CallError(
            f"{name}: expected a dataclass, whose fields are the options of the cache, found another class; put @dataclass(frozen=True) "
            "above it"
        )
    return fields(kind)


class CachePolicy(ABC):
    """Decides what a step computes; subclasses are frozen dataclasses, whose fields are the options of the text form.

    A subclass with a `name`, in a module of this package or in one that an installed package declares as an entry point of the group
    ``sinkscope.caches``, is found by `parse_cache` and ``--cache``.
    """

    name: ClassVar[str] = ""
    """The policy's name in the text form."""
    double: ClassVar[bool] = False
    """Whether confidences are taken in float64, as the published code of the policy does."""
    lasting: ClassVar[bool] = False
    """Whether a block begins without a refresh. The plan of a step is then made when the step before it has ended, from its block."""
    surveys: ClassVar[bool] = False
    """Whether the first step of a generation takes the confidence of every mask, see `Moment.surveyed`."""

    def first(self, moment: Moment) -> Plan:
        """Return the plan of the first step of a block, which is always a refresh; it may say where tokens may be committed."""
        return Plan()

    @abstractmethod
    def plan(self, moment: Moment) -> Plan:
        """Return what the next step of a block computes; not asked for its first one."""

    def kept(self, moment: Moment) -> Tensor | None:
        """Return which stored keys are read until the next refresh; called after each refresh.

        Returns:
            int64 [batch, 1 or layer, 1 or kv_head, key], positions, each once; None for all. The block has to be among them, padding not.
            A row that keeps fewer keys than others, the same number in every layer, ends in −1.
        """
        return None

    def measure(self, call: LayerCall, columns: Columns, moment: Moment) -> Tensor:
        """Return what is to be known of a layer in a refresh, [batch, …]; the column sums of each head, unless a policy says otherwise."""
        return columns.sums[:, :, 0]

    def watch(self, call: LayerCall, moment: Moment) -> Tensor:
        """Return what is to be known of a layer before the next step is planned, [row, …]; see `watches`."""
        raise NotImplementedError

    def follow(self, so_far: Tensor | None, call: LayerCall, moment: Moment) -> Tensor:
        """Return what is to be known of all layers up to this one, [row, …]; of the last layer it becomes `Moment.now`."""
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
        """Whether `kept` needs what `measure` returns."""
        return False

    @property
    def selects(self) -> bool:
        """Whether `kept` may leave keys out."""
        return False

    def check(self, family: Family, settings: Settings) -> None:  # noqa: B027
        """Raise an error where the policy does not go with a family or with the settings of its sampler.

        Raises:
            CallError: it does not.
        """

    def check_canvas(self, batch: Batch, settings: Any) -> None:  # noqa: B027
        """Raise an error where the policy does not fit the canvases of a batch.

        Raises:
            CallError: it does not.
        """

    @property
    def text(self) -> str:
        """The policy as text, which `parse_cache` reads."""
        options = [
            f"{one.name}={value}" for one in options_of(self) if (value := getattr(self, one.name)) != one.default
        ]
        return f"{self.name}:{','.join(options)}" if options else self.name

    def refuse(self, what: str) -> CallError:
        """Return the error that says what does not fit."""
        return CallError(f"cache {self.text[:80]}: {what}")


class LayeredPolicy(CachePolicy):
    """Decides in every layer by itself what is computed, and keeps the outputs of attention and MLP of every layer for the rest.

    The residual stream of all positions is carried through the network; a position that a layer does not compute gets that layer's stored
    outputs.
    """

    def plan(self, moment: Moment) -> Plan:
        return Plan()

    @abstractmethod
    def whole_parts(self, layer: int, number: int) -> tuple[bool, bool]:
        """Return whether a layer computes all of the prompt, and all of the answer, in a step of the generation, from 0."""

    @abstractmethod
    def share(self, length: int) -> int:
        """Return how many of the positions of an answer a layer computes where it does not compute all of them."""

    @abstractmethod
    def choose(self, values: Tensor, before: Tensor) -> Tensor:
        """Return which positions of the answer these are, int64 [row, chosen].

        Args:
            values: of all positions of the answer, new, [row, position, width].
            before: those that were stored.
        """
