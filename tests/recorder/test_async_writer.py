"""Steps in transit to the host: in order, bounded, never lost, errors raised."""

import contextlib
import threading
import time

import pytest
import torch

from sinkscope.recorder.async_writer import AsyncWriter


def step(number, size=10):
    return {"sums": torch.full((size,), float(number))}


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


def test_out_of_memory_waits_for_earlier_steps_and_loses_nothing(monkeypatch):
    copies, copy = [], AsyncWriter._copy

    def failing(self, tensors):
        copies.append(self._count)
        if len(copies) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return copy(self, tensors)

    monkeypatch.setattr(AsyncWriter, "_copy", failing)
    writer, found = AsyncWriter(threaded=True), []
    for number in range(6):
        writer.send(step(number), lambda tensors: found.append(int(tensors["sums"][0])))
    writer.drain()
    writer.close()
    assert found == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("threaded", [True, False])
def test_behind_a_failed_step_nothing_lands(threaded):
    """Whether it was in transit already or is sent later, because a gap would give later steps wrong numbers."""
    for _ in range(5):
        writer, landed, raised = AsyncWriter(threaded=threaded, room=400), [], 0

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
                raised += 1
        with contextlib.suppress(OSError):
            writer.drain()
        writer.close()
        assert landed == ["the failed one"] and raised
