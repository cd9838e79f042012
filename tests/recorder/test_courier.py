"""Steps on their way to the host: in order, bounded, never lost, errors told."""

import threading
import time

import pytest
import torch

from sinkscope.recorder import courier as couriers
from sinkscope.recorder.courier import Courier


def step(number, size=10):
    return {"sums": torch.full((size,), float(number))}


def test_on_the_cpu_a_step_is_handed_on_at_once_in_the_callers_thread():
    threads, courier = [], Courier()
    courier.send(step(0), lambda found: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_a_thread_hands_steps_on_in_order_while_the_caller_goes_on():
    courier, found, go = Courier(threaded=True), [], threading.Event()

    def landed(tensors):
        go.wait(10)
        found.append(int(tensors["sums"][0]))

    for number in range(5):
        courier.send(step(number), landed)
    assert found == [], "nothing waited for"
    go.set()
    courier.drain()
    assert found == [0, 1, 2, 3, 4]
    courier.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "sinkscope writer"]


def test_what_was_sent_is_a_copy():
    courier, found = Courier(threaded=True), []
    tensors = step(3)
    courier.send(tensors, lambda given: (time.sleep(0.05), found.append(float(given["sums"].sum()))))
    tensors["sums"].zero_()
    courier.drain()
    assert found == [30.0]
    courier.close()


def test_a_step_that_finds_no_room_waits_for_earlier_ones():
    courier, most, under_way, lock = Courier(threaded=True, room=100), [0], [0], threading.Lock()

    def landed(tensors):
        time.sleep(0.01)
        with lock:
            under_way[0] -= 1

    for number in range(8):
        courier.send(step(number), landed)  # 40 bytes each
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
    courier.drain()
    courier.close()
    assert most[0] == 2, "two steps of 40 bytes fit into 100"


def test_a_step_larger_than_all_room_goes_alone():
    courier, found = Courier(threaded=True, room=100), []
    for number in range(3):
        courier.send(step(number, size=1000), lambda tensors: found.append(len(tensors["sums"])))
    courier.drain()
    courier.close()
    assert found == [1000, 1000, 1000]


def test_out_of_memory_waits_for_what_is_under_way_and_loses_nothing(monkeypatch):
    courier, found, copies, copy = Courier(threaded=True), [], [], Courier._copy

    def scarce(self, tensors):
        copies.append(self._count)
        if len(copies) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return copy(self, tensors)

    monkeypatch.setattr(Courier, "_copy", scarce)
    for number in range(6):
        courier.send(step(number), lambda tensors: (time.sleep(0.01), found.append(int(tensors["sums"][0]))))
    courier.drain()
    courier.close()
    assert found == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("told_by", ["send", "drain"])
def test_an_error_behind_the_scenes_reaches_the_caller(told_by):
    courier, found = Courier(threaded=True), []

    def landed(tensors):
        if not found:
            found.append("tried")
            raise OSError("no space left on device")
        found.append("again")

    courier.send(step(0), landed)
    with pytest.raises(OSError, match="no space left"):
        if told_by == "drain":
            courier.drain()
        for _ in range(200):
            time.sleep(0.01)
            courier.send(step(1), landed)
    courier.close()


def test_the_bound_on_what_is_under_way_is_stated():
    assert Courier().room == couriers.ROOM == 256 * 2**20
