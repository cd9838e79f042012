"""The base class of cache policies, which decide the positions that a step computes, and policies as text.

A step computes the *fresh* positions, and uses the stored keys and values of all others. A *refresh* computes all.
Every block begins with one, so that no row of a batch depends on what another row did in an earlier block.
"""

import functools
import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.attention import Columns, LayerCall, without_autocast
from sinkscope.errors import CallError
from sinkscope.extension_points import find_kinds
from sinkscope.models.families.basic_family import ENCODER
from sinkscope.models.family import Family
from sinkscope.runs.files import validated

Places = Tensor | slice
"""Positions of a canvas: a slice of columns for all rows, or bool [batch, position]."""
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
"""Types of options, whose ranges `parse_cache` sees to."""


@dataclass(frozen=True, eq=False)
class Moment:
    """The state before a step; tensors are [batch, position] unless something else is said."""

    number: int  # of the step in its block, from 0
    start: int  # first position of the block
    stop: int  # the position behind its last
    tokens: Tensor  # int64, the canvas
    masked: Tensor  # bool, where it is masked
    real: Tensor  # bool, False on padding
    commits: Sequence[Tensor] = ()  # bool, committed places of each earlier step of this block
    # float32, of the tokens that the step before has committed or could have, NaN elsewhere; entropies are in nats, if
    # the policy judges. None in the first step of a generation.
    confidence: Tensor | None = None
    entropy: Tensor | None = None
    surveyed: Tensor | None = None  # the confidence of every mask in the first step of the generation, if it surveys
    # Results of `CachePolicy.follow` in the last step, in the one before it, and in the last refresh of each row,
    # [batch, layer, …]; None where there was no such step.
    now: Tensor | None = None
    before: Tensor | None = None
    at_refresh: Tensor | None = None
    # For `CachePolicy.kept`: results of `CachePolicy.measure` and norms of the stored values, float32 [batch, kv_head,
    # position], of each layer.
    scores: Sequence[Tensor] | None = None
    values: Sequence[Tensor] | None = None
    heads: tuple[int, int] = (1, 1)  # number of layers, and of heads of keys in each
    shift: bool = False  # whether the family reads a token one position to its left
    settings: Any = None  # of the sampler
    width: int = 0  # positions in front of the answer, padding counted

    def of_rows(self, rows: list[int]) -> "Moment":
        """Return the moment of some rows, without measurements."""
        tensors = self.tokens[rows], self.masked[rows], self.real[rows], tuple(one[rows] for one in self.commits)
        constant = {name: getattr(self, name) for name in ("heads", "shift", "settings", "width")}
        return Moment(self.number, self.start, self.stop, *tensors, **constant)


@dataclass(frozen=True, eq=False)
class Plan:
    """The positions that a step computes, all when None; where it may commit tokens, the fresh positions when None."""

    fresh: Places | None = None
    open: Places | None = None


