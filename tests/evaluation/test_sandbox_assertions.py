"""How a program is split at its assertions: what its process is asked for, and what stays outside."""

import marshal

import pytest

from sinkscope.evaluation import run_program
from sinkscope.evaluation.sandbox.assertions import Assertion, split_program


def parts(source):
    return list(split_program(source))


def judged(source, **names):
    """Whether the last assertion holds, and the values it asked for, if the program's process has these names."""
    return parts(source)[-1].holds(lambda code: eval(code, names))


@pytest.mark.parametrize(
    ("test", "right", "wrong"),
    [
        ("f(3) == 7", 7, 8),
        ("7 == f(3)", 7, 8),
        ("f(3) != 7", 8, 7),
        ("f(3) < 7", 6, 7),
        ("7 < f(3)", 8, 7),
        ("f(3) <= 7", 7, 8),
        ("f(3) > 7", 8, 7),
        ("f(3) >= 7", 7, 6),
        ("0 < f(3) < 7", 6, 7),
        ("f(3) in [7, 8]", 8, 9),
        ("7 in f(3)", [7], [8]),
        ("f(3) not in (7, 8)", 9, 8),
        ("f(3) is None", None, 0),
        ("f(3) is not None", 0, None),
        ("f(3) is True", True, 1),
        ("f(3) == -1.5", -1.5, 1.5),
        ("f(3) == {'a': [1, (2,)]}", {"a": [1, (2,)]}, {"a": [1, [2]]}),
        ("not f(3) == 7", 8, 7),
        ("f(3) == 7 or f(3) == 8", 8, 9),
        ("not (f(3) == 7 or f(3) == 8)", 9, 8),
    ],
)
def test_a_literal_stays_and_is_compared_here(test, right, wrong):
    for answer, expected in ((right, True), (wrong, False)):
        holds, values = judged(f"assert {test}", f=lambda x, answer=answer: answer)
        assert holds is expected and values and all(value == answer for value in values), (
            "only what f gives is asked for"
        )


@pytest.mark.parametrize(
    ("test", "expected"), [("not f(3)", False), ("f(3)", True), ("f(3) == a", True), ("f(3) < a", False)]
)
def test_the_program_says_itself_whether_other_conditions_hold(test, expected):
    assert judged(f"assert {test}", f=lambda x: x + 4, a=7)[0] is expected


def test_a_value_without_truth_of_its_own_is_asked_for_its_truth():
    assert judged("assert f(3)", f=lambda x: object()) == (True, [True])
    assert judged("assert a == b", a=3, b=3) == (True, [True])


@pytest.mark.parametrize(
    ("test", "holds"),
    [("True", True), ("[]", False), ("1 == 1", True), ("1 == 2", False), ("not 1", False), ("not 0", True)],
)
def test_literals_alone_are_judged_without_asking(test, holds):
    (part,) = parts(f"assert {test}")
    assert part.operands == {}
    assert part.holds(None) == (holds, [])


def test_what_python_would_not_compute_is_not_asked_for():
    asked = []
    (part,) = parts("assert f(1) == 2 or g(1) == 2")
    assert part.holds(lambda code: asked.append(code) or 2) == (True, [2])
    assert len(asked) == 1 and len(part.operands) == 2


def test_every_part_of_a_conjunction_is_an_assertion():
    assert [part.text for part in parts("assert f(1) == 2 and g(3) == 4")] == ["f(1) == 2", "g(3) == 4"]


def test_statements_between_assertions_stay_together_and_keep_their_lines():
    found = parts("x = 1\ny = 2\nassert x\n\n@print\ndef f():\n    pass\nassert y; z = 3\n")
    assert [isinstance(part, Assertion) for part in found] == [False, True, False, True, False]
    assert found[2].co_firstlineno in (1, 5)


def test_every_statement_runs_once():
    names = {"n": 0}
    for part in parts("n += 1\nn += 10\nassert n\n\nn += 100\nassert n\n"):
        if not isinstance(part, Assertion):
            exec(part, names)
    assert names["n"] == 111


def test_what_a_message_would_do_is_left_out():
    assert judged("assert f(), 1 / 0", f=lambda: 5) == (True, [True])


def test_no_literal_is_in_what_is_sent():
    assert b"secret" in marshal.dumps(parts("x = 'secret'")[-1])
    (part,) = parts("assert f() == 'secret' or 'secret' in g()")
    assert len(part.operands) == 2 and not any(b"secret" in marshal.dumps(code) for code in part.operands.values())


FORGER = """
import sys
confined = sys.modules["sinkscope.evaluation.sandbox.confined"]
send, forged, began = confined._send, {forged}, []
confined._send = lambda pipe, reply: send(pipe, {{"token": reply["token"], **forged}} if began and "token" in reply else reply)
def f(x=0):
    began.append(x)
    return 5
"""


@pytest.mark.parametrize(
    "forged",
    [
        {"value": 1, "contents": [[99, ["list", []]]]},
        {"value": 1, "contents": [["x", 1], 7]},
        {"foreign": "x", "kind": 3, "iterates": True, "iterator": True},
        {"foreign": 3, "iterates": True, "error": "", "raised": ["exception", {"kinds": [["builtins", "SystemExit"]]}]},
        {"value": ["exception", {"kinds": [["builtins", "SystemExit"]], "own": "a\0b", "attributes": 3}]},
        {"value": ["list", [["again", 0]]]},
        {
            "error": "x",
            "raised": ["exception", {"kinds": [["sinkscope.evaluation.sandbox.confined", "_CannotBeSent"]]}],
        },
        {"held": True},
    ],
    ids=str,
)
def test_a_forged_reply_passes_nothing(forged):
    program = FORGER.format(forged=forged)
    for found in (
        run_program(f"{program}\nassert f() == 3"),
        run_program(program, tests="assert f() == 3", function="f"),
    ):
        assert not found.passed and not found.reason.startswith("the sandbox ended without a verdict"), found.reason
