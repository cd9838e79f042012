"""Output norms and what sinks add behind the output projection, against loops over whole arrays."""

import numpy as np
import pytest
from planted import extras, make_trace, random_columns, values_at

from sinkscope.sinks import is_sink
from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.norms import OutputNorms, StepOutputNorms

THRESHOLDS = [Threshold(3.0), Threshold(8.0, "percent")]


def random_trace(seed=0):
    columns = random_columns(seed, steps=6, layers=2, heads=4)
    norms = np.random.default_rng([seed, 7]).random(columns.shape).astype(np.float32) + 0.1
    norms[:2, 1, 3, 4] = np.nan
    return make_trace(columns, **(extras(columns) | {"output_norms": norms}))


@pytest.mark.parametrize("number", [0, 1])
def test_every_number_is_that_of_a_loop(number):
    trace, point = random_trace(), THRESHOLDS[number]
    prompt = summarise(trace, THRESHOLDS)
    values = values_at(OutputNorms(), prompt, point)
    selected, norms = is_sink(trace.column_sums, point.excess, point.unit), trace.output_norms.astype(np.float64)
    shares, given, expected, above = [], [], [], []
    kept = prompt.kept(StepOutputNorms)
    for place in np.ndindex(6, 2, 4):
        added = trace.column_sums[place] * np.nan_to_num(norms[place])
        assert kept.given[place] == pytest.approx(added.sum(), rel=1e-5)
        if selected[place].any():
            given.append(added[selected[place]].sum())
            shares.append(given[-1] / added.sum())
            expected.append(
                trace.column_sums[place][selected[place]].sum() * added.sum() / trace.column_sums[place].sum()
            )
            main = trace.column_sums[place].argmax()
            others = np.delete(norms[place], main)
            above.append(
                (others[~np.isnan(others)] > norms[place][main]).mean()
            )  # a token without a norm is none of them
            assert not np.isnan(norms[place][main])
    assert values["norms.output_contribution", ()] == pytest.approx(np.mean(shares), rel=1e-5)
    assert values["norms.output_contribution_over_attention", ()] == pytest.approx(sum(given) / sum(expected), rel=1e-5)
    assert values["norms.output_norm_auc", ()] == pytest.approx(np.mean(above), rel=1e-5)
    for layer in range(2):
        at = (("layer", layer),)
        for name, which in (("sinks", selected), ("others", ~selected)):
            assert values[f"norms.output_norm_of_{name}_in", at] == pytest.approx(
                np.nanmean(norms[:, layer][which[:, layer]]), rel=1e-5
            )


def test_what_a_key_adds_to_all_queries_has_that_length():
    """Dense: Σ_q ‖a_qj·W_O v_j‖ of every key is its column sum times its output norm."""
    rng = np.random.default_rng(1)
    attention, value, projection = rng.dirichlet(np.ones(7), 7), rng.normal(size=(7, 4)), rng.normal(size=(5, 4))
    added = attention[:, :, None] * (value @ projection.T)
    lengths = np.linalg.norm(added, axis=-1).sum(axis=0)
    np.testing.assert_allclose(attention.sum(axis=0) * np.linalg.norm(value @ projection.T, axis=-1), lengths)


def test_a_trace_from_before_has_no_such_numbers():
    columns = random_columns(0, steps=6, layers=2, heads=4)
    trace = make_trace(columns, **{name: one for name, one in extras(columns).items() if name != "output_norms"})
    assert OutputNorms().values(summarise(trace, THRESHOLDS)) == {}