@dataclass(frozen=True)
class CachePolicy(ABC):
    """Decides the work of a step; subclasses are frozen dataclasses, whose fields are the options of the text form.

    One with a `name`, here or in an entry point of the group ``sinkscope.caches``, is found by `parse_cache`.
    """

    name: ClassVar[str] = ""  # in the text form
    double: ClassVar[bool] = False  # confidences are taken in float64, as the published code of the policy does
    judges: ClassVar[Any] = False  # `Moment.entropy` is needed; this and the next two may be properties
    measures: ClassVar[Any] = False  # `kept` needs the results of `measure`
    selects: ClassVar[Any] = False  # `kept` may leave keys out
    lasting: ClassVar[bool] = False  # a block begins without a refresh; a step is planned at the end of the one before
    surveys: ClassVar[bool] = False  # the first step of a generation takes the confidence of every mask
    by_layer: ClassVar[bool] = False  # each layer computes other positions, which no subscriber can then watch
    own_places: ClassVar[bool] = False  # it only goes with a family that reads a token at its own position
    rightward: ClassVar[bool] = False  # it only goes with blocks from left to right

    def __post_init__(self) -> None:
        for wrong in self.contradictions():
            raise self.refuse(wrong)

    def contradictions(self) -> Iterator[str]:
        yield from ()

    def first(self, moment: Moment) -> Plan:
        """Return the plan of the first step of a block, a refresh that may say where tokens may be committed."""
        return Plan()

    @abstractmethod
    def plan(self, moment: Moment) -> Plan:
        """Return the plan of the next step of a block; not asked for its first one."""

    def kept(self, moment: Moment) -> Tensor | None:
        """Return which stored keys are read until the next refresh, asked after each refresh; None for all.

        Positions, int64 [batch, 1 or layer, 1 or kv_head, key], each once, the block among them, no padding; a row with
        fewer keys than others ends in −1.
        """
        return None

    def measure(self, call: LayerCall, columns: Columns, moment: Moment) -> Tensor:
        """Measure a layer in a refresh, [batch, …]: by default the column sums of each head."""
        return columns.sums[:, :, 0]

    def follow(self, so_far: Tensor | None, call: LayerCall, moment: Moment) -> Tensor | None:
        """Return the measurements up to this layer, [row, …]; those of the last one become `Moment.now`."""
        return so_far

    def watches(self, refresh: bool) -> bool:
        """Whether `follow` is asked in every layer of a refresh, or of another step."""
        return False

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        """Yield why the policy does not go with a family or with the settings of its sampler."""
        if family.name == ENCODER.name:
            yield "an encoder keeps no keys and values; leave --cache out"
        if self.own_places and family.shift:
            yield f"expected a family that reads a token at its own position, found {family.name}; use dkv-decode"
        if self.rightward and getattr(settings, "block_order", "") == "right_to_left":
            yield "expected blocks from left to right, found right_to_left"

    def check_canvas(self, batch: Any, settings: Any) -> None:  # noqa: B027
        """Raise `CallError` where the policy does not fit the canvases of a batch."""

    @property
    def text(self) -> str:
        """The policy as text, which `parse_cache` reads."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        options = ",".join(f"{name}={value}" for name, value in given.items())
        return f"{self.name}:{options}" if options else self.name

    def refuse(self, what: str) -> CallError:
        return CallError(f"cache {self.text}: {what}")


def marked(places: Places, real: Tensor) -> Tensor:
    """Return places as marks, bool [batch, position]; a slice without padding."""
    if isinstance(places, Tensor):
        return places
    found = torch.zeros_like(real)
    found[:, places] = True
    return found & real


def outside_of(moment: Moment) -> Tensor:
    """Return the tokens outside of the block, bool [batch, position]."""
    outside = moment.real.clone()
    outside[:, moment.start : moment.stop] = False
    return outside


def block_weights(call: LayerCall, moment: Moment, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the attention of the block's queries, [row, head, query, key], constant keys in front first; in a call of
    a part of the canvas that of its queries, 0 outside of the block.
    """
    queries = slice(moment.start, moment.stop) if call.part is None else slice(None)
    weights = attention_weights(call, moment.real[:, None, None], queries, dtype)
    if call.part is None:
        return weights
    places = call.part.queries
    return weights * ((places >= moment.start) & (places < moment.stop))[:, None, :, None]


