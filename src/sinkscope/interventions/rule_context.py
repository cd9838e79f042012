"""What a rule may know when it chooses keys: the canvas, the running layer, and the attention observed so far."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import Columns, LayerCall, Session, StepContext, Watcher, upload
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.sinks.definition import text_of, token_class

GROUPS = ("masked", "unmasked", "prompt", "answer")
LASTING = ("real", "rows", "prompts", "prompt", "answer")
"""What a `StepCanvas` makes that depends on its layout alone, beside groups of positions."""


class StepCanvas:
    """The canvas of one step, uploaded once; of ``prompt_lengths``, the rows of guidance, behind, repeat prompts.

    A canvas that is laid out as the one ``before`` takes over what lasts, so that its layers upload nothing. ``made``
    are the results of `once` by name, and ``drawn`` the names of random numbers that were asked for.
    """

    def __init__(
        self, context: StepContext, prompt_lengths: tuple[int, ...], before: "StepCanvas | None" = None
    ) -> None:
        self.context, self._prompt_lengths = context, prompt_lengths
        self.rows, self.width = context.tokens.shape
        self.lengths: list[int] = context.lengths.tolist()
        self._layout = (self.rows, self.width, self.lengths, context.rows, context.prompts, prompt_lengths)
        self.made: dict[Any, Any] = {}
        self.drawn: dict[Any, torch.device] = {}
        if before is not None and before._layout == self._layout:
            self.made = {name: one for name, one in before.made.items() if name[0] in LASTING or type(name[0]) is tuple}

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``, which is called at most once a step for each name."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    @property
    def answers(self) -> bool:
        """Whether any row goes on behind its prompt."""
        prompts = self._prompt_lengths * (self.rows // max(1, len(self._prompt_lengths)))
        return any(length > prompt for length, prompt in zip(self.lengths, prompts, strict=False))

    def real(self, device: torch.device) -> Tensor:
        """Return which positions are tokens, bool [batch, position]: False on padding, which stands on the left."""
        return self.once(
            ("real", device),
            lambda: torch.arange(self.width, device=device) >= self.width - _uploaded(self.lengths, device)[:, None],
        )

    def among(self, where: str | Collection[int], device: torch.device) -> Tensor:
        """Return the positions of a group, or those with the given numbers, without padding: bool [batch, position]."""
        named = where if isinstance(where, str) else tuple(where)
        return self.once((named, device), lambda: self._among(named, device))

    def recorded(self, values: Tensor) -> Tensor:
        """Return the rows of ``values`` [batch, …] that are recorded, [row, …]."""
        rows, device = self.context.rows, values.device
        if rows == tuple(range(self.rows)):
            return values
        return values[self.once(("rows", device), lambda: _uploaded(rows, device))]

    def by_position(self, values: Tensor) -> Tensor:
        """Return values [batch, …, key] of the recorded rows by the position of their keys, 0 behind the last one."""
        values = self.recorded(values)
        lengths = [self.lengths[row] for row in self.context.rows]
        if min(lengths, default=self.width) == self.width:
            return values
        wide = _uploaded(lengths, values.device).view(-1, *[1] * (values.ndim - 1))
        place = torch.arange(self.width, device=values.device)
        return values.gather(-1, (place + self.width - wide).clamp(max=self.width - 1).expand_as(values)) * (
            place < wide
        )

    def prompts(self, device: torch.device) -> Tensor:
        """Return the number of the prompt of each recorded row, int64 [row]."""
        return self.once(("prompts", device), lambda: _uploaded(self.context.prompts, device))

    def draw(self, digests: Sequence[bytes], step: int, asked: tuple[int, int, int], device: torch.device) -> Tensor:
        """Return random numbers [batch, group, position] for what was ``asked``: seed, layer, and number of groups."""
        on_host: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}

        def make() -> Tensor:
            seed, layer, groups = asked
            drawn = torch.zeros(self.rows, groups, self.width, **on_host)
            for row, (digest, length) in enumerate(zip(digests, self.lengths, strict=True)):
                key = blake2b(digest + f"{seed} {step} {layer}".encode(), digest_size=7).digest()
                source = torch.Generator("cpu").manual_seed(int.from_bytes(key, "big"))
                drawn[row, :, self.width - length :] = torch.rand(groups, length, generator=source, **on_host)
            return upload(drawn, device)

        return self.once(("draw", *asked), make)

    def _among(self, where: str | tuple[int, ...], device: torch.device) -> Tensor:
        real = self.real(device)
        position = real.long().cumsum(-1) - 1
        if not isinstance(where, str):
            wanted = torch.zeros(self.width, dtype=torch.bool, device="cpu")
            wanted[[place for place in where if 0 <= place < self.width]] = True
            return real & upload(wanted, device)[position.clamp(min=0)]
        if where in ("masked", "unmasked"):
            masked = upload(self.context.masked, device)
            return real & (masked if where == "masked" else ~masked)
        lengths = self._prompt_lengths
        in_prompt = position < _uploaded([lengths[row % len(lengths)] for row in range(self.rows)], device)[:, None]
        return real & (in_prompt if where == "prompt" else ~in_prompt)


def _uploaded(numbers: Sequence[int], device: torch.device) -> Tensor:
    return upload(torch.tensor(numbers, dtype=torch.long, device="cpu"), device)


def class_in(model: Model, token: int) -> str:
    """Return the class of a token, one of `sinks.definition.CLASSES`."""
    special = token in model.tokenizer.all_special_ids or not 0 <= token < len(model.tokenizer)
    return token_class(None if special else text_of(model.tokenizer, token), token == model.card.mask_id, special)


Scope = Literal["head", "kv_head", "layer"]
FEW = 6
"""Up to this many ranks, repeated arg-max is quicker than sorting (ten times quicker for one rank)."""


def excess_of(columns: Tensor, real: Tensor) -> Tensor:
    """Return c_j − mean over k ≠ j of c_k (paper 1, Eq. 3), [batch, head, key]; ``real`` [batch, key] is no padding."""
    real = real[:, None]
    total = (columns * real).sum(-1, keepdim=True)
    return columns - (total - columns) / (real.sum(-1, keepdim=True) - 1).clamp(min=1)


def rank_of(values: Tensor, candidates: Tensor, most: int | None = None) -> Tensor:
    """Return the rank of every key in its head, int64 [batch, head, key]: 0 the largest, ties to the lower position;
    no ``candidates`` last. With ``most``, ranks from there on, and those of no candidates, may be any.
    """
    left = values.masked_fill(~candidates, -torch.inf)
    if most is not None and most <= FEW:
        ranks, places = torch.full(left.shape, most, dtype=torch.int64, device=left.device), list[Tensor]()
        for _ in range(most):
            left = left.scatter_(-1, places[-1], -torch.inf) if places else left
            places.append(left.argmax(dim=-1, keepdim=True))
        for rank in reversed(range(most)):  # a place that comes twice, when no candidate is left, keeps its first rank
            ranks.scatter_(-1, places[rank], rank)
        return ranks
    order = left.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def pool(values: Tensor, scope: Scope, kv_heads: int) -> Tensor:
    """Return the mean over the heads that share a ranking: [batch, head, key] → [batch, head or kv_head or 1, key]."""
    groups = {"head": values.shape[-2], "kv_head": kv_heads, "layer": 1}[scope]
    return values if groups == values.shape[-2] else values.unflatten(-2, (groups, -1)).mean(-2)


def spread(chosen: Tensor, heads: int) -> Tensor:
    """Repeat what a group chose for each of its heads: [batch, group, key] → [batch, 1 or head, key]."""
    return chosen if chosen.shape[-2] in (1, heads) else chosen.repeat_interleave(heads // chosen.shape[-2], dim=-2)


@dataclass(frozen=True, eq=False)
class Observation:
    """The attention of one layer in one step. Its keys are those of the layer."""

    columns: Tensor  # [batch, head, key], column sums; in a causal model running sums over all queries so far
    last_row: Tensor  # [batch, head, key], the attention of the newest query
    keys: int  # how many keys there were

    def widened(self, keys: int) -> "Observation":
        """Return the same with zeros for keys that have been added since."""
        wide = (0, keys - self.keys)
        return self if keys == self.keys else Observation(pad(self.columns, wide), pad(self.last_row, wide), self.keys)


class AttentionMemory(Watcher):
    """The attention of every layer in two steps, if it is ``wanted`` by a rule; ``causal`` columns are running sums."""

    def __init__(self, wanted: Collection[str], causal: bool = False) -> None:
        self.wanted, self.causal = wanted, causal
        self._before: dict[str, dict[str, Observation]] = {}  # layer → how it was measured → attention
        self._unhidden: dict[str, Observation] = {}
        self._unhidden_before: dict[str, Observation] = {}

    @property
    def state(self) -> dict[str, dict[str, tuple[Tensor, Tensor, int]]]:
        """The attention of the step before, with that of the layers that have run, in tuples."""
        return {
            layer: {how: (one.columns, one.last_row, one.keys) for how, one in found.items()}
            for layer, found in self._before.items()
        }

    @state.setter
    def state(self, given: dict[str, dict[str, tuple[Tensor, Tensor, int]]]) -> None:
        self._before = {layer: {how: Observation(*one) for how, one in found.items()} for layer, found in given.items()}

    def run_unhidden(self, session: Session) -> None:
        """Run the canvas of the running step once more with nothing hidden, and keep the attention of every layer."""
        self._unhidden_before, self._unhidden = self._unhidden, {}
        session.unhidden_pass(self)

    def watch(self, call: LayerCall, columns: Columns) -> None:
        sums = columns.sums[:, :, call.groups.index("all")]
        self._unhidden[call.name] = Observation(sums, columns.last_row, call.keys)

    def keep(self, call: LayerCall, columns: Columns) -> Observation:
        """Keep the attention of a layer that has run; return it as it is without the hiding."""
        local = columns.sums if columns.local is None else columns.local
        local = self._added_up(call, "local", local, columns.last_row)
        found = {"local": local} if "local" in self.wanted or self.causal else {}
        if "hidden" in self.wanted:
            found["hidden"] = self._added_up(call, "hidden", columns.sums, columns.last_row_in_force)
        self._before[call.name] = found
        return local

    def seen(self, call: LayerCall, observe: str, measured: str) -> Observation | None:
        """Return the attention of a layer in the ``previous`` step, None in the first, or in the ``current`` one before
        anything is hidden in it.
        """
        if measured == "clean":
            return (self._unhidden_before if observe == "previous" else self._unhidden).get(call.name)
        if observe == "previous":
            return self._before.get(call.name, {}).get(measured)
        assert call.measure is not None
        columns = call.measure()
        return self._added_up(call, "local", columns.sums, columns.last_row)

    def _added_up(self, call: LayerCall, measured: str, sums: Tensor, last_row: Tensor) -> Observation:
        """Return a causal model's running sums: behind a cache the columns of the steps before are added."""
        columns, before = sums[:, :, call.groups.index("all")], self._before.get(call.name, {}).get(measured)
        if self.causal and before is not None and call.query.shape[2] != call.keys:
            columns = columns + before.widened(call.keys).columns
        return Observation(columns, last_row, call.keys)


