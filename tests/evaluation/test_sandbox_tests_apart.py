"""Tests that call a function of a program, in the form of HumanEval's rows: they run in a process that the program cannot reach."""

import textwrap

import pytest

from sinkscope.errors import CallError
from sinkscope.evaluation import run_program
from sinkscope.evaluation.humaneval import score_completion, separate_tests


def row(test, prompt='def f(x):\n    """ Adds a half. """\n', name="f"):
    body = textwrap.indent(textwrap.dedent(test), "    ")
    return {
        "prompt": prompt,
        "entry_point": name,
        "test": f"\n\nMETADATA = {{'author': 'x'}}\n\n\ndef check(candidate):\n{body}\n\n",
    }


RIGHT, WRONG = "    return x + 0.5\n", "    return x + 0.25\n"
TESTS = {
    "plain": "assert candidate(1) == 1.5\nassert candidate(-2) == -1.5",
    "messages": "assert candidate(1) == 1.5, 'first: ' + str(candidate(1))\nassert True, 'This prints if this assert fails'",
    "tolerance": "assert abs(candidate(1.0) - 1.5) < 1e-6",
    "through a function": "assert tuple([candidate(1)]) == tuple([1.5])",
    "a loop": "for i in range(20):\n    assert candidate(i) == i + 0.5",
    "random arguments": "import random\nfor _ in range(20):\n    y = random.randint(0, 9)\n    assert candidate(y) == y + 0.5",
    "helper variables": "wanted = [1.5, 2.5]\nfound = [candidate(i) for i in (1, 2)]\nassert found == wanted",
    "a condition": "y = candidate(1)\nif y == 1.5:\n    assert True\nelse:\n    assert False",
    "a keyword": "assert candidate(x=1) == 1.5",
    "a helper of its own": "def close(a, b):\n    return abs(a - b) < 1e-9\nassert close(candidate(1), 1.5)",
    "the function by its name": "assert candidate(1) == f(1) == 1.5",
}


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_right_answers_pass_and_wrong_ones_fail(test):
    assert separate_tests(row(test)) is not None
    right, wrong = (score_completion(row(test), text, fenced=False) for text in (RIGHT, WRONG))
    assert (right.correct, wrong.correct) == (True, False), (right.reason, wrong.reason)


