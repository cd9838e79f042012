"""Tests that the documentation names, and those there are."""

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parent


def named_tests(text):
    return re.findall(r"`(test_\w+)`", text)


@functools.cache
def existing_tests():
    trees = [ast.parse(path.read_text()) for path in sorted(TESTS.rglob("test_*.py"))]
    return {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def rows_of(text):
    """Rows of a page's tables, without their heads."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [row for row, after in zip(rows, [*rows[1:], ""], strict=True) if "---" not in row and "---" not in after]
