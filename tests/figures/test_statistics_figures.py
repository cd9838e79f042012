"""Figures 3, 5, 9, 10 and norms from statistics: the same numbers as from the traces of the same prompts."""

import numpy as np
import pytest

from sinkscope.errors import CallError
from sinkscope.figures import draw_figure, draw_figures, open_statistics
from sinkscope.figures.subject import subject_of
from sinkscope.recorder.destinations import ABOUT, merge_statistics
from sinkscope.statistics import PromptSettings, Summary
from sinkscope.statistics.step import histogram_edges, quarters_of
from sinkscope.traces.statistics_folder import StatisticsFolder


def statistics_of(folder, *traces):
    """Statistics of traces, as a recorder leaves them."""
    kept = StatisticsFolder(folder, {}, merge_statistics, len(traces))
    for number, trace in enumerate(traces):
        feed = Summary.feed(PromptSettings.of(trace.causal, trace.manifest))
        for step in range(trace.steps):
            feed.feed({name: getattr(trace, name)[step] for name in trace.tensors if name != "lengths"})
        vocabulary = {int(token): text for token, text in trace.manifest["vocabulary"].items()}
        about = {name: trace.manifest[name] for name in ABOUT if name in trace.manifest}
        kept.commit(number, Summary.of(feed.finish(vocabulary)).to_arrays(), about, vocabulary)
    return folder


@pytest.fixture(scope="module")
def statistics(sudden, tmp_path_factory):
    return statistics_of(tmp_path_factory.mktemp("counted") / "statistics", sudden)


@pytest.mark.parametrize("name", ["3", "5", "9", "10", "norms"])
def test_the_numbers_are_those_of_the_trace(sudden, statistics, name):
    found, expected = (draw_figure(name, one) for one in (statistics, sudden))
    assert len(found.rows) == len(expected.rows) > 5 and "org/planted" in found.title
    for row, other in zip(found.rows, expected.rows, strict=True):
        for mine, theirs in zip(map(str, row), map(str, other), strict=True):
            try:
                assert float(mine) == pytest.approx(float(theirs), rel=1e-4), (row, other)
            except ValueError:
                assert mine == theirs


def test_figures_of_single_steps_are_not_drawn(statistics, unpainted, tmp_path):
    said = []
    paths = draw_figures([open_statistics(statistics)], tmp_path, say=said.append)
    assert len(paths) == 15 and len(said) == 6
    assert all(one.endswith("it needs traces of single prompts; statistics keep no single steps") for one in said)


def test_several_prompts_add_up(sudden, statistics, tmp_path):
    twice, once = (
        subject_of(open_statistics(statistics_of(tmp_path / "twice", sudden, sudden))),
        subject_of(open_statistics(statistics)),
    )
    for name in ("steps", "sinks", "columns"):
        assert getattr(twice.summary, name) == 2 * getattr(once.summary, name)
    for one in (once, twice):
        assert (one.positions, one.threshold_column_sum) == (29, pytest.approx(1 + 3 * (1 - 1 / 29)))
    assert twice.heading == "org/planted, 2 prompts"


def test_wide_bins_are_spread_evenly_and_lose_no_column():
    edges = histogram_edges()
    histogram = np.zeros((1, len(edges)), np.int64)
    histogram[0, [3, 256, 258]] = 7, 23, 4
    (found,) = quarters_of(histogram)
    at = np.arange(len(found)) / 4
    assert found.sum() == 34 and found[3] == 7 and not found[4:256].any()
    inside = found[(at >= edges[256]) & (at + 0.25 <= edges[257])]
    assert inside.sum() == pytest.approx(23, abs=1) and set(inside) <= {0, 1, 2}


def test_another_threshold_is_refused(statistics, tmp_path):
    with pytest.raises(CallError, match=r"were counted at ε = 3, found 5; draw traces instead"):
        draw_figures([open_statistics(statistics)], tmp_path, excess=5.0)
