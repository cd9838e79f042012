"""A program's top-level assertions, split so that comparisons with literals are made outside its process. Standard library only."""

import __future__

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

_PLACE = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


@dataclass(frozen=True)
class Assertion:
    """The condition of a top-level assertion, split so that its comparisons with literals are made outside the program's process.

    Of ``assert f(3) == 7`` the program's process is asked for ``f(3)`` alone, and the 7 stays here, out of its reach. Of a condition
    that is no comparison with a literal the program says itself whether it holds. The message of an assertion is never evaluated.

    Attributes:
        text: the condition, as it is shown.
        condition: what is left of it here: literals, comparisons, ``not``, ``and``, ``or``, and a name for each operand.
        operands: what the program's process is asked for, by name.
    """

    text: str
    condition: CodeType
    operands: dict[str, CodeType] = field(default_factory=dict)

    def holds(self, ask: Callable[[CodeType], Any]) -> tuple[bool, list[Any]]:
        """Return whether it holds, and the values of the operands that were asked for."""
        values = _Operands(self.operands, ask)
        return bool(eval(self.condition, {"__builtins__": {}}, values)), list(values.values())


class _Operands(dict[str, Any]):
    """Values of operands by name, each asked for when the condition first needs it."""

    def __init__(self, codes: dict[str, CodeType], ask: Callable[[CodeType], Any]) -> None:
        super().__init__()
        self._codes, self._ask = codes, ask

    def __missing__(self, name: str) -> Any:
        value = self[name] = self._ask(self._codes[name])
        return value


def split_program(source: str) -> Iterator[CodeType | Assertion]:
    """Yield the parts of a program in order: statements to run, and its top-level assertions."""
    tree = ast.parse(source)
    flags = compile(tree, "<program>", "exec", dont_inherit=True).co_flags & _FUTURE
    statements: list[ast.stmt] = []
    for node in [*tree.body, None]:
        if node is not None and not isinstance(node, ast.Assert):
            statements.append(node)
            continue
        if statements:
            yield compile(ast.Module(statements, []), "<program>", "exec", flags, dont_inherit=True)
            statements = []
        if node is not None:
            for condition in _conditions(node.test):
                yield _split_condition(condition, flags)


def _conditions(test: ast.expr) -> list[ast.expr]:
    """Return the conditions that ``and`` joins; the first that fails ends the program, as it does in Python."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _split_condition(test: ast.expr, flags: int) -> Assertion:
    try:
        text = shorten(ast.unparse(test))
    except ValueError:  # a number of thousands of digits
        text = f"the assertion of line {test.lineno}"
    operands: dict[str, CodeType] = {}

    def named(node: ast.expr) -> ast.expr:
        name = f"operand_{len(operands)}"
        operands[name] = compile(ast.Expression(node), "<program>", "eval", flags, dont_inherit=True)
        return ast.Name(name, ast.Load(), **_PLACE)

    def kept(node: ast.expr) -> ast.expr:
        if _is_literal(node):
            return node
        if isinstance(node, ast.BoolOp):
            return ast.BoolOp(node.op, [kept(one) for one in node.values], **_PLACE)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, kept(node.operand), **_PLACE)
        if isinstance(node, ast.Compare) and any(map(_is_literal, sides := [node.left, *node.comparators])):
            left, *others = [side if _is_literal(side) else named(side) for side in sides]
            return ast.Compare(left, node.ops, others, **_PLACE)
        return named(ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node, **_PLACE), **_PLACE))

    return Assertion(text, compile(ast.Expression(kept(test)), "<condition>", "eval", dont_inherit=True), operands)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return not any(isinstance(part, ast.Call) for part in ast.walk(node))  # Python counts set() among the literals


def shorten(text: str) -> str:
    """Return text for a message of one line."""
    return text if len(text) <= 200 else text[:200] + " …"
