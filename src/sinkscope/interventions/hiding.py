"""Rules in force on a model: every layer asks them which keys to take away, and their effect is counted."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sinkscope.attention import (
    Columns,
    GenerationStart,
    Hidden,
    Hider,
    LayerCall,
    Session,
    StepContext,
    StepResult,
    query_heads,
    upload,
)
from sinkscope.errors import AttentionError, CallError
from sinkscope.interventions.effect import Effect, Tally, joined
from sinkscope.interventions.rule_context import (
    AttentionMemory,
    Rule,
    RuleContext,
    StepCanvas,
    class_in,
    digests_of,
    pool,
    rank_of,
    spread,
)
from sinkscope.models import Model


class _Chosen(NamedTuple):
    """The keys that a rule has chosen in a layer, and whether for each query by itself."""

    rule: Rule
    hidden: Hidden
    each_query: bool


class Hiding(Hider):
    """Rules (``parts``) while they are in force on a model; `effect` counts what they remove."""

    def __init__(self, parts: Sequence[Rule], model: Model | None) -> None:
        self.parts = tuple(parts)
        self.session: Session | None = None
        self._finished: list[Effect] = []
        self._tally: Tally | None = None
        self._places: dict[str, int] = {}  # stack → place of its first layer among those of the network
        self._crossing: dict[str, set[int]] = {}  # stack → its cross-attention, as far as it has run
        self._layers, self._heads = 0, 0
        self._plain = False  # whether single calls run, of neither a sampler nor a `generate`
        self._took: dict[int, Tensor | None] = {}  # number of a rule → whether it took keys; None where it chose none
        self._head_masks: dict[Any, Tensor] = {}
        self._classify = None if model is None else cache(partial(class_in, model))  # a bare network has no tokenizer
        self._forget()

    def _forget(self, causal: bool = False, prompts: tuple[int, ...] = ()) -> None:
        self._steps: dict[str | None, int] = {}  # stack → steps so far
        self._step = -1
        self._prompts = prompts  # their lengths
        self._canvas: StepCanvas | None = None
        self._canvases: dict[str | None, StepCanvas] = {}  # the newest of each stack
        self._tokens: Tensor | None = None
        self._digests: list[bytes] | None = None
        self._attention = AttentionMemory(causal)
        self._memory: dict[tuple[int, str], dict[str, Any]] = {}
        self._chosen: dict[str, list[_Chosen]] = {}
        # place of a layer → heads in force, their lost attention
        self._in_step: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._received: Tensor | None = None  # attention by position in this step, [batch, 2, key]

    @property
    def effect(self) -> Effect:
        """The effect so far, of all generations since the rules came into force."""
        running = [self._tally.effect(self._layers, self._heads)] if self._tally is not None else []
        return self._explained(joined([*self._finished, *running], self._layers, self._heads))

    def attach(self, session: Session) -> None:
        """Number the network's layers; raise CallError for a rule that is limited to layers or heads it lacks."""
        self.session = session
        for stack in session.stacks:
            self._places[stack.name] = self._layers
            self._layers += len(stack.layers)
        numbers = [stack.layer_numbers(alone=len(session.stacks) == 1) for stack in session.stacks]
        longest = max(len(set(stack.values())) for stack in numbers)
        for part in self.parts if longest else ():  # a foreign network shows its layers only as they run
            asked = [*(part.layers or ()), *(layer for layer, _ in part.heads or ())]
            wrong = [f"the model has the layers 0…{longest - 1}, found {one}" for one in asked if one >= longest]
            for layer, head in part.heads or ():
                known = [
                    query_heads(module) for stack in numbers for module, number in stack.items() if number == layer
                ]
                if head >= (most := max((one for one in known if one), default=head + 1)):  # unknown before it runs
                    wrong.append(f"layer {layer} of the model has the heads 0…{most - 1}, found {layer}.{head}")
            if wrong:
                raise CallError(f"layers or heads: {wrong[0]}")

    def begin_generation(self, start: GenerationStart) -> None:
        self._plain = self.session is not None and self.session.plain
        self._forget(start.causal, start.prompt_lengths)
        if self._tally is not None and not self._tally.empty:
            self._finished.append(self._tally.effect(self._layers, self._heads))
            self._tally = None

    def end_generation(self, failed: bool) -> None:
        """Raise CallError for a rule that asks of a plain call what it never has: a step before, or an answer."""
        for number, part in enumerate(self.parts if self._plain and not failed and self._steps else ()):
            alone = part.waits and self._took.get(number) is None
            groups = {"prompt", "answer"} & {one for one in (part.keys, part.queries) if isinstance(one, str)}
            if (alone or groups) and (why := self._why_nothing(number)):
                raise CallError(f"hide: {part} hid nothing: {why}{'; a call by itself is all prompt' * bool(groups)}")

    def _why_nothing(self, number: int) -> str:
        """Return why a rule has hidden nothing so far; an empty text where it has."""
        part, found = self.parts[number], self._took.get(number)
        if found is not None:
            return "" if bool(found) else "no such key was there for its queries"
        if number not in self._took:
            return "none of its steps or layers was reached"
        return "there was no step before; add observe='current' (@current)" if part.waits else "it chose no keys"

    def _explained(self, effect: Effect) -> Effect:
        parts = self.parts if self._tally or self._finished else ()  # before a step has run nothing is said
        why = {str(part): self._why_nothing(number) for number, part in enumerate(parts)}
        if why and not any(why.values()) and not effect.hidden.sum():
            why = dict.fromkeys(why, "a query keeps all keys where it would lose the last one")
        return replace(effect, without_effect=tuple(f"{part} hid nothing: {one}" for part, one in why.items() if one))

    def begin_step(self, context: StepContext) -> None:
        """Keep the canvas, and run it once without hiding where a rule needs that."""
        self._step = self._steps[context.stack] = self._steps.get(context.stack, -1) + 1
        if context.causal is not None:
            self._attention.causal = context.causal
        if self._plain and self._attention.causal and any(part.waits for part in self.parts):
            before, self._tokens = self._tokens, context.tokens
            width = 0 if before is None else min(before.shape[1], context.tokens.shape[1])
            if before is not None and not torch.equal(before[:, :width], context.tokens[:, :width]):
                self._attention = AttentionMemory(causal=True)  # a call by itself with another text has no step before
        self._tally = self._tally or Tally(len(self._prompts))
        last = self._canvases.get(context.stack)
        self._canvas = StepCanvas(context, context.prompt_lengths or self._prompts, last)
        self._canvases[context.stack], self._chosen, self._in_step = self._canvas, {}, {}
        self._digests = self._digests or digests_of(context)
        for asked, device in {} if last is None else last.drawn.items():
            self._canvas.draw(self._digests, self._step, asked, device)
        if any(part.unhidden_pass for part in self.parts):
            assert self.session is not None
            self._attention.run_unhidden(self.session)

    def end_step(self, result: StepResult | None) -> None:
        canvas, self._canvas = self._canvas, None
        if canvas is None or self._tally is None:
            return
        if result is not None and result.readers is not None:
            for place, (in_force, lost) in self._in_step.items():
                readers = canvas.recorded(result.readers.to(in_force.device)).float()
                counts = {"committed": readers.sum(-1)[:, None] * in_force}
                if lost is not None:
                    counts["removed_committed"] = (lost * readers[:, None, -lost.shape[-1] :]).sum(-1)
                self._tally.add(place, canvas.prompts(in_force.device), **counts)
        self._tally.settle()
        if self._received is not None:
            received = canvas.by_position(self._received)
            self._tally.add_received(canvas.prompts(received.device), received)
        self._in_step, self._received = {}, None

    def layer_state(self) -> Any:
        canvas = self._canvas
        if canvas is None or self._tally is None or not all(map(_of_tensors, self.parts)):
            return None
        made = {name: one for name, one in canvas.made.items() if name[0] != "counted"}  # by the identity of a tensor
        return {
            "canvas": (made, canvas.drawn),
            "attention": self._attention.state,
            "rules": (self._memory, self._took, [one.steps is None or self._step in one.steps for one in self.parts]),
            "effect": (self._in_step, self._received, self._tally.waiting),
        }

    def set_layer_state(self, state: Any, context: StepContext) -> None:
        assert self._tally is not None
        self._canvas = StepCanvas(context, context.prompt_lengths or self._prompts)
        self._canvases[context.stack] = self._canvas
        self._canvas.made, self._canvas.drawn = state["canvas"]
        self._attention.state = state["attention"]
        self._memory, self._took, _ = state["rules"]
        self._in_step, self._received, self._tally.waiting = state["effect"]

    def hide(self, call: LayerCall) -> list[Hidden] | None:
        canvas, device = self._canvas, call.key.device
        if canvas is None:
            return None
        layer = self._layer_of(call)
        parts = [
            (at, part)
            for at, part in enumerate(self.parts)
            if _allowed_in(part, call, layer) and (part.steps is None or self._step in part.steps)
        ]
        if parts and (call.crossing or call.keys != canvas.width):
            raise AttentionError(
                f"{call.name} attends to {call.keys} keys{' of another stack' if call.crossing else ''}, not to the "
                f"{canvas.width} tokens of the canvas; limit the rule by layers= to other layers"
            )
        chosen: list[_Chosen] = []
        assert self._digests is not None
        held, shown = _held(call, canvas.real(device)), call if layer == call.index else replace(call, index=layer)
        for number, part in parts:
            candidates = held if part.keys is None else held & canvas.among(part.keys, device)
            memory = self._memory.setdefault((number, call.name), {})
            known = (self._attention, self._digests, self._classify)
            choice = part.choose(RuleContext(part, self._step, shown, canvas, candidates, memory, *known))
            before = self._took.setdefault(number, None)
            if choice is None:
                continue
            keys = upload(choice, device) if choice.device != device else choice
            keys = (keys[:, :, None] if choice.ndim == 3 else keys) & candidates[:, None, None]
            heads = self._heads_of(part, call)
            if heads is not None:
                keys = keys & heads[:, None, None]
            queries = None
            if part.queries is not None:
                queries = canvas.among(part.queries, device)[:, -call.query.shape[2] :]
                keys = keys & queries.any(-1)[:, None, None, None]  # where no query loses a key, none is hidden
            some = keys.any() if not part.takes_own else torch.ones_like(keys[0, 0, 0, 0])
            self._took[number] = some if before is None else before | some.to(before.device)
            hidden = Hidden(keys, queries, zeroed=part.effect == "zero", front=part.takes_own, heads=heads)
            chosen.append(_Chosen(part, hidden, each_query=choice.ndim == 4))
        if chosen:
            self._chosen[call.name] = chosen
            in_force, queries, steps = self._counted(canvas, call, chosen)
            self._in_step[self._place(call)] = (in_force, None)
            self._count(canvas, call, queries=queries, steps=steps)
        return [one.hidden for one in chosen]

    def observes(self, call: LayerCall) -> bool:
        return self._canvas is not None and any(
            part.observing and _allowed_in(part, call, self._layer_of(call)) for part in self.parts
        )

    def observe(self, call: LayerCall, columns: Columns) -> None:
        canvas = self._canvas
        if canvas is None:
            return
        local = self._attention.keep(call, columns)
        chosen = self._chosen.pop(call.name, [])
        if not chosen or columns.removed is None:
            return
        heads, held, membership = call.query.shape[1], _held(call, canvas.real(call.key.device)), _queries(call)
        in_force, _ = self._in_step[self._place(call)]
        lost = columns.removed * membership[:, None] * in_force[:, None]
        if columns.local is not None and len(self._places) <= 1:
            group = call.groups.index("all")
            both = torch.stack([columns.local[:, :, group], columns.sums[:, :, group]], 1)
            both = (both * in_force[:, None]).sum(2)
            self._received = both if self._received is None else self._received + both.to(self._received.device)
        self._in_step[self._place(call)] = (in_force, canvas.recorded(lost))
        counts = {"removed": lost.sum(-1)}
        each = any(one.hidden.keys.shape[2] > 1 for one in chosen)  # queries lose different keys
        pairs = [(one.hidden.keys, one.hidden.queries) for one in chosen]
        mine = [keys & own[:, None, :, None] if each and own is not None else keys for keys, own in pairs]
        union = reduce(torch.bitwise_or, mine)
        nothing = lost == 0  # of a query with constant keys in front, that may lose all others
        nothing = nothing if union.shape[2] > 1 else nothing.all(-1, keepdim=True)
        spared = (union | ~held[:, None, None]).all(-1) & nothing  # those that would lose the last key keep all
        if mine := [(one.rule, one.hidden.keys[:, :, 0].expand(-1, heads, -1)) for one in chosen if not one.each_query]:
            kept = ~spared.all(-1, keepdim=True)
            together = reduce(torch.bitwise_or, [keys for _, keys in mine])
            taken, top = together.sum(-1, keepdim=True), torch.zeros_like(together)  # among so many largest by its rule
            bounds = [part.most for part, _ in mine]
            most = None if None in bounds else sum(bound or 0 for bound in bounds)
            for part, keys in mine:
                values, scope = part.criterion(local, self._attention.causal)
                ranks = spread(rank_of(pool(values, scope, call.key.shape[1]), held[:, None], most), heads)
                top = top | (keys & (ranks < taken))
            counts["hits"] = (together & top & kept).sum(-1)
            counts["ranked"] = (together & kept).sum(-1)
        hidden = union.float().sum(-1).expand(-1, heads, -1) * ~spared
        if each:
            limited = [own for _, own in pairs if own is not None]
            weight = membership * reduce(torch.bitwise_or, limited) if len(limited) == len(pairs) else membership
            counts["hidden"] = (hidden * weight[:, None]).sum(-1) / weight.sum(-1).clamp(min=1)[:, None]
        else:
            counts["hidden"] = hidden.sum(-1)
        self._count(canvas, call, **{name: canvas.recorded(values) for name, values in counts.items()})

    def describe(self, prompt: int) -> dict[str, Any]:
        """Return the rules, and their effect on one prompt of the running generation."""
        found = {"rules": [repr(part) for part in self.parts]}
        if self._tally is None:
            return found
        effect = self._tally.effect(self._layers, self._heads).of(prompt)
        return found | self._explained(effect).as_dict()

    def _layer_of(self, call: LayerCall) -> int:
        """Return the number of a layer as traces and rules count it: without the cross-attention in front of it."""
        crossing = self._crossing.setdefault(call.stack, set())
        if call.crossing:
            crossing.add(call.index)
        return call.index - sum(one < call.index for one in crossing)

    def _heads_of(self, rule: Rule, call: LayerCall) -> Tensor | None:
        if rule.heads is None:
            return None
        count, device, index = call.query.shape[1], call.key.device, self._layer_of(call)
        name = (rule.heads, index, count, device)
        if name not in self._head_masks:
            mine = [head for layer, head in rule.heads if layer == index]
            mask = torch.zeros(count, dtype=torch.bool, device="cpu")
            mask[[head for head in mine if head < count]] = True
            self._head_masks[name] = upload(mask, device)
        return self._head_masks[name]

    def _counted(self, canvas: StepCanvas, call: LayerCall, chosen: Sequence[_Chosen]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the heads in which any rule is in force, float [head], and queries and steps, float [row, head]."""
        limited = [one.hidden.heads for one in chosen if one.hidden.heads is not None]
        limited = limited if len(limited) == len(chosen) else []

        def counted() -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
            queries = canvas.recorded(_queries(call).sum(-1))[:, None]
            ones = torch.ones(call.query.shape[1], device=call.key.device, dtype=torch.float32)
            in_force = torch.stack(limited).any(0).float() if limited else ones
            steps = in_force.expand(len(queries), -1)
            return in_force, queries * steps, steps, call.membership  # kept, so that no other gets its id

        name = ("counted", id(call.membership), call.query.shape[1])
        return (counted() if limited else canvas.once(name, counted))[:3]

    def _count(self, canvas: StepCanvas, call: LayerCall, **values: Tensor) -> None:
        place = self._place(call)
        self._layers, self._heads = max(self._layers, place + 1), max(self._heads, call.query.shape[1])
        assert self._tally is not None
        self._tally.add(place, canvas.prompts(call.key.device), **values)

    def _place(self, call: LayerCall) -> int:
        return self._places.get(call.stack, 0) + call.index


def _of_tensors(rule: Rule) -> bool:
    """Return whether a rule does nothing on the host while a layer runs; of a rule of others this is not known."""
    ours = type(rule).__module__.startswith(f"{__package__}.")
    return ours and not rule.on_host and not rule.unhidden_pass


def _allowed_in(rule: Rule, call: LayerCall, layer: int) -> bool:
    """Return whether a rule may hide anything in a layer; ``layer`` numbers those of self-attention."""
    if call.crossing:
        return rule.layers is None and rule.heads is None
    among = rule.layers is None or layer in rule.layers
    return among and (rule.heads is None or any(mine == layer for mine, _ in rule.heads))


def _held(call: LayerCall, real: Tensor) -> Tensor:
    """Return the keys that are no padding and are still in the layer's sliding window, bool [batch, key]."""
    return real & (torch.arange(real.shape[1], device=real.device) >= call.first_key) if call.first_key else real


def _queries(call: LayerCall) -> Tensor:
    assert call.membership is not None
    return call.membership[:, call.groups.index("all")]
