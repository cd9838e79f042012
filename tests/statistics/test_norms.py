import numpy as np
import pytest
from planted import extras, make_trace, random_columns, sink_at, values_at

from sinkscope.sinks import is_sink
from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.norms import Norms

THRESHOLDS = [Threshold(3.0), Threshold(8.0, "percent")]


def repeated(norms, heads):
    """By query head: a query head reads its kv head, every head the hidden state."""
    norms = norms[:, :, None] if norms.ndim == 3 else norms
    return np.repeat(norms, heads // norms.shape[2], axis=2).astype(np.float64)


def test_layers_with_fewer_key_heads_share_theirs():
    """Layer 1 has two key heads, each of which two query heads read; the trace holds NaN in the other two."""
    columns = random_columns(0, steps=6, layers=2, heads=4)
    fewer = make_trace(columns, **extras(columns, kv_heads=4))
    for name in ("value_norms", "key_norms"):
        getattr(fewer, name)[:, 1, 2:] = np.nan
    each = make_trace(columns, **extras(columns, kv_heads=4))
    for name in ("value_norms", "key_norms"):
        getattr(each, name)[:, 1] = getattr(each, name)[:, 1, [0, 0, 1, 1]]
    found, expected = (values_at(Norms(), summarise(trace, THRESHOLDS), THRESHOLDS[0]) for trace in (fewer, each))
    assert found == pytest.approx(expected, rel=1e-6, nan_ok=True) and len(found) > 30


@pytest.mark.parametrize("number", [0, 1])
def test_tokens_that_were_not_computed_are_left_out(number):
    """Behind a cache the hidden norms of most tokens are not known, that of the sink among them in some steps."""
    columns = random_columns(0, steps=6, layers=2, heads=4)
    trace, point = make_trace(columns, **extras(columns, kv_heads=4)), THRESHOLDS[number]
    trace.hidden_norms[np.random.default_rng(1).random(trace.hidden_norms.shape) < 0.5] = np.nan
    values = values_at(Norms(), summarise(trace, THRESHOLDS), point)
    selected, above = is_sink(trace.column_sums, point.excess, point.unit), []
    for step, layer, head in np.ndindex(6, 2, 4):
        row, main = trace.hidden_norms[step, layer], trace.column_sums[step, layer, head].argmax()
        if selected[step, layer, head].any() and not np.isnan(row[main]):
            others = np.delete(row, main)
            above.append((others[~np.isnan(others)] > row[main]).mean())
    assert 0 < len(above) < selected.any(-1).sum()
    assert values["norms.hidden_norm_auc", ()] == pytest.approx(np.mean(above), rel=1e-5)


@pytest.mark.parametrize(("number", "kv_heads"), [(0, 1), (1, 2), (0, 4)])
def test_means_effects_and_contributions_are_those_of_a_loop(number, kv_heads):
    columns = random_columns(0, steps=6, layers=2, heads=4)
    trace = make_trace(columns, **extras(columns, kv_heads=kv_heads))
    point = THRESHOLDS[number]
    values = values_at(Norms(), summarise(trace, THRESHOLDS), point)
    selected = is_sink(trace.column_sums, point.excess, point.unit)
    for name in ("value_norm", "key_norm", "hidden_norm"):
        norms = repeated(getattr(trace, f"{name}s"), 4)
        for layer in range(2):
            at = (("layer", layer),)
            sinks, others = norms[:, layer][selected[:, layer]], norms[:, layer][~selected[:, layer]]
            assert values[f"norms.{name}_of_sinks_in", at] == pytest.approx(sinks.mean())
            assert values[f"norms.{name}_of_others_in", at] == pytest.approx(others.mean())
            pooled = (((sinks - sinks.mean()) ** 2).sum() + ((others - others.mean()) ** 2).sum()) / (
                len(sinks) + len(others) - 2
            )
            assert values[f"norms.{name}_effect_in", at] == pytest.approx(
                (sinks.mean() - others.mean()) / np.sqrt(pooled), rel=1e-6
            )
            above = []
            for step, head in np.ndindex(6, 4):
                if selected[step, layer, head].any():
                    row = norms[step, layer, head]
                    main = trace.column_sums[step, layer, head].argmax()
                    above.append((np.delete(row, main) > row[main]).mean())
            assert values[f"norms.{name}_auc_in", at] == pytest.approx(np.mean(above), rel=1e-5)
    product = trace.column_sums * repeated(trace.value_norms, 4)
    shares, given, expected = [], [], []
    for place in np.ndindex(6, 2, 4):
        if selected[place].any():
            given.append(product[place][selected[place]].sum())
            shares.append(given[-1] / product[place].sum())
            mean_norm = product[place].sum() / trace.column_sums[place].sum()
            expected.append(trace.column_sums[place][selected[place]].sum() * mean_norm)
    assert values["norms.contribution", ()] == pytest.approx(np.mean(shares), rel=1e-5)
    assert values["norms.contribution_over_attention", ()] == pytest.approx(sum(given) / sum(expected), rel=1e-5)


def test_what_was_not_recorded_and_what_has_no_sink_is_nothing():
    values = values_at(Norms(), summarise(make_trace(sink_at(np.full(4, 5))), THRESHOLDS), THRESHOLDS[0])
    assert all(np.isnan(value) for value in values.values())
    columns = np.ones((4, 2, 3, 30))
    values = values_at(Norms(), summarise(make_trace(columns, **extras(columns)), THRESHOLDS), THRESHOLDS[0])
    assert np.isnan(values["norms.value_norm_effect", ()])
    assert np.isnan(values["norms.contribution", ()])
