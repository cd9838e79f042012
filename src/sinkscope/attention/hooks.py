"""The way of a transformers model to its session: its attention function, and the hooks on its modules.

The attention function hides keys before the softmax, watches columns after it, and prepends constant keys. Without any
of the three, its result is that of transformers' ``sdpa_attention_forward``, bit for bit.

Under ``torch.compile`` one graph serves all layers and all steps, so it can hold neither the running call nor the name
of the layer. Two custom operators find both from the order in which the layers of a stack run.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.call import Call, newest_call, running_call
from sinkscope.attention.constant_keys import attend_behind
from sinkscope.attention.records import AttentionInputs, Prefix
from sinkscope.attention.session import Hooks, Session
from sinkscope.attention.stacks import Stack, find_stacks
from sinkscope.errors import AttentionError

NAME = "sinkscope"
MASKED = "sinkscope_masked"
"""The same for networks without sdpa attention, whose modules do not say whether they are causal: every call has a
whole mask.
"""
REFUSED = ("softcap", "s_aux", "position_bias", "cache")
SOURCES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
"""Keywords with which transformers passes the states of another stack to a layer's attention."""
BATCHED = ("generate_batch", "init_continuous_batching", "continuous_batching_context_manager")
"""Methods of transformers' networks that write many texts in one paged cache."""


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
        sinkscope_prefixes: constant keys of the network's own, one entry a layer.

    Raises:
        AttentionError: an argument this function does not model, or dropout while something watches or hides.
    """
    for name in REFUSED:
        if others.get(name) is not None:
            raise AttentionError(f"{name} is not modelled; {type(module).__name__} cannot be recorded or changed")
    if sinkscope_call is not None and torch.compiler.is_compiling():
        if sinkscope_prefixes is not None:
            raise AttentionError(
                "compiled layers of a network with its own sink are not watched; leave torch.compile out"
            )
        return compiled_attention(query, key, value, attention_mask, dropout, scaling, is_causal), None
    given = (query, key, value, attention_mask, dropout, scaling, is_causal)
    return _attention(module, *given, sinkscope_call, sinkscope_prefixes, **others), None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    running: Call | None,
    prefixes: Sequence[Prefix] | None = None,
    **others: Any,
) -> Tensor:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    own = None if prefixes is None else prefixes[module.layer_idx]  # type: ignore[index]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = bool(causal) and mask is None and query.shape[2] > 1
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
    if running is not None:
        running.look(module, query, mask, causal)
    layer = None if running is None else running.layer(module, query, key, value, own)
    if layer is not None and running is not None:
        assert layer.membership is not None
        inputs = AttentionInputs(query, key, value, layer.membership, scale, mask, causal)
        output = running.attend(layer, inputs, dropout)
        if output is not None:
            return output.transpose(1, 2)
    if own is not None:
        output = attend_behind(query, key, value, own, mask=mask, causal=causal, scale=scale, dropout=dropout)
        return output.transpose(1, 2)
    return sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
    )[0]


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
    call = newest_call()
    assert call is not None
    given = (query, key, value, attention_mask, dropout, scaling, is_causal)
    return _attention(call.next_module(), *given, call).contiguous()


@compiled_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *others: object) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


@torch.library.custom_op("sinkscope::entering", mutates_args=(), **_TAGS)
def entering(hidden_states: Tensor) -> Tensor:
    """Note the input of the next layer, and return it: the compiler removes an operator without a result."""
    if (call := newest_call()) is not None:
        call.note_entering(hidden_states)
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


def use_interface(network: nn.Module, stacks: list[Stack]) -> list[Any]:
    """Set the attention implementation of a network to `attention_forward`.

    Returns:
        Every configuration that was changed, for `leave_interface`.

    Raises:
        AttentionError: the model does not go through transformers' attention interface, or wraps one that does.
    """
    if not hasattr(network, "set_attn_implementation"):
        inner = next((path for path, one in network.named_modules() if hasattr(one, "set_attn_implementation")), None)
        advice = "open it inside foreign()" if inner is None else f"pass its {inner}"
        raise AttentionError(f"expected a transformers network itself, found {type(network).__name__}; {advice}")
    register_interface()
    found = {id(module.config): module.config for module in network.modules() if hasattr(module, "config")}
    configs: list[Any] = [config for config in found.values() if hasattr(config, "_attn_implementation_internal")]
    for config in configs:
        _held.setdefault(id(config), (config._attn_implementation_internal, [0]))[1][0] += 1
    name = NAME if all(getattr(module, "_supports_sdpa", True) for module in network.modules()) else MASKED
    try:
        network.set_attn_implementation(name)  # type: ignore[operator]
        for attention, (path, _) in ((one, of) for stack in stacks for one, of in stack.layers.items()):
            set_to = getattr(getattr(attention, "config", None), "_attn_implementation", None)
            if set_to != name:
                raise AttentionError(
                    f"expected {path} of {type(network).__name__} to attend through transformers' interface, found "
                    f"{set_to!r}; this model cannot be watched"
                )
    except BaseException:
        leave_interface(configs)
        raise
    return configs


def leave_interface(configs: list[Any]) -> None:
    """Restore configurations, except those that another session still uses."""
    for config in configs:
        before, sessions = _held[id(config)]
        sessions[0] -= 1
        if not sessions[0]:
            config._attn_implementation_internal = before
            del _held[id(config)]


class TransformersHooks(Hooks):
    """Hooks on the stacks, the modules around them and their layers; they also set sinkscope's attention function."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.stacks = find_stacks(network)
        self._handles: list[Any] = []
        self._configs: list[Any] = []
        self._replaced: list[str] = []  # names of methods of the network in whose place ours stand
        self.running: dict[str, Mapping[str, Any]] = {}  # arguments of the modules around the stacks, outermost first

    def open(self, session: Session) -> None:
        self._configs = use_interface(self.network, self.stacks)
        for name in ("generate", *BATCHED):
            if name not in vars(self.network) and hasattr(self.network, name):
                ours = _refused(name) if name in BATCHED else _one_generation(self.network, session)
                setattr(self.network, name, ours)
                self._replaced.append(name)
        names = {stack.name for stack in self.stacks}
        for path in {"", *(path for name in names for path in _above(name))} - names:
            parent = self.network.get_submodule(path)
            self._before(parent, partial(self._before_parent, session, path, _positional_names(parent)))
            self._after(parent, partial(self._after_parent, session, path))
        for stack in self.stacks:
            module = stack.module
            self._before(module, partial(self._before_stack, session, stack, _positional_names(module)))
            self._after(module, partial(self._after_stack, session))
            for attention, block in stack.blocks.items():
                self._before(block, _BeforeBlock(session, attention))
                self._before(attention, _BeforeAttention(session, attention))

    def _before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        self._handles.append(module.register_forward_hook(hook, with_kwargs=True, always_call=True))

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
        call = session.begin_call(stack, given, parents[::-1])
        return args, kwargs if call is None else {**kwargs, "sinkscope_call": call}

    def _after_stack(self, session: Session, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        made = getattr(output, "past_key_values", None)
        session.end_call(failed=output is None, made=made)  # torch calls this hook with None after an exception

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        leave_interface(self._configs)
        for name in self._replaced:
            delattr(self.network, name)
        self._handles, self._configs, self._replaced = [], [], []
        self.running = {}

    def run_again(self, tokens: Tensor, real: Tensor) -> None:
        self.stacks[0].module(
            input_ids=tokens,
            attention_mask=None if bool(real.all()) else real.long(),
            position_ids=(real.long().cumsum(-1) - 1).clamp(min=0),
            use_cache=False,
        )


def _above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _one_generation(network: nn.Module, session: Session) -> Callable[..., Any]:
    """Return the network's own ``generate`` as one generation, which may not reorder rows or run other networks."""
    generate: Any = network.generate
    names = ("num_beams", "assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens", "guidance_scale")

    def checked(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None)
        configs = [vars(one) for one in (config, getattr(network, "generation_config", None)) if one is not None]
        first = {
            name: next((one[name] for one in (kwargs, *configs) if one.get(name) is not None), None) for name in names
        }
        if found := [name for name, value in first.items() if value not in (None, 1)]:
            raise AttentionError(f"generate with {', '.join(found)} is not modelled while something watches or hides")
        with session.foreign_generation():
            return generate(*args, **kwargs)

    return checked


def _refused(name: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AttentionError(f"{name} and its paged cache are not modelled; call generate instead")

    return refused


def _positional_names(module: nn.Module) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, one in inspect.signature(module.forward).parameters.items() if one.kind in kinds)


class _BeforeBlock:
    def __init__(self, session: Session, attention: nn.Module) -> None:
        self.session, self.attention = session, attention

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden_states = args[0] if args else kwargs.get("hidden_states")
        if not isinstance(hidden_states, Tensor):
            return None
        if torch.compiler.is_compiling():
            noted = entering(hidden_states)
            return ((noted, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": noted})
        self.session.notes.hidden_states[self.attention] = hidden_states
        return None


class _BeforeAttention:
    """Records cross-attention, and passes the call on where the layers of a network do not (StableLM)."""

    def __init__(self, session: Session, attention: nn.Module) -> None:
        self.session = session
        kinds = [one.kind for one in inspect.signature(attention.forward).parameters.values()]
        self.takes_call = inspect.Parameter.VAR_KEYWORD in kinds

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for name in SOURCES:
            if isinstance(kwargs.get(name), Tensor):
                self.session.notes.crossing.add(module)
        if "sinkscope_call" in kwargs or not self.takes_call or torch.compiler.is_compiling():
            return None
        if torch.is_grad_enabled() and getattr(self.session.network, "is_gradient_checkpointing", False):
            return None  # the backward pass would run the layer again without the call
        call = running_call(module)
        return None if call is None else (args, {**kwargs, "sinkscope_call": call})
