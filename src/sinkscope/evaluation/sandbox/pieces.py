"""A program cut at its top-level assertions, so that their comparisons can be made outside its process.

Standard library only: this runs inside the sandbox.
"""

import __future__

import ast
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_PLACE = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


@dataclass(frozen=True)
class Piece:
    """A part of a program: statements to run, or the condition of a top-level assertion.

    Attributes:
        verb: ``run`` or ``value``.
        code: what the worker executes; None where nothing needs to be asked.
        text: the condition, as it is shown.
        holds: judges the value the worker came back with.
    """

    verb: str
    code: Any
    text: str = ""
    holds: Callable[[Any], bool] = bool


def split_program(source: str) -> Iterator[Piece]:
    """Cuts a program at its top-level assertions.

    Of ``assert f(3) == 7`` the program's process is asked for ``f(3)`` alone and the 7 stays here, so the comparison
    is out of its reach; the same holds with the literal on the left and for the other comparisons with a literal.
    Of any other condition the program says itself whether it holds. Messages of assertions are never evaluated.
    """
    tree = ast.parse(source)
    flags = compile(tree, "<program>", "exec", dont_inherit=True).co_flags & _FUTURE
    statements: list[ast.stmt] = []
    for node in [*tree.body, None]:
        if node is not None and not isinstance(node, ast.Assert):
            statements.append(node)
            continue
        if statements:
            yield Piece("run", compile(ast.Module(statements, []), "<program>", "exec", flags, dont_inherit=True))
            statements = []
        for condition in [] if node is None else _conditions(node.test):
            asked, holds = _condition(condition)
            code = None if asked is None else compile(ast.Expression(asked), "<program>", "eval", flags, dont_inherit=True)
            yield Piece("value", code, shorten(ast.unparse(condition)), holds)


def _conditions(test: ast.expr) -> list[ast.expr]:
    """The conditions that ``and`` joins; the first that fails ends the program, as it does in Python."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _condition(test: ast.expr) -> tuple[ast.expr | None, Callable[[Any], bool]]:
    """What to ask the program for, and how to judge it."""
    known, value = _literal(test)
    if known:
        return None, lambda _: bool(value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        asked, holds = _condition(test.operand)
        return asked, lambda found: not holds(found)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        compare = _COMPARISONS[type(test.ops[0])]
        left_known, left = _literal(test.left)
        right_known, right = _literal(test.comparators[0])
        identity = isinstance(test.ops[0], ast.Is | ast.IsNot)  # of singletons only; other literals have none to speak of
        if left_known and right_known:
            return None, lambda _: compare(left, right)
        if right_known and (not identity or right is None or isinstance(right, bool)):
            return test.left, lambda found: compare(found, right)
        if left_known and (not identity or left is None or isinstance(left, bool)):
            return test.comparators[0], lambda found: compare(left, found)
    return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), test, **_PLACE), **_PLACE), bool


def _literal(node: ast.expr) -> tuple[bool, Any]:
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError):
        return False, None


def shorten(text: str) -> str:
    """Text for a message of one line."""
    return text if len(text) <= 200 else text[:200] + " …"
