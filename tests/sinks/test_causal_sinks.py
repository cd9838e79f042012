"""Sinks of causal models, with a planted truth: uniform attention has none, a constant first token is static."""

import numpy as np
import pytest
from planted import causal_map, causal_trace, make_trace, sink_at, write_trace

from sinkscope.sinks import averaged_moves, find_sinks, movement_test, track, visible_query_mean
from sinkscope.sinks.definition import excess_of, reach_of, uniform_columns
from sinkscope.statistics import THRESHOLDS, Threshold, analyse, compare, summarise
from sinkscope.statistics.concentration import evenness_values
from sinkscope.statistics.movement import Movement


@pytest.mark.parametrize("length", [16, 31, 87, 512, 2048])
def test_uniform_attention_has_no_sink_and_a_planted_one_is_found(length):
    even, planted = (causal_trace(1, [one]) for one in (causal_map(length), causal_map(length, sink=3, share=0.4)))
    assert len(find_sinks(even)) == 0 and find_sinks(planted).position.tolist() == [3]
    assert len(find_sinks(even, rule="eq3")) == {16: 0, 31: 1, 87: 2, 512: 9, 2048: 38}[length]
    assert not find_sinks(even, 0.5).moving.any() and find_sinks(planted).moving.nonzero()[3].tolist() == [3]


def test_where_every_query_sees_every_key_the_rules_agree():
    columns = np.random.default_rng(0).dirichlet(np.full(23, 0.3), (2, 5)).astype(np.float32) * 23
    np.testing.assert_allclose(excess_of(columns, np.ones((2, 1, 23))), excess_of(columns), atol=1e-5)


@pytest.mark.parametrize("steps", [8, 16, 48, 200])
@pytest.mark.parametrize("prompt", [0, 37])
def test_a_constant_first_token_is_static(run, tmp_path, steps, prompt):
    even, planted = causal_map(steps + prompt), causal_map(steps + prompt, sink=0, share=0.6)
    trace = causal_trace(steps, [planted, even], [planted, planted])
    tracks = track(find_sinks(trace))
    assert [(one.layer, one.head, one.position, one.kind) for one in tracks.tracks] == [
        (layer, head, 0, "static") for layer, head in ((0, 0), (1, 0), (1, 1))
    ]
    found = {
        one.place["kind"]: one.value for one in analyse([trace]).find("movement.tracks", excess=3.0, unit="queries")
    }
    assert found == {kind: float(kind == "static") for kind in found}
    test = movement_test(tracks.main, tracks.is_sink, uncounted=tracks.uncounted)
    assert (test.heads, test.moves_per_head, test.null_moves) == (3, 0, (0, 0, 0))
    out = " ".join(run("tracks", write_trace(tmp_path / "t", trace, causal=True))[1].split())
    assert ": position 0, '\\n': main sink of 3 of 4 heads, with " in out and "; a static sink in 3 " in out


def test_one_step_is_too_short_for_tracks(run, tmp_path):
    trace = causal_trace(1, [causal_map(60, sink=0)])
    out = run("tracks", write_trace(tmp_path / "t", trace, causal=True))[1]
    assert "too short to tell how long sinks last" in out and " static " not in out
    values = Movement().values(summarise(trace, [Threshold(3.0)]))
    assert np.isnan([value for (name, _), value in values.items() if "track" in name]).all()


def test_the_first_token_behind_a_sliding_window_is_divided_by_the_queries_that_see_it(tmp_path):
    window, width = 70, 100
    sliding, whole = causal_map(width, sink=0, share=0.4, window=window), causal_map(width, sink=0, share=0.4)
    trace = causal_trace(3, [sliding, sliding], [whole, causal_map(width)])
    assert reach_of(trace.last_query).tolist() == [[window, 98], [window, 99], [window, 100]]
    columns, reach = trace.column_sums[-1], reach_of(trace.last_query)[-1]
    seen = visible_query_mean(columns, True, reach)
    for layer, maps in enumerate((sliding, whole)):
        for key in range(width):
            expected = maps[:, key].sum() / (maps[:, key] > 0).sum()
            assert seen[layer, 0, key] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(uniform_columns(width, reach)[0, 0], causal_map(width, window=window).sum(axis=0))
    found = find_sinks(trace)
    first = found.visible_query_mean[(found.layer == 0) & (found.position == 0)]
    np.testing.assert_allclose(first, sliding[:, 0].sum() / window, rtol=1e-5)  # not / 98, 99, 100
    values = evenness_values(summarise(trace, THRESHOLDS))
    assert values["concentration.gu_rate_first", ()] == 3 / 4


def test_moves_are_compared_at_equal_shares_and_numbers_of_queries():
    """A flickering row moves often, its mean over many rows does not; a canvas is as many queries."""
    maps, width = causal_map(120), 120
    for query in range(20, width):
        maps[query] *= 0.3 / maps[query].sum()
        maps[query, 3 if query % 2 else 7] += 0.7
    by_window = {one.queries: one for one in averaged_moves(causal_trace(80, [maps]))}
    assert {one.steps for one in by_window.values()} == {49} and by_window.keys() == {1, 2, 4, 8, 16, 32}
    assert (by_window[1].moves_per_head, by_window[8].moves_per_head, by_window[32].heads) == (48, 0, 1)
    still, place = make_trace(sink_at(np.full(20, 4), strength=9.0)), np.arange(20) // 10 * 5
    (one,) = averaged_moves(still)
    assert (one.queries, one.moves_per_head, one.heads) == (30, 0, 6)
    (one,) = averaged_moves(make_trace(sink_at(place, strength=9.0)))
    assert (one.queries, one.moves_per_head) == (30, 1)
    (one,) = averaged_moves(make_trace(sink_at(place, strength=5.0)))
    assert (one.heads, one.moves_per_head) == (0, None)  # 17 % are less than 3 of 16


def test_movement_of_a_causal_and_a_diffusion_model_is_not_comparable():
    diffusion, causal = make_trace(sink_at(np.full(20, 4))), causal_trace(20, [causal_map(50, sink=0)] * 3)
    first, second = (analyse([one], [Threshold(3.0)], choice=False) for one in (diffusion, causal))
    moves, sinks = "movement.moves_per_head", "concentration.sinks_per_head"
    both = {one.name: one.value for one in compare(first, second)}
    assert first.find(moves)[0].value is not None and second.find(moves)[0].value is not None
    assert both[moves] is None and both[sinks] is not None
    assert (first.rule, second.rule) == ("eq3", "uniform")
