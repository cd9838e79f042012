"""The hooks that bring the attention of a transformers model to its session, and `subscribed`, which opens one."""

import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.interface import entering, leave_interface, running_call, use_interface
from sinkscope.attention.session import Hooks, Session, current_session, one_at_a_time, watched_networks
from sinkscope.attention.stacks import Stack, find_stacks
from sinkscope.attention.subscribers import Subscriber
from sinkscope.errors import AttentionError

SOURCES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
"""Keywords with which transformers passes the states of another stack to a layer's attention."""
BATCHED = ("generate_batch", "init_continuous_batching", "continuous_batching_context_manager")
"""Methods of transformers' networks that write many texts in one paged cache."""


_generating: "weakref.WeakKeyDictionary[nn.Module, Counter[int]]" = weakref.WeakKeyDictionary()
"""How many generations of ours each thread has begun and not ended, recorded or not."""


@contextmanager
def subscribed(network: nn.Module, subscriber: Subscriber) -> Iterator[Session]:
    """Add a subscriber to the network's session, opening one if there is none and closing it with the last.

    Raises:
        AttentionError: the network cannot be watched, or another thread has a subscriber there, or generates.
    """
    failed = True
    with one_at_a_time:
        session = current_session(network)
        if session is None:
            _refuse_nested(network)
            if is_generating(network, elsewhere=True):
                raise AttentionError(
                    f"expected {type(network).__name__} between its generations, found one of it in another thread; "
                    "let that end first, or "
                    "load the model once for each thread"
                )
            session = Session(network, TransformersHooks(network))
            session.open()
        session.join(subscriber)
    try:
        session.catch_up(subscriber)
        yield session
        failed = False
    finally:
        session.leave(subscriber, failed)


def _refuse_nested(network: nn.Module) -> None:
    """Raise AttentionError where a module around a network, or one inside it, is watched: both would set one
    configuration.
    """
    for other in watched_networks():
        inside = any(module is network for module in other.modules())
        if inside or any(module is other for module in network.modules()):
            raise AttentionError(
                f"{type(network).__name__} {'is a part of' if inside else 'holds'} {type(other).__name__}, which is "
                "recorded or changed "
                f"already; pass {type(other).__name__} here too, or end that first"
            )


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
                setattr(
                    self.network, name, _refused(name) if name in BATCHED else _one_generation(self.network, session)
                )
                self._replaced.append(name)
        for path, module in self._around():
            self._handles.append(
                module.register_forward_pre_hook(_BeforeParent(self, session, path, module), with_kwargs=True)
            )
            self._handles.append(
                module.register_forward_hook(_AfterParent(self, session, path), with_kwargs=True, always_call=True)
            )
        for stack in self.stacks:
            self._handles.append(
                stack.module.register_forward_pre_hook(_BeforeStack(self, session, stack), with_kwargs=True)
            )
            self._handles.append(
                stack.module.register_forward_hook(_AfterStack(session), with_kwargs=True, always_call=True)
            )
            for attention, block in stack.blocks.items():
                self._handles.append(
                    block.register_forward_pre_hook(_BeforeBlock(session, attention), with_kwargs=True)
                )
                self._handles.append(
                    attention.register_forward_pre_hook(_BeforeAttention(session, attention), with_kwargs=True)
                )

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

    def _around(self) -> list[tuple[str, nn.Module]]:
        """Return the modules that contain a stack, the network first."""
        names = {
            ".".join(stack.name.split(".")[:depth])
            for stack in self.stacks
            for depth in range(stack.name.count(".") + 1)
        }
        around = sorted(
            names - {stack.name for stack in self.stacks},
            key=lambda path: (len(path.split(".")), path) if path else (0, ""),
        )
        return [(path, self.network.get_submodule(path)) for path in around]


def _one_generation(network: nn.Module, session: Session) -> Callable[..., Any]:
    """Return the network's own ``generate`` as one generation, which may not reorder rows or run other networks."""
    generate: Any = network.generate

    def checked(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None)
        said = [
            kwargs,
            *(vars(one) for one in (config, getattr(network, "generation_config", None)) if one is not None),
        ]
        names = ("num_beams", "assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens", "guidance_scale")
        first = {name: next((one[name] for one in said if one.get(name) is not None), None) for name in names}
        found = [name for name, value in first.items() if value not in (None, 1)]
        if found:
            raise AttentionError(
                f"generate with {', '.join(found)} is not modelled; leave it out while something watches or hides"
            )
        with session.foreign_generation():
            return generate(*args, **kwargs)

    return checked


def _refused(name: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AttentionError(
            f"{name} and its paged cache are not modelled; call generate while something watches or hides"
        )

    return refused


def _positional_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the positional parameters of a module's forward."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, one in inspect.signature(module.forward).parameters.items() if one.kind in kinds)


def _by_name(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


class _BeforeParent:
    """Records the arguments of a module around a stack while it runs."""

    def __init__(self, hooks: TransformersHooks, session: Session, path: str, module: nn.Module) -> None:
        self.hooks, self.session, self.path, self.names = hooks, session, path, _positional_names(module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.session.refuse_other_threads()
        if self.path == "":
            self.hooks.running.clear()  # an interrupt may have left entries behind
        self.hooks.running[self.path] = _by_name(self.names, args, kwargs)


class _AfterParent:
    """Forgets the arguments of a module around a stack."""

    def __init__(self, hooks: TransformersHooks, session: Session, path: str) -> None:
        self.hooks, self.session, self.path = hooks, session, path

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self.session.runs_elsewhere():
            self.hooks.running.pop(self.path, None)


class _BeforeStack:
    """Tells the session that a stack is called, and passes the call down to the attention function as a keyword."""

    def __init__(self, hooks: TransformersHooks, session: Session, stack: Stack) -> None:
        self.hooks, self.session, self.stack, self.names = hooks, session, stack, _positional_names(stack.module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        parents = [
            given
            for path, given in self.hooks.running.items()
            if f"{self.stack.name}.".startswith(f"{path}." if path else "")
        ]
        call = self.session.begin_call(self.stack, _by_name(self.names, args, kwargs), parents[::-1])
        return args, kwargs if call is None else {**kwargs, "sinkscope_call": call}


class _AfterStack:
    """Tells the session that a stack has returned or raised."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        made = getattr(output, "past_key_values", None)
        self.session.end_call(failed=output is None, made=made)  # torch calls this hook with None after an exception


class _BeforeBlock:
    """Records the input of a layer, for its norms."""

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
    """Records a layer whose keys belong to another stack, and passes the call on where the layers of a network do not
    (StableLM).
    """

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


@contextmanager
def generating_in(network: nn.Module) -> Iterator[Session | None]:
    """Count a generation of a network while the body runs, and give its session; no other thread opens one then."""
    me = threading.get_ident()
    torch.clear_autocast_cache()  # within the caller's autocast, weights would stay as an earlier call cast them
    with one_at_a_time:
        session = current_session(network)
        by_thread = _generating.setdefault(network, Counter())
        by_thread[me] += 1
    try:
        yield session
    finally:
        with one_at_a_time:
            by_thread[me] -= 1


def is_generating(network: nn.Module, *, elsewhere: bool = False) -> bool:
    """Return whether a generation of a network runs, in this thread or another; ``elsewhere`` asks of others alone."""
    me = threading.get_ident()
    with one_at_a_time:
        running = _generating.get(network, Counter()).items()
        return any(number and (not elsewhere or thread != me) for thread, number in running)
