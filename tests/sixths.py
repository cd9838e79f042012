"""A fixed sixth of many cases runs in the default tier; the others are marked slow."""

from collections.abc import Iterable
from typing import Any

import pytest


def a_sixth_unmarked(cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrization, all but every sixth of them marked slow; a tuple is several arguments."""
    marked = []
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=[pytest.mark.slow] if number % 6 else []))
    return marked
