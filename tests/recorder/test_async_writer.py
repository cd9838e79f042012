"""Steps in transit to the host: in order, bounded, never lost, errors raised."""

import contextlib
import threading
import time
import weakref

import pytest
import torch

from sinkscope.recorder import async_writer
from sinkscope.recorder.async_writer import AsyncWriter


def step(number, size=10):
    return {"sums": torch.full((size,), float(number))}


def test_on_the_cpu_a_step_is_handed_on_at_once_in_the_callers_thread():
    threads, writer = [], AsyncWriter()
    writer.send(step(0), lambda found: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_a_thread_hands_steps_on_in_order_while_the_caller_goes_on():
    writer, found, go = AsyncWriter(threaded=True), [], threading.Event()

    def landed(tensors):
        go.wait(10)
        found.append(int(tensors["sums"][0]))

    for number in range(5):
        writer.send(step(number), landed)
    assert found == [], "nothing waited for"
    go.set()
    writer.drain()
    assert found == [0, 1, 2, 3, 4]
    writer.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "sinkscope writer"]


def test_what_was_sent_is_a_copy():
    writer, found = AsyncWriter(threaded=True), []
    tensors = step(3)
    writer.send(tensors, lambda given: (time.sleep(0.05), found.append(float(given["sums"].sum()))))
    tensors["sums"].zero_()
    writer.drain()
    assert found == [30.0]
    writer.close()


def test_what_was_handed_on_is_held_no_longer():
    writer, seen = AsyncWriter(threaded=True), []
    writer.send(step(0), lambda tensors: seen.append(weakref.ref(tensors["sums"])))
    writer.drain()
    assert seen[0]() is None
    writer.close()


def test_a_step_that_finds_no_room_waits_for_earlier_ones():
    writer, most, under_way, lock = AsyncWriter(threaded=True, room=100), [0], [0], threading.Lock()

    def landed(tensors):
        time.sleep(0.01)
        with lock:
            under_way[0] -= 1

    for number in range(8):
        writer.send(step(number), landed)  # 40 bytes each
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
    writer.drain()
    writer.close()
    assert most[0] == 2, "two steps of 40 bytes fit into 100"


def test_a_step_larger_than_all_room_goes_alone():
    writer, found = AsyncWriter(threaded=True, room=100), []
    for number in range(3):
        writer.send(step(number, size=1000), lambda tensors: found.append(len(tensors["sums"])))
    writer.drain()
    writer.close()
    assert found == [1000, 1000, 1000]


OUT_OF_MEMORY = {
    "of the device": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "to be pinned": getattr(torch, "AcceleratorError", RuntimeError)(
        "CUDA error: out of memory"
    ),  # as cudaHostAlloc says it
}


def scarce(monkeypatch, error):
    """From now on the third copy fails."""
    copies, copy = [], AsyncWriter._copy

    def failing(self, tensors):
        copies.append(self._count)
        if len(copies) == 3:
            raise error
        return copy(self, tensors)

    monkeypatch.setattr(AsyncWriter, "_copy", failing)


@pytest.mark.parametrize("error", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_out_of_memory_waits_for_what_is_under_way_and_loses_nothing(error, monkeypatch):
    scarce(monkeypatch, error)
    writer, found = AsyncWriter(threaded=True), []
    for number in range(6):
        writer.send(step(number), lambda tensors: (time.sleep(0.01), found.append(int(tensors["sums"][0]))))
    writer.drain()
    writer.close()
    assert found == [0, 1, 2, 3, 4, 5]


def test_what_else_a_copy_fails_with_is_told(monkeypatch):
    scarce(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"))
    writer, found = AsyncWriter(threaded=True), []
    with pytest.raises(RuntimeError, match="illegal memory access"):
        for number in range(6):
            writer.send(step(number), lambda tensors: found.append(int(tensors["sums"][0])))
    writer.close()
    assert found == [0, 1]


@pytest.mark.parametrize("told_by", ["send", "drain"])
def test_an_error_behind_the_scenes_reaches_the_caller(told_by):
    writer, found = AsyncWriter(threaded=True), []

    def landed(tensors):
        if not found:
            found.append("tried")
            raise OSError("no space left on device")
        found.append("again")

    writer.send(step(0), landed)
    with pytest.raises(OSError, match="no space left"):
        if told_by == "drain":
            writer.drain()
        for _ in range(200):
            time.sleep(0.01)
            writer.send(step(1), landed)
    writer.close()


@pytest.mark.parametrize("threaded", [True, False])
def test_behind_a_failed_step_nothing_lands(threaded):
    """Whether it was in transit already or is sent later, because a gap would give later steps wrong numbers."""
    for _ in range(20):
        writer, landed, told = AsyncWriter(threaded=threaded, room=400), [], 0

        def land(tensors, landed=landed):
            if not landed:
                landed.append("the failed one")
                time.sleep(0.001)
                raise OSError("no space left on device")
            landed.append(int(tensors["sums"][0]))

        for number in range(40):  # a large one waits for the room of the first, while small ones are queued
            try:
                writer.send(step(number, size=60 if number % 12 in (0, 11) else 2), land)
            except OSError:
                told += 1
        with contextlib.suppress(OSError):
            writer.drain()
        writer.close()
        assert landed == ["the failed one"] and told


def test_every_call_behind_a_failed_step_is_told_of_it():
    writer = AsyncWriter(threaded=True)
    writer.send(step(0), lambda tensors: 1 / 0)
    for call in (writer.drain, writer.drain, lambda: writer.send(step(1), lambda tensors: None)):
        with pytest.raises(ZeroDivisionError):
            call()
    writer.close()


def test_an_async_writer_that_was_closed_begins_anew():
    writer, found = AsyncWriter(threaded=True), []
    writer.send(step(0), lambda tensors: 1 / 0)
    writer.close()
    writer.send(step(1), lambda tensors: found.append(int(tensors["sums"][0])))
    writer.drain()
    writer.close()
    assert found == [1]


def test_the_bound_on_what_is_under_way_is_stated():
    assert AsyncWriter().room == async_writer.ROOM == 256 * 2**20
