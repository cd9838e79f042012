"""How the attention of a network reaches its session; here for models that use transformers' attention interface."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sinkscope.attention import compiled
from sinkscope.attention.stacks import Stack, find_stacks

if TYPE_CHECKING:
    from sinkscope.attention.session import Session

SOURCES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
"""Keywords by which transformers hands another stack's states to a layer's attention."""


class Wiring(ABC):
    """What a session hangs into its network, and takes out again."""

    stacks: list[Stack]

    @abstractmethod
    def open(self, session: "Session") -> None:
        """Hangs everything in; what was hung in before an exception is taken out by `close`."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the network as it was found."""

    @abstractmethod
    def run_again(self, tokens: Tensor, real: Tensor) -> None:
        """Runs a canvas through the network's one stack, without a cache.

        Args:
            tokens: int64 [batch, position].
            real: bool [batch, position], False on padding, which stands on the left.
        """


class InterfaceWiring(Wiring):
    """Hooks on the stacks, the modules around them and their layers, and the seam as the attention implementation."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.stacks = find_stacks(network)
        self._handles: list[Any] = []
        self._configs: list[Any] = []
        self._wraps_generate = False
        self.running: dict[str, Mapping[str, Any]] = {}  # arguments of the modules around the stacks, outermost first

    def open(self, session: "Session") -> None:
        from sinkscope.attention.seam import check_generate, use_seam

        self._configs = use_seam(self.network, self.stacks)
        if "generate" not in vars(self.network) and hasattr(self.network, "generate"):
            self.network.generate = check_generate(self.network, session)  # type: ignore[assignment]
            self._wraps_generate = True
        for path, module in self._around():
            self._handles.append(module.register_forward_pre_hook(_BeforeParent(self, path, module), with_kwargs=True))
            self._handles.append(module.register_forward_hook(_AfterParent(self, path), with_kwargs=True, always_call=True))
        for stack in self.stacks:
            self._handles.append(stack.module.register_forward_pre_hook(_BeforeStack(self, session, stack), with_kwargs=True))
            self._handles.append(stack.module.register_forward_hook(_AfterStack(session), with_kwargs=True, always_call=True))
            for attention, block in stack.blocks.items():
                self._handles.append(block.register_forward_pre_hook(_BeforeBlock(session, attention), with_kwargs=True))
                self._handles.append(attention.register_forward_pre_hook(_BeforeAttention(session), with_kwargs=True))

    def close(self) -> None:
        from sinkscope.attention.seam import leave_seam

        for handle in self._handles:
            handle.remove()
        leave_seam(self._configs)
        if self._wraps_generate:
            del self.network.generate  # type: ignore[attr-defined]
        self._handles, self._configs, self._wraps_generate = [], [], False
        self.running = {}

    def run_again(self, tokens: Tensor, real: Tensor) -> None:
        self.stacks[0].module(
            input_ids=tokens,
            attention_mask=None if bool(real.all()) else real.long(),
            position_ids=(real.long().cumsum(-1) - 1).clamp(min=0),
            use_cache=False,
        )

    def _around(self) -> list[tuple[str, nn.Module]]:
        """The modules that hold a stack, the network first."""
        names = {".".join(stack.name.split(".")[:depth]) for stack in self.stacks for depth in range(stack.name.count(".") + 1)}
        around = sorted(names - {stack.name for stack in self.stacks}, key=lambda path: (len(path.split(".")), path) if path else (0, ""))
        return [(path, self.network.get_submodule(path)) for path in around]


def parameter_names(module: nn.Module) -> tuple[str, ...]:
    """Names of the positional parameters of a module's forward."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, one in inspect.signature(module.forward).parameters.items() if one.kind in kinds)


def named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call by name."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


class _BeforeParent:
    def __init__(self, wiring: InterfaceWiring, path: str, module: nn.Module) -> None:
        self.wiring, self.path, self.names = wiring, path, parameter_names(module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.path == "":
            self.wiring.running.clear()  # what an interrupt has left behind
        self.wiring.running[self.path] = named(self.names, args, kwargs)


class _AfterParent:
    def __init__(self, wiring: InterfaceWiring, path: str) -> None:
        self.wiring, self.path = wiring, path

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.wiring.running.pop(self.path, None)


class _BeforeStack:
    def __init__(self, wiring: InterfaceWiring, session: "Session", stack: Stack) -> None:
        self.wiring, self.session, self.stack, self.names = wiring, session, stack, parameter_names(stack.module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        parents = [given for path, given in self.wiring.running.items() if f"{self.stack.name}.".startswith(f"{path}." if path else "")]
        call = self.session.begin_call(self.stack, named(self.names, args, kwargs), parents[::-1])
        return args, kwargs if call is None else {**kwargs, "sinkscope_call": call}


class _AfterStack:
    def __init__(self, session: "Session") -> None:
        self.session = session

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.session.end_call(failed=output is None)  # torch calls this hook with None after an exception


class _BeforeBlock:
    """Keeps what enters a layer, for its norms."""

    def __init__(self, session: "Session", attention: nn.Module) -> None:
        self.session, self.attention = session, attention

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entering = args[0] if args else kwargs.get("hidden_states")
        if not isinstance(entering, Tensor):
            return None
        if torch.compiler.is_compiling():
            noted = compiled.entering(entering)
            return ((noted, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": noted})
        self.session.notes.hidden_states[self.attention] = entering
        return None


class _BeforeAttention:
    """Notes a layer whose keys are another stack's."""

    def __init__(self, session: "Session") -> None:
        self.session = session

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(isinstance(kwargs.get(name), Tensor) for name in SOURCES):
            self.session.notes.crossing.add(module)
