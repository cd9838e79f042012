"""How far long work has come: lines in a log file, a bar on a terminal and in a notebook; every command uses the one place."""

import io
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sinkscope import progress
from sinkscope.progress import Progress, in_notebook, show_progress

SOURCE = Path(progress.__file__).parent
LINE = re.compile(r"^lab: (\d) of 5 steps, 0:0\d so far(?:, about 0:0\d left)?(?:, loss 0\.5)?$")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_log_file_lines_come_while_one_piece_takes_long(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0.02)
    with show_progress(5, "lab", "steps", done=1) as bar:
        bar.advance()
        time.sleep(0.15)  # no piece is finished meanwhile
        bar.advance(3, loss="0.5")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3 and all(LINE.match(line) for line in lines), lines
    assert lines[0].startswith("lab: 2 of 5 steps, 0:00 so far, about 0:0")
    assert lines[-1] == "lab: 5 of 5 steps, 0:00 so far, loss 0.5"


def test_work_of_less_than_half_a_minute_says_nothing(capsys):
    with show_progress(5, "lab", "steps") as bar:
        bar.advance(5)
    assert capsys.readouterr() == ("", "")
    assert progress.SECONDS == 30


def test_after_an_error_no_line_says_that_it_is_done(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0.02)
    with pytest.raises(ZeroDivisionError), show_progress(5, "lab", "steps"):
        time.sleep(0.1)
        raise ZeroDivisionError
    said = capsys.readouterr().err
    time.sleep(0.1)
    assert said and "5 of 5" not in said
    assert capsys.readouterr().err == ""


def test_time_that_is_left_follows_from_what_was_done_here(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    counted = Progress(100, "lab", "prompts", done=20)
    assert counted.line() == "lab: 20 of 100 prompts, 0:00 so far"
    now[0] = 90.0
    counted.advance(10)
    assert counted.line() == "lab: 30 of 100 prompts, 1:30 so far, about 10:30 left"
    now[0] = 9000.0
    assert counted.line() == "lab: 30 of 100 prompts, 2:30:00 so far, about 17:30:00 left"


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with show_progress(5, "lab", "steps", done=1) as bar:
        bar.advance(4, loss="0.5")
    assert "5/5" in sys.stderr.getvalue() and "loss=0.5" in sys.stderr.getvalue() and "\r" in sys.stderr.getvalue()


def test_a_notebook_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel="a kernel")))
    assert in_notebook()
    with show_progress(5, "lab", "steps") as bar:
        bar.advance(5)
    assert "5/5" in capsys.readouterr().err
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    )  # ipython in a terminal
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: True))
    assert in_notebook()


def test_nothing_is_shown_where_nothing_is_wanted(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    with show_progress(5, "lab", "steps", shown=False) as bar:
        bar.advance()
        time.sleep(0.05)
    assert (capsys.readouterr().err, bar.done) == ("", 1)


def own_bars(source):
    """Whether a file shows progress by itself."""
    return "import tqdm" in source


def test_progress_is_shown_from_one_place():
    assert [path.name for path in sorted(SOURCE.rglob("*.py")) if own_bars(path.read_text())] == ["progress.py"]
    assert own_bars("from tqdm import tqdm")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("trace", "{model}", "--prompt", "Q: Tom", "--length", 16, "--out", "{tmp}/t"),
            r": \d+ of 16 steps, 0:\d\d so far",
        ),
        (
            ("trace", "{model}", "--prompt", "Q: Tom", "--length", 16, "--out", "{tmp}/t", "--keep", "statistics"),
            r": \d+ of 16 steps, 0:\d\d so far",
        ),
        (
            ("evaluate", "{model}", "--limit", 3, "--shots", 0, "--length", 8, "--out", "{tmp}/e"),
            r": \d of 3 problems, 0:\d\d so far",
        ),
        (
            ("roles", "{model}", "--problems", 10, "--canvases", 1, "--length", 4, "--block", 4, "--out", "{tmp}/r"),
            r": \d+ of 10 prompts, 0:\d\d so far",
        ),
    ],
)
def test_commands_say_in_a_log_file_how_far_they_have_come(
    run, monkeypatch, diffusion_folder, tmp_path, arguments, said
):
    monkeypatch.setattr(progress, "SECONDS", 0.0005)
    places = {"model": diffusion_folder, "tmp": tmp_path}
    status, _, err = run(*(one.format(**places) if isinstance(one, str) else one for one in arguments))
    assert status == 0, err
    assert re.search(said, err), err


def test_training_says_in_a_log_file_how_far_it_has_come(monkeypatch, capsys, tmp_path):
    import dataclasses

    from sinkscope.lab.canvases import CanvasMix
    from sinkscope.lab.recipes import RECIPES, Architecture
    from sinkscope.lab.training import train

    monkeypatch.setattr(progress, "SECONDS", 0.01)
    small = Architecture(layers=1, hidden_size=32, heads=2, kv_heads=2, intermediate_size=48, max_positions=128)
    mix = CanvasMix(tokens=288, lengths=(72, 96), weights=(0.5, 0.5))
    train(dataclasses.replace(RECIPES["lab-diffusion"], architecture=small, canvases=mix, updates=4), tmp_path)
    assert re.search(r"^lab-diffusion: 4 of 4 updates, 0:\d\d so far, loss \d", capsys.readouterr().err, re.MULTILINE)
