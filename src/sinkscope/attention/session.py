"""A session: while it is open, sinkscope computes the attention of the stacks of one network.

Hooks report every call to it and pass the running one to the attention function; on exit the network is restored.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.blockwise import KeptBias
from sinkscope.attention.call import Call, call_ends, running
from sinkscope.attention.records import CallPart, GenerationStart, StepContext, StepResult, Subscriber, Watcher, upload
from sinkscope.attention.stacks import HeldCache, Stack, StackInput, cached_keys
from sinkscope.errors import AttentionError

sessions: "weakref.WeakKeyDictionary[nn.Module, Session]" = weakref.WeakKeyDictionary()
"""The open sessions, by network."""
one_at_a_time = threading.RLock()
"""Held while a session opens or closes and a generation begins or ends."""


class Session:
    """The subscribers of one network, and the running step; it closes with the last of them unless it ``stays``."""

    def __init__(self, network: nn.Module, stacks: list[Stack], *, stays: bool = False) -> None:
        self.network, self.stacks, self.stays = network, stacks, stays
        self.undo = ExitStack()  # leaves the network as it was found
        self.subscribers: list[Subscriber] = []
        self.published = False  # whether a sampler publishes the steps; else they are read from the calls' arguments
        self.calls: list[Call] = []  # that have begun and not ended, innermost last
        self._kept_bias = KeptBias()
        self.uploaded: dict[str, Any] = {}  # shared by the calls
        self._capturing = False
        self._part: CallPart | None = None
        self._context: StepContext | None = None
        self.start: GenerationStart | None = None  # of the running generation
        self._prompts: dict[str, tuple[int, ...]] = {}  # of the stacks that were called in this generation
        self._tokens: Tensor | None = None  # all tokens so far: with a cache, a call passes only the new ones
        self._caches: dict[str, HeldCache] = {}  # by stack
        self._given: StackInput | None = None  # not read in a step that a sampler publishes
        self._read: Callable[[], StackInput | None] | None = None
        self._last: StackInput | None = None  # of the step before, without its cache
        self._unhidden_running = self._foreign = self._fresh = False  # fresh: in the first step of a generation
        self._both_ways: set[str] = set()  # stacks that say they are causal and see later keys
        self._prompt_length: int | None = None
        self._thread: int | None = None  # of the generation or the call that is running
        self._subscribers_thread: int | None = None

    def __reduce__(self) -> str:  # the copy would keep our hooks for ever
        raise AttentionError(f"{self._name} is recorded or changed; copy or store it outside of the with blocks")

    @property
    def _name(self) -> str:
        return type(self.network).__name__

    @property
    def plain(self) -> bool:
        """Whether the network is called by itself, by neither a sampler nor its own ``generate``."""
        return not self.published and not (self._foreign and self._prompt_length is None)

    def open(self, install: Callable[["Session"], None]) -> None:
        """Install the hooks that report the calls of the network; they add to ``undo`` what removes them."""
        with self.undo:  # in case that one cannot be installed
            install(self)
            self.undo = self.undo.pop_all()
        sessions[self.network] = self

    def close(self) -> None:
        self.published = False
        self.start = self._context = self._tokens = self._given = self._read = self._last = None
        while self.calls:
            call_ends(self.calls.pop())
        self._caches, self._kept_bias, self.uploaded = {}, KeptBias(), {}
        sessions.pop(self.network, None)
        self.undo.close()

    def begin_generation(self, start: GenerationStart) -> None:
        """Begin a generation for all subscribers; a sampler calls this before its first step."""
        if self.published or self.calls:
            self.refuse_other_threads(busy=True)
        self.end_generation(failed=False)
        self.published, self._thread = True, threading.get_ident()
        self._begin(start)

    def _begin(self, start: GenerationStart) -> None:
        self.start, self._prompts = start, {}
        for subscriber in self.subscribers:
            subscriber.begin_generation(start)

    def begin_step(self, context: StepContext) -> None:
        """Begin a step for all subscribers; a sampler calls this before each forward call."""
        self._context = context
        for subscriber in self.subscribers:
            subscriber.begin_step(context)

    @contextmanager
    def computing(self, part: CallPart | None) -> Iterator[None]:
        """Mark the calls of the body as computing a part of the step's canvas; a sampler with a cache does."""
        before, self._part = self._part, part
        try:
            yield
        finally:
            self._part = before

    def layer_state(self) -> tuple[StepContext, list[Any]] | None:
        """Return the running step, and `Subscriber.layer_state` of all; None where the step cannot be captured."""
        states = [one.layer_state() for one in self.subscribers]
        return None if self._context is None or any(one is None for one in states) else (self._context, states)

    def set_layer_state(self, context: StepContext, states: Sequence[Any]) -> None:
        """Set the running step, and what its layers read, or have left, for all subscribers."""
        self._context = context
        for subscriber, state in zip(self.subscribers, states, strict=True):
            subscriber.set_layer_state(state, context)

    @contextmanager
    def being_captured(self) -> Iterator[None]:
        """Let layers be captured in the body; they make the bias of a mask anew, so that it lasts as long as they."""
        kept, self._kept_bias, self._capturing = self._kept_bias, KeptBias(), True
        try:
            yield
        finally:
            self._kept_bias, self._capturing = kept, False

    def end_step(self, result: StepResult | None) -> None:
        """Pass the result of a step to all subscribers; a sampler calls this after it has committed."""
        for subscriber in self.subscribers:
            subscriber.end_step(result)
        self._context = None

    def end_generation(self, failed: bool) -> None:
        """End the generation for all subscribers; a sampler calls this after its last step, or after an exception."""
        if self.start is None:
            return
        self.published, self._caches = False, {}
        self.start = self._context = self._tokens = None
        with ExitStack() as everybody:  # the others learn of it even if one raises
            for subscriber in reversed(self.subscribers):
                everybody.callback(subscriber.end_generation, failed)

    @contextmanager
    def foreign_generation(self, prompt: int | None = None) -> Iterator[None]:
        """Run the body as one generation, whose first ``prompt`` tokens (or those of its first call) are the prompt."""
        self.refuse_other_threads(busy=prompt is not None and self.published)
        if self.published:
            yield
            return
        self.end_generation(failed=False)
        self._foreign, self._thread, self._prompt_length = True, threading.get_ident(), prompt
        failed = True
        try:
            yield
            failed = False
        finally:
            self._foreign, self._prompt_length = False, None
            self.end_generation(failed)

    def join(self, subscriber: Subscriber) -> None:
        me = threading.get_ident()
        if self.subscribers and self._subscribers_thread != me:
            raise AttentionError(f"{self._name} is recorded or changed by another thread; load it once per thread")
        self._subscribers_thread = me
        self.subscribers.append(subscriber)

    def leave(self, subscriber: Subscriber, failed: bool) -> None:
        """Remove a subscriber; a running generation ends for it, unfinished if a sampler publishes it."""
        try:
            if self.start is not None:
                subscriber.end_generation(failed or self.published)
        finally:  # even if end_generation raises
            with one_at_a_time:
                at = max(place for place, one in enumerate(self.subscribers) if one is subscriber)
                del self.subscribers[at]  # not remove(): subscribers may be equal without being the same
                if not self.subscribers and not self.stays:
                    self.close()
                elif not self.subscribers:
                    self.start, self.published = None, False

    def runs_elsewhere(self) -> bool:
        """Return whether another thread runs the network, in a call, a published generation or its ``generate``."""
        return bool(self.published or self._foreign or self.calls) and self._thread != threading.get_ident()

    def refuse_other_threads(self, busy: bool = False) -> None:
        """Raise AttentionError where another thread runs the network, or this one is ``busy``."""
        if busy or self.runs_elsewhere():
            raise AttentionError(
                f"{self._name} is recorded or changed, and one generation of it runs already, here or in another "
                "thread; end that first, or load it once per thread"
            )

    def begin_call(self, stack: Stack, read: Callable[[], StackInput | None]) -> Call:
        """Return the call that begins, for the attention function; ``read`` reads its arguments."""
        self.refuse_other_threads()
        self._thread, self._read = threading.get_ident(), read
        given = self._given = None if self.published else read()
        if not self.published and not self._unhidden_running:
            self._context = None  # an interrupt may have left one behind
            if given is not None:
                self._infer_step(stack, given)
        prompts = () if self.start is None else self.start.prompt_lengths
        known = self._context is not None and given is not None and given.cache is None  # not its own cached generate
        call = Call(
            stack,
            self.subscribers,
            self._context,
            prompts if self.published else self._prompts.get(stack.name, prompts),
            inferred=not self.published,
            cache=None if given is None else given.cache,
            kept_bias=self._kept_bias,
            uploaded=self.uploaded,
            capturing=self._capturing,
            part=self._part,
            seeing_ahead=partial(self._correct, stack) if known and self._causal(stack) else None,
        )
        self.calls.append(call)
        running.append(call)
        return call

    def _correct(self, stack: Stack) -> StepContext:
        """Return the step of a stack that says it is causal and sees later keys; nothing of it is recorded yet."""
        context, start = self._context, self.start
        assert context is not None and start is not None
        if not self._fresh:
            raise AttentionError(f"{self._name} looked back only, and now queries see later keys; record them apart")
        self._both_ways.add(stack.name)
        mask_id = getattr(getattr(self.network, "config", None), "mask_token_id", None)
        self._begin(replace(start, causal=False, mask_id=mask_id))
        self._prompts = {stack.name: context.prompt_lengths or start.prompt_lengths}
        masked = context.masked if mask_id is None else context.tokens == mask_id
        self.begin_step(corrected := replace(context, causal=False, masked=masked))
        return corrected

    def _causal(self, stack: Stack) -> bool:
        return stack.causal and stack.name not in self._both_ways

    def end_call(self, failed: bool, made: Any = None) -> None:
        """End the running call, and a step that no sampler published; ``made`` is the cache that the stack returned."""
        if self.runs_elsewhere():
            return
        given, self._given, self._read = self._given, None, None
        call = self.calls.pop() if self.calls else None
        if call is not None:
            call.closed = True
            call.hidden_states.clear()
            call_ends(call)
        if failed:
            if not self.published and not self._unhidden_running:
                self.end_generation(failed=True)
            return
        if call is not None and not call.reported:
            raise AttentionError(
                f"no layer of {self._name} took its attention from sinkscope; leave its attention implementation alone "
                "meanwhile; networks that bypass transformers' interface cannot be watched"
            )
        if not self.published and not self._unhidden_running and self._context is not None:
            if given is not None:  # a decoder that only reads its cache (block diffusion) does not change it
                cache = made if given.cache is None and callable(getattr(made, "get_seq_length", None)) else given.cache
                held = given.total if cache is None else int(cache.get_seq_length())
                known = None if cache is None else weakref.ref(cache)
                lengths = self._context.lengths - (given.total - held)
                self._caches[self._context.stack or ""] = HeldCache(known, held, lengths, cached_keys(cache))
                if held == given.total:
                    self._tokens = self._context.tokens
            self.end_step(None)

    @torch.no_grad()
    def unhidden_pass(self, watcher: Watcher) -> None:
        """Run the canvas of the running step through the network again, for one watcher, without hiding and cache."""
        context, before, read = self._context, self._given, self._read
        given = None if read is None else read()
        stack = self.stacks[0]  # of a network of any other kind the layers are not known
        known = context is not None and stack.layers and len(self.stacks) == 1 and not bool((context.tokens < 0).any())
        if context is None or not known or (given is not None and not given.plain):
            raise AttentionError(
                f"expected {self._name} to be a transformers model of one stack, given token ids and the mask of their "
                "padding, for an extra forward call without hiding, found others; measure locally (measured='local')"
            )
        tokens, length = context.tokens, context.tokens.shape[1]
        real = torch.arange(length, device=tokens.device) >= length - upload(context.lengths, tokens.device)[:, None]
        alone: list[Subscriber] = [watcher]
        subscribers, self.subscribers, self._unhidden_running = self.subscribers, alone, True
        try:
            stack.module(
                input_ids=tokens,
                attention_mask=None if bool(real.all()) else real.long(),
                position_ids=(real.long().cumsum(-1) - 1).clamp(min=0),
                use_cache=False,
            )
        finally:
            self.subscribers, self._unhidden_running = subscribers, False
            self._given, self._read = before, read

    def last_step(self) -> StackInput | None:
        """Return the previous step in a running generation that no sampler publishes; None where there is none."""
        return self._last if self.start is not None and not self.published else None

    def _infer_step(self, stack: Stack, given: StackInput) -> None:
        """Begin the step that the arguments of a call describe: a forward call, or one of a foreign ``generate``."""
        lengths = given.lengths()
        whole = lengths if self._prompt_length is None else lengths.clamp(max=self._prompt_length)
        # A call with other rows, an empty cache, or none behind calls with one begins a generation.
        other = self.start is None or len(self.start.prompt_lengths) != given.batch
        behind = self._causal(stack) and len(self.stacks) == 1 and self._last is not None and self._last.seen > 0
        empty = stack.name in self._prompts and (given.cache is not None or behind) and given.seen == 0
        self._fresh = other or empty
        if self._fresh:
            self.end_generation(failed=False)
            self._tokens = None
            causal = self._causal(self.stacks[-1])  # of the last stack, which writes
            mask_id = None if causal else getattr(getattr(self.network, "config", None), "mask_token_id", None)
            texts = (None,) * given.batch
            self._begin(GenerationStart(tuple(whole.tolist()), causal, {"name": "foreign"}, texts, mask_id))
        last = self._caches.get(stack.name) if self._causal(stack) and given.seen else None
        if last is not None and not last.goes_on(given, lengths):
            raise AttentionError(
                f"expected the cache of the step before, of {last.tokens} tokens, found another, changed or otherwise "
                f"padded one of {given.seen}; end one text before the next, pass the mask of all tokens so far, and do "
                "not cut, copy or reorder the cache"
            )
        if stack.name not in self._prompts:  # an encoder and a decoder have different prompts
            prompts = lengths - given.fresh if given.seen and self._prompts else whole
            self._prompts[stack.name] = tuple(prompts.tolist())
        self._last = replace(given, cache=None)
        tokens = torch.full((given.batch, given.total), -1, dtype=torch.long, device=given.device)
        if given.seen and self._tokens is not None and self._tokens.shape == (given.batch, given.seen):
            tokens[:, : given.seen] = self._tokens
        if given.ids is not None:
            tokens[:, given.seen :] = given.ids
        rows = tuple(range(given.batch))
        mask_id = None if self.start is None else self.start.mask_id
        masked = torch.zeros_like(tokens, dtype=torch.bool) if mask_id is None else tokens == mask_id
        self.begin_step(
            StepContext(tokens, masked, lengths, rows, rows, stack.name, self._causal(stack), self._prompts[stack.name])
        )


def current_session(network: nn.Module) -> Session | None:
    """Return the open session of a network; None without subscribers."""
    return sessions.get(network)
