"""The figure of norms compares sinks with other tokens."""

import itertools

import numpy as np
import pytest
from sudden import HEADS, KV_HEADS, LAYERS, sudden_columns

import sinkscope
from sinkscope.figures import draw_figures
from sinkscope.sinks import is_sink


def test_norms_are_those_of_sinks_and_of_others(draw, rows_of, sudden):
    drawn, (columns, _) = draw("norms", sudden), sudden_columns()
    selected = is_sink(columns)
    values = np.repeat(sudden.value_norms[:], HEADS // KV_HEADS, axis=2)
    hidden = np.broadcast_to(sudden.hidden_norms[:][:, :, None], columns.shape)
    kinds = {"value": values, "contribution": values * columns, "hidden": hidden}
    assert {row["kind"] for row in rows_of(drawn)} == set(kinds)
    for kind, layer in itertools.product(kinds, range(LAYERS)):
        norms = kinds[kind][:, layer].astype(np.float64)
        sinks, others = (norms[chosen[:, layer]] for chosen in (selected, ~selected))
        pooled = np.sqrt((sinks.var() * len(sinks) + others.var() * len(others)) / (len(sinks) + len(others) - 2))
        for name, mine in (("sinks", sinks), ("others", others)):
            (row,) = rows_of(drawn, kind=kind, layer=layer, tokens=name)
            assert float(row["mean"]) == pytest.approx(mine.mean(), rel=1e-5)
            assert float(row["standard_deviation"]) == pytest.approx(mine.std(), rel=1e-4)
            assert float(row["effect_size"]) == pytest.approx((sinks.mean() - others.mean()) / pooled, rel=1e-5)


def test_a_trace_of_the_largest_columns_draws_the_other_figures(unpainted, diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "top", keep="top", top=6):
        sinkscope.generate(diffusion, "Q: Write a function f(x) that returns x plus 3.\nA:", length=6)
    said = []
    trace = sinkscope.open_trace(tmp_path / "top")
    paths = draw_figures(
        [trace], tmp_path / "out", excess=0.5, only=["1", "3", "5", "6", "7", "9", "norms"], say=said.append
    )
    assert [path.stem[:7] for path in paths if path.suffix == ".png"] == ["figure1", "figure5", "figure7"]
    assert len(said) == 4 and all("--keep top" in one for one in said)
