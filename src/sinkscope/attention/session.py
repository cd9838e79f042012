"""A session: for its duration, the stacks of one model hand their attention to sinkscope.

A *stack* is a module that owns the layers (``model.model`` of a Llama; encoder and decoder apart). A *step* is one
call of a stack. On enter every stack gets a hook that passes the running step down to `seam.attention_forward` as a
keyword; on exit, also after an exception, hooks and the attention setting are as they were.
"""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.hidden import Hidden
from sinkscope.attention.records import GenerationStart, LayerCall, StepContext, StepResult
from sinkscope.attention.subscribers import Hider, Prepender, Subscriber, Watcher
from sinkscope.attention.sweep import Columns, Prefix
from sinkscope.errors import AttentionError

_sessions: "weakref.WeakKeyDictionary[nn.Module, Session]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Stack:
    """A module that owns attention layers.

    Attributes:
        name: module path within the network, ``""`` for the network itself.
        module: the stack.
        layers: attention module → (its module path, its index), in order.
        blocks: attention module → the layer that holds it.
    """

    name: str
    module: nn.Module
    layers: dict[nn.Module, tuple[str, int]]
    blocks: dict[nn.Module, nn.Module]


def find_stacks(network: nn.Module) -> list[Stack]:
    """The stacks of a transformers model: owners of a `ModuleList` whose entries hold a module with ``layer_idx``."""
    stacks = []
    for name, module in network.named_modules():
        layers: dict[nn.Module, tuple[str, int]] = {}
        blocks: dict[nn.Module, nn.Module] = {}
        for child_name, child in module.named_children():
            if not isinstance(child, nn.ModuleList):
                continue
            for number, block in enumerate(child):
                for inner_name, inner in block.named_modules():
                    if isinstance(getattr(inner, "layer_idx", None), int) and inner is not block:
                        path = ".".join(part for part in (name, child_name, str(number), inner_name) if part)
                        layers[inner] = (path, len(layers))
                        blocks[inner] = block
        if layers:
            stacks.append(Stack(name, module, layers, blocks))
    if not stacks:
        raise AttentionError(
            f"expected a transformers model whose layers have a layer_idx, found none in {type(network).__name__}; "
            "a foreign torch module cannot be watched this way"
        )
    return stacks


