"""Figures 3, 5, 9, 10 and norms from statistics: the same numbers as from the traces of the same prompts."""

import csv

import numpy as np
import pytest
from PIL import Image

from sinkscope import cli
from sinkscope.errors import CallError, TraceError
from sinkscope.figures import draw_figure, draw_figures, open_statistics
from sinkscope.figures.subject import subject_of
from sinkscope.recorder.statistics_destination import merge_statistics
from sinkscope.statistics import PromptSettings, Summary
from sinkscope.statistics.step import histogram_edges, quarters_of
from sinkscope.traces.statistics_folder import StatisticsFolder

OF_STEPS = ["1", "2", "4", "6", "7", "8"]
OF_STATISTICS = ["3", "5", "9", "10", "norms"]
FILES = [
    "figure3-column-sums",
    "figure5-main-sink-strength",
    "figure9-column-sums-by-layer",
    "figure10-thresholds",
    "figure-norms",
]


def count(folder, *traces, excess=3.0):
    """Statistics of traces, as a recorder leaves them."""
    kept = StatisticsFolder(folder, {}, merge_statistics, len(traces))
    for number, trace in enumerate(traces):
        feed = Summary.feed(PromptSettings(), excess)
        for step in range(trace.steps):
            arrays = {name: getattr(trace, name)[step] for name in trace.tensors}
            feed.feed(arrays | {"key_norms": np.zeros_like(arrays["value_norms"])})
        kept.commit(
            number,
            Summary.of(feed.finish(), excess).to_arrays(),
            {"model": {"name": "org/planted"}, "causal": False},
            {},
        )
    return folder


@pytest.fixture(scope="module")
def statistics(sudden, tmp_path_factory):
    return count(tmp_path_factory.mktemp("counted") / "statistics", sudden)


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.slow
def test_the_numbers_are_those_of_the_trace(sudden, statistics, tmp_path):
    said = []
    draw_figures([sudden], tmp_path / "trace", only=OF_STATISTICS)
    only = [*OF_STEPS, *OF_STATISTICS]
    paths = draw_figures([open_statistics(statistics)], tmp_path / "statistics", only=only, say=said.append)
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in FILES for kind in ("png", "pdf", "csv")]
    for name in FILES:
        found, expected = (rows(tmp_path / folder / f"{name}.csv") for folder in ("statistics", "trace"))
        if name == "figure-norms":  # the trace above has no key norms
            found = [row for row in found if row[1] != "key"]
        assert len(found) == len(expected) > 5
        for one, other in zip(found, expected, strict=True):
            for mine, theirs in zip(one, other, strict=True):
                try:
                    assert float(mine) == pytest.approx(float(theirs), rel=1e-4), (name, one, other)
                except ValueError:
                    assert mine == theirs
    with Image.open(tmp_path / "statistics" / "figure3-column-sums.png") as image:
        assert "org/planted" in image.info["Title"]
        assert "wider bins" in image.info["Description"]
    with Image.open(tmp_path / "trace" / "figure3-column-sums.png") as image:
        assert "wider bins" not in image.info["Description"]
    assert said == [
        f"Figure {name} is not drawn for org/planted: it needs traces of single prompts; statistics keep no single steps"
        for name in OF_STEPS
    ]


def test_one_figure_is_drawn_from_statistics_or_their_folder(statistics, wandering):
    opened, path, of_text = (
        draw_figure("3", one) for one in (open_statistics(statistics), statistics, str(statistics))
    )
    assert opened.rows == path.rows == of_text.rows and len(opened.rows) > 5
    assert len(draw_figure("3", statistics, wandering).rows) > len(opened.rows)


def test_several_prompts_add_up(sudden, statistics, tmp_path):
    twice, once = (
        subject_of(open_statistics(count(tmp_path / "twice", sudden, sudden))),
        subject_of(open_statistics(statistics)),
    )
    for name in ("steps", "sinks", "columns"):
        assert getattr(twice.summary, name) == 2 * getattr(once.summary, name)
    for one in (once, twice):
        assert (one.positions, one.threshold_column_sum) == (29, pytest.approx(1 + 3 * (1 - 1 / 29)))
    assert twice.heading == "org/planted, 2 prompts"


def test_compare_puts_statistics_beside_a_trace(sudden, statistics, tmp_path):
    draw_figures([sudden, open_statistics(statistics)], tmp_path, compare=True, only=["5"])
    labels = {row[0] for row in rows(tmp_path / "figure5-main-sink-strength.csv")[1:]}
    assert labels == {"org/planted (1)", "org/planted (2)"}


def test_wide_bins_are_spread_over_their_quarters_and_lose_no_column():
    histogram = np.zeros((2, len(histogram_edges())), np.int64)
    histogram[0, [0, 3, 255]] = 5, 7, 2
    histogram[1, 256], histogram[1, 258] = 23, 4
    found = quarters_of(histogram)
    np.testing.assert_array_equal(found.sum(axis=1), histogram.sum(axis=1))
    np.testing.assert_array_equal(found[0, :256], histogram[0, :256])
    edges = histogram_edges()
    inside = (np.arange(found.shape[1]) / 4 >= edges[256]) & (np.arange(found.shape[1]) / 4 + 0.25 <= edges[257])
    assert found[1, inside].sum() == pytest.approx(23, abs=1)
    assert set(found[1, inside]) <= {0, 1, 2}  # evenly
    assert not found[1, :256].any()


def test_another_threshold_is_refused(statistics, tmp_path):
    with pytest.raises(
        CallError, match=r"excess: the statistics of org/planted were counted at ε = 3, found 5; draw traces instead"
    ):
        draw_figures([open_statistics(statistics)], tmp_path, excess=5.0)


def test_a_folder_without_a_prompt_is_refused(tmp_path):
    StatisticsFolder(tmp_path / "empty", {}, merge_statistics, 2)
    with pytest.raises(TraceError, match="holds no complete prompt yet"):
        open_statistics(tmp_path / "empty")


def test_the_command_takes_statistics(statistics, tmp_path, capsys):
    cli._run(["figures", str(statistics), "--out", str(tmp_path), "--only", "3,4,10"])
    shown = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in shown.out.splitlines()] == [
        f"{name}.{kind}" for name in ("figure3-column-sums", "figure10-thresholds") for kind in ("png", "pdf", "csv")
    ]
    assert "Figure 4 is not drawn for org/planted: it needs traces of single prompts" in shown.err
