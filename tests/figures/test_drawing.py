"""What holds for every figure: its files, several traces, what cannot be drawn, and how one is added."""

import csv
import sys
from itertools import chain
from pathlib import Path

import pytest
from adding_page import files_of_the_page
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from sudden import map_of, sudden_columns, write_sudden

import sinkscope.figures
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.figures import draw_figures, find_figures
from sinkscope.figures.style import figure_style

FIGURES = find_figures()
OF_MAPS = ("4", "6", "8")
KINDS = ("png", "pdf", "csv")


def files(*names):
    return [f"{FIGURES[name].file}.{kind}" for name in names for kind in KINDS]


def test_a_figure_is_png_pdf_and_csv_and_the_png_carries_its_caption(sudden, tmp_path):
    png, pdf, table = draw_figures([sudden], tmp_path, only=["3"])
    assert [path.name for path in (png, pdf, table)] == files("3") and {png, pdf, table} == {*tmp_path.iterdir()}
    assert pdf.read_bytes().startswith(b"%PDF") and table.read_text().startswith("model,column_sum_from,")
    with Image.open(png) as image:
        assert "org/planted" in image.info["Title"] and "What it does not show:" in image.info["Description"]


def test_every_figure_is_drawn_and_maps_are_asked_for_at_the_highlights(unpainted, sudden, tmp_path):
    asked = []

    def maps(trace, *place):
        asked.append(place)
        return map_of(trace, *place)

    assert [path.name for path in draw_figures([sudden], tmp_path, maps=maps)] == files(*FIGURES)
    jump = [(6, 0, 1), (7, 0, 1)]
    split_and_flash = [(5, 1, 1), (5, 1, 3), (6, 1, 3), (7, 1, 3)]
    first_and_last = [(0, 0, 0), (11, 0, 0), (0, 0, 2), (11, 0, 2)]
    assert asked == jump + split_and_flash + first_and_last


