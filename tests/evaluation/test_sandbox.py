"""Honest programs, programs that end early, and forged success."""

import functools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation import humaneval, run_program, sandbox
from sinkscope.evaluation.sandbox import clock


def test_an_honest_program_passes():
    result = run_program("def f(x):\n    return x + 3\nassert f(4) == 7\nassert f(-3) == 0\nprint('hello')\n")
    assert (result.passed, result.reason, result.output) == (True, "ran to its end, 2 assertions held", "hello\n")


def test_a_wrong_answer_fails_with_what_was_found():
    result = run_program("def f(x):\n    return x + 3\nassert f(4) == 8\n")
    assert (result.passed, result.reason) == (False, "AssertionError: f(4) == 8 does not hold, found 7")


def test_a_lone_surrogate_in_an_error_is_escaped():
    raised = run_program("raise ValueError(chr(0xd800))")
    assert (raised.passed, raised.reason) == (False, "ValueError: \\ud800")
    asserted = run_program("def f(x):\n    return x", tests="assert f(1) == 2, chr(0xdfff)", function="f")
    assert not asserted.passed and asserted.reason.encode()


def test_two_surrogates_are_not_one_character():
    program = r"def f(x): return '\ud83d' + x"
    for test, holds in ((r"assert len(f('\ude00')) == 2", True), (r"assert f('\ude00') == '\U0001f600'", False)):
        assert run_program(program, tests=test, function="f").passed == holds
        assert run_program(f"{program}\n{test}").passed == holds


def test_an_empty_set_is_no_literal():
    """Python's own reading of literals takes ``set()`` for one."""
    result = run_program(
        "def f(): return set()\nassert f() == set() and [f()] == [set()] and {'a': f()} == {'a': set()}"
    )
    assert (result.passed, result.reason) == (True, "ran to its end, 3 assertions held")


def test_a_umask_that_allows_nothing_does_not_keep_it_from_starting():
    before = os.umask(0o777)
    try:
        assert run_program("open('a', 'w').write('1')\nassert open('a').read() == '1'").passed
    finally:
        os.umask(before)


def test_the_standard_library_and_the_own_folder_can_be_used():
    program = "import json, math, re, collections, decimal, sqlite3\nopen('note', 'w').write('kept')\nassert open('note').read() == 'kept'\n"
    result = run_program(program)
    assert result.passed, result.reason


def test_the_folder_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_program("open('note', 'w').write('kept')", without=("namespaces",)).passed
    assert list(tmp_path.iterdir()) == []


def test_the_program_is_the_main_module():
    program = """
from dataclasses import dataclass
@dataclass
class P:
    x: int
import __main__
assert __main__.P is P
assert P(3).x == 3
assert __name__ == "__main__"
"""
    assert run_program(program).passed