LIES = {
    "equal to everything": "class A:\n    def __eq__(s, o): return True\ndef f(x): return A()",
    "any number": """
class A(float):
    def __eq__(s, o): return True
    def __sub__(s, o): return 0
    def __abs__(s): return s
    def __lt__(s, o): return True
    __radd__ = __add__ = __rsub__ = __sub__
    def __hash__(s): return 0
def f(x=0): return A(7)
""",
    "no number": "def f(x=0): return float('nan')",
    "patched builtins": """
import builtins, math, operator, random
for module in (builtins, math, operator, random):
    for name in ("abs", "fabs", "tuple", "list", "str", "range", "randint", "eq", "lt", "AssertionError"):
        setattr(module, name, lambda *a, **k: 0)
""",
    "modules to be imported": "open('random.py', 'w').write('raise SystemExit')\nopen('math.py', 'w').write('raise SystemExit')",
    "other tests": "check = close = lambda *a: None",
    "patched sandbox": """
import sys
for name, module in list(sys.modules.items()):
    if "sandbox" in name:
        for key, value in list(vars(module).items()):
            if callable(value): setattr(module, key, lambda *a, **k: {"value": True, "held": True})
""",
    "held": """
import os
def f(x=0):
    for n in range(64):
        try: os.write(n, b'{"held": true}\\n')
        except OSError: pass
""",
    "an exit": "def f(x=0): raise SystemExit",
    "an exception of the tests": "def f(x=0): raise AssertionError",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_no_lie_gets_through_any_form_of_test(lie):
    merged = "\n".join(
        TESTS[name] for name in ("tolerance", "random arguments", "through a function", "a helper of its own")
    )
    for test in (TESTS["plain"], TESTS["tolerance"], merged):
        assert not score_completion(row(test), WRONG + lie + "\n", fenced=False).correct


def test_what_the_prompt_defines_is_there_for_the_tests_and_out_of_the_programs_reach():
    prompt = (
        'import math\n\n\ndef poly(xs, x):\n    return xs[0] + xs[1] * x\n\n\ndef find_zero(xs):\n    """ A root. """\n'
    )
    test = row("xs = [3, -2]\nassert math.fabs(poly(xs, candidate(list(xs)))) < 1e-4", prompt, "find_zero")
    assert score_completion(test, "    return -xs[0] / xs[1]\n", fenced=False).correct
    lie = "    return 0\npoly = lambda *a: 0\nmath.fabs = lambda *a: 0\n"
    assert not score_completion(test, lie, fenced=False).correct


@pytest.mark.parametrize(
    ("body", "test"),
    [
        ("return (y for y in [x, x])", "assert tuple(candidate(3)) == (3, 3)"),
        ("return {x: 1}.values()", "assert sorted(candidate(3)) == [1]"),
        ("from fractions import Fraction\n    return Fraction(x, 2)", "assert candidate(3) == 1.5"),
        ("from decimal import Decimal\n    return [Decimal(x)]", "assert candidate(3) == [3]"),
        ("import re\n    return re.match('3', str(x))", "assert candidate(3)\nassert not candidate(4)"),
        ("return None", "assert candidate(3) is None"),
        ("return x > 2", "assert candidate(3) is True\nassert candidate(1) is False"),
        ("x.sort()", "xs = [3, 1, 2]\ncandidate(xs)\nassert xs == [1, 2, 3]"),
        ("x['b'] = 2", "xs = {'a': 1}\ncandidate(xs)\nassert xs == {'a': 1, 'b': 2}"),
        (
            "raise ValueError('no ' + x)",
            "try:\n    candidate('way')\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no way'",
        ),
        ("print(x)", "candidate('said')"),
        ("import sys\n    sys.stdout.close()", "candidate(1)"),
    ],
)
def test_an_honest_program_is_judged_as_in_one_process(body, test):
    result = score_completion(row(test), f"    {body}\n", fenced=False)
    assert result.correct, result.reason
    assert run_program(f"def f(x):\n    {body}\n{textwrap.dedent(test).replace('candidate', 'f')}").passed


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (RIGHT, "ran to its end, the tests held in 2 calls"),
        (WRONG, "AssertionError: too small; last call: f(1), which gave 1.25"),
        ("    return 1 / 0\n", "ZeroDivisionError: division by zero; last call: f(1), which raised it"),
        (
            "    return object()\n",
            "AssertionError: too small; last call: f(1), which gave a object, which is not plain data and ",
        ),
        ("    import sys; sys.exit(0)\n", "left before its end (SystemExit: 0)"),
        ("    import os; os._exit(0)\n", "left before its end (exit status 0)"),
        ("    return x + 0.5\ndel f\n", "NameError: name 'f' is not defined"),
        ("    return x +\n", "SyntaxError: invalid syntax (<unknown>, line 3)"),
        ("    class Own(Exception): pass\n    raise Own('x')\n", "Own: x; last call: f(1), which raised it"),
        ("    return [0] * 6_000_000\n", "a value is larger than 16 MB"),
        (
            "    x = []\n    for _ in range(9999): x = [x]\n    return x\n",
            "RecursionError: maximum recursion depth exceeded",
        ),
        (
            "    x = []\n    for _ in range(2400): x = {0: x}\n    return x\n",
            "Exception: RecursionError: a value is nested too deeply to leave",
        ),
    ],
)
def test_reasons(completion, reason):
    test = row("assert candidate(1) == 1.5, 'too small'\nassert candidate(x=2) == 2.5, 'too small'")
    assert score_completion(test, completion, fenced=False).reason.startswith(reason)