def attention_weights(call: LayerCall, seen: Tensor, queries: slice, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the attention of some queries of a call, [row, head, query, key], constant keys in front first, to the
    keys that they have ``seen``, bool [1 or row, 1, 1 or query, key].
    """
    with without_autocast(call.query.device.type):
        query = call.query[:, :, queries].to(dtype)
        scores = query @ _over_heads(call.key, call, dtype).transpose(-1, -2)
        scores = scores.div(query.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        if call.own is not None:
            if call.own.keys is not None:
                front = query @ _over_heads(call.own.keys, call, dtype).transpose(-1, -2) / query.shape[-1] ** 0.5
            else:
                assert call.own.logits is not None
                front = call.own.logits.to(dtype)[None, :, None].expand(*scores.shape[:3], -1)
            scores = torch.cat([front, scores], dim=-1)
        return scores.softmax(-1)


def _over_heads(tensor: Tensor, call: LayerCall, dtype: torch.dtype) -> Tensor:
    """Repeat keys or values of each head of keys, with or without a batch axis, for the heads of queries."""
    batched = tensor.to(dtype) if tensor.ndim == 4 else tensor.to(dtype)[None]
    return batched.repeat_interleave(call.query.shape[1] // batched.shape[1], dim=1)


def loss_without(call: LayerCall, moment: Moment) -> Tensor:
    """Return how much the block's attention output changes when one key is not read, float32 [batch, head, position].

    Without a key of weight w and value v an output o becomes (o − w v) / (1 − w): it moves by w / (1 − w) ‖o − v‖. The
    squares are added over the queries of the block. Where w is almost 1, o is almost v, which needs float64.
    """
    double = torch.float64
    weights, value = block_weights(call, moment, double), _over_heads(call.value, call, double)
    own = call.own
    if own is not None:
        values = value.new_zeros(*value.shape[:2], own.count, value.shape[-1])
        if own.values is not None:
            values = values + _over_heads(own.values, call, double)
        value = torch.cat([values, value], dim=2)
    output = weights @ value
    far = output.square().sum(-1)[..., None] + value.square().sum(-1)[:, :, None] - 2 * output @ value.transpose(-1, -2)
    moved = (weights / (1 - weights).clamp(min=1e-12)).square() * far.clamp(min=0)
    return moved.sum(2)[..., -call.key.shape[2] :].float()


def pick(preference: Tensor, moment: Moment, count: int) -> Tensor:
    """Return the positions of the block and the ``count`` preferred most outside of it, in order, int64 […, key]; of
    equal ones in ``preference`` […, position] the lower: in the first layer all masks have one value.
    """
    wanted = preference.masked_fill(~outside_of(moment)[:, None, None], -torch.inf)
    return with_block(wanted.sort(dim=-1, descending=True, stable=True).indices[..., :count], moment)


def with_block(chosen: Tensor, moment: Moment) -> Tensor:
    """Return chosen positions, −1 for none, and those of the block, in order, −1 behind them."""
    last = moment.real.shape[1]
    block = torch.arange(moment.start, moment.stop, device=chosen.device).expand(*chosen.shape[:-1], -1)
    placed = torch.cat([torch.where(chosen < 0, last, chosen), block], dim=-1).sort(dim=-1).values
    return torch.where(placed == last, -1, placed)


@functools.cache
def known_caches() -> Mapping[str, type[CachePolicy]]:
    """Return the class of every policy by its name, in alphabetical order; `CallError` where two have one name."""
    package, group = "sinkscope.decoding.caches", "sinkscope.caches"
    expected = "a CachePolicy with a `name`, or a module with some"
    found: dict[str, type[CachePolicy]] = {}
    for kind in find_kinds(package, CachePolicy, lambda kind: bool(vars(kind).get("name")), group, expected):
        if kind.name in ("none", *found):
            raise CallError(f"{kind.__qualname__}: expected a new name, found {kind.name!r}, which another policy has")
        found[kind.name] = kind
    return MappingProxyType(dict(sorted(found.items())))


def parse_cache(text: str) -> CachePolicy | None:
    """Return a policy from text such as ``block:every=8,keep=sinks,budget=64``, a choice also by its value alone; None
    for ``none``. `CallError` names the policies, or the fields of its class, that there are.
    """
    name, _, tail = text.strip().partition(":")
    known = known_caches()
    if name == "none" and not tail:
        return None
    if name not in known:
        expected = f"one of none, {', '.join(known)}, with options as in block:every=8"
        raise CallError(f"no cache {text!r}; expected {expected}")
    types = get_type_hints(known[name], include_extras=True)
    hints = {one.name: types[one.name] for one in fields(known[name])}
    given: dict[str, Any] = {}
    for piece in filter(None, map(str.strip, tail.split(","))):
        option, equals, value = piece.partition("=")
        owners = [option] if equals else [one for one, hint in hints.items() if piece in get_args(hint)]
        if len(owners) != 1 or owners[0] not in hints or owners[0] in given:
            options = ", ".join(f"{one}=…" for one in hints) or "none"
            raise CallError(f"cache {text!r}: expected options of {name}, each once ({options}), found {piece!r}")
        where = f"cache {text!r}: {owners[0]}"
        given[owners[0]] = validated(hints[owners[0]], value if equals else piece, where, CallError)
    return known[name](**given)


def cache_definitions() -> list[dict[str, Any]]:
    """Return name, purpose, source and options of every policy, those of installed packages included."""
    import docstring_parser

    found = []
    for name, kind in known_caches().items():
        # The paper and the code stand in brackets behind the title of a policy's module.
        source = re.match(r"[^\n]*?(\(.*?\))\.?\n", sys.modules[kind.__module__].__doc__ or "", flags=re.DOTALL)
        docs = [docstring_parser.parse(one.__doc__ or "") for one in reversed(kind.__mro__)]
        meanings = {one.arg_name: " ".join((one.description or "").split()) for doc in docs for one in doc.params}
        hints, options = get_type_hints(kind), []
        for one in fields(kind):
            choices = [choice for choice in get_args(hints[one.name]) if isinstance(choice, str)] or None
            does = meanings.get(one.name, "").replace("``", "")
            options.append({"name": one.name, "default": one.default, "choices": choices, "does": does})
        does = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
        origin = source.group(1).replace("\n", " ") if source else None
        found.append({"name": name, "does": does, "source": origin, "options": options})
    return found


def definitions_text() -> str:
    """Return `cache_definitions` as lines of text."""
    lines = []
    for one in cache_definitions():
        lines.append(f"{one['name']}: {one['does']}" + (f" {one['source']}" if one["source"] else ""))
        for option in one["options"]:
            choices = f" one of {', '.join(option['choices'])};" if option["choices"] else ""
            lines.append(f"    {option['name']}={option['default']}:{choices} {option['does']}")
    return "\n".join(lines)
