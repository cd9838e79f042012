"""Rules in force on a model: every layer asks them which keys to take away, and their effect is counted."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
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
    query_heads,
    upload,
)
from sinkscope.errors import AttentionError, CallError
from sinkscope.interventions.effect import Effect, LayerCounts, Tally, joined, losses, stacked
from sinkscope.interventions.rule_context import AttentionMemory, Rule, RuleContext, StepCanvas, class_in, digests_of
from sinkscope.models import Model


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
        self._wanted = {name for part in self.parts if part.observing for name in part.looks_back}
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
        self._attention = AttentionMemory(self._wanted, causal)
        self._memory: dict[tuple[int, str], dict[str, Any]] = {}
        self._in_step: dict[int, LayerCounts] = {}  # by place of the layer

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
        """Raise CallError for a rule that asks a plain call for a step before, or an answer."""
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
                self._attention = AttentionMemory(self._wanted, causal=True)  # another text has no step before
        self._tally = self._tally or Tally(len(self._prompts))
        last = self._canvases.get(context.stack)
        self._canvas = StepCanvas(context, context.prompt_lengths or self._prompts, last)
        self._canvases[context.stack], self._in_step = self._canvas, {}
        self._digests = self._digests or digests_of(context)
        for asked, device in {} if last is None else last.drawn.items():
            self._canvas.draw(self._digests, self._step, asked, device)
        if any(part.unhidden_pass for part in self.parts):
            assert self.session is not None
            self._attention.run_unhidden(self.session)

    def end_step(self, result: StepResult | None) -> None:
        self._count(None if result is None else result.readers)
        self._canvas = None

    def _count(self, readers: Tensor | None) -> None:
        """Count what the layers of the step have left, all at once."""
        canvas, layers, received = self._canvas, self._in_step, None
        self._in_step = {}
        if canvas is None or self._tally is None:
            return
        for places, one in stacked(layers):
            device, committed = one.queries.device, None
            if readers is not None:  # rows of guidance, behind the others, commit nothing
                committed = pad(readers.to(device).float(), (0, 0, 0, canvas.rows - len(readers)))
            bounds = [self.parts[number].most for number, has in zip(one.rules, one.ranked, strict=True) if has]
            most = None if None in bounds else sum(bound or 0 for bound in bounds)
            counts, found = one.counts(most, committed)
            self._tally.add(places, canvas.prompts(device), canvas.recorded(counts))
            if found is not None:
                received = found if received is None else received + found.to(received.device)
            for number, keys in zip(one.rules, one.keys, strict=True):
                some, before = keys.any() | self.parts[number].takes_own, self._took[number]
                self._took[number] = some if before is None else before | some.to(before.device)
        if received is not None:
            received = canvas.by_position(received)
            self._tally.add_received(canvas.prompts(received.device), received)

    def layer_state(self) -> Any:
        canvas = self._canvas
        if canvas is None or self._tally is None or not all(map(_of_tensors, self.parts)):
            return None
        return {
            "canvas": (canvas.made, canvas.drawn),
            "attention": self._attention.state,
            "rules": (self._memory, self._took, [one.steps is None or self._step in one.steps for one in self.parts]),
            "effect": self._in_step,
        }

    def set_layer_state(self, state: Any, context: StepContext) -> None:
        self._canvas = StepCanvas(context, context.prompt_lengths or self._prompts)
        self._canvases[context.stack] = self._canvas
        self._canvas.made, self._canvas.drawn = state["canvas"]
        self._attention.state = state["attention"]
        self._memory, self._took, _ = state["rules"]
        self._in_step = state["effect"]

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
        found, ranked = dict[int, Hidden](), list[bool]()
        assert self._digests is not None
        held, shown = _held(call, canvas.real(device)), call if layer == call.index else replace(call, index=layer)
        for number, part in parts:
            candidates = held if part.keys is None else held & canvas.among(part.keys, device)
            memory = self._memory.setdefault((number, call.name), {})
            known = (self._attention, self._digests, self._classify)
            choice = part.choose(RuleContext(part, self._step, shown, canvas, candidates, memory, *known))
            self._took.setdefault(number, None)
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
            found[number] = Hidden(keys, queries, zeroed=part.effect == "zero", front=part.takes_own, heads=heads)
            ranked.append(choice.ndim == 3)
        if found:
            self._leave(call, found, tuple(ranked), held)
        return [*found.values()]

    def _leave(self, call: LayerCall, chosen: dict[int, Hidden], ranked: tuple[bool, ...], held: Tensor) -> None:
        """Leave what a layer's rules, by number, have chosen to be counted; where queries lose different keys, sums."""
        place, heads = self._place(call), call.query.shape[1]
        if place in self._in_step:
            self._count(None)
        self._layers, self._heads = max(self._layers, place + 1), max(self._heads, heads)
        limits = tuple(one.heads for one in chosen.values() if one.heads is not None)
        limits = limits if len(limits) == len(chosen) else ()
        pairs, each = [(one.keys, one.queries) for one in chosen.values()], None
        if any(keys.shape[2] > 1 for keys, _ in pairs):
            each = losses([keys if own is None else keys & own[:, None, :, None] for keys, own in pairs], held)
        any_query = tuple(keys.any(2) if keys.shape[2] > 1 else keys[:, :, 0] for keys, _ in pairs)
        chose = (tuple(chosen), ranked, any_query, tuple(own for _, own in pairs))
        self._in_step[place] = LayerCounts(heads, call.key.shape[1], limits, *chose, _queries(call), held, each)

    def observes(self, call: LayerCall) -> bool:
        return self._canvas is not None and any(
            part.observing and _allowed_in(part, call, self._layer_of(call)) for part in self.parts
        )

    def observe(self, call: LayerCall, columns: Columns) -> None:
        canvas = self._canvas
        if canvas is None:
            return
        local, place = self._attention.keep(call, columns), self._place(call)
        if columns.removed is None or place not in self._in_step:
            return
        left, group, received = self._in_step[place], call.groups.index("all"), ()
        if columns.local is not None and len(self._places) <= 1:
            received = (columns.local[:, :, group], columns.sums[:, :, group])
        parts = [self.parts[number] for number, has in zip(left.rules, left.ranked, strict=True) if has]
        values = tuple(one.criterion(local, self._attention.causal) for one in parts)
        self._in_step[place] = left._replace(removed=columns.removed, received=received, values=values)

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