def test_the_tests_are_nowhere_in_the_programs_memory():
    program = """
import gc, sys
def f(x):
    seen, frame = [], sys._getframe()
    while frame:
        seen += [repr(frame.f_locals), repr(frame.f_code.co_consts)]
        frame = frame.f_back
    seen += [repr(thing) for thing in gc.get_objects() if isinstance(thing, (list, dict, tuple))]
    print(any("".join(reversed("123456789")) in text for text in seen))
"""
    tests = "assert f(1) is None\nassert f(2) == 987654321"
    assert run_program(program, tests=tests, function="f", timeout_s=20).output == "False\nFalse\n"


def test_tests_are_as_confined_as_programs():
    assert not run_program("def f(): pass", tests="import os\nos.fork()", function="f").passed
    assert (
        run_program("def f(): pass", tests="while True: pass", function="f", timeout_s=1).reason
        == "used more than 1 s of CPU"
    )


@pytest.mark.parametrize("tests", ["def check(c):\n    assert c() == 6", "assert True"])
def test_tests_that_never_call_the_function_prove_nothing(tests):
    found = run_program("def f(): return 5", tests=tests, function="f")
    assert (found.passed, found.reason.partition(",")[0]) == (False, "the tests never called f")
    called = run_program("def f(): return 5", tests="def check(c):\n    assert c() == 5\ncheck(f)", function="f")
    assert (called.passed, called.reason) == (True, "ran to its end, the tests held in 1 calls")


def test_what_cannot_leave_a_process_is_tested_in_the_programs_own():
    found = run_program("def f(g): return g(3)", tests="assert f(lambda x: x + 1) == 4", function="f")
    assert found.passed
    assert found.reason.endswith("; its tests ran in the program's own process, since they pass what cannot leave one")
    assert not run_program("def f(g): return g(3)", tests="assert f(lambda x: x) == 4", function="f").passed


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): return x.own()", "class L(list):\n    def own(self): return 3\nassert f(L()) == 3"),
        (
            "def f(p): return p.area()",
            "from typing import *\nclass R(NamedTuple):\n    w: int\n    def area(self): return self.w * 3\nassert f(R(2)) == 6",
        ),
        ("def f(x): return x.name", "from enum import IntEnum\nclass C(IntEnum): A = 1\nassert f(C.A) == 'A'"),
        ("def f(d): return d['a']", "from collections import *\nassert f(defaultdict(lambda: 7)) == 7"),
    ],
)
def test_arguments_of_classes_that_the_program_would_not_know(program, tests):
    found = run_program(program, tests=tests, function="f")
    assert (found.passed, found.reason.partition("; ")[2]) == (
        True,
        "its tests ran in the program's own process, since they pass what cannot leave one",
    )


def test_a_program_cannot_ask_for_that():
    lie = "class A:\n    def __eq__(s, o): return True\ndef f(x): return A()"
    assert not run_program(lie, tests="assert f(f(3)) == 4", function="f").passed


@pytest.mark.parametrize(
    ("test", "prompt"),
    [
        ("assert candidate(Point(1)) == 2", "def f(x):\n"),
        ("assert candidate(1) ==", "def f(x):\n"),
        ("assert candidate(1) == 2", "def f(x:\n"),
        (f"assert candidate(1) == {'+'.join(['1'] * 20000)}", "def f(x):\n"),
        ("assert candidate(1) == 2", f"X = {'+'.join(['1'] * 900)}\ndef f(x):\n"),
    ],
)
def test_tests_that_name_something_else_stay_with_the_program(test, prompt):
    assert separate_tests(row(test, prompt)) is None


def test_a_program_with_a_class_that_only_it_defines():
    test = row("assert candidate(Point(1)) == 2")
    assert score_completion(
        test, "    return x.y + 1\nclass Point:\n    def __init__(s, y): s.y = y\n", fenced=False
    ).correct


