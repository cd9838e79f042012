"""Figures 4, 6 and 8 draw the maps that they should, and the numbers beside these."""

import csv

import numpy as np
import pytest
from sudden import POSITIONS, map_of, write_sudden

import sinkscope
from sinkscope.figures import FigureError, draw_figures
from sinkscope.figures.figure_maps import LEAST_SHARE, chosen_heads
from sinkscope.figures.subject import subject_of
from sinkscope.sinks.followed_columns import uncounted


def attention_in(rows):
    return [float(row["attention"]) for row in rows]


def test_figure_4_draws_both_maps_and_the_shares_over_steps(draw, rows_of, sudden):
    drawn = draw("4", sudden)
    for panel, step in (("before", 6), ("after", 7)):
        dense = map_of(sudden, step, 0, 1)
        rows = rows_of(drawn, panel=panel)
        assert len(rows) == (dense >= LEAST_SHARE).sum()
        assert {(row["step"], row["layer"], row["head"]) for row in rows} == {(str(step), "0", "1")}
        expected = [dense[int(row["query"]), int(row["key"])] for row in rows]
        assert attention_in(rows) == pytest.approx(expected, rel=1e-4)
    columns, itself = sudden.column_sums[:, 0, 1], sudden.self_attention[:, 0, 1].mean(axis=-1)
    shares = columns / columns.sum(axis=-1, keepdims=True)
    found = attention_in(rows_of(drawn, panel="share of all attention", key=25))
    assert found == pytest.approx(shares[:, 25].tolist(), rel=1e-5)
    assert attention_in(rows_of(drawn, panel="self-attention")) == pytest.approx(itself.tolist(), rel=1e-5)
    assert "moves: key 25 has 0.645" in drawn.sheet.subfigs[0].subfigs[0].get_suptitle().replace("\n", " ")


def test_a_head_that_is_asked_for_is_drawn_or_said_not_to_show_it(draw_head, rows_of, sudden):
    rows = rows_of(draw_head("4", sudden, (0, 2)))
    assert {(row["layer"], row["head"]) for row in rows} == {("0", "2")}
    with pytest.raises(FigureError, match="no main sink of layer 0 head 0 moves"):
        draw_head("4", sudden, (0, 0))
    rows = rows_of(draw_head("6", sudden, (1, 1)))
    assert {(row["layer"], row["head"]) for row in rows} == {("1", "1")}, "it has a split, and no sink of one step"
    layer = {(row["panel"], row["head"]) for row in rows_of(draw_head("6", sudden, (1, None)))}
    assert {("split", "1"), ("one step", "3")} <= layer
    with pytest.raises(FigureError, match="in no step of layer 1 head 3 do 8 or more masked"):
        draw_head("6", sudden, (1, 3))


def test_a_share_of_all_attention_counts_what_a_sink_token_has(draw, rows_of, sudden, tmp_path):
    columns = np.array(sudden.column_sums[:])
    columns *= 0.8 * POSITIONS / columns.sum(axis=-1, keepdims=True)
    masked = columns * sudden.masked[:].mean(axis=-1, dtype=np.float32)[:, None, None, None]
    token = POSITIONS - columns.sum(axis=-1, keepdims=True)
    trace = write_sudden(tmp_path / "token", columns, masked, sink_token=token)
    jump = subject_of(trace).jump
    rows = rows_of(draw("4", trace), panel="share of all attention", key=jump.before)
    assert attention_in(rows) == pytest.approx(
        (columns[:, jump.layer, jump.head, jump.before] / POSITIONS).tolist(), rel=1e-5
    )


def test_figure_6_averages_over_the_queries_of_each_group(draw, rows_of, sudden):
    drawn = draw("6", sudden)
    masked, dense = sudden.masked[5].astype(bool), map_of(sudden, 5, 1, 1)
    for name, members in (("masked", masked), ("unmasked", ~masked)):
        found = attention_in(rows_of(drawn, panel=f"mean of {name} queries"))
        assert found == pytest.approx(dense[members].mean(axis=0).tolist(), rel=1e-4)
    assert {row["step"] for row in rows_of(drawn, panel="one step")} == {"5", "6", "7"}


def test_figure_8_names_its_heads(sudden):
    assert [(why, head.layer, head.head) for why, head in chosen_heads(subject_of(sudden))] == [
        ("fixed sink", 0, 0),
        ("drifts left, -1.00 positions a step, one of 1 of 8 heads that drift", 0, 2),
    ]


def test_figure_8_counts_the_steps_with_enough_newest_queries(draw, causal):
    stays = subject_of(causal).of_head(chosen_heads(subject_of(causal))[0][1])
    counting = int((stays >= 0).sum())
    said = draw("8", causal).sheet.subfigs[0].get_suptitle().replace("\n", " ")
    assert counting == causal.steps - uncounted(True, causal.steps) < causal.steps
    assert f"of the {counting} steps that count" in said


def test_the_parts_of_a_figure_have_no_line_above_either(sudden, tmp_path):
    for headlines in (True, False):
        out = tmp_path / str(headlines)
        draw_figures([sudden], out, only=["4", "6"], maps=map_of, headlines=headlines, vector="svg")
        for path, said in (("figure4-sink-jump.svg", "after step"), ("figure6-query-groups.svg", "of one step:")):
            assert (said in (out / path).read_text()) == headlines


def test_the_command_recomputes_the_maps(run, diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, "Q: Write a function f(x) that returns x plus 3.\nA:", length=12, block=12)
    status, out, err = run("figures", tmp_path / "t", "--out", tmp_path / "f", "--only", "8, 10", "--excess", "0.5")
    assert (status, err, len(out.split())) == (0, "", 6)
    trace = sinkscope.open_trace(tmp_path / "t")
    with (tmp_path / "f" / "figure8-first-and-last.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["panel"] == "fixed sink" and row["step"] == "0"]
    found = np.zeros(trace.column_sums.shape[-1])
    for row in rows:
        found[int(row["key"])] += float(row["attention"])
    np.testing.assert_allclose(found, trace.column_sums[0, int(rows[0]["layer"]), int(rows[0]["head"])], atol=0.01)
