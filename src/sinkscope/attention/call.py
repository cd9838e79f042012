"""One running call of a stack: what its subscribers request from each layer, and what they are shown."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from sinkscope.attention.dispatch import compute
from sinkscope.attention.records import AttentionInputs, CallPart, Columns, Hidden, LayerCall, Prefix, StepContext
from sinkscope.attention.scores import Workspace
from sinkscope.attention.stacks import Stack, slides, upload
from sinkscope.attention.subscriber_answers import hidden_by, observed_by, prepended_by
from sinkscope.attention.subscribers import Hider, Prepender, Subscriber, Watcher
from sinkscope.errors import AttentionError

SHOWN = ("sums", "local", "diagonal", "last_row", "last_row_in_force", "removed", "prefix")
"""The tensors of `Columns`."""


@dataclass(eq=False)
class LayerNotes:
    """What the hooks around the layers have recorded in the running call.

    Attributes:
        hidden_states: the input of each layer, by attention module.
        crossing: attention modules whose keys belong to another stack.
    """

    hidden_states: dict[nn.Module, Tensor] = field(default_factory=dict)
    crossing: set[nn.Module] = field(default_factory=set)


@dataclass(frozen=True)
class Requests:
    """What the subscribers request from one layer.

    Attributes:
        hidden: the keys taken away, over the layer's own keys.
        prefix: the constant keys in front, with those of the network itself.
        in_force: whether anything is requested; otherwise the layer runs as in the stock model.
    """

    hidden: list[Hidden]
    prefix: Prefix | None
    in_force: bool


class Call:
    """A call of a stack while it runs, as `interface.attention_forward` receives it.

    Args:
        stack: the stack that is called.
        subscribers: of the session.
        context: the step; None where it is not known.
        prompt_lengths: tokens of the prompts, one for each row or one for all.
        inferred: whether the step was read from the arguments of the call because no sampler published it.
        cache: the cache among the arguments, where the step was inferred.
        notes: filled by the hooks around the layers.
        workspace: memory for scores.
        part: the part of the canvas that is computed; None for all of it.
    """

    def __init__(
        self,
        stack: Stack,
        subscribers: Sequence[Subscriber],
        context: StepContext | None,
        prompt_lengths: tuple[int, ...],
        *,
        inferred: bool,
        cache: Any,
        notes: LayerNotes,
        workspace: Workspace,
        part: CallPart | None = None,
    ) -> None:
        self._part = part
        self._stack, self._context, self._prompt_lengths = stack, context, prompt_lengths
        self._inferred, self._cache, self._notes, self._workspace = inferred, cache, notes, workspace
        self.reported = False  # whether any layer has computed its attention here
        self.closed = (
            False  # true once the stack has returned; a gradient checkpoint runs layers again in the backward pass
        )
        self._turn, self._ran = 0, set[str]()
        self._watchers = [one for one in subscribers if isinstance(one, Watcher)]
        self._hiders = [one for one in subscribers if isinstance(one, Hider)]
        self._prependers = [one for one in subscribers if isinstance(one, Prepender)]
        self.groups = tuple(dict.fromkeys(["all", *(group for watcher in self._watchers for group in watcher.groups)]))
        self._membership: Tensor | None = None
        self._requests: dict[str, Requests] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Call":
        return self

    def owns(self, module: nn.Module) -> bool:
        """Return whether an attention module belongs to the stack."""
        return module in self._stack.layers

    def layer(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, own: Prefix | None
    ) -> LayerCall | None:
        """Return the record of a layer, None for attention that does not belong to the stack."""
        if module not in self._stack.layers:
            return None
        name, index = self._stack.layers[module]
        if not self.closed and name in self._ran:
            raise AttentionError(
                f"expected each layer of {self._stack.name or 'the network'} to run once in a call, found {name} a second time; "
                "layers that share one attention module, or ask twice for attention (DiffLlama), are not modelled by sinkscope"
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
        """Return the record of a layer whose name and index are known.

        Args:
            own: constant keys of the network itself.

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
        return LayerCall(
            name,
            index,
            query,
            key,
            value,
            self._notes.hidden_states.pop(module, None),  # popped: only its norms are needed
            self.groups,
            self._members(query),
            self._stack.name,
            first_key,
            crossing,
            own=own,
            part=self._part,
        )

    def next_module(self) -> nn.Module:
        """Return the next attention module of a stack of compiled layers, which run in order, once each.

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
        """Note the input of the next compiled layer."""
        if self._turn < len(self._stack.layers):
            self._notes.hidden_states[list(self._stack.layers)[self._turn]] = hidden_states

    def attend(self, layer: LayerCall, inputs: AttentionInputs, dropout: float) -> Tensor | None:
        """Compute the attention of a layer as the subscribers request it, and show them its columns.

        Args:
            inputs: of the layer, with nothing hidden and no prefix.

        Returns:
            Output [batch, head, query, value_dim]; None where nothing is requested, so that the layer may run as in the stock model.

        Raises:
            AttentionError: dropout of attention weights.
        """
        requests = self._requests_for(layer, inputs)
        if not requests.in_force:
            return None
        if dropout:
            raise AttentionError(
                f"expected no attention dropout while watching or hiding, found {dropout} in {layer.name}; call network.eval()"
            )
        if requests.hidden or requests.prefix is not None:
            inputs = replace(inputs, hidden=requests.hidden, prefix=requests.prefix)
        output, columns = compute(inputs, workspace=self._workspace)
        self._show(layer, columns)
        return output

    def _requests_for(self, layer: LayerCall, inputs: AttentionInputs) -> Requests:
        """Return the requests of the subscribers; a second run of the layer gets those of the first."""
        if not self._hiders and not self._prependers:
            return Requests([], layer.own, bool(self._watchers))
        if not (self.closed and layer.name in self._requests):
            prepended = self._prepended(layer)
            prefix = _only(prepended, layer.own)
            bare = None if prefix is None else replace(prefix, values=None)

            @functools.cache  # several rules, or a rule that asks twice, share one pass
            @torch.no_grad()  # what a gradient checkpoint saves has to be the same in both runs
            def measure(queries: Tensor | None = None) -> Columns:
                groups = inputs.groups if queries is None else queries[:, None]
                narrow = replace(inputs, value=inputs.value[..., :1], prefix=bare, groups=groups)
                return _placed(compute(narrow, workspace=self._workspace)[1], layer.first_key)

            own = [
                replace(one, keys=one.keys[..., layer.first_key :])
                for one in self.hidden(replace(layer, measure=measure))
            ]
            hidden = [
                one for one in own if one.keys.is_cuda or bool(one.keys.any()) or (one.front and prefix is not None)
            ]  # asking a GPU would wait
            self._requests[layer.name] = Requests(
                hidden, prefix, self._watched(layer) or bool(hidden) or prepended is not None
            )
        return self._requests[layer.name]

    def hidden(self, layer: LayerCall) -> list[Hidden]:
        """Return the keys that each hider takes away, over all tokens so far."""
        return [one for hider in self._hiders for one in hidden_by(hider, layer)]

    def _prepended(self, layer: LayerCall) -> Prefix | None:
        """Return the constant keys of the only prepender."""
        if len(self._prependers) > 1:
            raise AttentionError(f"expected at most one prepender on a model, found {len(self._prependers)}")
        return prepended_by(self._prependers[0], layer) if self._prependers else None

    def _watched(self, layer: LayerCall) -> bool:
        """Return whether any subscriber needs the columns of a layer."""
        return bool(self._watchers) or any([observed_by(hider, layer) for hider in self._hiders])

    def _show(self, layer: LayerCall, columns: Columns) -> None:
        """Show the subscribers the columns of a layer, in their absolute places, unless the layer runs for a second time."""
        if self.closed:
            return
        placed = _placed(columns, layer.first_key)
        shown = _tensors_of(layer, placed)
        for watcher in self._watchers:
            watcher.watch(layer, placed)
            _refuse_changes(watcher, "watch", layer, shown)
        for hider in self._hiders:
            hider.observe(layer, placed)
            _refuse_changes(hider, "observe", layer, shown)

    def _members(self, query: Tensor) -> Tensor:
        """Return which queries belong to which group, float32 [batch, group, query]."""
        if self._membership is None:
            batch, queries = query.shape[0], query.shape[2]
            if self._context is None:
                self._membership = torch.ones(
                    batch, len(self.groups), queries, device=query.device, dtype=torch.float32
                )
            elif self._part is None:
                self._membership = _membership(self._context, self._prompt_lengths, self.groups, queries, query.device)
            else:
                length = self._context.tokens.shape[1]
                whole = _membership(self._context, self._prompt_lengths, self.groups, length, query.device)
                self._membership = self._part.of(whole)
        return self._membership.to(query.device)  # a model may be spread over devices


def _only(prepended: Prefix | None, own: Prefix | None) -> Prefix | None:
    """Return the one prefix of a layer, the network's own or a prepender's."""
    if prepended is not None and own is not None:
        raise AttentionError(
            "expected one prefix, found a prepender on a network that has a sink of its own; take one of them away"
        )
    return own if prepended is None else prepended


def _placed(columns: Columns, first_key: int) -> Columns:
    """Return columns over all tokens so far; tokens that the layer no longer holds receive 0."""
    if not first_key:
        return columns
    return replace(
        columns,
        sums=pad(columns.sums, (first_key, 0)),
        local=None if columns.local is None else pad(columns.local, (first_key, 0)),
        last_row=pad(columns.last_row, (first_key, 0)),
        last_row_in_force=pad(columns.last_row_in_force, (first_key, 0)),
    )


def _tensors_of(layer: LayerCall, columns: Columns) -> dict[str, tuple[Tensor, int]]:
    """Return the tensors that subscribers see of a layer, with how often each was written; those of inference mode do not tell."""
    named = {name: getattr(columns, name) for name in SHOWN} | {
        "query": layer.query,
        "key": layer.key,
        "value": layer.value,
    }
    return {name: (one, one._version) for name, one in named.items() if one is not None and not one.is_inference()}


def _refuse_changes(
    subscriber: Watcher | Hider, method: str, layer: LayerCall, shown: Mapping[str, tuple[Tensor, int]]
) -> None:
    """Raise AttentionError for a subscriber that has written into what others see, and the network goes on with."""
    for name, (tensor, version) in shown.items():
        if tensor._version != version:
            raise AttentionError(
                f"{type(subscriber).__name__}.{method} in {layer.name}: expected the tensors that it is shown to stay as they are, found "
                f"{name} changed in place; change a copy: {name}.clone()"
            )


def _membership(
    context: StepContext, prompt_lengths: tuple[int, ...], groups: tuple[str, ...], queries: int, device: torch.device
) -> Tensor:
    """Return which queries of a step belong to which group, float32 [batch, group, query]."""
    batch, length = context.tokens.shape
    lengths = upload(context.lengths, device)[:, None]
    position, first = torch.arange(length, device=device)[None], length - lengths
    prompts = upload(
        torch.tensor([prompt_lengths[row % len(prompt_lengths)] for row in range(batch)], device="cpu"), device
    )[:, None]
    real, masked = position >= first, upload(context.masked, device)
    members = {
        "all": real,
        "masked": real & masked,
        "unmasked": real & ~masked,
        "prompt": real & (position < first + prompts),
    }
    return torch.stack([members[group] for group in groups], dim=1)[..., length - queries :].float()
