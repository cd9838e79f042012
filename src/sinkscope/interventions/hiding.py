"""A running intervention: what it remembers from step to step, asked by every layer which keys to take away."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from sinkscope.attention import (
    Columns,
    GenerationStart,
    Hidden,
    Hider,
    LayerCall,
    Session,
    StepContext,
    StepResult,
    Watcher,
    subscribed,
    upload,
)
from sinkscope.errors import AttentionError, CallError
from sinkscope.interventions.canvas import Canvas
from sinkscope.interventions.effect import Effect, Tally, joined
from sinkscope.interventions.ranking import pool, rank_of, spread
from sinkscope.interventions.token_classes import class_in
from sinkscope.models import Model

if TYPE_CHECKING:
    from sinkscope.interventions.intervention import Intervention


@dataclass(frozen=True)
class Observation:
    """The attention of one layer in one step, in the coordinates of its keys.

    Attributes:
        columns: [batch, head, key], column sums; running sums over all queries so far for causal models.
        last_row: [batch, head, key], the newest query's own attention.
        keys: how many keys there were.
    """

    columns: Tensor
    last_row: Tensor
    keys: int

    def widened(self, keys: int) -> "Observation":
        """With zeros for keys that have come since."""
        return Observation(pad(self.columns, (0, keys - self.keys)), pad(self.last_row, (0, keys - self.keys)), self.keys)


class _Clean(Watcher):
    """Keeps what every layer shows in a forward call without hiding."""

    def __init__(self) -> None:
        self.seen: dict[str, Observation] = {}

    def watch(self, call: LayerCall, columns: Columns) -> None:
        self.seen[call.name] = Observation(columns.sums[:, :, call.groups.index("all")], columns.last_row, call.keys)


@dataclass(frozen=True)
class RuleContext:
    """What a rule may know when it chooses the keys of one layer in one step.

    Attributes:
        step: number of the step in its generation, from 0.
        call: the layer's queries and keys.
        tokens: int64 [batch, key].
        real: bool [batch, key], False on padding.
        candidates: bool [batch, key], the keys that may be chosen; behind a sliding window those it still holds.
        causal: columns are running sums over the queries so far.
        memory: what the rule kept for this layer since the generation began; empty at first.
    """

    step: int
    call: LayerCall
    tokens: Tensor
    real: Tensor
    candidates: Tensor
    causal: bool
    memory: dict[str, Any]
    hiding: "Hiding"

    def seen(self, observe: str, measured: str) -> Observation | None:
        """The attention a rule goes by, as wide as the keys are now; None where there is none yet.

        Args:
            observe: ``previous`` or ``current`` step.
            measured: ``local``, ``hidden`` or ``clean``. Before a layer has run nothing is hidden in it, so for the
                current step ``hidden`` is ``local``.
        """
        found = self.hiding.look_back(self.call, measured) if observe == "previous" else self.hiding.look_now(self.call, measured)
        keys = self.call.keys
        return None if found is None or found.keys > keys else found.widened(keys)

    def draw(self, seed: int, groups: int) -> Tensor:
        """Random numbers [batch, group, key]: a function of seed, prompt, step and layer, whatever stands beside in the batch."""
        return self.hiding.draw(self.call, seed, groups)

    def among(self, where: str | Collection[int]) -> Tensor:
        """Bool [batch, key]: a group of keys, or positions of the canvas without padding."""
        return self.hiding.canvas.among(where, self.real.device)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest row."""
        return self.hiding.canvas.shortest

    def classes(self, classify: Callable[[int], str] | None) -> dict[int, Tensor]:
        """Number of each class → bool [batch, key], where its tokens stand; by the model's own tokenizer when ``classify`` is None.

        The first layer that asks in a step waits for the canvas, as Python knows the classes.
        """
        return self.hiding.classes(self.real.device, classify)


