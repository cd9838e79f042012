"""How a program is cut at its assertions: what its process is asked for, and what stays outside."""

import pytest

from sinkscope.evaluation.sandbox.pieces import split_program


def pieces(source):
    return list(split_program(source))


def asked(source, **names):
    """What the program's process would answer to the last piece; None where it is not asked."""
    code = pieces(source)[-1].code
    return None if code is None else eval(code, names)


@pytest.mark.parametrize(
    ("test", "answer", "right", "wrong"),
    [
        ("f(3) == 7", 7, 7, 8),
        ("7 == f(3)", 7, 7, 8),
        ("f(3) != 7", 7, 8, 7),
        ("f(3) < 7", 7, 6, 7),
        ("7 < f(3)", 7, 8, 7),
        ("f(3) <= 7", 7, 7, 8),
        ("f(3) > 7", 7, 8, 7),
        ("f(3) >= 7", 7, 7, 6),
        ("f(3) in [7, 8]", 7, 8, 9),
        ("7 in f(3)", 7, [7], [8]),
        ("f(3) not in (7, 8)", 7, 9, 8),
        ("f(3) is None", 7, None, 0),
        ("f(3) is not None", 7, 0, None),
        ("f(3) is True", 7, True, 1),
        ("f(3) == -1.5", 7, -1.5, 1.5),
        ("f(3) == {'a': [1, (2,)]}", 7, {"a": [1, (2,)]}, {"a": [1, [2]]}),
        ("not f(3) == 7", 7, 8, 7),
        ("not f(3)", False, False, True),
        ("f(3)", True, True, False),
    ],
)
def test_a_literal_stays_and_is_compared_here(test, answer, right, wrong):
    source = f"assert {test}"
    value = asked(source, f=lambda x: answer)
    assert value == answer or value is bool(answer)
    holds = pieces(source)[-1].holds
    assert (holds(right), holds(wrong)) == (True, False)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # the third one, which is the point of it
def test_a_value_without_truth_of_its_own_is_asked_for_its_truth():
    assert asked("assert f(3)", f=lambda x: object()) is True
    assert asked("assert a == b", a=3, b=3) is True
    assert asked("assert a is 5000", a=3) is False


@pytest.mark.parametrize(
    ("test", "holds"), [("True", True), ("[]", False), ("1 == 1", True), ("1 == 2", False), ("not 1", False), ("not 0", True)]
)
def test_literals_alone_are_judged_without_asking(test, holds):
    (piece,) = pieces(f"assert {test}")
    assert piece.code is None
    assert piece.holds(None) is holds


def test_every_part_of_a_conjunction_is_a_piece():
    assert [piece.text for piece in pieces("assert f(1) == 2 and g(3) == 4")] == ["f(1) == 2", "g(3) == 4"]


def test_statements_between_assertions_stay_together_and_keep_their_lines():
    found = pieces("x = 1\ny = 2\nassert x\n\n@print\ndef f():\n    pass\nassert y; z = 3\n")
    assert [piece.verb for piece in found] == ["run", "value", "run", "value", "run"]
    assert found[2].code.co_firstlineno in (1, 5)


def test_every_statement_runs_once():
    names = {"n": 0}
    for piece in pieces("n += 1\nn += 10\nassert n\nn += 100\nassert n\n"):
        if piece.verb == "run":
            exec(piece.code, names)
    assert names["n"] == 111


def test_what_a_message_would_do_is_left_out():
    assert asked("assert f(), 1 / 0", f=lambda: 5) is True


def test_no_literal_is_in_what_is_sent():
    import marshal

    assert b"secret" in marshal.dumps(pieces("x = 'secret'")[-1].code)
    assert b"secret" not in marshal.dumps(pieces("assert f() == 'secret'")[-1].code)
