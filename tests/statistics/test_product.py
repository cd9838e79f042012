"""Products of NumPy arrays: a flag that BLAS leaves behind warns nobody, and no module multiplies past the function
that sees to it.
"""

import ast
import warnings
from pathlib import Path

import numpy as np
import pytest

import sinkscope
from sinkscope.statistics.averages import product

SOURCE = Path(sinkscope.__file__).parent


def test_the_flag_of_an_invalid_operation_warns_nobody_and_an_overflow_does():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(product(np.array([np.inf, 1.0]), np.array([0.0, 1.0])))
        with pytest.raises(RuntimeWarning, match="overflow"):
            product(np.full((2, 2), 1e200), np.full((2, 2), 1e200))


def bare_products(source: str) -> list[int]:
    """Return the lines that multiply matrices with NumPy's own signs or functions."""
    named = {"matmul", "dot", "vdot", "inner", "tensordot"}
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult))
        or (isinstance(node, ast.Attribute) and node.attr in named)
    ]


def test_only_one_function_multiplies_arrays_of_numpy():
    without_torch = [
        path
        for path in SOURCE.rglob("*.py")
        if "import torch" not in (text := path.read_text("utf-8")) and "np." in text
    ]
    assert SOURCE / "statistics/intervals.py" in without_torch
    found = [
        (str(path.relative_to(SOURCE)), len(lines))
        for path in without_torch
        if (lines := bare_products(path.read_text("utf-8")))
    ]
    assert found == [("statistics/averages.py", 1)]


@pytest.mark.parametrize("source", ["a @ b", "a @= b", "np.matmul(a, b)", "a.dot(b)"])
def test_a_bare_product_is_found(source):
    assert bare_products(source) == [1]