def test_future_statements_reach_every_piece():
    program = "from __future__ import annotations\nassert 1\ndef f(x: nowhere): return x\nassert f(2) == 2\n"
    assert run_program(program).passed


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys\nsys.exit(0)\nassert False", "left before its end (SystemExit: 0)"),
        ("raise SystemExit\nassert False", "left before its end (SystemExit)"),
        ("import os\nprint('all tests passed')\nos._exit(0)\nassert False", "left before its end (exit status 0)"),
        ("exit()", "NameError: name 'exit' is not defined"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x = (", "SyntaxError: '(' was never closed (<unknown>, line 1)"),
        ("return 3", "SyntaxError: 'return' outside function (<program>, line 1)"),
        ("x = '\0'", ""),
        ("(" * 250 + ")" * 250, "SyntaxError: "),
        ("-" * 100_000 + "1", ""),
        ("import ctypes\nctypes.string_at(0)", "ended by signal 11 (SIGSEGV)"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("import sys\nsys.stdin.readline().upper()[0]", "IndexError: string index out of range"),
    ],
)
def test_programs_that_end_early(program, reason):
    result = run_program(program)
    assert not result.passed
    assert result.reason.startswith(reason)


FORGERIES = {
    "printed success": """
print("2 assertions held")
print('{"passed": true}')
""",
    "success on every descriptor": """
import os
for n in range(64):
    try: os.write(n, b'{"passed": true, "value": 8, "token": ""}\\n' * 2)
    except OSError: pass
""",
    "echo on every descriptor": """
import os
for n in range(3, 64):
    try:
        os.set_blocking(n, False)
        said = os.read(n, 1 << 20)
    except OSError: continue
    for m in range(3, 64):
        try: os.write(m, said)
        except OSError: pass
""",
    "equal to everything": """
class A:
    def __eq__(s, o): return True
    def __bool__(s): return True
    def __index__(s): return 8
def f(x): return A()
""",
    "an int equal to everything": """
class A(int):
    def __eq__(s, o): return True
def f(x): return A(7)
""",
    "another AssertionError": """
import builtins
class AssertionError(Warning): pass
builtins.AssertionError = AssertionError
""",
    "patched builtins": """
import builtins
for name in ("eval", "exec", "compile", "isinstance", "bool", "type"):
    setattr(builtins, name, lambda *a, **k: True)
""",
    "patched marshal": "import marshal\nmarshal.loads = lambda b: compile('True', '', 'eval')",
    "patched operators": "import operator\noperator.eq = lambda a, b: True",
    "jump over assertions": """
import sys
def jump(frame, event, arg):
    try: frame.f_lineno = 99
    except Exception: pass
    return jump
sys.settrace(jump)
""",
    "left inside the test": "import os\ndef f(x): os._exit(0)",
    "exit inside the test": "import sys\ndef f(x): sys.exit(0)",
    "at exit": "import atexit, os\natexit.register(os._exit, 0)",
    "patched sandbox": """
import sys
for name, module in list(sys.modules.items()):
    if "sandbox" in name:
        for key, value in list(vars(module).items()):
            if callable(value): setattr(module, key, lambda *a, **k: True)
""",
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_forged_success_is_a_failure(forgery):
    program = "def f(x):\n    return x + 3\n" + forgery + "\nassert f(4) == 8\n"
    assert not run_program(program, timeout_s=1).passed


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_forged_success_is_a_wrong_answer_to_humaneval(forgery, monkeypatch):
    monkeypatch.setattr(humaneval, "run_program", functools.partial(run_program, timeout_s=1))
    row = {"prompt": "def f(x):\n", "entry_point": "f", "test": "def check(candidate):\n    assert candidate(4) == 8\n"}
    assert not humaneval.score_completion(row, "    return x + 3\n" + forgery, fenced=False).correct


@pytest.mark.parametrize("test", ["7 < f(4) < 9", "f(4) == 8 or f(4) == 9", "not f(4) != 8", "f(4) in (8, 9)"])
def test_forged_comparisons_do_not_count_wherever_they_stand_in_an_assertion(test):
    forgery = "\n".join(f"    def __{name}__(s, o): return True" for name in ("eq", "lt", "gt", "le", "ge"))
    program = f"class A:\n{forgery}\n    def __ne__(s, o): return False\n    __hash__ = None\ndef f(x): return A()\n"
    assert not run_program(f"{program}assert {test}\n").passed
    assert run_program(f"def f(x): return x + 4\nassert {test}\n").passed


@pytest.mark.parametrize(
    "test", ["assert False", "assert 0, 'no'", "assert 1 == 2", "assert not True", "assert None", "assert 3 in [4]"]
)
def test_assertions_without_a_name_are_not_asked_for(test):
    lie = "import builtins, sys\nsys.modules['sinkscope.evaluation.sandbox.confined'].pack = lambda value: True\n"
    assert not run_program(lie + test).passed


def test_what_a_test_expects_is_nowhere_in_the_programs_memory():
    program = """
import gc, sys
seen = []
frame = sys._getframe()
while frame:
    seen += [repr(frame.f_locals), repr(frame.f_code.co_consts)]
    frame = frame.f_back
seen += [repr(thing) for thing in gc.get_objects() if isinstance(thing, (list, dict, tuple))]
wanted = "".join(reversed("123456789"))
print(any(wanted in text for text in seen))
def f(): return 0
assert f() == 987654321
"""
    assert run_program(program, timeout_s=20).output == "False\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": b"1"}, "source: expected a program as text, found bytes"),
        ({"source": "1", "timeout_s": 0}, "timeout_s: expected seconds above 0, found 0"),
        ({"source": "1", "timeout_s": float("nan")}, "timeout_s: expected seconds above 0, found nan"),
        ({"source": "1", "memory_mb": 2**25}, "memory_mb: expected at most 16,777,216, found 33554432"),
        ({"source": "1", "memory_mb": 3}, "memory_mb: expected at least 64, since Python itself needs some, found 3"),
    ],
)
def test_calls_that_make_no_sense(arguments, message):
    with pytest.raises(CallError) as error:
        run_program(**arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/nowhere/python", "the sandbox did not start: No such file or directory; programs cannot be run here"),
        ("/bin/true", "the sandbox did not start: it said nothing; programs cannot be run here"),
    ],
)
def test_a_sandbox_that_does_not_start_is_no_wrong_answer(monkeypatch, python, message):
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(EvaluationError) as error:
        run_program("assert True")
    assert str(error.value) == message


