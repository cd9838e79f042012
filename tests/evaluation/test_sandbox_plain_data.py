import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.evaluation.sandbox.foreign import stand_in
from sinkscope.evaluation.sandbox.plain_data import Numbering, fill, pack, unpack

numbers = (
    st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
)
leaves = st.none() | st.booleans() | numbers | st.text() | st.binary()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
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
    asked = []
    reply = {"foreign": 4, "kind": "Own", "truth": False, "iterates": True}
    known = {}
    found = stand_in(reply, known, lambda request: asked.append(request) or iter([1, 2]))
    assert (list(found), bool(found), found == found, found == [1, 2], 2 in found) == ([1, 2], False, True, False, True)
    assert asked == [{"iter": 4}] * 2 and stand_in(reply, known, None) is found and pack(found) == ["foreign", 4]
    with pytest.raises(TypeError, match="'object' object is not iterable"):
        iter(stand_in({"foreign": 5, "kind": "object"}, known, print))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "\ud83d", "\ude00", "\U0001f600", "\udbff", "\udc00"])).map("".join))
def test_surrogates_side_by_side_stay_two(text):
    """JSON reads a pair of them as one character."""
    assert unpack(json.loads(json.dumps(pack([text, {text: text}])))) == [text, {text: text}]


def test_large_numbers():
    assert unpack(json.loads(json.dumps(pack(-(7**20000))))) == -(7**20000)


Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 3


class Pair(tuple):
    _fields = ("a", "import")


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (defaultdict(lambda: 0, a=1), {"a": 1}),
        (Colour.RED, 3),
        (Liar(7), 7),
        (Pair((1, 2)), (1, 2)),
    ],
)
def test_subclasses_travel_as_what_they_are_built_on(value, plain):
    back = unpack(json.loads(json.dumps(pack(value))))
    assert (back, type(back)) == (plain, type(plain))


@pytest.mark.parametrize(
    "value",
    [
        Counter("aab"),
        OrderedDict(b=1, a=2),
        defaultdict(list, a=[1]),
        defaultdict(None, a=1),
        bytearray(b"x"),
        range(3, 9, 2),
        deque([1, [2]], 4),
        date(2026, 1, 2),
        time(1, 2, 3),
        datetime(2026, 1, 2, 3, 4, 5, 6),
        timedelta(1, 2, 3),
        int,
        ...,
        type(None),
        NotImplemented,
        datetime(2024, 10, 27, 2, 30, fold=1),
    ],
    ids=repr,
)
def test_types_of_the_standard_library_survive_the_journey(value):
    back = unpack(json.loads(json.dumps(pack([value]))))[0]
    assert (back, type(back), repr(back)) == (value, type(value), repr(value))


def test_views_of_a_dictionary_keep_their_order_and_equal_sets():
    mapping = {name: [at] for at, name in enumerate("zyxabc")}
    keys, values, items = unpack(json.loads(json.dumps(pack([mapping.keys(), mapping.values(), mapping.items()]))))
    assert ([*keys], [*values], [*items]) == ([*mapping], [*mapping.values()], [*mapping.items()])
    assert keys == set("abcxyz") and keys == mapping.keys() and [2] in values and ("a", [3]) in items


def test_one_object_in_two_places_stays_one_object():
    inner = [1]
    value = (inner, {"a": inner}, bytearray(b"x"), deque([inner]))
    inner.append(value)
    first, second, _, fourth = unpack(json.loads(json.dumps(pack(value))))
    assert first is second["a"] is fourth[0] and first[1][0] is first


def test_contents_of_another_kind():
    with pytest.raises(ValueError, match="not the contents of a list"):
        fill([], ["set", [1]], Numbering())


def test_lists_in_lists_as_deep_as_python_writes_them():
    value = []
    for _ in range(400):
        value = [value]
    assert json.dumps(pack(unpack(pack(value)))) == json.dumps(pack(value))


def test_a_named_tuple_keeps_its_names():
    back = unpack(json.loads(json.dumps(pack(Point(1, [2])))))
    assert (back, back.y, repr(back)) == ((1, [2]), [2], "Point(x=1, y=[2])")


@pytest.mark.parametrize(
    "value", [object(), iter([]), [object()], {1: print}, datetime(2026, 1, 1, tzinfo=UTC), memoryview(b"x"), Point]
)
def test_what_is_not_plain_data_stays(value):
    with pytest.raises(TypeError, match="is not plain data"):
        pack(value)


@pytest.mark.parametrize(
    "packed",
    [
        ["eval", "1"],
        ["builtin", "eval"],
        ["of dates", ["eval", [1]]],
        ["list", 3],
        {"a": 1},
        [],
        ["int", 3],
        ["float", "inf"],
        ["again", 0],
    ],
)
def test_what_pack_did_not_make_is_refused(packed):
    with pytest.raises(ValueError, match="not a packed value"):
        unpack(packed)
