"""A GPU that is none: tensors that say they lie on one, computed by the CPU, and a note of every place that would wait
for it.

Values are real, so that a run goes its ordinary way and its results can be compared. To torch the tensors lie on its
device ``meta``, which needs no driver; to Python code they say ``cuda:0``. What waits is what
`torch.cuda.set_sync_debug_mode` alarms of, and copies from or to memory that is not pinned, for which the driver may
wait.

Copies down that nobody waits for are late: until an event behind them is waited for, rubbish lies where they go. They
bring rubbish too if their stream has not waited for the one that computes, or if what they read was given back before
it was read.
"""

import contextlib
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import sinkscope
from sinkscope.attention import AttentionInputs, Hidden, norms_of, output_norms
from sinkscope.attention.blockwise import compute_blockwise

SOURCE = Path(sinkscope.__file__).parent
DEVICE, TO_TORCH = torch.device("cuda:0"), torch.device("meta")
aten = torch.ops.aten
SHAPED_BY_VALUES = {
    aten.nonzero, aten.nonzero_numpy, aten.masked_select, aten._unique, aten._unique2, aten.unique_dim,
    aten.unique_consecutive, aten.unique_dim_consecutive, aten.bincount, aten.equal,
}  # fmt: skip
MADE_OF_A_LIST = ("tensor", "as_tensor", "asarray")


class OnDevice(torch.Tensor):
    """A tensor of the simulated GPU; ``inner`` holds its values."""

    @staticmethod
    def __new__(cls, inner):
        given = {
            "strides": inner.stride(),
            "storage_offset": inner.storage_offset(),
            "dtype": inner.dtype,
            "device": TO_TORCH,
        }
        tensor = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **given)
        tensor.inner, tensor.made = inner, 0
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def tolist(self):
        return self.cpu().tolist()

    def record_stream(self, stream):
        stream.kept.append(self)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} was asked of a tensor of the simulated GPU outside of it")


