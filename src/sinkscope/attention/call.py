"""One running call of a stack: who asked for what, and the records its layers show."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from sinkscope.attention.hidden import Hidden
from sinkscope.attention.records import LayerCall, StepContext
from sinkscope.attention.stack_input import slides
from sinkscope.attention.stacks import Stack
from sinkscope.attention.subscribers import Hider, Prepender, Watcher
from sinkscope.attention.sweep import Columns, Prefix
from sinkscope.attention.uploads import upload
from sinkscope.errors import AttentionError

if TYPE_CHECKING:
    from sinkscope.attention.session import Session


@dataclass
class LayerNotes:
    """What the hooks around a layer saw in this call."""

    hidden_states: dict[nn.Module, Tensor] = field(default_factory=dict)
    crossing: set[nn.Module] = field(default_factory=set)


@dataclass(frozen=True)
class Answers:
    """What the subscribers want of one layer.

    Attributes:
        hidden: what is taken away, over the layer's own keys.
        prefix: the constant keys in front, those of the network itself included.
        in_force: whether the layer cannot run as ever.
    """

    hidden: list[Hidden]
    prefix: Prefix | None
    in_force: bool


class Call:
    """What `seam.attention_forward` receives.

    Args:
        session: whose subscribers are told.
        stack: that is called.
        context: the step, None where it is nobody's.
        prompt_lengths: of the generation.
        cache: that came with the call, where the step was read from its arguments.
    """

    def __init__(
        self, session: "Session", stack: Stack, context: StepContext | None, prompt_lengths: tuple[int, ...], cache: Any = None
    ) -> None:
        self._notes, self._stack, self._context, self._prompt_lengths = session.notes, stack, context, prompt_lengths
        self._inferred, self._cache = not session.published, cache
        self.workspace = session.workspace
        self.reported = False
        self._turn = 0
        self.closed = False  # a gradient checkpoint runs layers once more, in the backward pass
        subscribers = session.subscribers
        self._watchers = [one for one in subscribers if isinstance(one, Watcher)]
        self._hiders = [one for one in subscribers if isinstance(one, Hider)]
        self._prependers = [one for one in subscribers if isinstance(one, Prepender)]
        self.groups = tuple(dict.fromkeys(["all", *(group for watcher in self._watchers for group in watcher.groups)]))
        self._membership: Tensor | None = None
        self._answers: dict[str, Answers] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Call":
        return self

    def layer(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> LayerCall | None:
        """The record of this layer, None for attention that does not belong to the stack."""
        if module not in self._stack.layers:
            return None
        return self.named_layer(module, *self._stack.layers[module], query, key, value)

    def named_layer(self, module: nn.Module, name: str, index: int, query: Tensor, key: Tensor, value: Tensor) -> LayerCall:
        """The record of a layer whose name and index are known.

        Raises:
            AttentionError: keys that are neither the tokens so far, the newest of them, nor another stack's; or a CUDA graph is
                being captured.
        """
        self.reported = True
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise AttentionError(
                f"expected {name} to run in every step, found it captured in a CUDA graph, whose replays nobody would see; "
                'leave graphs (torch.compile with mode="reduce-overhead") out while something watches or hides'
            )
        first_key, crossing = 0, module in self._notes.crossing
        if self._context is not None and self._inferred and not crossing:
            first_key = self._context.tokens.shape[1] - key.shape[2]
            if first_key < 0 or (first_key and not slides(self._cache)):
                raise AttentionError(
                    f"expected {name} to look at the {self._context.tokens.shape[1]} tokens so far, found {key.shape[2]} keys; "
                    "this kind of attention is not modelled by sinkscope"
                )
        hidden_states = self._notes.hidden_states.pop(module, None)  # the norms are all that is wanted of them
        members = self._members(query)
        return LayerCall(name, index, query, key, value, hidden_states, self.groups, members, self._stack.name, first_key, crossing)

    def next_module(self) -> nn.Module:
        """The attention module whose turn it is in a stack of compiled layers, which run in order, once each.

        Raises:
            AttentionError: more calls than the stack has layers.
        """
        self._turn += 1
        if self._turn > len(self._stack.layers):
            raise AttentionError(
                f"expected the {len(self._stack.layers)} compiled layers of {self._stack.name or 'the network'} to run in order, once "
                f"each, found a call number {self._turn}; do not compile them while something watches or hides"
            )
        return list(self._stack.layers)[self._turn - 1]

    def note_entering(self, hidden_states: Tensor) -> None:
        """Keeps what enters the compiled layer whose turn is next."""
        if self._turn < len(self._stack.layers):
            self._notes.hidden_states[list(self._stack.layers)[self._turn]] = hidden_states

    def answers(self, call: LayerCall, sweep: Callable[..., tuple[Tensor, Columns]]) -> Answers:
        """What is asked of this layer; a second run gets the first one's answers.

        Args:
            call: the layer.
            sweep: `attend` with the layer's queries and keys; it takes values, ``hidden`` and ``prefix``.
        """
        if not (self.closed and call.name in self._answers):
            prepended = self.prefix(call)
            prefix = _only(prepended, call.own)
            bare = None if prefix is None else replace(prefix, values=None)

            @functools.cache  # rules that stand together, and a rule that asks twice, share one sweep
            @torch.no_grad()  # what a gradient checkpoint saves has to be the same in both runs
            def measure() -> Columns:
                return _placed(sweep(call.value[..., :1], prefix=bare)[1], call.first_key)

            own = [replace(one, keys=one.keys[..., call.first_key :]) for one in self.hidden(replace(call, measure=measure))]
            hidden = [
                one for one in own if one.keys.is_cuda or bool(one.keys.any()) or (one.front and prefix is not None)
            ]  # asking a GPU would wait
            self._answers[call.name] = Answers(hidden, prefix, self.watched(call) or bool(hidden) or prepended is not None)
        return self._answers[call.name]

    def hidden(self, call: LayerCall) -> list[Hidden]:
        """What every hider takes away, over all tokens so far."""
        found: list[Hidden] = []
        for hider in self._hiders:
            mine = hider.hide(call)
            found += [] if mine is None else [Hidden(mine[:, :, None])] if isinstance(mine, Tensor) else mine
        for one in found:
            if one.keys.shape[-1] != call.keys:
                raise AttentionError(
                    f"expected hidden keys of {call.name} over {call.keys} tokens, found {one.keys.shape[-1]}; "
                    "a layer with a sliding window holds fewer keys than there are tokens, LayerCall.keys counts them all"
                )
        return found

    def prefix(self, call: LayerCall) -> Prefix | None:
        """The constant keys in front, from the only prepender."""
        if len(self._prependers) > 1:
            raise AttentionError(f"expected at most one prepender on a model, found {len(self._prependers)}")
        return self._prependers[0].prepend(call) if self._prependers else None

    def watched(self, call: LayerCall) -> bool:
        """Whether anybody wants columns of this layer."""
        return bool(self._watchers) or any([hider.observes(call) for hider in self._hiders])

    def show(self, call: LayerCall, columns: Columns) -> None:
        """Tells everybody what the layer saw, columns in their absolute place; nobody when a layer is run once more."""
        if self.closed:
            return
        placed = _placed(columns, call.first_key)
        for watcher in self._watchers:
            watcher.watch(call, placed)
        for hider in self._hiders:
            hider.observe(call, placed)

    def _members(self, query: Tensor) -> Tensor:
        if self._membership is None:
            batch, queries = query.shape[0], query.shape[2]
            if self._context is None:
                self._membership = torch.ones(batch, len(self.groups), queries, device=query.device)
            else:
                self._membership = _membership(self._context, self._prompt_lengths, self.groups, queries, query.device)
        return self._membership.to(query.device)  # a model may be spread over devices


def _only(prepended: Prefix | None, own: Prefix | None) -> Prefix | None:
    if prepended is not None and own is not None:
        raise AttentionError("expected one prefix, found a prepender on a network that has a sink of its own; take one of them away")
    return own if prepended is None else prepended


def _placed(columns: Columns, first_key: int) -> Columns:
    """Columns over all tokens so far: those a layer no longer holds receive nothing."""
    if not first_key:
        return columns
    return replace(
        columns,
        sums=pad(columns.sums, (first_key, 0)),
        local=None if columns.local is None else pad(columns.local, (first_key, 0)),
        last_row=pad(columns.last_row, (first_key, 0)),
        last_row_in_force=pad(columns.last_row_in_force, (first_key, 0)),
    )


def _membership(
    context: StepContext, prompt_lengths: tuple[int, ...], groups: tuple[str, ...], queries: int, device: torch.device
) -> Tensor:
    batch, length = context.tokens.shape
    lengths = upload(context.lengths, device)[:, None]
    position, first = torch.arange(length, device=device)[None], length - lengths
    prompts = upload(torch.tensor([prompt_lengths[row % len(prompt_lengths)] for row in range(batch)], device="cpu"), device)[:, None]
    real, masked = position >= first, upload(context.masked, device)
    members: Mapping[str, Tensor] = {
        "all": real,
        "masked": real & masked,
        "unmasked": real & ~masked,
        "prompt": real & (position < first + prompts),
    }
    unknown = [group for group in groups if group not in members]
    if unknown:
        raise AttentionError(f"expected query groups among {', '.join(members)}, found {', '.join(unknown)}")
    return torch.stack([members[group] for group in groups], dim=1)[..., length - queries :].float()
