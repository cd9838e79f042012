"""Brings the tensors of a step to the host without waiting for the device, and hands them on in order.

On a GPU a step's tensors are copied to pinned memory on a stream of their own while the next step runs; a thread waits for
each copy and writes. What is under way is bounded: a step that finds no room waits for earlier ones. Out of memory is met in
the same way, so that a step may come late but is never lost. Tensors on the CPU are handed on at once, in the caller's thread.
Behind a step that failed nothing is handed on: what arrives is whole up to there.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ROOM = 256 << 20
"""Bytes that may be under way."""

Landed = Callable[[dict[str, Tensor]], None]


@dataclass(frozen=True)
class _Parcel:
    """One step on its way.

    Attributes:
        tensors: on the host; whole once ``copied`` has happened.
        size: bytes.
        copied: CUDA event of each device, to be waited for.
        landed: what takes the tensors then.
    """

    tensors: dict[str, Tensor]
    size: int
    copied: tuple[Any, ...]
    landed: Landed


class AsyncWriter:
    """Takes steps in, hands them on in the same order.

    Args:
        threaded: whether a thread hands them on; None where any of the tensors lies on a GPU.
        room: bytes that may be under way; a single step may be larger.
    """

    def __init__(self, threaded: bool | None = None, room: int = ROOM) -> None:
        self.room = room
        self._threaded = threaded
        self._parcels: queue.SimpleQueue[_Parcel | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._free = threading.Condition()
        self._under_way = self._count = 0
        self._error: BaseException | None = None
        self._streams: dict[torch.device, Any] = {}

    def send(self, tensors: Mapping[str, Tensor], landed: Landed) -> None:
        """Calls ``landed`` with the tensors on the host: now, or soon from the thread.

        Raises:
            Exception: what an earlier step ended with when it was handed on; this one and all behind it are dropped, and
                each is told so, until `close`.
        """
        threaded = any(one.is_cuda for one in tensors.values()) if self._threaded is None else self._threaded
        if not threaded:
            self.drain()
            try:
                landed({name: one.detach().cpu() for name, one in tensors.items()})
            except BaseException as error:
                self._error = error
                raise
            return
        size = sum(one.numel() * one.element_size() for one in tensors.values())
        self._wait_until(lambda: self._count == 0 or self._under_way + size <= self.room)
        self._raise()
        try:
            here, copied = self._copy(tensors)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self.drain()
            here, copied = {name: one.detach().cpu() for name, one in tensors.items()}, ()
        with self._free:
            self._under_way, self._count = self._under_way + size, self._count + 1
        self._parcels.put(_Parcel(here, size, copied, landed))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sinkscope writer", daemon=True)
            self._thread.start()

    def drain(self) -> None:
        """Waits until everything is handed on; raises what went wrong on the way."""
        self._wait_until(lambda: self._count == 0)
        self._raise()

    def close(self) -> None:
        """Waits until everything is handed on and ends the thread; keeps what went wrong to itself."""
        self._wait_until(lambda: self._count == 0)
        if self._thread is not None:
            self._parcels.put(None)
            self._thread.join()
        self._thread, self._error = None, None

    def _copy(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[Any, ...]]:
        """Starts the copies: the tensors to be, and the events that say when they are."""
        here: dict[str, Tensor] = {}
        for name, one in tensors.items():
            one = one.detach()
            if not one.is_cuda:
                here[name] = one.clone()
                continue
            if one.device not in self._streams:
                self._streams[one.device] = torch.cuda.Stream(one.device)
            stream = self._streams[one.device]
            here[name] = torch.empty(one.shape, dtype=one.dtype, device="cpu", pin_memory=True)
            stream.wait_stream(torch.cuda.current_stream(one.device))
            with torch.cuda.stream(stream):
                here[name].copy_(one, non_blocking=True)
            one.record_stream(stream)
        used = {one.device for one in tensors.values() if one.is_cuda}
        return here, tuple(self._streams[device].record_event(torch.cuda.Event(blocking=True)) for device in used)

    def _run(self) -> None:
        while (parcel := self._parcels.get()) is not None:
            try:
                if self._error is None:
                    for event in parcel.copied:
                        event.synchronize()
                    parcel.landed(parcel.tensors)
            except BaseException as error:
                self._error = error
            size = parcel.size
            del parcel  # before it counts as gone
            with self._free:
                self._under_way, self._count = self._under_way - size, self._count - 1
                self._free.notify_all()

    def _wait_until(self, there: Callable[[], bool]) -> None:
        with self._free:
            while not there():
                self._free.wait()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: the device's, or the host's that was to be pinned, of which CUDA speaks in another class."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
