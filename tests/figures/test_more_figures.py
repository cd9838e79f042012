"""Figures 2, 4, 6, 8, 9, 10 and the norms: what is drawn, and which steps and heads are chosen, is what was planted."""

import csv
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import sinkscope
from sinkscope import cli
from sinkscope.errors import CallError
from sinkscope.figures import draw_figures, highlights
from sinkscope.figures.digest import digest
from sinkscope.figures.drawing import MAP_FIGURES, ORDER, _draw
from sinkscope.figures.figure import figure_style, new_figure
from sinkscope.figures.first_and_last import chosen_heads
from sinkscope.figures.highlights import Flash, Jump, Split
from sinkscope.figures.jumps import absorbed
from sinkscope.figures.maps import LEAST_SHARE, single_map
from sinkscope.figures.norms import effect_size
from sinkscope.sinks import is_sink
from sinkscope.sinks.accumulators import epsilons
from sinkscope.traces import TraceWriter, open_trace

STEPS, LAYERS, HEADS, KV_HEADS, PROMPT, LENGTH, MASK = 12, 2, 4, 2, 13, 16, 0
POSITIONS = PROMPT + LENGTH
NAMES = {
    "2": "figure2-decoding",
    "4": "figure4-sink-jump",
    "6": "figure6-query-groups",
    "8": "figure8-first-and-last",
    "9": "figure9-column-sums-by-layer",
    "10": "figure10-thresholds",
    "norms": "figure-norms",
}


def planted():
    """Layer 0: head 0 stands, head 1 jumps once, head 2 drifts left; layer 1: head 3 flashes in step 6, head 1 splits in step 5."""
    rng = np.random.default_rng(2)
    columns = rng.random((STEPS, LAYERS, HEADS, POSITIONS)).astype(np.float32) * 0.4
    masked_columns = columns * 0.3
    for step in range(STEPS):
        columns[step, 0, 0, 4] = 9
        columns[step, 0, 1, 3 if step < 7 else 25] = 8
        columns[step, 0, 2, 24 - step] = 7
        columns[step, 1, 2, (11, 12)[step % 2]] = 6
    columns[6, 1, 3, 19] = 11
    columns[5, 1, 1, [2, 20]] = 3
    masked_columns[5, 1, 1, [2, 20]] = [0.1, 2.9]
    return columns, masked_columns


def write(folder, columns, masked_columns, **more):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    manifest = {
        "model": {"name": "org/planted"},
        "causal": False,
        "prompt_length": PROMPT,
        "mask_id": MASK,
        "layers": ["a.0", "a.1"],
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "vocabulary": {str(token): f"w{token}" for token in range(9)},
        **more,
    }
    writer = TraceWriter(folder, manifest)
    tokens = np.full(POSITIONS, MASK, np.int32)
    tokens[:PROMPT] = 1 + np.arange(PROMPT) % 8
    order = PROMPT + np.random.default_rng(1).permutation(LENGTH)
    for step in range(len(columns)):
        written = np.full(POSITIONS, -1, np.int32)
        written[order[step]] = 1 + step % 8
        value_norms = rng.random((LAYERS, KV_HEADS, POSITIONS)).astype(np.float32) + 5
        writer.add(
            {
                "tokens": tokens.copy(),
                "masked": (tokens == MASK).astype(np.uint8),
                "written": written,
                "lengths": np.array(POSITIONS, np.int32),
                "column_sums": columns[step],
                "column_sums_masked": masked_columns[step],
                "self_attention": rng.random((LAYERS, HEADS, POSITIONS)).astype(np.float32),
                "value_norms": value_norms,
                "hidden_norms": rng.random((LAYERS, POSITIONS)).astype(np.float32),
            }
        )
        tokens = np.where(written >= 0, written, tokens)
    writer.close(complete=True)
    return open_trace(folder)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write(tmp_path_factory.mktemp("traces") / "planted", *planted())


