"""The second largest column, beside a dense version and planted."""

import numpy as np
import pytest
from planted import make_trace, random_columns, sink_at

from sinkscope.statistics import Threshold, analyse


def found(columns):
    return analyse([make_trace(columns)], [Threshold(3.0)], choice=False)


def test_it_equals_a_dense_version():
    columns = random_columns(seed=0, steps=7, layers=2, heads=3, width=30)
    dense = np.sort(columns, axis=-1)[..., -2]  # [step, layer, head]
    by_layer = {one.place["layer"]: one.value for one in found(columns).find("second.column_in")}
    assert by_layer == pytest.approx({layer: dense[:, layer].mean() for layer in range(2)})


def test_beside_a_planted_sink_of_12_the_others_share_the_rest():
    (beside,) = found(sink_at(np.full(7, 4), width=30, strength=12.0)).find("second.beside_sink")
    assert beside.value == pytest.approx((30 - 12) / 29)


def test_even_columns_have_no_sink_beside_which_one_could_stand():
    even = found(sink_at(np.full(7, -1), width=30))
    (second,), (beside,) = even.find("second.column"), even.find("second.beside_sink")
    assert second.value == pytest.approx(1)  # every column is one query's worth
    assert beside.value is None
