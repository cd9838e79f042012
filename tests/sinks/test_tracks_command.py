"""`sinkscope tracks` as a person reads it: which heads move, through which tokens, and what the kinds of tracks are."""

import numpy as np
import pytest
from planted import make_trace, sink_at, write_trace

from sinkscope.sinks.tracking import KIND_MEANINGS

STEPS, WIDTH = 20, 30


def write(folder, places):
    """A trace whose main sinks stand at ``places`` [step, layer, head]."""
    columns = sink_at(places, width=WIDTH, strength=WIDTH / 2)
    return write_trace(folder, make_trace(columns, tokens=3 + np.arange(WIDTH) % 6))


@pytest.fixture
def places():
    """Six heads: 0.0 stands, 0.1 moves twice, 1.2 moves nine times; the others have no sink."""
    found = np.full((STEPS, 2, 3), -1)
    found[:, 0, 0] = 4
    found[:, 0, 1] = np.repeat([2, 7, 20], [6, 8, 6])
    found[:, 1, 2] = np.repeat(np.arange(10, 20), 2)
    return found


def test_the_heads_that_move_most_come_first_with_their_tokens(run, tmp_path, places):
    status, out, _ = run("tracks", write(tmp_path / "t", places))
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("main sinks that move most"))
    assert lines[at] == "main sinks that move most (2 of the 2 that move or swap)"
    assert lines[at + 1] == "head moves swaps drift main sink goes through"
    assert lines[at + 2] == "1.2 9 0 +0.50 10 ' the', 11 'apple', 12 '\\n', 13 ' ', 14 '.', 15 '7…"
    slope = np.polyfit(range(STEPS), places[:, 0, 1], 1)[0]
    assert lines[at + 3] == f"0.1 2 0 {slope:+.2f} 2 '.', 7 ' ', 20 '.'"
    for kind, count in {"static": 1, "moved": 11, "lasting": 2, "vanished": 0}.items():
        assert f" {count} {kind} {KIND_MEANINGS[kind]} " in " ".join(lines)
    assert lines[at + 4].startswith("move: the main sink changes place, and the old place stops being a sink")
    assert not any(line.startswith("0.0 ") for line in lines)
    places[:, 0, 1] = places[:, 1, 2] = 3
    out = run("tracks", write(tmp_path / "still", places))[1]
    assert "\nno main sink moves or swaps\n" in out and "move most" not in out