def attention_of(trace, step, layer, head):
    """A map with the recorded columns: every query the same row."""
    columns = trace.column_sums[step, layer, head]
    rows = np.tile(columns / columns.sum(), (len(columns), 1)).astype(np.float32)
    if (step, layer, head) == (5, 1, 1):
        masked = trace.masked[step].astype(bool)
        rows[masked] = 0.001
        rows[masked, 20] = 1 - 0.001 * (POSITIONS - 1)
        rows[~masked] = 0.001
        rows[~masked, 2] = 1 - 0.001 * (POSITIONS - 1)
    return rows


@pytest.fixture(scope="module")
def drawn(trace, tmp_path_factory):
    folder, asked = tmp_path_factory.mktemp("figures"), []

    def maps(trace, step, layer, head):
        asked.append((step, layer, head))
        return attention_of(trace, step, layer, head)

    paths = draw_figures([trace], folder, only=list(NAMES), maps=maps)
    return folder, paths, asked


def rows_of(folder, figure, **where):
    with (folder / f"{NAMES[figure]}.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == str(value) for key, value in where.items())]


def cut_off(figure):
    """Texts of a drawn figure that reach beyond its sheet by more than two pixels."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    sheet, found = figure.bbox, []
    ticks = {text for axis in figure.findobj(Axis) for text in axis.get_ticklabels(which="both")}  # there are some that are not drawn
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in ticks:
            box = text.get_window_extent(canvas.get_renderer())
            if box.width and (box.x0 < -2 or box.y0 < -2 or box.x1 > sheet.width + 2 or box.y1 > sheet.height + 2):
                found.append(text.get_text())
    return found


@pytest.mark.parametrize("side_by_side", [1, 2])
@pytest.mark.parametrize("name", ORDER)
def test_no_text_is_cut_off_alone_or_side_by_side(trace, name, side_by_side):
    digests = [digest(trace, label=f"a model with a name of its own {number}") for number in range(side_by_side)]
    with figure_style(wide=side_by_side > 1):
        drawn = _draw(name, digests, attention_of)
        assert cut_off(drawn.figure) == []


def test_text_beyond_the_sheet_is_seen():
    figure = new_figure(3, 2)
    figure.text(0.9, 0.5, "reaches beyond the right edge")
    assert cut_off(figure) == ["reaches beyond the right edge"]


def test_every_figure_is_png_pdf_and_csv_and_carries_its_caption(drawn):
    folder, paths, _ = drawn
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in NAMES.values() for kind in ("png", "pdf", "csv")]
    for path in paths:
        assert path.stat().st_size > 200
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert "org/planted" in image.info["Title"]
                assert "does not show" in image.info["Description"]
    assert sorted(folder.iterdir()) == sorted(paths)


# Highlights


def test_the_planted_places_are_found(trace):
    one = digest(trace)
    assert one.jump == Jump(6, 0, 1, 3, 25, clean=True)
    assert one.jump.distance == 22
    assert one.flash == Flash(6, 1, 3, 19, 11.0)
    assert (one.leftmost.layer, one.leftmost.head, one.leftmost.drift_per_step) == (0, 2, pytest.approx(-1))
    assert (one.most_static.layer, one.most_static.head) == (0, 0)


def test_the_clearest_split_is_on_means_of_groups_that_are_large_enough(trace):
    split = digest(trace).split
    columns, masked_columns = planted()
    best = (-1.0, None)
    for step in range(STEPS):
        masked = trace.masked[step].astype(bool)
        if masked.sum() < 8 or (~masked).sum() < 8:
            continue
        for layer in range(LAYERS):
            for head in range(HEADS):
                of_masked = masked_columns[step, layer, head] / masked.sum()
                of_others = (columns - masked_columns)[step, layer, head] / (~masked).sum()
                one, other = of_masked.argmax(), of_others.argmax()
                clarity = min(of_masked[one] - of_others[one], of_others[other] - of_masked[other])
                if one != other and clarity > best[0]:
                    best = (clarity, (step, layer, head, one, other))
    assert (split.step, split.layer, split.head, split.masked_key, split.unmasked_key) == best[1] == (5, 1, 1, 20, 2)
    assert split.clarity == pytest.approx(best[0])
    assert isinstance(split, Split)


def test_groups_with_too_few_queries_are_not_compared(tmp_path, monkeypatch):
    columns, masked_columns = planted()
    trace = write(tmp_path / "one", columns[5:6], masked_columns[5:6])  # 16 masked queries, 13 others
    assert digest(trace).split is not None
    monkeypatch.setattr(highlights, "LEAST_QUERIES", 14)
    assert digest(trace).split is None


def test_without_movement_there_is_no_jump_and_no_flash(tmp_path):
    columns = np.full((STEPS, LAYERS, HEADS, POSITIONS), 0.5, np.float32)
    columns[:, 0, 0, 4] = 9
    still = digest(write(tmp_path / "still", columns, columns * 0.5))
    assert (still.jump, still.flash, still.leftmost) == (None, None, None)
    said = []
    assert draw_figures([still.trace], tmp_path / "out", only=["4"], maps=attention_of, say=said.append) == []
    assert said == ["not drawn for org/planted: the jump of a sink (Figure 4): no main sink moves from one step to the next"]


def test_maps_are_asked_for_at_the_telling_places(drawn):
    _, _, asked = drawn
    jump = [(6, 0, 1), (7, 0, 1)]
    split_and_flash = [(5, 1, 1), (5, 1, 3), (6, 1, 3), (7, 1, 3)]
    first_and_last = [(0, 0, 0), (11, 0, 0), (0, 0, 2), (11, 0, 2)]
    assert asked == jump + split_and_flash + first_and_last


# What is drawn


def test_figure_2_says_when_each_position_was_committed(drawn, trace):
    folder, _, _ = drawn
    order = PROMPT + np.random.default_rng(1).permutation(LENGTH)
    rows = rows_of(folder, "2")
    assert [(int(row["step_committed"]), int(row["position"])) for row in rows] == [(step, order[step]) for step in range(STEPS)]
    assert [int(row["position_in_answer"]) for row in rows] == [order[step] - PROMPT for step in range(STEPS)]
    from sinkscope.figures.decoding import COMMITTED, MASKED, NEW, STATES, states_of

    states = states_of(digest(trace))
    assert states.shape == (STEPS, LENGTH)
    for step in range(STEPS):
        for place in range(LENGTH):
            at = order.tolist().index(PROMPT + place)
            assert STATES[states[step, place]] == (COMMITTED if at < step else NEW if at == step else MASKED)


def test_figure_4_draws_both_maps_and_the_shares_over_steps(drawn, trace):
    folder, _, _ = drawn
    for panel, step in (("before", 6), ("after", 7)):
        dense = attention_of(trace, step, 0, 1)
        rows = rows_of(folder, "4", panel=panel)
        assert len(rows) == (dense >= LEAST_SHARE).sum()
        for row in rows[::53]:
            assert (row["step"], row["layer"], row["head"]) == (str(step), "0", "1")
            assert float(row["attention"]) == pytest.approx(dense[int(row["query"]), int(row["key"])], rel=1e-4)
    shares = rows_of(folder, "4", panel="share of all attention", key=25)
    columns = trace.column_sums[:, 0, 1]
    assert [float(row["attention"]) for row in shares] == pytest.approx((columns[:, 25] / columns.sum(axis=-1)).tolist(), rel=1e-5)
    own = rows_of(folder, "4", panel="self-attention")
    assert [float(row["attention"]) for row in own] == pytest.approx(trace.self_attention[:, 0, 1].mean(axis=-1).tolist(), rel=1e-5)
    largest = columns.max(axis=-1) / columns.sum(axis=-1)
    expected = np.corrcoef(largest, trace.self_attention[:, 0, 1].mean(axis=-1))[0, 1]
    assert absorbed(digest(trace)) == pytest.approx(expected, abs=1e-6)


def test_figure_6_averages_over_the_queries_of_each_group(drawn, trace):
    folder, _, _ = drawn
    masked, dense = trace.masked[5].astype(bool), attention_of(trace, 5, 1, 1)
    for name, members in (("masked", masked), ("unmasked", ~masked)):
        rows = rows_of(folder, "6", panel=f"mean of {name} queries")
        assert [float(row["attention"]) for row in rows] == pytest.approx(dense[members].mean(axis=0).tolist(), rel=1e-4)
    assert {row["step"] for row in rows_of(folder, "6", panel="one step")} == {"5", "6", "7"}


def test_figure_8_names_its_heads(trace):
    chosen = chosen_heads(digest(trace))
    assert [(why, head.layer, head.head) for why, head in chosen] == [("fixed sink", 0, 0), ("drifts left, -1.00 positions a step", 0, 2)]


def test_figure_9_counts_the_columns_of_every_layer(drawn):
    folder, _, _ = drawn
    columns, _ = planted()
    for layer in range(LAYERS):
        rows = rows_of(folder, "9", layer=layer)
        edges = [float(row["column_sum_from"]) for row in rows] + [float(rows[-1]["column_sum_to"])]
        assert [int(row["columns"]) for row in rows] == np.histogram(columns[:, layer], edges)[0].tolist()
        assert sum(int(row["columns"]) for row in rows) == columns[:, layer].size


@pytest.mark.parametrize("unit", ["queries", "percent"])
def test_figure_10_is_eq_3_at_every_threshold(drawn, unit):
    folder, _, _ = drawn
    columns, _ = planted()
    rows = rows_of(folder, "10", unit=unit)
    assert [float(row["epsilon"]) for row in rows] == epsilons().tolist()
    assert [float(row["share_not_sinks"]) for row in rows] == pytest.approx(
        [1 - is_sink(columns, float(e), unit).mean() for e in epsilons()]
    )


def test_norms_are_those_of_sinks_and_of_others(drawn, trace):
    folder, _, _ = drawn
    columns, _ = planted()
    selected = is_sink(columns)
    values = np.repeat(trace.value_norms[:], HEADS // KV_HEADS, axis=2)
    hidden = np.broadcast_to(trace.hidden_norms[:][:, :, None], columns.shape)
    kinds = {"value": values, "contribution": values * columns, "hidden": hidden}
    assert {row["kind"] for row in rows_of(folder, "norms")} == set(kinds)
    for kind, norms in kinds.items():
        for layer in range(LAYERS):
            for name, chosen in (("sinks", selected), ("others", ~selected)):
                (row,) = rows_of(folder, "norms", kind=kind, layer=layer, tokens=name)
                mine = norms[:, layer][chosen[:, layer]].astype(np.float64)
                assert float(row["mean"]) == pytest.approx(mine.mean(), rel=1e-5)
                assert float(row["standard_deviation"]) == pytest.approx(mine.std(), rel=1e-4)


def test_effect_size_is_the_difference_over_the_mean_spread():
    assert effect_size(np.array([[[3.0, 1.0]], [[1.0, 7.0]]])) == pytest.approx([2 / 5])
    assert np.isnan(effect_size(np.array([[[3.0, 1.0]], [[0.0, 0.0]]]))).all()


# Several traces, and what cannot be drawn


def test_comparison_puts_both_traces_into_every_figure(trace, tmp_path):
    columns, masked_columns = planted()
    other = write(tmp_path / "other", columns[:, :, :, ::-1].copy(), masked_columns[:, :, :, ::-1].copy(), model={"name": "org/mirrored"})
    paths = draw_figures([trace, other], tmp_path / "out", compare=True, only=list(NAMES), maps=attention_of)
    assert [path.name for path in paths if path.suffix == ".csv"] == [f"{name}.csv" for name in NAMES.values()]
    for figure in NAMES:
        assert {row["model"] for row in rows_of(tmp_path / "out", figure)} == {"org/planted", "org/mirrored"}, figure


def test_a_model_that_is_gone_leaves_the_other_figures(trace, tmp_path):
    def gone(*_):
        raise CallError("the model cannot be loaded. Pass --model")

    said = []
    paths = draw_figures([trace], tmp_path, only=["10", *MAP_FIGURES], maps=gone, say=said.append)
    assert [path.name for path in paths] == [f"figure10-thresholds.{kind}" for kind in ("png", "pdf", "csv")]
    assert said == [f"not drawn for org/planted: Figure {name}: the model cannot be loaded. Pass --model" for name in MAP_FIGURES]


def test_without_maps_the_others_are_drawn_in_silence(unpainted, trace, tmp_path):
    said = []
    paths = draw_figures([trace], tmp_path, say=said.append)
    assert len(paths) == 3 * (len(ORDER) - len(MAP_FIGURES))
    assert said == []
    draw_figures([trace], tmp_path, only=["4"], say=said.append)
    assert said == ["not drawn for org/planted: Figure 4 needs attention maps; `sinkscope figures` recomputes them"]


def test_more_traces_than_fit_side_by_side_are_refused(trace, tmp_path):
    with pytest.raises(CallError, match=r"expected at most 4 traces side by side, found 5; name single ones, such as FOLDER/000000"):
        draw_figures([trace] * 5, tmp_path / "out", compare=True)
    assert not (tmp_path / "out").exists()


def test_an_unknown_figure_is_refused(trace, tmp_path):
    with pytest.raises(CallError, match="no figure '11'; expected one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, norms"):
        draw_figures([trace], tmp_path, only=["11"])


def test_a_trace_of_the_largest_columns_draws_what_it_can(diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "top", keep="top", top=6):
        sinkscope.generate(diffusion, "Q: Write a function f(x) that returns x plus 3.\nA:", length=6)
    said = []
    paths = draw_figures(
        [sinkscope.open_trace(tmp_path / "top")], tmp_path / "out", excess=0.5, only=["1", "5", "7", "norms"], say=said.append
    )
    assert [path.stem for path in paths if path.suffix == ".png"] == [
        "figure1-incoming-attention",
        "figure5-main-sink-strength",
        "figure7-main-sink-position",
    ]
    assert len(said) == 1
    assert "keeps no norms" in said[0]


def test_a_causal_map_is_empty_above_its_diagonal(trace):
    causal = write_causal(trace)
    figure = single_map(causal, np.tri(POSITIONS, dtype=np.float32) / 9, 0, 0, 1)
    image = figure.axes[0].get_images()[0].get_array()
    assert np.ma.getmaskarray(image)[np.triu_indices(POSITIONS, 1)].all()
    assert not np.ma.getmaskarray(image)[np.tril_indices(POSITIONS)].any()


def write_causal(trace):
    manifest = {**trace.manifest, "causal": True}
    return SimpleNamespace(manifest=manifest, causal=True, tokens=trace.tokens, token_text=trace.token_text)


def test_token_names_keep_clear_of_the_title(trace):
    with figure_style():
        drawn = MAP_FIGURES["8"]([digest(trace)], attention_of)
    assert not isinstance(drawn, str)
    canvas = FigureCanvasAgg(drawn.figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axes in drawn.figure.axes:
        title = axes.get_title(loc="left")
        if "step" in title:
            box = axes._left_title.get_window_extent(renderer)
            names = [text for child in axes.child_axes for text in child.get_xticklabels()]
            assert names
            assert all(not box.overlaps(text.get_window_extent(renderer)) for text in names)


def test_the_command_recomputes_its_maps(diffusion, tmp_path, monkeypatch, capsys):
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, "Q: Write a function f(x) that returns x plus 3.\nA:", length=12, block=12)
    monkeypatch.setattr(
        sys, "argv", ["sinkscope", "figures", str(tmp_path / "t"), "--out", str(tmp_path / "f"), "--only", "8, 10", "--excess", "0.5"]
    )
    cli.main()
    captured = capsys.readouterr()
    assert captured.err == ""
    assert [path.rpartition("/")[2] for path in captured.out.split()] == [
        f"{name}.{kind}" for name in (NAMES["8"], NAMES["10"]) for kind in ("png", "pdf", "csv")
    ]
    trace = sinkscope.open_trace(tmp_path / "t")
    rows = rows_of(tmp_path / "f", "8", panel="fixed sink", step=0)
    found = np.zeros(trace.column_sums.shape[-1])
    for row in rows:
        found[int(row["key"])] += float(row["attention"])
    np.testing.assert_allclose(found, trace.column_sums[0, int(rows[0]["layer"]), int(rows[0]["head"])], atol=0.01)
