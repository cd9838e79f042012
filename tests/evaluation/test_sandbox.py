"""Honest programs, and programs that end early."""

import sys

import pytest

from sinkscope.errors import EvaluationError
from sinkscope.evaluation import run_program


def test_an_honest_program_passes_and_a_wrong_answer_fails():
    program = "def f(x):\n    return x + 3\nassert f(4) == 7\nassert f(-3) == 0\nprint('hello')\n"
    result = run_program(program)
    assert (result.passed, result.reason, result.output) == (True, "ran to its end", "hello\n")
    result = run_program(program + "assert f(4) == 8\n")
    assert (result.passed, result.reason) == (False, "AssertionError")


def test_the_standard_library_and_the_own_folder_can_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = "import json, math, re, collections, decimal, sqlite3\nopen('note', 'w').write('kept')\n"
    result = run_program(program + "assert open('note').read() == 'kept'\n", without=("namespaces",))
    assert result.passed, result.reason
    assert list(tmp_path.iterdir()) == []


def test_the_program_is_the_main_module():
    program = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nimport __main__\n"
    assert run_program(program + "assert __main__.P is P and P(3).x == 3 and __name__ == '__main__'").passed


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os\nprint('all tests passed')\nos._exit(0)\nassert False", "left before its end (exit status 0)"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x = (", "SyntaxError: '(' was never closed (<program>, line 1)"),
        ("import ctypes\nctypes.string_at(0)", "ended by signal 11 (SIGSEGV)"),
    ],
)
def test_programs_that_end_early(program, reason):
    result = run_program(program)
    assert not result.passed
    assert result.reason.startswith(reason)


def test_a_program_that_does_not_come_to_its_end_has_not_passed():
    """One that reads the secret number out of its own process is not stopped, as the page says."""
    forgery = "import os\nos.write(20, b'ran to its end')\nos._exit(0)\nassert 4 == 8\n"
    assert not run_program(forgery, timeout_s=1).passed


def test_a_sandbox_that_does_not_start_is_no_wrong_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(
        EvaluationError, match="the sandbox did not start: it said nothing; programs cannot be run here"
    ):
        run_program("assert True")


def test_a_reason_is_one_line_that_commands_no_terminal():
    reason = run_program(r"""raise ValueError("one\ntwo\x1b[31m")""").reason
    assert reason.startswith("ValueError: one two") and reason.isprintable()
