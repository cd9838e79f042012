"""The way of a transformers model to its session: its attention function, and the hooks on its modules.

Without subscribers the function's result is that of transformers' ``sdpa_attention_forward``, bit for bit.

Under ``torch.compile`` one graph serves all layers and all steps, so it can hold neither the running call nor the name
of the layer. Two custom operators find both from the order in which the layers of a stack run.
"""

import inspect
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.call import Call, running
from sinkscope.attention.dispatch import attend_behind
from sinkscope.attention.records import Prefix, Subscriber
from sinkscope.attention.session import Session, current_session, one_at_a_time, sessions
from sinkscope.attention.stacks import Stack, find_stacks, read_stack_input
from sinkscope.errors import AttentionError

NAME = "sinkscope"
MASKED = "sinkscope_masked"
"""The same for networks without sdpa attention, whose modules do not say whether they are causal: every call has a
whole mask.
"""
REFUSED = ("softcap", "s_aux", "position_bias", "cache")
SOURCES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
"""Keywords with which transformers passes the states of another stack to a layer's attention."""
REORDERING = ("num_beams", "assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens", "guidance_scale")
"""Settings of ``generate`` that reorder rows or run other networks."""


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sinkscope_call: Call | None = None,
    sinkscope_prefixes: Sequence[Prefix] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer: query [batch, head, query, dim] → output [batch, query, head, dim].

    Args:
        sinkscope_call: the running call of the stack; None without subscribers.
        sinkscope_prefixes: the network's own constant keys, one entry a layer.
    """
    for name in REFUSED:
        if others.get(name) is not None:
            raise AttentionError(f"{name} is not modelled; {type(module).__name__} cannot be recorded or changed")
    if sinkscope_call is not None and torch.compiler.is_compiling():
        if sinkscope_prefixes is not None:
            raise AttentionError("compiled layers of a network with a sink are not watched; leave torch.compile out")
        return compiled_attention(query, key, value, attention_mask, dropout, scaling, is_causal), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    own = None if sinkscope_prefixes is None else sinkscope_prefixes[module.layer_idx]  # type: ignore[index]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
    if sinkscope_call is not None:
        layer = sinkscope_call.layer(module, query, key, value, own, attention_mask, causal)
        output = None if layer is None else sinkscope_call.attend(layer, scale, attention_mask, causal, dropout)
        if output is not None:
            return output.transpose(1, 2), None
    if own is not None:
        output = attend_behind(query, key, value, own, mask=attention_mask, causal=causal, scale=scale, dropout=dropout)
        return output.transpose(1, 2), None
    more = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
    return sdpa_attention_forward(module, query, key, value, attention_mask, **more)[0], None


# Replaying a CUDA graph would run neither operator: layers compiled with mode="reduce-overhead" are cut around them.
_TAGS: Any = {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}


@torch.library.custom_op("sinkscope::attention", mutates_args=(), **_TAGS)
def compiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
) -> Tensor:
    """Compute the attention of the next compiled layer, [batch, query, head, dim]."""
    call = running[-1]
    given = (query, key, value, attention_mask, dropout, scaling, is_causal)
    return attention_forward(call.next_modules()[0], *given, sinkscope_call=call)[0].contiguous()


@compiled_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *others: object) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


@torch.library.custom_op("sinkscope::entering", mutates_args=(), **_TAGS)
def entering(hidden_states: Tensor) -> Tensor:
    """Note the input of the next layer, and return it: the compiler removes an operator without a result."""
    if running and (left := running[-1].next_modules()):
        running[-1].hidden_states[left[0]] = hidden_states
    return hidden_states.clone()


@entering.register_fake
def _(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states)


def register_interface() -> None:
    """Register the attention function and its mask function with transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def whole_mask(*args: Any, **kwargs: Any) -> Tensor | None:
        return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})

    # Without a mask function, padding would silently be ignored.
    for name, mask in ((NAME, sdpa_mask), (MASKED, whole_mask)):
        AttentionInterface.register(name, attention_forward)
        AttentionMaskInterface.register(name, mask)


_held: dict[int, tuple[Any, list[int]]] = {}
"""Earlier setting of each configuration, and how many sessions use it: models may share one, the last restores it."""


