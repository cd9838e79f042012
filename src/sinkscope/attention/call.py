"""One running call of a stack: the requests of its subscribers in each layer, and the columns they see."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from sinkscope.attention.blockwise import KeptBias
from sinkscope.attention.dispatch import compute
from sinkscope.attention.records import (
    AttentionInputs,
    CallPart,
    Columns,
    Hidden,
    Hider,
    LayerCall,
    Prefix,
    Prepender,
    Replacer,
    StepContext,
    Subscriber,
    Watcher,
    upload,
    visible,
)
from sinkscope.attention.stacks import Stack
from sinkscope.errors import AttentionError

running: list["Call"] = []
"""Calls that have begun and not ended, innermost last; operators in compiled layers use the newest."""


def call_ends(call: "Call") -> None:
    """Remove a call whose stack has returned or raised, with all calls within it."""
    if call in running:
        del running[running.index(call) :]


@dataclass(eq=False)
class Call:
    """A call of a stack while it runs, as `hooks.attention_forward` receives it.

    Attributes:
        prompt_lengths: tokens of the prompts, one for each row or one for all.
        inferred: whether the step was read from the arguments of the call, ``cache`` among them.
        seeing_ahead: returns the corrected step of a stack that says it is causal and is not.
        hidden_states: the input of each layer, by attention module; hooks around the layers note it.
        crossing: attention modules whose keys belong to another stack.
        reported: whether any layer has computed its attention here.
        closed: whether the stack has returned; a gradient checkpoint runs layers again in the backward pass.
        uploaded: lengths of rows and prompts on the device, which the calls of a session share.
        capturing: whether the step is captured by one who replays what its subscribers see.
    """

    stack: Stack
    subscribers: Sequence[Subscriber]
    context: StepContext | None
    prompt_lengths: tuple[int, ...]
    inferred: bool
    cache: Any
    kept_bias: KeptBias
    uploaded: dict[str, Any] = field(default_factory=dict)
    capturing: bool = False
    part: CallPart | None = None
    seeing_ahead: Callable[[], StepContext] | None = None
    hidden_states: dict[nn.Module, Tensor] = field(default_factory=dict)
    crossing: set[nn.Module] = field(default_factory=set)
    reported: bool = False
    closed: bool = False

    def __post_init__(self) -> None:
        self._turn, self._ran = 0, set[str]()
        self._watchers = [one for one in self.subscribers if isinstance(one, Watcher)]
        self._hiders = [one for one in self.subscribers if isinstance(one, Hider)]
        self._prependers = [one for one in self.subscribers if isinstance(one, Prepender)]
        self._replacers = [one for one in self.subscribers if isinstance(one, Replacer)]
        self.groups = tuple(dict.fromkeys(["all", *(group for watcher in self._watchers for group in watcher.groups)]))
        self._membership: Tensor | None = None
        self._requests: dict[str, tuple[list[Hidden], Prefix | None, bool]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Call":
        return self

    def layer(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        own: Prefix | None,
        mask: Tensor | None,
        causal: bool,
    ) -> LayerCall | None:
        """Return the record of a layer, None for attention that does not belong to the stack."""
        if module not in self.stack.layers:
            return None
        if self.seeing_ahead is not None:
            correct, self.seeing_ahead = self.seeing_ahead, None
            later = 1 + key.shape[2] - query.shape[2]
            ahead = mask is None or bool(visible(mask).flatten(0, 1).any(dim=0).triu(later).any())
            if not causal and query.shape[2] > 1 and ahead:
                self.context = correct()
        name, index = self.stack.layers[module]
        if not self.closed and name in self._ran:
            raise AttentionError(
                f"expected each layer of {self.stack.name or 'the network'} to run once in a call, found {name} a "
                "second time; layers that share a module, or attend twice (DiffLlama), are not modelled"
            )
        self._ran.add(name)
        self._turn = index + 1  # only some layers may be compiled
        return self.named_layer(module, name, index, query, key, value, own)

    def named_layer(
        self,
        module: nn.Module,
        name: str,
        index: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        own: Prefix | None = None,
    ) -> LayerCall:
        """Return the record of a layer whose name and index are known; ``own`` are the network's constant keys."""
        self.reported = True
        if not self.capturing and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise AttentionError(
                f"expected {name} to run in every step, found it captured in a CUDA graph; leave 'reduce-overhead' out"
            )
        first_key, crossing = 0, module in self.crossing
        if self.context is not None and self.inferred and not crossing:
            first_key = self.context.tokens.shape[1] - key.shape[2]
            slides = any(getattr(self.cache, "is_sliding", ()))  # some layers hold only the newest tokens
            if first_key < 0 or (first_key and not slides):
                raise AttentionError(
                    f"expected {name} to look at the {self.context.tokens.shape[1]} tokens so far, found "
                    f"{key.shape[2]} keys; such attention is not modelled"
                )
        if self._membership is None:
            self._membership = self._members(query)
        members = self._membership.to(query.device)
        hidden_states = self.hidden_states.pop(module, None)  # popped: only its norms are needed
        given = (query, key, value, hidden_states, self.groups, members, self.stack.name, first_key, crossing)
        return LayerCall(name, index, *given, own=own, part=self.part)

    def next_modules(self) -> list[nn.Module]:
        return list(self.stack.layers)[self._turn :]  # compiled layers run in order, once each

    def attend(
        self, layer: LayerCall, scale: float, mask: Tensor | None, causal: bool, dropout: float
    ) -> Tensor | None:
        """Return the attention of a layer as the subscribers request it, and show them its columns."""
        replaced = False
        for replacer in self._replacers:
            if (given := replacer.replace(layer)) is not None:
                layer, replaced = replace(layer, key=given[0], value=given[1]), True
        assert layer.membership is not None
        inputs = AttentionInputs(layer.query, layer.key, layer.value, layer.membership, scale, mask, causal)
        hidden, prefix, in_force = self._requests_for(layer, inputs)
        if not in_force and not replaced:
            return None
        if dropout:
            raise AttentionError(
                f"expected no attention dropout while watching or hiding, found {dropout}; call network.eval()"
            )
        if hidden or prefix is not None:
            inputs = replace(inputs, hidden=hidden, prefix=prefix)
        output, columns = compute(inputs, kept_bias=self.kept_bias)
        if self.closed:  # the layer runs a second time
            return output
        placed = _placed(columns, layer.first_key) if layer.first_key else columns
        shown = replace(layer, seen=inputs.seen, scale=inputs.scale) if self._watchers else layer
        for watcher in self._watchers:
            watcher.watch(shown, placed)
        for hider in self._hiders:
            hider.observe(layer, placed)
        return output

    def _requests_for(self, layer: LayerCall, inputs: AttentionInputs) -> tuple[list[Hidden], Prefix | None, bool]:
        """Return the keys taken from a layer, over its own keys, the constant keys in front, and whether anything is
        requested; a second run of the layer gets what the first got.
        """
        if not self._hiders and not self._prependers:
            return [], layer.own, bool(self._watchers)
        if self.closed and layer.name in self._requests:
            return self._requests[layer.name]
        prefixes = [one for one in (layer.own, *(one.prepend(layer) for one in self._prependers)) if one is not None]
        if len(self._prependers) > 1 or len(prefixes) > 1:
            raise AttentionError("expected one prefix, found two prependers, or one on a network with its own sink")
        prefix = prefixes[0] if prefixes else None
        bare = None if prefix is None else replace(prefix, values=None)

        @functools.cache  # several rules, or a rule that asks twice, share one pass
        @torch.no_grad()  # what a gradient checkpoint saves has to be the same in both runs
        def measure(queries: Tensor | None = None) -> Columns:
            groups = inputs.groups if queries is None else queries[:, None]
            narrow = replace(inputs, value=inputs.value[..., :1], prefix=bare, groups=groups)
            return _placed(compute(narrow, kept_bias=self.kept_bias)[1], layer.first_key)

        measured = replace(layer, measure=measure)
        asked = [
            replace(one, keys=one.keys[..., layer.first_key :])
            for hider in self._hiders
            for one in _hidden_by(hider, measured)
        ]
        # Asking a GPU whether it holds any key would wait.
        hidden = [
            one for one in asked if one.keys.is_cuda or bool(one.keys.any()) or (one.front and prefix is not None)
        ]
        observed = any([hider.observes(layer) for hider in self._hiders])  # every hider is asked
        in_force = bool(self._watchers) or observed or bool(hidden) or prefix is not layer.own
        self._requests[layer.name] = hidden, prefix, in_force
        return self._requests[layer.name]

    def _members(self, query: Tensor) -> Tensor:
        """Return which queries of the call belong to which group, float32 [batch, group, query]."""
        batch, queries, device = query.shape[0], query.shape[2], query.device
        if self.context is None:
            return torch.ones(batch, len(self.groups), queries, device=device, dtype=torch.float32)
        rows, length = self.context.tokens.shape
        own = [self.prompt_lengths[row % len(self.prompt_lengths)] for row in range(rows)]
        layout = [self.context.lengths.tolist(), own]
        if self.uploaded.get("layout") != (layout, device):
            self.uploaded |= {"layout": (layout, device), "tensor": upload(torch.tensor(layout, device="cpu"), device)}
        lengths, prompts = self.uploaded["tensor"][:, :, None]
        position, first = torch.arange(length, device=device)[None], length - lengths
        real, masked = position >= first, upload(self.context.masked, device)
        kinds = {"all": real, "masked": real & masked, "unmasked": real & ~masked}
        kinds["prompt"] = real & (position < first + prompts)
        members = torch.stack([kinds[group] for group in self.groups], dim=1)
        return members[..., length - queries :].float() if self.part is None else self.part.of(members.float())


