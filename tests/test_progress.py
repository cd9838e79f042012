"""How far long work has come: lines in a log file, a bar on a terminal and in a notebook."""

import io
import re
import sys

from sinkscope import progress
from sinkscope.progress import show_progress

LINE = re.compile(r"^lab: \d of 5 steps, 00:0\d so far, about (?:\?|00:0\d) left(?:, loss=0\.5)?$")


def test_in_a_log_file_each_state_is_a_line(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    with show_progress(5, "lab", "steps", done=1) as bar:
        bar.advance()
        bar.advance(3, loss="0.5")
    with show_progress(5, "hidden", "steps", shown=False) as bar:
        bar.advance()
    lines = capsys.readouterr().err.splitlines()
    assert all(LINE.match(line) for line in lines), lines
    assert lines[-1].startswith("lab: 5 of 5 steps") and lines[-1].endswith("loss=0.5")


def test_work_of_less_than_half_a_minute_says_nothing(capsys):
    with show_progress(5, "lab", "steps") as bar:
        bar.advance(5)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with show_progress(5, "lab", "steps", done=1) as bar:
        bar.advance(4, loss="0.5")
    assert "5/5" in sys.stderr.getvalue() and "loss=0.5" in sys.stderr.getvalue() and "\r" in sys.stderr.getvalue()