def _give_back(config: Any) -> None:
    before, others = _held[id(config)]
    others[0] -= 1
    if not others[0]:
        config._attn_implementation_internal = before
        del _held[id(config)]


class TransformersHooks:
    """Hooks on the stacks, the modules around them and their layers."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.stacks = find_stacks(network)
        self._warned = False  # that maps were asked for
        self.running: dict[str, Mapping[str, Any]] = {}  # arguments of the modules around the stacks, outermost first

    def install(self, session: Session) -> None:
        self._use_interface(session)
        network: Any = self.network
        if "generate" not in vars(network) and hasattr(network, "generate"):
            network.generate = partial(_one_generation, session, network.generate)
            session.undo.callback(delattr, network, "generate")
        owners = {stack.name for stack in self.stacks}
        for path in {"", *(path for name in owners for path in _above(name))} - owners:
            parent = self.network.get_submodule(path)
            self._before(
                session, parent, self._before_parent, path, tuple(inspect.signature(parent.forward).parameters)
            )
            self._after(session, parent, self._after_parent, path)
        for stack in self.stacks:
            names = tuple(inspect.signature(stack.module.forward).parameters)
            self._before(session, stack.module, self._before_stack, stack, names)
            self._after(session, stack.module, self._after_stack)
            for attention, block in stack.blocks.items():
                kinds = [one.kind for one in inspect.signature(attention.forward).parameters.values()]
                takes_call = inspect.Parameter.VAR_KEYWORD in kinds
                self._before(session, block, _before_block, attention)
                self._before(session, attention, _before_attention, takes_call)

    def _use_interface(self, session: Session) -> None:
        """Set the attention implementation of the network to `attention_forward`."""
        network: Any = self.network
        if not hasattr(network, "set_attn_implementation"):
            modules = network.named_modules()
            inner = next((path for path, one in modules if hasattr(one, "set_attn_implementation")), None)
            advice = "open it inside foreign()" if inner is None else f"pass its {inner}"
            raise AttentionError(f"expected a transformers network itself, found {type(network).__name__}; {advice}")
        register_interface()
        found = {id(module.config): module.config for module in network.modules() if hasattr(module, "config")}
        for config in found.values():
            if hasattr(config, "_attn_implementation_internal"):
                _held.setdefault(id(config), (config._attn_implementation_internal, [0]))[1][0] += 1
                session.undo.callback(_give_back, config)
        name = NAME if all(getattr(module, "_supports_sdpa", True) for module in network.modules()) else MASKED
        network.set_attn_implementation(name)
        for stack in self.stacks:
            for attention, (path, _) in stack.layers.items():
                set_to = getattr(getattr(attention, "config", None), "_attn_implementation", None)
                if set_to != name:
                    raise AttentionError(
                        f"expected {path} of {type(network).__name__} to attend through transformers' interface, found "
                        f"{set_to!r}; this model cannot be watched"
                    )

    def _before(self, session: Session, module: nn.Module, hook: Callable[..., Any], *given: Any) -> None:
        hook = partial(hook, session, *given)
        session.undo.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def _after(self, session: Session, module: nn.Module, hook: Callable[..., Any], *given: Any) -> None:
        hook = partial(hook, session, *given)
        session.undo.callback(module.register_forward_hook(hook, with_kwargs=True, always_call=True).remove)

    # Hooks are partials with the session among their arguments, so that a copy of the network is refused with it.

    def _before_parent(
        self, session: Session, path: str, names: tuple[str, ...], module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> None:
        session.refuse_other_threads()
        if path == "":
            self.running.clear()  # an interrupt may have left entries behind
        self.running[path] = {**dict(zip(names, args, strict=False)), **kwargs}

    def _after_parent(self, session: Session, path: str, *called: Any) -> None:
        if not session.runs_elsewhere():
            self.running.pop(path, None)

    def _before_stack(
        self, session: Session, stack: Stack, names: tuple[str, ...], module: nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        parents = [given for path, given in self.running.items() if path in ("", *_above(stack.name))]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if not self._warned and any(one.get("output_attentions") for one in (given, *parents)):
            self._warned = True
            text = "output_attentions=True gives no maps inside a recording; `sinkscope map` recomputes one"
            warnings.warn(f"sinkscope: {text}", RuntimeWarning, stacklevel=2)
        call = session.begin_call(stack, partial(read_stack_input, given, parents[::-1]))
        return args, {**kwargs, "sinkscope_call": call}

    def _after_stack(self, session: Session, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        made = getattr(output, "past_key_values", None)
        session.end_call(failed=output is None, made=made)  # torch calls this hook with None after an exception


def _above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _one_generation(session: Session, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None)
    configs = [vars(one) for one in (config, getattr(session.network, "generation_config", None)) if one is not None]
    for name in REORDERING:
        said = next((one[name] for one in (kwargs, *configs) if one.get(name) is not None), None)
        if said not in (None, 1):
            raise AttentionError(f"generate with {name} is not modelled while something watches or hides")
    with session.foreign_generation():
        return generate(*args, **kwargs)


def _before_block(session: Session, attention: nn.Module, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    hidden_states = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(hidden_states, Tensor):
        return None
    if torch.compiler.is_compiling():
        noted = entering(hidden_states)
        return ((noted, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": noted})
    if session.calls:
        session.calls[-1].hidden_states[attention] = hidden_states
    return None


def _before_attention(session: Session, takes_call: bool, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """Record cross-attention, and pass the call on where the layers of a network do not (StableLM)."""
    for name in SOURCES:
        if isinstance(kwargs.get(name), Tensor) and session.calls:
            session.calls[-1].crossing.add(module)
    if "sinkscope_call" in kwargs or not takes_call or torch.compiler.is_compiling():
        return None
    if torch.is_grad_enabled() and getattr(session.network, "is_gradient_checkpointing", False):
        return None  # the backward pass would run the layer again without the call
    call = next((call for call in reversed(session.calls) if module in call.stack.layers), None)
    return None if call is None else (args, {**kwargs, "sinkscope_call": call})


_generating: "weakref.WeakKeyDictionary[nn.Module, list[int]]" = weakref.WeakKeyDictionary()
"""The threads of our generations that have begun and not ended, recorded or not."""


@contextmanager
def subscribed(network: nn.Module, subscriber: Subscriber) -> Iterator[Session]:
    """Add a subscriber to the network's session, opening one if there is none and closing it with the last; raise
    AttentionError where the network cannot be watched, or another thread has a subscriber there, or generates.
    """
    failed = True
    with one_at_a_time:
        session = current_session(network)
        if session is None:
            for other in list(sessions):  # both would set one configuration
                inside = any(module is network for module in other.modules())
                if inside or any(module is other for module in network.modules()):
                    raise AttentionError(
                        f"{type(network).__name__} {'is a part of' if inside else 'holds'} {type(other).__name__}, "
                        f"which is recorded or changed already; pass that one here too, or end it first"
                    )
            if is_generating(network, elsewhere=True):
                raise AttentionError(
                    f"expected {type(network).__name__} between its generations, found one of it in another thread; "
                    "end that first, or load it once per thread"
                )
            hooks = TransformersHooks(network)
            session = Session(network, hooks.stacks)
            session.open(hooks.install)
        session.join(subscriber)
    try:
        if session.start is not None:  # it joins in the middle of a generation
            subscriber.begin_generation(session.start)
        yield session
        failed = False
    finally:
        session.leave(subscriber, failed)


@contextmanager
def generating_in(network: nn.Module) -> Iterator[Session | None]:
    """Count a generation of a network while the body runs, and give its session; no other thread opens one then."""
    me = threading.get_ident()
    torch.clear_autocast_cache()  # within the caller's autocast, weights would stay as an earlier call cast them
    with one_at_a_time:
        session = current_session(network)
        threads = _generating.setdefault(network, [])
        threads.append(me)
    try:
        yield session
    finally:
        with one_at_a_time:
            threads.remove(me)


def is_generating(network: nn.Module, *, elsewhere: bool = False) -> bool:
    """Return whether a generation of a network runs, in this thread or another; ``elsewhere`` asks of others alone."""
    with one_at_a_time:
        return any(not elsewhere or thread != threading.get_ident() for thread in _generating.get(network, ()))