def _hidden_by(hider: Hider, layer: LayerCall) -> list[Hidden]:
    answer, device = hider.hide(layer), layer.key.device
    if answer is None:
        return []
    hidden = []
    for one in [Hidden(answer[:, :, None])] if isinstance(answer, Tensor) else answer:
        masks = {name: getattr(one, name) for name in ("keys", "queries", "heads") if getattr(one, name) is not None}
        boolean = all(mask.dtype == torch.bool for mask in masks.values())
        if not boolean or one.keys.ndim != 4 or one.keys.shape[-1] != layer.keys:
            raise AttentionError(
                f"{type(hider).__name__}.hide in {layer.name}: expected bool masks whose last axis are all "
                f"{layer.keys} tokens so far (LayerCall.keys), found {one.keys.dtype} {list(one.keys.shape)}"
            )
        elsewhere = {name: upload(mask, device) for name, mask in masks.items() if mask.device != device}
        hidden.append(replace(one, **elsewhere) if elsewhere else one)
    return hidden


def _placed(columns: Columns, first_key: int) -> Columns:
    """Return columns over all tokens so far; tokens that the layer no longer holds receive 0."""
    return replace(
        columns,
        sums=pad(columns.sums, (first_key, 0)),
        local=None if columns.local is None else pad(columns.local, (first_key, 0)),
        last_row=pad(columns.last_row, (first_key, 0)),
        last_row_in_force=pad(columns.last_row_in_force, (first_key, 0)),
    )
