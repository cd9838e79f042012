"""How far long work has come: lines in a log file, a bar on a terminal and in a notebook; every command uses the one place."""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sinkscope import progress
from sinkscope.progress import in_notebook, show_progress

SOURCE = Path(progress.__file__).parent
LINE = re.compile(r"^lab: \d of 5 steps, 00:0\d so far, about (?:\?|00:0\d) left(?:, loss=0\.5)?$")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_log_file_each_state_is_a_line(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    with show_progress(5, "lab", "steps", done=1) as bar:
        bar.advance()
        bar.advance(3, loss="0.5")
    lines = capsys.readouterr().err.splitlines()
    assert all(LINE.match(line) for line in lines), lines
    assert lines[-1].startswith("lab: 5 of 5 steps") and lines[-1].endswith("loss=0.5")


def test_work_of_less_than_half_a_minute_says_nothing(capsys):
    with show_progress(5, "lab", "steps") as bar:
        bar.advance(5)
    assert capsys.readouterr() == ("", "")
    assert progress.SECONDS == 30


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
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    with show_progress(5, "lab", "steps", shown=False) as bar:
        bar.advance()
    assert capsys.readouterr().err == ""


def own_bars(source):
    """Whether a file shows progress by itself."""
    return "import tqdm" in source


def test_progress_is_shown_from_one_place():
    assert [path.name for path in sorted(SOURCE.rglob("*.py")) if own_bars(path.read_text())] == ["progress.py"]
    assert own_bars("from tqdm import tqdm")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("trace", "{model}", "--prompt", "Q: Tom", "--length", 16, "--out", "{tmp}/t"),
            r": \d+ of 16 steps, 00:\d\d so far",
        ),
        (
            ("trace", "{model}", "--prompt", "Q: Tom", "--length", 16, "--out", "{tmp}/t", "--keep", "statistics"),
            r": \d+ of 16 steps, 00:\d\d so far",
        ),
        (
            ("evaluate", "{model}", "--limit", 3, "--shots", 0, "--length", 8, "--out", "{tmp}/e"),
            r": \d of 3 problems, 00:\d\d so far",
        ),
        (
            ("roles", "{model}", "--problems", 10, "--canvases", 1, "--length", 4, "--block", 4, "--out", "{tmp}/r"),
            r": \d+ of 10 prompts, 00:\d\d so far",
        ),
    ],
)
def test_commands_say_in_a_log_file_how_far_they_have_come(
    run, monkeypatch, diffusion_folder, tmp_path, arguments, said
):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    places = {"model": diffusion_folder, "tmp": tmp_path}
    status, _, err = run(*(one.format(**places) if isinstance(one, str) else one for one in arguments))
    assert status == 0, err
    assert re.search(said, err), err


def test_training_says_in_a_log_file_how_far_it_has_come(monkeypatch, capsys, tmp_path):
    import dataclasses

    from sinkscope.lab.canvases import CanvasMix
    from sinkscope.lab.recipes import RECIPES, Architecture
    from sinkscope.lab.training import train

    monkeypatch.setattr(progress, "SECONDS", 0.0)
    small = Architecture(layers=1, hidden_size=32, heads=2, kv_heads=2, intermediate_size=48, max_positions=128)
    mix = CanvasMix(tokens=288, lengths=(72, 96), weights=(0.5, 0.5))
    train(dataclasses.replace(RECIPES["lab-diffusion"], architecture=small, canvases=mix, updates=4), tmp_path)
    assert re.search(
        r"^lab-diffusion: 4 of 4 updates, 00:\d\d so far, about [^,]*, loss=\d", capsys.readouterr().err, re.MULTILINE
    )