def test_a_system_without_processes_is_told_in_its_own_words(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'BlockingIOError: [Errno 11] Resource temporarily unavailable' >&2\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(EvaluationError) as error:
        run_program("assert True")
    said = "the sandbox did not start: Resource temporarily unavailable; programs cannot be run here; allow more processes (ulimit -u)"
    assert str(error.value) == said


def test_a_python_that_is_none_is_no_wrong_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    with pytest.raises(
        EvaluationError,
        match=r"^the sandbox did not start: b'-I -S .* is not what a sandbox says; programs cannot be run here$",
    ):
        run_program("assert True")


def test_a_supervisor_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(sandbox, "GRACE_S", 2.0 - 600)
    result = run_program("import time\ntime.sleep(60)", timeout_s=60)
    assert not result.passed
    assert (
        result.reason
        == "the sandbox ended without a verdict: the program broke it, or is too large to compile or to compare"
    )


def test_a_machine_that_was_busy_is_given_its_time_again():
    began = []

    class Slow:
        pid = 0

        def communicate(self, content=None, timeout=None):
            began.append(content)
            if len(began) < 4:
                raise subprocess.TimeoutExpired("sandbox", timeout)
            return b"verdict", b""

    assert sandbox._wait(Slow(), "job", 5.0) == (b"verdict", b"")
    assert began == [b"job", None, None, None]


def test_time_in_which_the_supervisor_had_no_turn_does_not_count(monkeypatch):
    waited = []

    def select(reading, writing, _, seconds):
        waited.append(seconds)
        return (reading if len(waited) == 8 else [], [], [])

    monkeypatch.setattr(clock, "select", SimpleNamespace(select=select))
    monkeypatch.setattr(
        clock, "time", SimpleNamespace(monotonic=lambda: 300.0 * len(waited))
    )  # stopped for minutes each time
    clock.Clock(1.0).wait([5], [])
    assert len(waited) == 8
    with pytest.raises(clock.ProgramFailed, match=r"ran past 0.5 s by the clock"):
        clock.Clock(0.5).wait([5], [])
    assert 13 <= len(waited) <= 14


def test_a_verdict_without_the_nonce_does_not_count(monkeypatch, tmp_path):
    forger = tmp_path / "python"
    forger.write_text(
        """#!/bin/sh\necho '{"not_enforced": []}'\necho '{"nonce": "0", "passed": true, "reason": "", "output": ""}'\n"""
    )
    forger.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(forger))
    assert not run_program("assert False").passed


def test_a_program_may_begin_with_a_byte_order_mark():
    assert run_program("\ufeffprint(3)").output == "3\n"


def test_a_reason_is_one_line_that_commands_no_terminal():
    reason = run_program(r"""raise ValueError("one\ntwo\x1b[31m")""").reason
    assert reason.startswith("ValueError: one two") and reason.isprintable()
