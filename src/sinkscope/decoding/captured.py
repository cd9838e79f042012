"""A step of a canvas as one CUDA graph: a generation captures it once, and later steps replay it.

Python runs in the captured step alone. What it queued runs again on new contents of the same memory: the canvas, and
the state of the subscribers, who then get the results as if their layers had run. The forward call is captured; the
choice of tokens is not. A step is captured when another of its shape has run, and trusted if the first replay gives
every tensor of a plain run of the same canvas, to the bit. Until then, and wherever that fails, steps run plainly.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import KeyPath, TreeSpec, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from sinkscope.attention import Session, StepContext, current_session
from sinkscope.models import Model

MOST = 2  # graphs of a generation: each holds the memory of a step
aten = torch.ops.aten
SHAPED_BY_VALUES = {
    aten.nonzero, aten.nonzero_numpy, aten.masked_select, aten.bincount, aten.isin, aten.repeat_interleave.Tensor,
    aten._unique, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.unique_dim_consecutive,
}  # fmt: skip
WAITING = SHAPED_BY_VALUES | {aten._local_scalar_dense, aten.equal, aten.lift_fresh}
"""Operators that wait for a GPU, or bring a number of the host to it."""

CONTEXT = ("tokens", "masked", "readers")
"""Tensors of a `StepContext` that a step reads on the device."""
Call = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Hidden states [row, position, width] of tokens, their positions, and the keys that each query sees."""
Captured = tuple[Any, Callable[[], None]]
"""What a captured function returned, and what runs it again on the present contents of its tensors."""


class NotCaptured(Exception):
    """A step does more than queue work on its tensors."""