def cut_off(sheet):
    """Texts that reach beyond their sheet by more than two pixels."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(sheet)
    canvas.draw()
    edge, found = sheet.bbox, []
    ticks = {*chain(*(axis.get_ticklabels(which="both") for axis in sheet.findobj(Axis)))}  # some are not drawn
    for text in sheet.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in ticks:
            box = text.get_window_extent(canvas.get_renderer())
            if box.width and (box.x0 < -2 or box.y0 < -2 or box.x1 > edge.width + 2 or box.y1 > edge.height + 2):
                found.append(text.get_text())
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_is_cut_off_side_by_side(sudden, name):
    labels = ("a model with a name of its own 1", "a model with a name of its own 2")
    subjects = [sinkscope.figures.subject.subject_of(sudden, label=label, maps=map_of) for label in labels]
    with figure_style(wide=True):
        assert cut_off(FIGURES[name].draw(subjects).sheet) == []


def test_comparison_puts_both_traces_into_every_figure(unpainted, sudden, tmp_path):
    columns, masked_columns = sudden_columns()
    mirrored = (columns[:, :, :, ::-1].copy(), masked_columns[:, :, :, ::-1].copy())
    other = write_sudden(tmp_path / "other", *mirrored, model={"name": "org/mirrored"})
    paths = draw_figures([sudden, other], tmp_path / "out", compare=True, maps=map_of)
    assert [path.name for path in paths] == files(*FIGURES)
    for path in paths:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                assert {row["model"] for row in csv.DictReader(file)} == {"org/planted", "org/mirrored"}, path.name


def test_no_trace_overwrites_the_figures_of_another(unpainted, wandering, tmp_path, monkeypatch):
    labels, names = ["Mod_1", "mod-1", "模型甲"], ["Mod-1-1", "mod-1-2", "模型甲-3"]
    monkeypatch.setattr("sinkscope.figures.figure.model_labels", lambda _: labels)
    paths = [path for path in draw_figures([wandering] * 3, tmp_path, only=["3"]) if path.suffix == ".csv"]
    assert [path.name for path in paths] == [f"{FIGURES['3'].file}-{name}.csv" for name in names]
    for path, label in zip(paths, labels, strict=True):
        assert path.read_text().splitlines()[1].startswith(f"{label},")


def test_the_command_draws_the_head_that_is_asked_for(run, unpainted, wandering, tmp_path):
    status, out, err = run("figures", wandering.folder, "--out", tmp_path, "--layer", 1, "--head", 2, "--only", "1,7")
    assert (status, err) == (0, "")
    assert [Path(line).name for line in out.splitlines()] == files("1", "7")
    status, out, err = run("figures", wandering.folder, "--out", tmp_path, "--head", 0)
    assert (status, out) == (2, "") and "head: expected a layer with it, found head 0 alone" in err


def test_a_figure_for_a_column_of_a_paper_has_its_width_and_no_line_above(run, wandering, tmp_path):
    flags = ("--width", "89mm", "--no-title", "--vector", "svg", "--only", "3")
    status, out, err = run("figures", wandering.folder, "--out", tmp_path, *flags)
    png, svg, _ = map(Path, out.splitlines())
    assert (status, err, svg.suffix) == (0, "", ".svg")
    with Image.open(png) as image:
        assert image.width / 300 * 25.4 == pytest.approx(89, abs=0.2)
    (drawn,) = draw_figures([wandering], tmp_path / "plain", only=["3"], vector="svg")[1:2]
    said = "of the columns are sinks by Eq. 3"
    assert said not in svg.read_text() and said in drawn.read_text()


def test_a_wrong_figure_and_too_many_traces_are_refused(sudden, tmp_path):
    for traces, only, message in (
        ([sudden], ["none"], r"no figure 'none'; expected one of 1, 2, .*norms"),
        ([sudden] * 5, None, "expected 1 to 4 traces side by side, found 5; name single ones, such as FOLDER/000000"),
    ):
        with pytest.raises(CallError, match=message):
            draw_figures(traces, tmp_path / "out", only=only, compare=True)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_gone_leaves_the_other_figures(unpainted, sudden, tmp_path):
    def gone(*_):
        raise CallError("the model cannot be loaded. Pass --model")

    for maps, why in ((gone, "the model cannot be loaded. Pass --model"), (None, "it needs attention maps")):
        said = []
        paths = draw_figures([sudden], tmp_path, only=["10", *OF_MAPS], maps=maps, say=said.append)
        assert [path.name for path in paths] == files("10")
        expected = [f"Figure {name} is not drawn for org/planted: {why}" for name in OF_MAPS]
        assert all(one.startswith(start) for one, start in zip(said, expected, strict=True))


def test_a_figure_of_another_run_is_not_left_among_those_of_this_one(sudden, tmp_path):
    mine, theirs = (tmp_path / f"figure4-sink-jump{ending}" for ending in (".png", "-of-another.png"))
    for path in (mine, theirs):
        path.write_bytes(b"earlier")
    with pytest.raises(SinkscopeError, match="expected at least one figure that can be drawn"):
        draw_figures([sudden], tmp_path, only=["4"])
    assert mine.exists()  # nothing is drawn in its place
    draw_figures([sudden], tmp_path, only=["10", "4"])
    assert not mine.exists() and theirs.exists()


NEW_FIGURE = files_of_the_page()["src/sinkscope/figures/figure99_sinks_by_step.py"]


def test_the_documented_example_is_a_new_figure(run, sudden, tmp_path, monkeypatch):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "figure99_sinks.py").write_text(NEW_FIGURE)
    monkeypatch.setattr(sinkscope.figures, "__path__", [*sinkscope.figures.__path__, str(tmp_path / "more")])
    names = list(find_figures())
    assert names == [*map(str, range(1, 11)), "99", "norms"]
    status, out, _ = run("figures", sudden.folder, "--out", tmp_path / "out", "--only", "99")
    assert status == 0
    assert Path(out.splitlines()[2]).read_text().splitlines()[:2] == ["model,step,sinks", "org/planted,0,4"]
    sys.modules.pop("sinkscope.figures.figure99_sinks")