def digests_of(context: StepContext) -> list[bytes]:
    """Return what random numbers of each row go by: its tokens in the first step, whatever stands beside it."""
    tokens, lengths = context.tokens.cpu(), context.lengths.tolist()
    rows = [row[len(row) - own :] for row, own in zip(tokens, lengths, strict=True)]
    return [blake2b(row.numpy().tobytes()).digest() for row in rows]


Rule = Any


@dataclass(frozen=True, eq=False)
class RuleContext:
    """The knowledge with which a ``rule`` chooses the keys of one layer's ``call`` in one ``step`` of a canvas.

    Attributes:
        candidates: bool [batch, key], the keys that may be chosen; behind a sliding window those that it still holds.
        memory: values that the rule kept for this layer since the generation began; empty at first.
        attention, digests, classify: read by `seen`, `draw` and `classes`.
    """

    rule: Rule
    step: int
    call: LayerCall
    canvas: StepCanvas
    candidates: Tensor
    memory: dict[str, Any]
    attention: AttentionMemory
    digests: list[bytes]
    classify: Callable[[int], str] | None

    @property
    def tokens(self) -> Tensor:
        """Token ids, int64 [batch, key]."""
        tokens, device = self.canvas.context.tokens, self.call.key.device
        return self.canvas.once(("tokens", device), lambda: upload(tokens, device))

    @property
    def real(self) -> Tensor:
        """Bool [batch, key], False on padding."""
        return self.canvas.real(self.call.key.device)

    @property
    def causal(self) -> bool:
        """Whether columns are running sums over the queries so far."""
        return self.attention.causal

    def seen(self, observe: str, measured: str) -> Observation | None:
        """Return the attention of this layer as ``measured`` (`Observed`); None in the first step for ``previous``."""
        keys, found = self.call.keys, self.attention.seen(self.call, observe, measured)
        if found is not None and found.keys > keys:
            what = f"expected no shorter canvas than then, found {keys} tokens behind {found.keys}"
            raise CallError(f"{self.rule} decides by the step before, {what}; decide by current")
        return None if found is None else found.widened(keys)

    @property
    def committing(self) -> Tensor | None:
        """Queries whose outputs may be committed in this step, bool [batch, query]; None where none will be: masked
        ones of the running block (one place to the left with a logit shift), in autoregressive models the newest.
        """
        found, device = self.canvas.context.readers, self.call.key.device
        if found is None:
            return None
        return self.canvas.once(("readers", device), lambda: upload(found, device))[:, -self.call.query.shape[2] :]

    def received_from(self, queries: Tensor) -> Tensor:
        """Return the attention, [batch, head, key], that queries, bool [batch, query], give without hiding; a sweep."""
        assert self.call.measure is not None
        return self.call.measure(upload(queries, self.call.key.device).float()).sums[:, :, 0]

    def draw(self, seed: int, groups: int) -> Tensor:
        """Return random numbers [batch, group, key]: a function of seed, prompt, step and layer alone."""
        asked, device = (seed, self.call.index, groups), self.call.key.device
        self.canvas.drawn[asked] = device
        return self.canvas.draw(self.digests, self.step, asked, device)

    def among(self, where: str | Collection[int]) -> Tensor:
        """Return a group of keys, or the keys at positions of the canvas (padding not counted), bool [batch, key]."""
        return self.canvas.among(where, self.call.key.device)

    def classes(self, classify: Callable[[int], str] | None) -> dict[str, Tensor]:
        """Return where the tokens of each class stand, bool [batch, key]; the first call in a step waits for a GPU."""
        by: Any = classify or self.classify
        device = self.call.key.device

        def make() -> dict[str, Tensor]:
            unique, places = self.canvas.context.tokens.cpu().unique(return_inverse=True)
            names = [by(token) for token in unique.tolist()]
            kinds = list(dict.fromkeys(names))
            numbers = upload(torch.tensor([kinds.index(name) for name in names], device="cpu")[places], device)
            return {name: numbers == number for number, name in enumerate(kinds)}

        return self.canvas.once(("classes", by, device), make)

    def of_class(self, name: str, classify: Callable[[int], str] | None = None) -> Tensor:
        """Return where tokens stand whose class (of `sinks.definition.CLASSES`, or of ``classify``) has this name."""
        places = self.classes(classify)
        return self.real & places[name] if name in places else torch.zeros_like(self.real)
