"""Copies the tensors of each step to the host in the background and delivers them in order.

On a GPU a step is packed and goes to pinned memory in one copy, on a separate stream while the next step runs, and a
thread delivers it; its tensors may be written again at once, as by a step that is replayed. The bytes in transit are
bounded; if memory runs out, a step waits and is copied synchronously, so none is lost. Tensors on the CPU are delivered
at once, in the caller's thread. After a step fails, no later step is delivered.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sinkscope.models.devices import is_out_of_memory

ROOM = 256 << 20
"""Bytes that may be in transit."""

Tensors = Mapping[Any, Tensor]
Landed = Callable[[Tensors], None]


class AsyncWriter:
    """Takes steps and delivers them on the host in the same order, in a thread where any tensor is on a GPU, unless
    ``threaded`` says. ``room`` are the bytes that may be in transit; a single step may be larger.
    """

    def __init__(self, threaded: bool | None = None, room: int = ROOM) -> None:
        self._threaded, self.room = threaded, room
        # The tensors on the host, complete once each device's event has happened; their bytes; whom to call with them.
        self._parcels: queue.SimpleQueue[tuple[Tensors, int, list[Any], Landed] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._free = threading.Condition()
        self._under_way = self._count = 0
        self._error: BaseException | None = None
        self._streams: dict[torch.device, Any] = {}

    def send(self, tensors: Tensors, landed: Landed) -> None:
        """Call ``landed`` with the tensors on the host: at once, or later from the thread. After a delivery that failed
        drop this step and raise its error again, until `close`.
        """
        threaded = any(one.is_cuda for one in tensors.values()) if self._threaded is None else self._threaded
        if not threaded:
            self.drain()
            self._deliver({name: one.detach().cpu() for name, one in tensors.items()}, [], landed)
            self.drain()
            return
        size = sum(one.numel() * one.element_size() for one in tensors.values())
        self._wait_for(size)
        try:
            here, copied = self._copy(tensors)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self.drain()
            here, copied = {name: one.detach().cpu() for name, one in tensors.items()}, []
        with self._free:
            self._under_way, self._count = self._under_way + size, self._count + 1
        self._parcels.put((here, size, copied, landed))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sinkscope writer", daemon=True)
            self._thread.start()

    def drain(self) -> None:
        """Wait until every step is delivered; raise the error of the first delivery that failed."""
        self._wait_for(self.room)

    def close(self) -> None:
        """Deliver what waits and end the thread; raise nothing."""
        if self._thread is not None:
            self._parcels.put(None)
            self._thread.join()
        self._thread, self._error = None, None

    def _copy(self, tensors: Tensors) -> tuple[Tensors, list[Any]]:
        """Queue one copy from each device, of all its tensors one behind the other; they may change at once."""
        here = {name: one.detach().clone() for name, one in tensors.items() if not one.is_cuda}
        copied = []
        for device in {one.device for one in tensors.values() if one.is_cuda}:
            named = [(name, one.detach()) for name, one in tensors.items() if one.device == device]
            named.sort(key=lambda pair: -pair[1].element_size())  # each begins at a multiple of its own size
            packed = torch.cat([one.reshape(-1).view(torch.uint8) for _, one in named])
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            stream = self._streams[device]
            landing = torch.empty(packed.shape, dtype=torch.uint8, device="cpu", pin_memory=True)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                landing.copy_(packed, non_blocking=True)
            packed.record_stream(stream)
            sizes = [one.numel() * one.element_size() for _, one in named]
            for (name, one), part in zip(named, landing.split(sizes), strict=True):
                here[name] = part.view(one.dtype).view(one.shape)
            copied.append(stream.record_event(torch.cuda.Event(blocking=True)))
        return {name: here[name] for name in tensors}, copied

    def _run(self) -> None:
        while (parcel := self._parcels.get()) is not None:
            tensors, size, copied, landed = parcel
            self._deliver(tensors, copied, landed)
            del parcel, tensors  # their memory is free before their bytes stop counting
            with self._free:
                self._under_way, self._count = self._under_way - size, self._count - 1
                self._free.notify_all()

    def _deliver(self, tensors: Tensors, copied: list[Any], landed: Landed) -> None:
        try:
            if self._error is None:
                for event in copied:
                    event.synchronize()
                landed(tensors)
        except BaseException as error:
            self._error = error

    def _wait_for(self, size: int) -> None:
        with self._free:
            while self._count and self._under_way + size > self.room:
                self._free.wait()
        if self._error is not None:
            raise self._error
