"""Figure 8 draws the head whose sink stays and the head whose sink drifts."""

import csv
import sys

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from sudden import sudden_columns, write_sudden

import sinkscope
from sinkscope import cli
from sinkscope.figures.figure8_first_and_last_maps import chosen_heads
from sinkscope.figures.style import figure_style
from sinkscope.figures.subject import subject_of


def test_it_names_its_heads(sudden):
    chosen = chosen_heads(subject_of(sudden))
    assert [(why, head.layer, head.head) for why, head in chosen] == [
        ("fixed sink", 0, 0),
        ("drifts left, -1.00 positions a step", 0, 2),
    ]


def test_a_head_that_is_asked_for_is_drawn_with_a_sink_or_without(draw_head, rows_of, sudden):
    for place in ((1, 0), (0, 2)):
        drawn = draw_head("8", sudden, place)
        rows = rows_of(drawn)
        assert {(row["panel"], int(row["layer"]), int(row["head"])) for row in rows} == {("asked for", *place)}
        assert {row["step"] for row in rows} == {"0", "11"}
        assert "The head is the one that was asked for" in drawn.caption


def test_the_caption_tells_of_a_second_head_only_where_one_is_drawn(draw, draw_head, sudden, tmp_path):
    assert "Below: the head whose main sink drifts left" in draw("8", sudden).caption
    columns, _ = sudden_columns()
    columns[:, 0, 1:], columns[:, 1] = 0.1, 0.1
    still = write_sudden(tmp_path / "still", columns, columns * 0.3)
    caption = draw("8", still).caption
    assert (
        "Below" not in caption
        and "org/planted has no second head: no main sink drifts in at least half of the steps" in caption
    )
    both = draw_head("8", sudden, (0, None))
    assert "Below" in both.caption
    columns[:, 0, 0, 4] = 0.1
    columns[range(12), 0, 0, [9] * 7 + [8] * 5] = 9
    assert "it also drifts the fastest" in draw("8", write_sudden(tmp_path / "drifts", columns, columns * 0.3)).caption


def test_no_label_lies_upon_another(draw, sudden):
    with figure_style():
        drawn = draw("8", sudden)
    canvas = FigureCanvasAgg(drawn.sheet)
    canvas.draw()
    maps = [axes for axes in drawn.sheet.axes if "step" in axes.get_title(loc="left")]
    titles = [axes._left_title.get_window_extent(canvas.get_renderer()) for axes in maps]
    labels = [axes.xaxis.label.get_window_extent(canvas.get_renderer()) for axes in maps if axes.get_xlabel()]
    assert len(maps) == 4 and len(labels) == 2
    assert not [1 for title in titles for label in labels if title.overlaps(label)]


def test_token_names_keep_clear_of_the_title(draw, sudden):
    with figure_style():
        drawn = draw("8", sudden)
    canvas = FigureCanvasAgg(drawn.sheet)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axes in drawn.sheet.axes:
        title = axes.get_title(loc="left")
        if "step" in title:
            box = axes._left_title.get_window_extent(renderer)
            names = [text for child in axes.child_axes for text in child.get_xticklabels()]
            assert names
            assert all(not box.overlaps(text.get_window_extent(renderer)) for text in names)


def test_the_command_recomputes_its_maps(diffusion, tmp_path, monkeypatch, capsys):
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, "Q: Write a function f(x) that returns x plus 3.\nA:", length=12, block=12)
    command = ["figures", str(tmp_path / "t"), "--out", str(tmp_path / "f"), "--only", "8, 10", "--excess", "0.5"]
    monkeypatch.setattr(sys, "argv", ["sinkscope", *command])
    cli.main()
    captured = capsys.readouterr()
    assert captured.err == ""
    assert [path.rpartition("/")[2] for path in captured.out.split()] == [
        f"{name}.{kind}" for name in ("figure8-first-and-last", "figure10-thresholds") for kind in ("png", "pdf", "csv")
    ]
    trace = sinkscope.open_trace(tmp_path / "t")
    with (tmp_path / "f" / "figure8-first-and-last.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["panel"] == "fixed sink" and row["step"] == "0"]
    found = np.zeros(trace.column_sums.shape[-1])
    for row in rows:
        found[int(row["key"])] += float(row["attention"])
    np.testing.assert_allclose(found, trace.column_sums[0, int(rows[0]["layer"]), int(rows[0]["head"])], atol=0.01)