class Session:
    """The subscribers of one network, and the step that is running. Opened by `subscribed`."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.stacks = find_stacks(network)
        self.subscribers: list[Subscriber] = []
        self._handles: list[Any] = []
        self._implementations: list[tuple[Any, Any]] = []
        self._context: StepContext | None = None
        self._start: GenerationStart | None = None
        self._in_generation = False
        self._published = False
        self._tokens: Tensor | None = None  # of the last inferred step; behind a cache only the fresh ones are passed
        self._call: Call | None = None
        self._hidden_states: dict[nn.Module, Tensor] = {}
        self._wraps_generate = False
        self._aside = False

    # Life

    def open(self) -> None:
        """Hangs the hooks in and turns the model's attention to the seam."""
        from sinkscope.attention.seam import check_generate, use_seam

        try:
            self._implementations = use_seam(self.network, self.stacks)
            if "generate" not in vars(self.network) and hasattr(self.network, "generate"):
                self.network.generate = check_generate(self.network)  # type: ignore[assignment]
                self._wraps_generate = True
            for stack in self.stacks:
                self._handles.append(stack.module.register_forward_pre_hook(_BeforeStack(self, stack), with_kwargs=True))
                self._handles.append(stack.module.register_forward_hook(_AfterStack(self), with_kwargs=True, always_call=True))
                for attention, block in stack.blocks.items():
                    self._handles.append(block.register_forward_pre_hook(_BeforeBlock(self, attention), with_kwargs=True))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the model as it was found."""
        for handle in self._handles:
            handle.remove()
        for config, implementation in self._implementations:
            config._attn_implementation_internal = implementation
        if self._wraps_generate:
            del self.network.generate  # type: ignore[attr-defined]
        self._handles, self._implementations, self._wraps_generate = [], [], False
        self._context = self._tokens = self._call = None
        self._hidden_states = {}

    # What decoding publishes

    def begin_generation(self, start: GenerationStart) -> None:
        """Published by a sampler before its first step."""
        if self._in_generation:
            self.end_generation(failed=False)
        self._in_generation = self._published = True
        self._start = start
        for subscriber in self.subscribers:
            subscriber.begin_generation(start)

    def begin_step(self, context: StepContext) -> None:
        """Published by a sampler before each forward call."""
        self._context = context
        for subscriber in self.subscribers:
            subscriber.begin_step(context)

    def end_step(self, result: StepResult | None) -> None:
        """Published by a sampler after it has committed."""
        for subscriber in self.subscribers:
            subscriber.end_step(result)
        self._context = None

    def end_generation(self, failed: bool) -> None:
        """Published by a sampler after its last step, or when it is given up."""
        if not self._in_generation:
            return
        self._in_generation = self._published = False
        self._context = self._tokens = None
        with ExitStack() as everybody:  # one that raises does not keep the others from knowing
            for subscriber in reversed(self.subscribers):
                everybody.callback(subscriber.end_generation, failed)

    def leave(self, subscriber: Subscriber, failed: bool) -> None:
        """Takes a subscriber out; a generation that is still running ends for it, unfinished if a sampler published it."""
        try:
            if self._in_generation:
                subscriber.end_generation(failed or self._published)
        finally:  # whatever the farewell raises
            at = max(place for place, one in enumerate(self.subscribers) if one is subscriber)
            del self.subscribers[at]  # not remove(): subscribers may be equal without being the same
            if not self.subscribers:
                self._in_generation = self._published = False
                self.close()
                _sessions.pop(self.network, None)

    def join(self, subscriber: Subscriber) -> None:
        """Adds a subscriber; one that comes in the middle of a generation is told of its start."""
        self.subscribers.append(subscriber)
        if self._in_generation and self._start is not None:
            subscriber.begin_generation(self._start)

    # What a stack call does

    def begin_call(self, stack: Stack, arguments: dict[str, Any]) -> "Call | None":
        """The running step as the attention function needs it; None when nobody asks for anything."""
        if not self.subscribers:
            return None
        check_cache(arguments.get("past_key_values"))
        if not self._published and not self._aside:
            self._context = None  # one that an interrupt has left behind
            self._infer_step(arguments)
        self._call = Call(self, stack, self._context, () if self._start is None else self._start.prompt_lengths)
        return self._call

    def end_call(self, failed: bool) -> None:
        """A stack has returned or raised; a step that no sampler published ends here."""
        call, self._call = self._call, None
        self._hidden_states.clear()
        if failed:
            if not self._published and not self._aside:
                self.end_generation(failed=True)
            return
        if call is not None and not call.reported:
            raise AttentionError(
                f"expected the layers of {type(self.network).__name__} to ask sinkscope for their attention, found that none did; "
                "leave the attention implementation alone while something watches or hides"
            )
        if not self._published and not self._aside and self._context is not None:
            self.end_step(None)

    @torch.no_grad()
    def look_aside(self, watcher: Watcher) -> None:
        """Runs the canvas of the step that has just begun through the network once more, for one watcher alone.

        Nothing is hidden, nobody else is told, and no cache is read or written: a causal model reads all tokens so far.

        Raises:
            AttentionError: no step has begun, its tokens are not known, or the network has several stacks.
        """
        context = self._context
        if context is None or len(self.stacks) > 1 or bool((context.tokens < 0).any()):
            raise AttentionError(
                "expected a step whose tokens are known, in a network with one stack, for an extra forward call without hiding; "
                f"found {'no step' if context is None else f'{len(self.stacks)} stacks, tokens {tuple(context.tokens.shape)}'}"
            )
        tokens, length = context.tokens, context.tokens.shape[1]
        real = torch.arange(length, device=tokens.device) >= length - context.lengths.to(tokens.device)[:, None]
        alone: list[Subscriber] = [watcher]
        subscribers, self.subscribers, self._aside = self.subscribers, alone, True
        try:
            self.stacks[0].module(
                input_ids=tokens,
                attention_mask=None if bool(real.all()) else real.long(),
                position_ids=(real.long().cumsum(-1) - 1).clamp(min=0),
                use_cache=False,
            )
        finally:
            self.subscribers, self._aside = subscribers, False

    def _infer_step(self, arguments: dict[str, Any]) -> None:
        """A plain forward call, or a foreign ``generate``: the step is what the arguments say."""
        ids, cache = arguments.get("input_ids"), arguments.get("past_key_values")
        shape = ids if ids is not None else arguments.get("inputs_embeds")
        if shape is None:
            return
        batch, fresh = shape.shape[0], shape.shape[1]
        seen = 0 if cache is None else int(cache.get_seq_length())
        padding = arguments.get("attention_mask")
        total = seen + fresh
        tokens = torch.full((batch, total), -1, dtype=torch.long, device=shape.device)
        if seen and self._tokens is not None and self._tokens.shape == (batch, seen):
            tokens[:, :seen] = self._tokens
        if ids is not None:
            tokens[:, seen:] = ids
        two_dimensional = isinstance(padding, Tensor) and padding.ndim == 2 and padding.shape[1] == total
        if two_dimensional and bool((padding.long().diff(dim=-1) < 0).any()):  # type: ignore[union-attr]
            raise AttentionError("expected padding on the left, found it on the right; set tokenizer.padding_side = 'left'")
        lengths = padding.long().sum(-1) if two_dimensional else torch.full((batch,), total)  # type: ignore[union-attr]
        same_rows = self._tokens is not None and len(self._tokens) == batch
        if not self._in_generation or not same_rows or (cache is not None and seen == 0):
            if self._in_generation:
                self.end_generation(failed=False)
            causal = bool(getattr(self.network.config, "is_causal", True))
            mask_id = None if causal else getattr(self.network.config, "mask_token_id", None)
            self._in_generation = True
            start = GenerationStart(tuple(lengths.tolist()), total, causal, {"name": "foreign"}, (None,) * batch, mask_id)
            self._start = start
            for subscriber in self.subscribers:
                subscriber.begin_generation(start)
        self._tokens = tokens
        rows = tuple(range(batch))
        mask_id = None if self._start is None else self._start.mask_id
        masked = torch.zeros_like(tokens, dtype=torch.bool) if mask_id is None else tokens == mask_id
        self.begin_step(StepContext(tokens, masked, lengths, rows, rows))


class Call:
    """One running call of a stack: what `seam.attention_forward` receives."""

    def __init__(self, session: Session, stack: Stack, context: StepContext | None, prompt_lengths: tuple[int, ...]) -> None:
        self._session, self._stack, self._context, self._prompt_lengths = session, stack, context, prompt_lengths
        self.reported = False
        subscribers = session.subscribers
        self._watchers = [one for one in subscribers if isinstance(one, Watcher)]
        self._hiders = [one for one in subscribers if isinstance(one, Hider)]
        self._prependers = [one for one in subscribers if isinstance(one, Prepender)]
        self.groups = tuple(dict.fromkeys(["all", *(group for watcher in self._watchers for group in watcher.groups)]))
        self._membership: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Call":
        return self

    def layer(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> LayerCall | None:
        """The record of this layer, None for attention that does not belong to the stack."""
        if module not in self._stack.layers:
            return None
        self.reported = True
        name, index = self._stack.layers[module]
        hidden_states = self._session._hidden_states.get(module)
        return LayerCall(name, index, query, key, value, hidden_states, self.groups, self._members(query))

    def hidden(self, call: LayerCall) -> list[Hidden]:
        """What every hider takes away."""
        found: list[Hidden] = []
        for hider in self._hiders:
            mine = hider.hide(call)
            mine = [] if mine is None else [Hidden(mine[:, :, None])] if isinstance(mine, Tensor) else mine
            found += [one for one in mine if bool(one.keys.any())]
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
        """Tells everybody what the layer saw."""
        for watcher in self._watchers:
            watcher.watch(call, columns)
        for hider in self._hiders:
            hider.observe(call, columns)

    def _members(self, query: Tensor) -> Tensor:
        if self._membership is None:
            batch, queries = query.shape[0], query.shape[2]
            if self._context is None:
                self._membership = torch.ones(batch, len(self.groups), queries, device=query.device)
            else:
                self._membership = _membership(self._context, self._prompt_lengths, self.groups, queries, query.device)
        return self._membership.to(query.device)  # a model may be spread over devices


def _membership(
    context: StepContext, prompt_lengths: tuple[int, ...], groups: tuple[str, ...], queries: int, device: torch.device
) -> Tensor:
    batch, length = context.tokens.shape
    position, first = torch.arange(length, device=device)[None], length - context.lengths.to(device)[:, None]
    prompts = torch.tensor([prompt_lengths[row % len(prompt_lengths)] for row in range(batch)], device=device)[:, None]
    real, masked = position >= first, context.masked.to(device)
    members = {"all": real, "masked": real & masked, "unmasked": real & ~masked, "prompt": real & (position < first + prompts)}
    unknown = [group for group in groups if group not in members]
    if unknown:
        raise AttentionError(f"expected query groups among {', '.join(members)}, found {', '.join(unknown)}")
    return torch.stack([members[group] for group in groups], dim=1)[..., length - queries :].float()


def check_cache(cache: Any) -> None:
    """Caches whose keys are not simply all tokens so far are refused until they are right."""
    found = "static" if getattr(cache, "is_compileable", False) else "sliding-window" if any(getattr(cache, "is_sliding", ())) else None
    if found:
        raise AttentionError(f"{found} caches are not modelled by sinkscope; use a DynamicCache without a window")


class _BeforeStack:
    def __init__(self, session: Session, stack: Stack) -> None:
        self.session, self.stack = session, stack

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        arguments = dict(kwargs)
        if args and "input_ids" not in arguments and isinstance(args[0], Tensor):
            arguments["inputs_embeds" if args[0].is_floating_point() else "input_ids"] = args[0]
        call = self.session.begin_call(self.stack, arguments)
        return args, kwargs if call is None else {**kwargs, "sinkscope_call": call}


class _AfterStack:
    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.session.end_call(failed=output is None)  # torch calls this hook with None after an exception


class _BeforeBlock:
    """Keeps what enters a layer, for its norms."""

    def __init__(self, session: Session, attention: nn.Module) -> None:
        self.session, self.attention = session, attention

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entering = args[0] if args else kwargs.get("hidden_states")
        if isinstance(entering, Tensor):
            self.session._hidden_states[self.attention] = entering


def current_session(network: nn.Module) -> Session | None:
    """The open session of a network, None when nobody watches or hides."""
    return _sessions.get(network)


@contextmanager
def subscribed(network: nn.Module, subscriber: Subscriber) -> Iterator[Session]:
    """Adds a subscriber to the network's session, opening one if there is none and closing it with the last."""
    session = _sessions.get(network)
    if session is None:
        session = Session(network)
        session.open()
        _sessions[network] = session
    failed = True
    try:
        session.join(subscriber)
        yield session
        failed = False
    finally:
        session.leave(subscriber, failed)