@pytest.mark.parametrize(
    ("tests", "function"), [("assert f() == 1", ""), ("", "f"), ("assert f() == 1", "f()"), ("assert 1", "class")]
)
def test_tests_and_their_function_come_together(tests, function):
    with pytest.raises(CallError) as error:
        run_program("", tests=tests, function=function)
    wanted = "tests, function: expected tests and the name of the function they call, or neither"
    assert str(error.value) == f"{wanted}, found function={function!r}"


@pytest.mark.parametrize(
    ("raises", "expected"),
    [
        (
            "b'\\xff'.decode()",
            "except ValueError as error:\n    assert (type(error), error.start) == (UnicodeDecodeError, 0)",
        ),
        ("{}[1]", "except LookupError as error:\n    assert error.args == (1,)"),
        ("{}['a']", "except KeyError as error:\n    assert str(error) == repr('a')"),
        (
            "raise Own('bad', 2)",
            "except ValueError as error:\n    assert (type(error).__name__, error.args) == ('Own', ('bad', 2))",
        ),
        ("raise Own(object())", "except ValueError as error:\n    assert 'object' in str(error)"),
        ("next(iter([]))", "except StopIteration:\n    pass"),
        (
            "import json; json.loads('{')",
            "except __import__('json').JSONDecodeError as error:\n    assert (error.pos, error.lineno) == (1, 1)",
        ),
        ("import decimal; decimal.Decimal('x')", "except __import__('decimal').InvalidOperation:\n    pass"),
        ("open('none')", "except FileNotFoundError as error:\n    assert (error.errno, error.filename) == (2, 'none')"),
        ("error = Own('a'); error.code = 3; raise error", "except ValueError as error:\n    assert error.code == 3"),
        (
            "raise ExceptionGroup('g', [KeyError(1)])",
            "except ExceptionGroup as error:\n    assert isinstance(error.exceptions[0], KeyError)",
        ),
        ("raise ValueError from KeyError(3)", "except ValueError as error:\n    assert error.__cause__.args == (3,)"),
        ("raise SystemExit(3)", "except SystemExit as error:\n    assert error.code == 3"),
        ("raise Two(3)", "except AttributeError as error:\n    assert isinstance(error, KeyError)"),
        ("raise KeyboardInterrupt", "except KeyboardInterrupt:\n    pass"),
    ],
)
def test_an_exception_of_the_program_is_of_the_class_that_its_tests_expect(raises, expected):
    program = f"class Own(ValueError): pass\nclass Two(KeyError, AttributeError): pass\ndef f():\n    {raises}"
    result = run_program(program, tests=f"try:\n    f()\n    assert False\n{expected}", function="f")
    assert (result.passed, result.reason) == (True, "ran to its end, the tests held in 1 calls")


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(d): return d.keys()", "assert list(f({'z': 1, 'a': 2, 'm': 3})) == ['z', 'a', 'm']"),
        ("def f(d): return d.items()", "assert dict(f({'z': [1]})) == {'z': [1]}"),
        ("def f(x): x.append(1)", "a = []\nf(x=a)\nassert a == [1]"),
        ("def f(x): x[0].append(1)", "a = []\nf((a,))\nassert a == [1]"),
        ("def f(x): x[:] = [1.0, 2.0]", "a = [1, 2]\nf(a)\nassert type(a[0]) is float"),
        ("def f(d): d['a'] = d.pop('a')", "d = {'a': 1, 'b': 2}\nf(d)\nassert list(d) == ['b', 'a']"),
        ("def f(x): x.sort(); return x", "a = [2, 1]\nassert f(a) is a and a == [1, 2]"),
        ("def f(x): x[0].append(3)", "inner = [1]\na = [inner, 2]\nf(a)\nassert a[0] is inner and inner == [1, 3]"),
        ("def f(x): return [x]", "a = [1]\nassert f(a) == [a] and f(a) is not a"),
        (
            "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
            "g = f()\nassert (next(g), next(g)) == (0, 1)",
        ),
        (
            "def f():\n    yield 1\n    raise ValueError('end')",
            "g = f()\nassert next(g) == 1\ntry: next(g)\nexcept ValueError: pass",
        ),
        ("from collections import *\ndef f(): return Counter('aab')", "assert f().most_common(1) == [('a', 2)]"),
        (
            "from collections import *\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
            "assert f().y == 2 and f() == (1, 2)",
        ),
        ("def f(x): return type(x)", "assert f(1) is int"),
        ("from datetime import *\ndef f(): return date(2024, 2, 28) + timedelta(1)", "assert f().day == 29"),
        ("def f(a, b): a.append(1); return b", "x = []\nassert f(x, x) == [1]"),
        ("def f(g): g[0][0] = 1; return g", "g = [[0] * 3] * 3\nassert f(g) == [[1, 0, 0]] * 3 and g[2] is g[0]"),
        (
            "def f(d): d['a'].append(0)",
            "x = []\nd = {'a': x, 'b': x}\nf(d)\nassert d == {'a': [0], 'b': [0]} and x == [0]",
        ),
        ("def f(x): return x[0] is x", "x = []\nx.append(x)\nassert f(x)"),
        ("def f():\n    x = []\n    x.append(x)\n    return x", "y = f()\nassert y[0] is y"),
        ("def f(x): return [x, x[0]]", "x = [[1]]\ny = f(x)\nassert y[0] is x and y[1] is x[0]"),
        ("def f(x, y): x.append(y)", "x, y = [], {}\nf(x, y)\nassert x[0] is y"),
        (
            "def f(a, b): a[:], b[:] = b[:], a[:]",
            "a, b = [1], {2}\na, b = [1], [2]\nf(a, b)\nassert (a, b) == ([2], [1])",
        ),
        ("def f(x):\n    yield x\n    x.append(1)", "x = []\ny = list(f(x))\nassert y[0] is x and x == [1]"),
        ("def f(x):\n    x.pop()\n    raise KeyError", "x = [1, 2]\ntry: f(x)\nexcept KeyError: pass\nassert x == [1]"),
        (
            "def f(d): return d['z']",
            "from collections import *\nd = defaultdict(int)\nassert f(d) == 0 and d == {'z': 0}",
        ),
        (
            "def f(d): d.rotate(); return d",
            "from collections import *\nd = deque([1, 2], 2)\nassert f(d) is d and d == deque([2, 1])",
        ),
        (
            "def f(d): d.move_to_end('a')",
            "from collections import *\nd = OrderedDict(a=1, b=2)\nf(d)\nassert list(d) == ['b', 'a']",
        ),
        (
            "def f(c): c['a'] -= 5",
            "from collections import *\nc = Counter('aab')\nf(c)\nassert c.most_common(1) == [('b', 1)]",
        ),
        (
            "def f():\n    a, b = 0, 1\n    while True:\n        yield a\n        a, b = b, a + b",
            "g = f()\nassert [next(g) for _ in range(6)][-1] == 5",
        ),
        (
            "def f():\n    x = []\n    for i in range(3):\n        x.append(i)\n        yield x",
            "assert list(f()) == [[0, 1, 2]] * 3\nassert [len(x) for x in f()] == [1, 2, 3]",
        ),
        (
            "def f():\n    n = 2\n    while True:\n        if sum(d for d in range(1, n) if n % d == 0) == n: yield n\n        n += 1",
            "from itertools import *\nassert [*islice(f(), 3)] == [6, 28, 496]",
        ),
        ("def f(x):\n    x.append(1)\n    yield 1", "x = []\ng = f(x)\nassert x == []\nnext(g)\nassert x == [1]"),
        (
            "def f():\n    x = 0\n    while True: x = (yield x) or 0",
            "g = f()\nassert next(g) == 0 and g.send(5) == 5 and g.send(7) == 7",
        ),
        (
            "def f(x):\n    try: yield 1\n    finally: x.append(2)",
            "x = []\ng = f(x)\nassert next(g) == 1 and x == []\ng.close()\nassert x == [2] and list(g) == []",
        ),
        ("def f(x): return (y + 1 for y in x)", "assert list(f(f([1, 2]))) == [3, 4]"),
        (
            "def f(): return ((j for j in range(i)) for i in range(3))",
            "assert [list(g) for g in f()] == [[], [0], [0, 1]]",
        ),
        ("class P: pass\np = P()\ndef f(): return p", "assert f() is f()"),
        (
            "class R:\n    def __iter__(s): return iter('ab')\ndef f(): return R()",
            "r = f()\nassert list(r) == list(r) == ['a', 'b']",
        ),
        ("from datetime import *\ndef f(): return datetime(2024, 10, 27, 2, 30, fold=1)", "assert f().fold == 1"),
        (
            "from datetime import *\ndef f(): return date(2024, 1, 1).isocalendar()",
            "assert f().week == 1 and f() == (2024, 1, 1)",
        ),
        ("import time\ndef f(): return time.gmtime(0)", "assert f().tm_year == 1970"),
        ("def f(): return type(None)", "assert f() is type(None)"),
        ("def µ(x): return x\nf = µ", "µ = f\nassert µ(1) == 1"),
        ("def f(x): return sorted(x)", "x = list(range(200_000))\nassert f(x) == x"),
        (
            "def f(n):\n    x = []\n    for _ in range(n): x = [x]\n    return x",
            "x = f(1500)\nfor _ in range(1500): x = x[0]\nassert x == []",
        ),
        ("def f(): return ValueError('a', 3)", "e = f()\nassert isinstance(e, ValueError) and e.args == ('a', 3)"),
        ("def f(e): return type(e).__name__ + str(e)", "assert f(ValueError('a')) == 'ValueErrora'"),
        ("def f(b): b[0] = 65", "b = bytearray(b'xyz')\nf(b)\nassert b == b'Ayz'"),
    ],
)
def test_a_right_answer_is_one_apart_from_its_tests_too(program, tests):
    names = {}
    exec(program, names)
    exec(tests, {"f": names["f"]})  # it is one in plain Python
    result = run_program(program, tests=tests, function="f")
    assert result.passed and result.reason.startswith("ran to its end, the tests held in"), result.reason


