"""A trial that takes too much is told, whatever it does; anything else is not this module's to tell."""

import os
import signal
import time

import pytest

from sinkscope.models.forked_trial import ends_within


def squares():
    number = 3
    while True:
        number *= number


@pytest.mark.parametrize(
    ("work", "ends"),
    [
        (lambda: None, True),
        (lambda: 1 / 0, True),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), True),
        (lambda: time.sleep(0.2), True),
        (squares, False),
        (lambda: bytearray(1 << 40), False),
        (lambda: 9 ** (9**9), False),
        (os.abort, False),
    ],
    ids=["nothing", "an error", "killed", "waiting", "a loop", "memory", "one long operation", "an abort"],
)
def test_what_takes_too_much_is_told(work, ends, capfd):
    assert ends_within(0.2, 100, work) is ends
    assert capfd.readouterr() == ("", "")


def test_a_system_that_keeps_no_status_of_processes_tells_nothing():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert ends_within(0.2, 100, os.abort)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_system_without_another_process_tells_nothing(monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert ends_within(0.2, 100, os.abort)


def test_an_interrupt_ends_the_trial(monkeypatch):
    started = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: started.append(fork()) or started[-1])

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ends_within(5, 100, squares)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
