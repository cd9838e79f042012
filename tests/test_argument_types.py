"""`checked` says what an argument should have been."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Int

from sinkscope.argument_types import checked
from sinkscope.errors import CallError
from sinkscope.work_items import Share


@checked
def call(
    count: int,
    share: float = 0.0,
    *more: str,
    name: str | None = None,
    path: str | Path = "x",
    words: Sequence[str] = (),
    pair: tuple[int, int] = (0, 1),
    by_name: Mapping[str, int] | None = None,
    each: Iterable[int] = (),
    do: Callable[[], object] | None = None,
    switch: bool = False,
    choice: Literal["a", "b"] = "a",
    ours: Share | None = None,
    other: "np.ndarray | None" = None,
    **settings: Any,
) -> tuple[Any, ...]:
    """Return what it was given."""
    return count, share, more, name, path, words, settings


GOOD = [
    ((1,), {}),
    ((np.int64(1), 2, "a", "b"), {"name": None, "path": Path("x"), "words": ["a"], "x": object()}),
    (
        (1, np.float32(0.5)),
        {"words": ("a",), "by_name": {"a": 1}, "each": (one for one in (1, 2)), "do": print, "switch": np.bool_(True)},
    ),
    ((1,), {"choice": "b", "ours": Share(0, 1)}),
    ((1,), {"other": "another class is not looked at", "pair": [1, 2]}),
]
BAD = [
    ((True,), {}, "count: expected a whole number, found true"),
    ((1,), {"choice": "c"}, "choice: expected a or b, found 'c'"),
    ((1.0,), {}, "count: expected a whole number, found 1.0"),
    (("1",), {}, "count: expected a whole number, found '1'"),
    ((1, "x"), {}, "share: expected a number, found 'x'"),
    ((1, 0.5, "a", 5), {}, "more: expected text, found 5"),
    ((1,), {"name": b"x"}, "name: expected text or None, found bytes"),
    ((1,), {"path": ""}, "path: expected a path, found an empty text"),
    (
        (1,),
        {"path": "a" * 300},
        "path: expected a path of at most 4096 bytes and 256 names, 255 bytes each, found .aaa",
    ),
    (
        (1,),
        {"path": "a/" * 300},
        "path: expected a path of at most 4096 bytes and 256 names, 255 bytes each, found .a/a",
    ),
    ((1,), {"path": "a\0b"}, r"path: expected a path, found 'a\\x00b'"),
    ((1,), {"path": "\ud800"}, r"path: expected a path, found '\\ud800'"),
    ((1,), {"path": 5}, "path: expected text or a path, found 5"),
    ((1,), {"words": "abc"}, "words: expected a list of texts, found 'abc'"),
    ((1,), {"words": {"a": 1}}, "words: expected a list of texts, found dict"),
    ((1,), {"words": (one for one in "ab")}, "words: expected a list of texts, found generator"),
    ((1,), {"words": ["a", None]}, r"words\[1\]: expected text, found null"),
    ((1,), {"by_name": {5: 1}}, "by_name: expected text as each key, found 5"),
    ((1,), {"by_name": {"a": 1, "b": 1.5}}, r"by_name\['b'\]: expected a whole number, found 1.5"),
    ((1,), {"by_name": [1]}, "by_name: expected an object by name or None, found list"),
    ((1,), {"each": "12"}, "each: expected a list of whole numbers, found '12'"),
    ((1,), {"do": 5}, "do: expected a function or None, found 5"),
    ((1,), {"choice": np.zeros(3)}, "choice: expected a or b, found ndarray"),
    ((1,), {"ours": "x"}, "ours: expected Share or None, found 'x'"),
    ((1, 10**30), {}, "share: expected a number, found 1000000"),
    ((1,), {"switch": 1}, "switch: expected True or False, found 1"),
    ((10**5000,), {"switch": None}, "switch: expected True or False, found null"),
    (("x" * 10**6,), {}, "count: expected a whole number, found 'xxxxx"),
]


@pytest.mark.parametrize(("given", "named"), GOOD)
def test_what_fits_is_handed_on(given, named):
    assert call(*given, **named)[0] == 1


@pytest.mark.parametrize("share", [np.float32(0.5), np.float64(0.5), np.float16(0.5)])
def test_numbers_of_numpy_become_pythons(share):
    count, found, *_ = call(np.int64(1), share)
    assert (count, found) == (1, 0.5) and (type(count), type(found)) == (int, float)


@pytest.mark.parametrize(("given", "named", "message"), BAD, ids=[one[2] for one in BAD])
def test_what_does_not_fit_is_told(given, named, message):
    with pytest.raises(CallError, match=message) as error:
        call(*given, **named)
    assert len(str(error.value)) < 200


@checked
def beside(
    columns: Float[np.ndarray, "*step layer head key"],
    keys: Bool[np.ndarray, "layer key"],
    more: Int[np.ndarray, " key"] = (0, 1, 2),
) -> tuple[int, ...]:
    """Return the shape of its first argument."""
    return columns.shape


def test_axes_of_one_name_have_one_size():
    assert beside(np.ones((5, 2, 4, 3)), np.ones((2, 3), bool), [1, 2, 3]) == (5, 2, 4, 3)
    with pytest.raises(CallError, match="keys: expected 3 along the axis key, as columns has, found 1"):
        beside(np.ones((5, 2, 4, 3)), np.ones((2, 1), bool))
    with pytest.raises(CallError, match="keys: expected 2 along the axis layer, as columns has, found 3"):
        beside(np.ones((2, 4, 3)), np.ones((3, 3), bool))
    with pytest.raises(CallError, match="more: expected 3 along the axis key, as columns has, found 2"):
        beside(np.ones((2, 4, 3)), np.ones((2, 3), bool), [1, 2])


def test_an_array_that_does_not_fit_is_told_with_its_shape():
    with pytest.raises(
        CallError, match=r"columns: expected ndarray \[\*step layer head key\], found ndarray float64 \[3\]"
    ):
        beside(np.ones(3), np.ones((2, 3), bool))
    with pytest.raises(CallError, match=r"count: expected a whole number, found Tensor float32 \[2\]"):
        call(torch.ones(2))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_told():
    nested = torch.nested.nested_tensor([torch.arange(2)])
    with pytest.raises(CallError, match="count: expected a whole number, found a nested tensor"):
        call(nested)
    with pytest.raises(CallError, match="each: expected a list of whole numbers, found a nested tensor"):
        call(1, each=nested)


def test_a_call_that_python_refuses_is_left_to_python():
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        call()


def test_a_checked_function_looks_as_before():
    assert call.__name__ == "call" and call.__doc__ == "Return what it was given."