@pytest.mark.parametrize(
    "test",
    ["3 in range(5)", "1 in deque([1])", "2 in {1: 2}.values()", "2 in (n for n in range(3))", "9 not in iter([1])"],
)
def test_a_value_is_looked_for_in_what_a_program_gives(test):
    assert run_program(f"from collections import deque\nassert {test}").passed
    wrong = test.replace(" not in ", " in ") if "not" in test else test.replace(" in ", " not in ", 1)
    assert not run_program(f"from collections import deque\nassert {wrong}").passed


@pytest.mark.parametrize(
    ("test", "holds"), [("a is b is not None", True), ("a is c is not None", False), ("None is not a is not b", False)]
)
def test_one_object_in_two_operands_is_one(test, holds):
    assert run_program(f"a = b = [1]\nc = [1]\nassert {test}").passed is holds


def test_a_name_is_read_as_python_reads_it():
    assert run_program("def \u00b5(x): return x", tests="assert \u00b5(1) == 1", function="\u00b5").passed


def test_tests_of_unittest():
    tests = (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), {})\nunittest.main()"
    )
    right, wrong = (run_program("def f(x): return x + 1", tests=tests.format(value), function="f") for value in (2, 3))
    assert not wrong.passed and right.reason in (
        "left before its end (SystemExit: False)",
        "left before its end (SystemExit: 0)",
    )
    assert run_program(
        "def f(x): return x + 1", tests=tests.format(2).replace("main()", "main(exit=False)"), function="f"
    ).passed


def test_a_class_that_holds_everything_holds_nothing_outside_the_program():
    assert not run_program("class A:\n    def __contains__(s, o): return True\nassert 3 in A()").passed
