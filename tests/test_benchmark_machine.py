"""Every figure of benchmarks/ names the processor and the kernels that torch took on it."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.glob("[a-z]*.py") if path.stem != "frozen")  # frozen.py measures nothing


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _measuring

    yield _measuring
    sys.modules.pop("_measuring")


def test_rows_and_tables_name_the_machine(measuring, capsys):
    measuring.show([{"length": 3}, {"length": 5}], as_json=True)
    rows = json.loads(capsys.readouterr().out)
    told = {"processor": measuring.processor(), "kernels": torch.backends.cpu.get_cpu_capability()}
    assert rows == [{"length": 3, **told}, {"length": 5, **told}]
    measuring.show([{"length": 3}], as_json=False)
    assert capsys.readouterr().out.splitlines()[0] == f"processor {told['processor']}, kernels {told['kernels']}"


def test_the_processor_is_named_as_linux_does(measuring, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: A Chip 9000 @ 2 GHz\nflags: fpu\nmodel name\t: Another\n"
    )
    monkeypatch.setattr(measuring, "Path", lambda path: tmp_path / Path(path).name)
    assert measuring.processor() == "A Chip 9000 @ 2 GHz"
    monkeypatch.setattr(measuring, "Path", lambda path: tmp_path / "none")
    monkeypatch.setattr(measuring.platform, "processor", lambda: "")
    monkeypatch.setattr(measuring.platform, "machine", lambda: "riscv64")
    assert measuring.processor() == "riscv64"


def test_every_script_prints_through_them():
    """What prints rows of its own would forget the machine."""
    for path in SCRIPTS:
        text = path.read_text()
        assert re.search(r"from _measuring import [^\n]*\b(show|machine)\b", text), path.name


def test_the_results_say_what_is_known_of_the_machine():
    head = (BENCHMARKS / "RESULTS.md").read_text().split("\n## ")[0]
    assert "The machine, unless said otherwise:" in head and "`processor`, `kernels`" in head


@pytest.mark.parametrize("script", [path.stem for path in SCRIPTS])
def test_a_flag_that_is_none_is_refused_before_anything_is_measured(measuring, monkeypatch, capsys, script):
    monkeypatch.setattr(sys, "argv", [script, "--nosuch"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(BENCHMARKS / f"{script}.py"), run_name="__main__")
    told = capsys.readouterr()
    assert end.value.code == 2 and told.out == "" and "unrecognized arguments: --nosuch" in told.err


@pytest.mark.parametrize("value", ["0", "-3", "x", "99999999999"])
def test_numbers_that_cannot_be_are_refused(measuring, monkeypatch, capsys, value):
    monkeypatch.setattr(sys, "argv", ["script", "--rounds", value])
    with pytest.raises(SystemExit):
        measuring.flags(rounds=3)
    assert "argument --rounds: " in capsys.readouterr().err
