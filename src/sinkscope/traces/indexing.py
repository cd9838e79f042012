"""NumPy's basic indices, as the arrays of a trace take them."""

from typing import Any


def full_index(index: Any, name: str, axes: tuple[str, ...]) -> tuple[Any, ...]:
    """An index as a tuple without an ellipsis.

    Raises:
        IndexError: more indices than axes.
    """
    index = index if isinstance(index, tuple) else (index,)
    at = next((number for number, one in enumerate(index) if one is Ellipsis), None)
    if at is not None:
        index = (*index[:at], *([slice(None)] * (len(axes) - len(index) + 1)), *index[at + 1 :])
    if len(index) > len(axes):
        raise IndexError(f"{name} has axes {', '.join(axes)}; found {len(index)} indices")
    return index
