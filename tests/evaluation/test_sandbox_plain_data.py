import json
import math
from collections import Counter, OrderedDict, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.evaluation.sandbox.confined import pack, unpack, unpack_reply

numbers = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False)
leaves = st.none() | st.booleans() | numbers | st.text() | st.binary()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner) | st.sets(keys) | st.frozensets(keys),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(values)
def test_plain_data_survives_the_journey(value):
    back = unpack(json.loads(json.dumps(pack(value))))
    assert back == value
    assert type(back) is type(value)


def test_not_a_number_and_infinity():
    assert math.isnan(unpack(json.loads(json.dumps(pack(math.nan)))))
    assert unpack(json.loads(json.dumps(pack([math.inf, -math.inf])))) == [math.inf, -math.inf]


def test_fractions_and_decimals_keep_what_they_are():
    assert unpack(json.loads(json.dumps(pack([Fraction(1, 3), Decimal("0.10")])))) == [Fraction(1, 3), Decimal("0.10")]


def test_what_stands_for_a_foreign_value():
    found = unpack_reply({"foreign": "generator", "truth": False, "items": ["list", [1, 2]]})
    assert (list(found), bool(found), found == found, found == [1, 2]) == ([1, 2], False, True, False)
    with pytest.raises(TypeError, match="'object' object is not iterable"):
        iter(unpack_reply({"foreign": "object"}))


def test_large_numbers():
    assert unpack(json.loads(json.dumps(pack(-(7**20000))))) == -(7**20000)


Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 3


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Point(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(b=1), {"b": 1}),
        (Colour.RED, 3),
        (Liar(7), 7),
        ({1: 2}.keys(), {1}),
        ({1: 2}.items(), {(1, 2)}),
        (bytearray(b"x"), b"x"),
    ],
)
def test_subclasses_travel_as_what_they_are_built_on(value, plain):
    back = unpack(json.loads(json.dumps(pack(value))))
    assert (back, type(back)) == (plain, type(plain))


@pytest.mark.parametrize("value", [object(), iter([]), [object()], {1: print}, range(3)])
def test_what_is_not_plain_data_stays(value):
    with pytest.raises(TypeError, match="is not plain data"):
        pack(value)


@pytest.mark.parametrize("packed", [["eval", "1"], ["list", 3], {"a": 1}, [], ["int", 3], ["float", "inf"]])
def test_what_pack_did_not_make_is_refused(packed):
    with pytest.raises(ValueError, match="not a packed value"):
        unpack(packed)