class Hiding(Hider):
    """An intervention while it is in force on a model; `effect` says what came of it.

    Attributes:
        parts: the rules in force.
        model: the model, None where a bare network was given.
    """

    def __init__(self, parts: Sequence["Intervention"], model: Model | None, network: nn.Module) -> None:
        self.parts, self.model, self._network = tuple(parts), model, network
        self.session: Session | None = None
        self._finished: list[Effect] = []
        self._tally: Tally | None = None
        self._places: dict[str, int] = {}  # stack → place of its first layer among those of the network
        self._layers, self._heads = 0, 0
        self._classes: dict[Callable[[int], str], dict[int, int]] = {}
        self._class_names: dict[str, int] = {}
        self._forget()

    def _forget(self) -> None:
        self._steps: dict[str | None, int] = {}  # stack → steps so far
        self._step, self._causal = -1, False
        self._start: GenerationStart | None = None
        self._canvas: Canvas | None = None
        self._rows: list[bytes] = []
        self._before: dict[str, dict[str, Observation]] = {}  # layer → measured → seen
        self._clean: dict[str, Observation] = {}
        self._clean_before: dict[str, Observation] = {}
        self._memory: dict[tuple[int, str], dict[str, Any]] = {}
        self._chosen: dict[str, list[tuple[Intervention, Tensor]]] = {}

    @property
    def effect(self) -> Effect:
        """What came of it so far, all generations of the context."""
        running = [self._tally.effect(self._layers, self._heads)] if self._tally is not None else []
        return joined([*self._finished, *running], self._layers, self._heads)

    def attach(self, session: Session) -> None:
        """Called once by `hiding`, with the session it hangs in.

        Raises:
            CallError: a rule is limited to layers that the model does not have.
        """
        self.session = session
        for stack in session.stacks:
            self._places[stack.name] = self._layers
            self._layers += len(stack.layers)
        longest = max(len(stack.layers) for stack in session.stacks)
        for part in self.parts if longest else ():  # a foreign network shows its layers only as they run
            beyond = [layer for layer in part.layers or () if layer >= longest]
            if beyond:
                raise CallError(f"layers: the model has the layers 0…{longest - 1}, found {beyond[0]}")

    # What the session tells

    def begin_generation(self, start: GenerationStart) -> None:
        """Forgets the generation before."""
        self._forget()
        self._start, self._causal = start, start.causal
        if self._tally is not None:
            self._finished.append(self._tally.effect(self._layers, self._heads))
            self._tally = None

    def begin_step(self, context: StepContext) -> None:
        """Keeps the canvas; looks aside where a rule asks for attention without any hiding."""
        self._step = self._steps[context.stack] = self._steps.get(context.stack, -1) + 1
        if context.causal is not None:
            self._causal = context.causal
        prompts = () if self._start is None else self._start.prompt_lengths
        self._canvas, self._chosen = Canvas(context, context.prompt_lengths or prompts), {}
        if not self._rows:
            tokens, lengths = context.tokens.cpu(), self._canvas.lengths
            self._rows = [blake2b(row[len(row) - own :].numpy().tobytes()).digest() for row, own in zip(tokens, lengths, strict=True)]
        elif len(self._rows) != len(context.tokens):
            raise AttentionError(f"expected the batch of {len(self._rows)} rows the generation began with, found {len(context.tokens)}")
        if any(part.unhidden_pass for part in self.parts):
            assert self.session is not None
            self._clean_before = self._clean
            self.session.unhidden_pass(watcher := _Clean())
            self._clean = watcher.seen

    def end_step(self, result: StepResult | None) -> None:
        """A call that comes before the next step is nobody's."""
        self._canvas = None

    def hide(self, call: LayerCall) -> list[Hidden] | None:
        """What the rules take away in this layer."""
        canvas, device = self._canvas, call.key.device
        if canvas is None:
            return None
        parts = [
            (number, part)
            for number, part in enumerate(self.parts)
            if _allowed(part.layers, call.index) and _allowed(part.steps, self._step)
        ]
        if parts and (call.crossing or call.keys != canvas.width):
            raise AttentionError(
                f"expected {call.name} to attend to the {canvas.width} tokens of the canvas, found {call.keys} keys"
                f"{' of another stack' if call.crossing else ''}; cross-attention and shortened caches cannot be hidden from, "
                "limit the rule by layers="
            )
        found, chosen = [], []
        real = canvas.real(device)
        held = _held(call, real)
        for number, part in parts:
            candidates = held if part.keys is None else held & canvas.among(part.keys, device)
            memory = self._memory.setdefault((number, call.name), {})
            keys = part.choose(RuleContext(self._step, call, canvas.tokens(device), real, candidates, self._causal, memory, self))
            if keys is None:
                continue
            keys = (keys if keys.ndim == 4 else keys[:, :, None]) & candidates[:, None, None]
            queries = None if part.queries is None else canvas.among(part.queries, device)[:, -call.query.shape[2] :]
            found.append(Hidden(keys, queries, zeroed=part.effect == "zero", front=part.takes_own))
            chosen.append((part, keys))
        if found:
            self._chosen[call.name] = chosen
            queries = canvas.recorded(_everybody(call))
            self._count(call).add(self._place(call), canvas.prompts(device), queries=queries, steps=torch.ones_like(queries))
        return found

    def observes(self, call: LayerCall) -> bool:
        """Whether a rule goes by this layer's columns in the next step."""
        return self._canvas is not None and any(part.observing and _allowed(part.layers, call.index) for part in self.parts)

    def observe(self, call: LayerCall, columns: Columns) -> None:
        """Keeps what the layer saw, and counts what was removed."""
        if self._canvas is None:
            return
        everybody = call.groups.index("all")
        local = columns.sums if columns.local is None else columns.local
        seen = {
            "local": self._add_up(call, "local", Observation(local[:, :, everybody], columns.last_row, call.keys)),
            "hidden": self._add_up(call, "hidden", Observation(columns.sums[:, :, everybody], columns.last_row_in_force, call.keys)),
        }
        chosen = self._chosen.pop(call.name, [])
        if chosen and columns.removed is not None:
            self._count_effect(call, columns.removed, chosen, seen["local"])
        self._before[call.name] = seen

    def describe(self, prompt: int) -> dict[str, Any]:
        """The rules, and what came of them for one prompt of the running generation."""
        rules = [repr(part) for part in self.parts]
        return {"rules": rules, **({} if self._tally is None else self._tally.effect(self._layers, self._heads).of(prompt).as_dict())}

    # What rules ask for

    def look_back(self, call: LayerCall, measured: str) -> Observation | None:
        """This layer in the step before."""
        return self._clean_before.get(call.name) if measured == "clean" else self._before.get(call.name, {}).get(measured)

    def look_now(self, call: LayerCall, measured: str) -> Observation:
        """This layer in the step that is running, before anything is hidden in it."""
        if measured == "clean":
            return self._clean[call.name]
        assert call.measure is not None
        columns = call.measure()
        return self._add_up(call, "local", Observation(columns.sums[:, :, call.groups.index("all")], columns.last_row, call.keys))

    def draw(self, call: LayerCall, seed: int, groups: int) -> Tensor:
        """See `RuleContext.draw`."""
        keys = call.keys
        drawn = torch.zeros(len(self._rows), groups, keys, device="cpu")
        for row, (digest, length) in enumerate(zip(self._rows, self.canvas.lengths, strict=True)):
            key = blake2b(digest + f"{seed} {self._step} {call.index}".encode(), digest_size=7).digest()
            source = torch.Generator("cpu").manual_seed(int.from_bytes(key, "big"))
            drawn[row, :, keys - length :] = torch.rand(groups, length, generator=source, device="cpu")
        return upload(drawn, call.key.device)

    @property
    def canvas(self) -> Canvas:
        """Of the running step."""
        assert self._canvas is not None
        return self._canvas

    def classes(self, device: torch.device, classify: Callable[[int], str] | None) -> dict[int, Tensor]:
        """See `RuleContext.classes`."""
        if classify is None:
            if self.model is None:
                raise CallError("classify: expected a function from token id to class, as a bare network has no tokenizer")
            classify = self._classify_by_tokenizer
        numbers = self.canvas.once(("classes", classify), lambda: self._numbered(classify))
        there = self.canvas.once(("classes", classify, device), lambda: upload(numbers, device))
        return self.canvas.once(("of each class", classify, device), lambda: {one: there == one for one in numbers.unique().tolist()})

    # How it is done

    def _numbered(self, classify: Callable[[int], str]) -> Tensor:
        """Class of every token as a number, int64 [batch, position] on the host."""
        known = self._classes.setdefault(classify, {})
        unique, places = self.canvas.context.tokens.cpu().unique(return_inverse=True)
        for token in unique.tolist():
            if token not in known:
                known[token] = self._class_names.setdefault(classify(token), len(self._class_names))
        return torch.tensor([known[token] for token in unique.tolist()], device="cpu")[places]

    def _classify_by_tokenizer(self, token: int) -> str:
        assert self.model is not None
        return class_in(self.model, token)

    def _add_up(self, call: LayerCall, measured: str, seen: Observation) -> Observation:
        """Behind a cache a causal model's columns add up; a step of all queries begins anew."""
        before = self._before.get(call.name, {}).get(measured)
        if not self._causal or before is None or call.query.shape[2] == call.keys:
            return seen
        return Observation(seen.columns + before.widened(seen.keys).columns, seen.last_row, seen.keys)

    def _count(self, call: LayerCall) -> Tally:
        self._layers, self._heads = max(self._layers, self._place(call) + 1), max(self._heads, call.query.shape[1])
        if self._tally is None:
            assert self._start is not None
            self._tally = Tally(len(self._start.prompt_lengths))
        return self._tally

    def _place(self, call: LayerCall) -> int:
        return self._places.get(call.stack, 0) + call.index

    def _count_effect(self, call: LayerCall, removed: Tensor, chosen: list[tuple["Intervention", Tensor]], seen: Observation) -> None:
        canvas, device = self.canvas, call.key.device
        held = _held(call, canvas.real(device))
        membership = _everybody(call, per_query=True)
        counts = {"removed": (removed * membership[:, None]).sum(-1)}
        union = torch.zeros(1, dtype=torch.bool, device=device)
        for part, keys in chosen:
            union = union | keys
            if keys.shape[2] == 1:
                mine = keys[:, :, 0].expand(-1, call.query.shape[1], -1)
                values, scope = part.criterion(seen, self._causal)
                ranks = spread(rank_of(pool(values, scope, call.key.shape[1]), held[:, None], part.most), call.query.shape[1])
                top = ranks < mine.sum(-1, keepdim=True)
                counts["hits"] = counts.get("hits", 0) + (mine & top).sum(-1)
                counts["ranked"] = counts.get("ranked", 0) + mine.sum(-1)
        hidden = union.float().sum(-1).expand(-1, call.query.shape[1], -1)
        weight = membership if hidden.shape[-1] > 1 else torch.ones_like(membership[:, :1])
        counts["hidden"] = (hidden * weight[:, None]).sum(-1) / weight.sum(-1).clamp(min=1)[:, None]
        shown = {name: canvas.recorded(values) for name, values in counts.items()}
        self._count(call).add(self._place(call), canvas.prompts(device), **shown)


def _allowed(numbers: Any, number: int) -> bool:
    return numbers is None or number in numbers


def _held(call: LayerCall, real: Tensor) -> Tensor:
    """Bool [batch, key]: no padding, and not fallen out of the layer's sliding window."""
    return real & (torch.arange(real.shape[1], device=real.device) >= call.first_key) if call.first_key else real


def _everybody(call: LayerCall, per_query: bool = False) -> Tensor:
    """Queries that are no padding: how many [batch], or which [batch, query]."""
    assert call.membership is not None
    members = call.membership[:, call.groups.index("all")]
    return members if per_query else members.sum(-1)


@contextmanager
def hiding(model: Model | nn.Module, parts: Sequence["Intervention"]) -> Iterator[Hiding]:
    """Hangs rules into a model while the body runs; see `Intervention`."""
    network = model.network if isinstance(model, Model) else model
    if not isinstance(network, nn.Module):
        raise CallError(f"expected a sinkscope Model or a transformers module, found {type(model).__name__}")
    active = [part for part in parts if not part.idle]
    running = Hiding(active, model if isinstance(model, Model) else None, network)
    if not active:
        yield running
        return
    with subscribed(network, running) as session:
        running.attach(session)
        yield running