class SimulatedGpu(TorchDispatchMode):
    """While it is entered, tensors asked for on a GPU are simulated, and `waits` grows."""

    def __init__(self):
        super().__init__()
        self.waits, self.done, self.lateness = [], 0, 0.0
        self.spun = False  # whether a thread waited by asking all the time
        self.refuses_to_pin = None  # an error
        self.computing = self.current = _Stream(self)
        self._pinned = []  # kept alive, so that their addresses stay theirs
        self._asking, self._main = _DeviceAsTorchHasIt(), threading.current_thread()

    def __enter__(self):
        self._asking.__enter__()
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self._asking.__exit__(*raised)

    def note(self, what):
        """A wait, at the innermost line of sinkscope or transformers that is running."""
        frame = sys._getframe(1)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCE):
                return self.waits.append((f"{path.relative_to(SOURCE)}:{frame.f_code.co_name}", what))
            if "transformers" in path.parts:
                return self.waits.append((f"transformers {path.name}:{frame.f_code.co_name}", what))
            frame = frame.f_back
        self.waits.append(("elsewhere", what))
        return None

    def move(self, network):
        """A network's parameters and buffers to the simulated GPU, for good."""
        for module in network.modules():
            for held in (module._parameters, module._buffers):
                held.update({name: OnDevice(one.detach().clone()) for name, one in held.items() if one is not None})

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        packet, flat = function.overloadpacket, tree_flatten((args, kwargs))[0]
        there = [one for one in flat if isinstance(one, OnDevice)]
        asked = kwargs.get("device")
        if packet is aten.is_pinned:
            return self._is_pinned(args[0])
        if packet in (aten._pin_memory, aten.pin_memory):
            return self._pin(args[0].clone())
        if packet is aten._to_copy:
            return self._moved(args[0], kwargs)
        if packet is aten.copy_ and there:
            queued = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            self._crossing(args[0], args[1], queued)
            if queued and not isinstance(args[0], OnDevice) and self._is_pinned(args[0]):
                self.current.copy(args[0], args[1])
                return args[0]
        elif packet is aten._local_scalar_dense and there:
            self.note("one number")
        elif there:
            self._check(function, args, flat, kwargs)
        pin = kwargs.pop("pin_memory", None)
        if pin and self.refuses_to_pin is not None:
            raise self.refuses_to_pin
        on_device = asked == TO_TORCH if asked is not None else bool(there)
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        found = function(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        wrappers = {id(one.inner): one for one in there}
        self.done += not function.is_view
        made = max((one.made for one in there), default=0) if function.is_view else self.done

        def outside(one):
            if not isinstance(one, torch.Tensor) or (packet is aten.copy_ and not isinstance(args[0], OnDevice)):
                return args[0] if one is args[0] else one
            if not on_device:
                return one
            one = wrappers[id(one)] if id(one) in wrappers else OnDevice(one)
            one.made = made
            return one

        found = tree_map(outside, found)
        return self._pin(found) if pin else found

    def _check(self, function, args, flat, kwargs):
        packet = function.overloadpacket
        if packet in SHAPED_BY_VALUES or (
            function is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        ):
            self.note(f"a shape: {packet.__name__}")
        if packet is aten.isin and isinstance(args[1], OnDevice) and args[1].numel() >= 10 * args[0].numel() ** 0.145:
            self.note("a shape: isin")  # which then sorts, and drops what is double
        if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index):
            indices = [one for one in args[1] if one is not None]
            filled = packet is not aten.index and args[2].numel() == 1
            if any(one.dtype in (torch.bool, torch.uint8) for one in indices) and not filled:
                self.note("a shape: boolean index")
            if any(not isinstance(one, OnDevice) for one in indices):
                self.note("up, index")
            return
        strangers = [
            one for one in flat if isinstance(one, torch.Tensor) and not isinstance(one, OnDevice) and one.ndim
        ]
        if strangers and "device" not in kwargs:
            raise RuntimeError(f"{function}: expected all tensors to be on the same device, found cuda:0 and cpu")

    def _moved(self, tensor, kwargs):
        """``to``, between devices or to another type on one."""
        device = kwargs.pop("device", None)
        non_blocking = kwargs.pop("non_blocking", False)
        kwargs.pop("pin_memory", None)
        target = isinstance(tensor, OnDevice) if device is None else device == TO_TORCH
        if target != isinstance(tensor, OnDevice):
            if target and not non_blocking:
                self.note("up")
            elif target and not self._is_pinned(tensor):
                self.note("up, not pinned")
            elif not target:
                self.note("down")
        found = aten._to_copy(_inner(tensor), **kwargs)
        if not target:
            return found
        self.done += 1
        there = OnDevice(found)
        there.made = self.done
        return there

    def _crossing(self, target, source, non_blocking):
        up, down = isinstance(target, OnDevice), isinstance(source, OnDevice)
        if up == down:
            return
        if not (non_blocking and self._is_pinned(source if up else target)):
            self.note("up" if up else "down")

    def _pin(self, tensor):
        self._pinned.append(tensor)
        return tensor

    def _is_pinned(self, tensor):
        return not isinstance(tensor, OnDevice) and any(
            one.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for one in self._pinned
        )

    # What torch.cuda has

    def patch(self, monkeypatch):
        """Streams and events."""
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: _Stream(self))
        monkeypatch.setattr(torch.cuda, "Event", lambda blocking=False: _Event(self, blocking))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self._on)
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())

    @contextlib.contextmanager
    def _on(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def launched(self, kernel):
        """A function of tensors as a kernel: it sees what they hold, and waits for nothing."""

        def launch(*args, **kwargs):
            with _outside_of_it():
                return kernel(*tree_map(_inner, args), **tree_map(_inner, kwargs))

        return launch


def kernels_in_place(gpu):
    """Stand-ins for `dispatch.compute_by_kernels` and `norms_by_kernel`: the CPU's operations, on what tensors hold."""

    def blockwise(arguments, hidden):
        return compute_blockwise(AttentionInputs(**arguments, hidden=[Hidden(keys) for keys in hidden]))

    def attention(inputs):
        arguments = {name: one for name, one in vars(inputs).items() if name != "hidden"}
        output, columns = gpu.launched(blockwise)(arguments, [one.keys for one in inputs.hidden])
        found = {name: OnDevice(one) for name, one in vars(columns).items() if isinstance(one, torch.Tensor)}
        return OnDevice(output), replace(columns, path="triton", **found)

    def norms(key, value, projection, newest):
        outputs = None if projection is None else output_norms(value[:, :, value.shape[2] - newest :], projection)
        return norms_of(key), norms_of(value), outputs

    def norms_by_kernel(key, *others):
        found = gpu.launched(norms)(key, *others) if key.is_cuda else None
        return found and tuple(None if one is None else OnDevice(one) for one in found)

    return attention, norms_by_kernel


class _Stream:
    def __init__(self, gpu):
        self.gpu, self.seen, self.kept, self.copies = gpu, 0, [], []

    def wait_stream(self, other):
        self.seen = self.gpu.done if other is self.gpu.computing else other.seen

    def copy(self, target, source):
        """Queues a copy to the host, behind whatever this stream has waited for."""
        mine = self is self.gpu.computing
        with _outside_of_it():
            target.fill_(torch.nan if target.is_floating_point() else True if target.dtype == torch.bool else 77)
        if mine or source.made <= self.seen:
            self.copies = [one for one in self.copies if not one.done]
            self.copies.append(_Copy(target, (lambda: source) if mine else weakref.ref(source)))

    def record_event(self, event=None):
        event = event or _Event(self.gpu)
        event.copies = list(self.copies)
        return event


class _Copy:
    def __init__(self, target, source):
        self.target, self.source, self.done = target, source, False

    def arrive(self):
        source = self.source()
        if source is not None and not self.done:
            with _outside_of_it():
                self.target.copy_(source.inner)
        self.done = True


class _Event:
    def __init__(self, gpu, blocking=False):
        self.gpu, self.blocking, self.copies = gpu, blocking, []

    def synchronize(self):
        if threading.current_thread() is self.gpu._main:
            self.gpu.note("an event")
        elif not self.blocking:
            self.gpu.spun = True
        time.sleep(self.gpu.lateness)
        for copy in self.copies:
            copy.arrive()


@contextlib.contextmanager
def _outside_of_it():
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


class _DeviceAsTorchHasIt(TorchFunctionMode):
    """``cuda`` among the arguments of a torch function becomes the device that torch may have it on."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = getattr(function, "__name__", ""), dict(kwargs or {})
        if name == "pin_memory":
            return aten._pin_memory(args[0])
        if name in MADE_OF_A_LIST and _for_torch(kwargs.get("device")) == TO_TORCH:
            del kwargs["device"]
            return function(*args, **kwargs).to(TO_TORCH)
        args, kwargs = tree_map(_for_torch, args), tree_map(_for_torch, kwargs)
        return function(*args, **kwargs)


def _for_torch(one):
    if (isinstance(one, torch.device) and one.type == "cuda") or (
        isinstance(one, str) and one.partition(":")[0] == "cuda"
    ):
        return TO_TORCH
    return one


def _inner(one):
    return one.inner if isinstance(one, OnDevice) else one