class QueueingOnly(TorchDispatchMode):
    """Raises `NotCaptured` for an operator that reads a tensor of a device, brings one there, or computes elsewhere."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, found = function.overloadpacket, None
        waits = packet in WAITING or function in WAITING
        if packet in (aten.index, aten.index_put, aten.index_put_):
            by_mask = any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
            waits = by_mask and (packet is aten.index or args[2].numel() > 1)
        if not waits:
            found = function(*args, **(kwargs or {}))
            crossing = packet in (aten._to_copy, aten.copy_)  # else a number of the host is a constant, or unused
            tensors = (one for one in tree_leaves((args, kwargs, found)) if isinstance(one, Tensor))
            waits = any(one.device.type != self.device.type and (one.ndim > 0 or crossing) for one in tensors)
        if waits:
            raise NotCaptured(str(function))
        return found


def capture_on(device: torch.device) -> Callable[[Callable[[], Any]], Captured] | None:
    """Return what captures a function on a device; None where that is not known."""
    return partial(cuda_graph, device) if device.type == "cuda" else None


def cuda_graph(device: torch.device, run: Callable[[], Any]) -> Captured:
    """Capture a function that has run before as a CUDA graph; other threads may go on using the device."""
    with torch.cuda.device(device):
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(device), capture_error_mode="thread_local"):
                made = run()
        finally:  # a capture that fails leaves its stream behind
            torch.cuda.set_stream(before)
    return made, graph.replay


@dataclass(frozen=True, eq=False)
class _Captured:
    """A captured step: the memory of each leaf of its input (None: no tensor), the leaves of its results, and what it
    reads besides, which must stay.
    """

    memory: list[Tensor | None]
    replay: Callable[[], None]
    made: list[Any]
    spec: TreeSpec
    stays: Any

    def run(self, leaves: Sequence[Any]) -> Any:
        """Return the hidden states of a step, and what its layers have left."""
        fill(self.memory, leaves)
        self.replay()
        return tree_unflatten(self.made, self.spec)


def fill(memory: Sequence[Tensor | None], leaves: Sequence[Any]) -> None:
    """Copy tensors to where a captured step reads them, unless they lie there."""
    for place, leaf in zip(memory, leaves, strict=True):
        if place is not None and place is not leaf:
            _once(place).copy_(_once(leaf))


class CapturedSteps:
    """The forward calls of one generation, of which those that repeat a shape are replayed; see `capturing`.

    Attributes:
        word: ``used``, or why no step was replayed: ``off`` (not wanted), ``cpu`` or another device, ``spread`` (over
            devices), ``training``, ``autocast``, ``compiled``, ``hooks`` (of others, or another ``forward``),
            ``watched`` (by a subscriber, or a rule, that does more than queue work), ``shapes`` (none was repeated),
            ``waits`` (the network itself does more), ``failed``, ``differs`` (the replay from the plain step).
    """

    def __init__(self, model: Model, wanted: bool) -> None:
        self.network, self.word = model.network, "shapes"
        self._steps: list[tuple[Any, _Captured | None]] = []  # by shape; None of the last that ran plainly
        self._capture = capture_on(model.device) if wanted else None
        if self._capture is None:
            self._give_up(model.device.type if wanted else "off")
            return
        self._weights = [*self.network.parameters(), *self.network.buffers()]
        self._modules = list(self.network.modules())
        reasons = {
            "spread": len({one.device for one in self._weights}) > 1,
            "training": self.network.training,
            "autocast": torch.is_autocast_enabled(model.device.type),
            "compiled": any(one._compiled_call_impl is not None or hasattr(one, "_orig_mod") for one in self._modules),
        }
        if word := next((word for word, holds in reasons.items() if holds), None):
            self._give_up(word)

    def __call__(self, run: Call, tokens: Tensor, positions: Tensor, seen: Tensor | None) -> Tensor:
        """Return the hidden states of a step, and leave its subscribers as their layers would have."""
        session = None if self._capture is None else current_session(self.network)
        state = None if session is None else session.layer_state()
        if session is not None and state is None:
            self._give_up("watched")
        elif self._capture is not None and any(self._changed(module, session) for module in self._modules):
            self._give_up("hooks")
        if self._capture is None:
            return run(tokens, positions, seen)
        step = _Step(run, session, None if state is None else state[0])
        leaves, step.spec = tree_flatten((tokens, positions, seen, step.tensors(), None if state is None else state[1]))
        written = [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in self._weights]
        key = (step.spec, _described(leaves), step.layout(), written)
        at = next((at for at, (known, _) in enumerate(self._steps) if known == key), None)
        found = None
        if at is None:
            kept = [one for one in self._steps if one[1] is not None or one is self._steps[-1]]
            self._steps = [*kept, (key, None)]
        elif (captured := self._steps[at][1]) is not None:
            found = captured.run(leaves)
        elif sum(one is not None for _, one in self._steps) < MOST:
            found = self._captured(at, step, leaves)
        if found is None:
            step.leave(tree_unflatten(leaves, step.spec)[-1])  # a capture that failed has changed it
            return run(tokens, positions, seen)
        step.leave(found[1])
        return found[0]

    def _captured(self, at: int, step: "_Step", leaves: list[Any]) -> tuple[Tensor, Any] | None:
        """Capture a step, and compare its first replay with a plain run; None where it cannot be captured."""
        assert self._capture is not None
        known: dict[int, Tensor] = {}
        memory = [known.setdefault(id(one), _memory_of(one)) if isinstance(one, Tensor) else None for one in leaves]
        inputs = [one if place is None else place for one, place in zip(leaves, memory, strict=True)]
        fill(memory, leaves)
        try:
            with QueueingOnly(inputs[0].device):
                expected, spec = tree_flatten(step.run(inputs))
            (made, made_spec), replay = self._capture(lambda: step.run_in_place(inputs))
            uploaded = None if step.session is None else dict(step.session.uploaded)
            captured = _Captured(memory, replay, made, made_spec, (step, list(leaves), uploaded))
            found = captured.run(leaves)
        except NotCaptured:
            return self._give_up("waits")
        except Exception:  # the plain step that follows raises faults of the call itself
            return self._give_up("failed")
        if spec != made_spec or not _same(expected, made):
            self._give_up("differs")
            return tree_unflatten(expected, spec)
        self.word, self._steps[at] = "used", (self._steps[at][0], captured)
        return found

    def _give_up(self, word: str) -> None:
        """Let all steps run plainly from here on."""
        self.word, self._capture, self._steps = word, None, []

    def _changed(self, module: Any, session: Session | None) -> bool:
        """Whether a module runs code that is neither its own nor ours, and which a replay would leave out."""
        hooks = chain(module._forward_hooks.values(), module._forward_pre_hooks.values())
        ours = (isinstance(one, partial) and one.args and one.args[0] is session for one in hooks)
        return "forward" in vars(module) or not all(ours)


@dataclass(eq=False)
class _Step:
    """A running step: its forward call, and the session and the context of its subscribers, if it has any."""

    call: Call
    session: Session | None
    context: StepContext | None
    spec: Any = None

    def tensors(self) -> Any:
        return None if self.context is None else [getattr(self.context, name) for name in CONTEXT]

    def layout(self) -> Any:
        """Return what the layers go by besides tensors."""
        if self.session is None or self.context is None:
            return None
        values = {name: one for name, one in vars(self.context).items() if not isinstance(one, Tensor)}
        return values, self.context.lengths.tolist(), [*map(id, self.session.subscribers)]

    def leave(self, states: Any) -> None:
        """Leave the subscribers in the running step, with what its layers have left."""
        if self.session is not None and self.context is not None:
            self.session.set_layer_state(self.context, states)

    def run(self, inputs: Sequence[Any]) -> tuple[Tensor, Any]:
        """Run the step plainly on other tensors; return hidden states, and what its layers leave."""
        tokens, positions, seen, tensors, states = tree_unflatten(inputs, self.spec)
        if self.session is None or self.context is None:
            return self.call(tokens, positions, seen), None
        named: dict[str, Any] = dict(zip(CONTEXT, tensors, strict=True))
        self.session.set_layer_state(replace(self.context, **named), states)
        with self.session.being_captured():
            hidden, state = self.call(tokens, positions, seen), self.session.layer_state()
        assert state is not None
        return hidden, state[1]

    def run_in_place(self, inputs: Sequence[Any]) -> tuple[list[Any], TreeSpec]:
        """Do the same, and return leaves; what the next step reads is put where this one has read it."""
        made, spec = tree_flatten_with_path(self.run(inputs))
        paths = [path for path, _ in tree_flatten_with_path(tree_unflatten(inputs, self.spec))[0]]
        places = {path[1:]: one for path, one in zip(paths, inputs, strict=True) if _number(path) == 4}
        found = []
        for path, one in made:
            place = places.get(path[1:]) if _number(path) == 1 else None
            if isinstance(one, Tensor) and isinstance(place, Tensor) and _described([place]) == _described([one]):
                fill([place], [one])
                one = place
            found.append(one)
        return found, spec


def _number(path: KeyPath) -> int:
    return path[0].idx  # type: ignore[attr-defined]


def _once(tensor: Tensor) -> Tensor:
    """Return a tensor without the entries that lie in the memory of others."""
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]


def _memory_of(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _described(leaves: Sequence[Any]) -> list[Any]:
    """Return what a captured step goes by: shapes of tensors and which are the same one, and the values of the rest."""
    places: dict[int, int] = {}
    found: list[Any] = []
    for one in leaves:
        if isinstance(one, Tensor):
            found.append((places.setdefault(id(one), len(places)), one.shape, one.stride(), one.dtype, one.device))
        else:
            found.append(one)
    return found


def _same(expected: Sequence[Any], made: Sequence[Any]) -> bool:
    """Return whether all leaves are the same, to the bit but for the kind of a NaN; this waits for a GPU, once."""
    flags = []
    for one, other in zip(expected, made, strict=True):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            if one is not other and one != other:
                return False
        elif _described([one])[0][1:] != _described([other])[0][1:]:
            return False
        else:
            flags.append(((one == other) | ((one != one) & (other != other))).all())
    return not flags or bool(torch.stack(flags).all())


_current: ContextVar[CapturedSteps | None] = ContextVar("captured_steps", default=None)


@contextmanager
def capturing(model: Model, wanted: bool = True) -> Iterator[CapturedSteps]:
    """Capture steps of a generation that runs in the body, where that is ``wanted`` and can be done."""
    steps = CapturedSteps(model, wanted)
    before = _current.set(steps)
    try:
        yield steps
    finally:
        _current.reset(before)
        steps._steps = []


def captured_steps(network: Any) -> CapturedSteps | None:
    """Return those of the running generation, if it is one of this network."""
    found = _current.get()
    return found if found is not None and found.network is network else None
