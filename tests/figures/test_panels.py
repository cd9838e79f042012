"""Single panels: of any head, on a sheet of their own or in axes of the user's, with the numbers of the trace."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from sudden import map_of
from wandering import CAUSAL_STEPS, FLIPPING, LENGTH, MOVING, POSITIONS, PROMPT, STEPS, wandering_columns

import sinkscope
from sinkscope.errors import CallError, TraceError
from sinkscope.figures import attention_map, draw_figure, incoming, sink_positions, sink_strengths, token_column
from sinkscope.sinks import find_sinks, track


def image_of(sheet):
    (image,) = [image for axes in sheet.axes for image in axes.get_images()][:1]
    return np.asarray(image.get_array())


def drawn_path(sheet):
    """Positions of the main sink as the boxes of a map outline them."""
    path = {}
    for box in sheet.axes[0].patches:
        if not box.get_fill() and box.get_width() == 1:
            for step in range(round(box.get_y() + 0.5), round(box.get_y() + 0.5 + box.get_height())):
                path[step] = round(box.get_x() + 0.5)
    return path


def test_a_head_is_drawn_with_its_columns_and_its_main_sink(wandering):
    sheet = sinkscope.figures.incoming(wandering, layer=MOVING[0], head=MOVING[1])
    assert isinstance(sheet, Figure)
    np.testing.assert_array_equal(image_of(sheet), wandering_columns()[:, MOVING[0], MOVING[1]])
    main = track(find_sinks(wandering)).main[:, MOVING[0], MOVING[1]]
    assert drawn_path(sheet) == dict(enumerate(main.tolist()))
    assert sheet.axes[0].get_title(loc="left") == "org/planted, layer 1 head 2"
    main = track(find_sinks(wandering, excess=6.5)).main[:, MOVING[0], MOVING[1]].tolist()
    assert drawn_path(incoming(wandering, *MOVING, excess=6.5)) == {
        step: place for step, place in enumerate(main) if place >= 0
    }
    assert -1 in main and PROMPT + 12 in main


def test_means_over_a_layer_and_over_all(wandering):
    columns = wandering_columns().astype(np.float64)
    np.testing.assert_allclose(image_of(incoming(wandering, layer=-2)), columns[:, 0].mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(image_of(incoming(wandering)), columns.mean(axis=(1, 2)), rtol=1e-6)
    assert incoming(wandering).axes[0].get_title(loc="left") == "org/planted, mean over all 6 heads"


def test_of_an_autoregressive_model_the_newest_queries_are_drawn(causal):
    sheet = incoming(causal, *MOVING)
    rows = causal.last_query[:, MOVING[0], MOVING[1]].astype(np.float64)
    expected = np.array([rows[max(0, step - 15) : step + 1].sum(axis=0) for step in range(CAUSAL_STEPS)])
    np.testing.assert_allclose(image_of(sheet), expected, rtol=1e-4)
    assert set(drawn_path(sheet).values()) == {3, 13}


def test_it_draws_into_axes_of_the_user_and_leaves_his_settings(wandering, sudden):
    import matplotlib
    from matplotlib.figure import Figure as Plain

    before = dict(matplotlib.rcParams)
    sheet = Plain(figsize=(9, 8))
    axes = sheet.subplots(2, 2)
    assert incoming(wandering, *MOVING, ax=axes[0, 0]) is sheet
    assert sink_positions(wandering, *MOVING, ax=axes[0, 1]) is sheet
    assert sink_strengths(wandering, ax=axes[1, 0]) is sheet
    assert attention_map(sudden, 0, 0, 1, map_of(sudden, 0, 0, 1), ax=axes[1, 1]) is sheet
    assert len(axes[0, 0].get_images()) == len(axes[1, 1].get_images()) == 1
    assert dict(matplotlib.rcParams) == before


def test_positions_of_one_head_or_of_the_heads_of_figure_7(wandering):
    sheet = sink_positions(wandering, *FLIPPING)
    (line,) = [line for line in sheet.axes[0].get_lines() if "layer 1 head 0" in str(line.get_label())]
    assert line.get_ydata().tolist() == [(2, 8)[step % 2] for step in range(STEPS)]
    labels = [str(line.get_label()) for line in sink_positions(wandering).axes[0].get_lines()]
    assert sum("layer" in label for label in labels) == 2, "the one that moves, and the one that stays"


def test_the_column_of_a_token(wandering):
    sheet = token_column(wandering, *MOVING, PROMPT + 3)
    line, written = sheet.axes[0].get_lines()
    np.testing.assert_array_equal(line.get_ydata(), wandering_columns()[:, MOVING[0], MOVING[1], PROMPT + 3])
    assert written.get_xdata() == [3, 3] and LENGTH > 3
    assert line.get_label() == rf"“\$x\$” ({PROMPT + 3})"


def test_a_map_is_the_one_given_or_the_one_stored(sudden, diffusion, tmp_path):
    dense = map_of(sudden, 3, 0, 1)
    np.testing.assert_array_equal(image_of(attention_map(sudden, 3, 0, 1, dense)), dense)
    with pytest.raises(CallError, match=r"holds no map of step 3, layer 0, head 1; pass one: .*recompute_map"):
        attention_map(sudden, 3, 0, 1)
    from sinkscope.recorder.attention_map import recompute_map
    from sinkscope.traces.stored_maps import store_map

    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, "Q: Tom has 7 apples.\nA:", length=4, steps=4, block=4)
    trace = sinkscope.open_trace(tmp_path / "t")
    found = recompute_map(diffusion, trace, 2, 1, 3).attention
    store_map(trace, 2, 1, 3, found)
    np.testing.assert_array_equal(image_of(attention_map(trace, 2, 1, 3)), found)


def test_a_layer_a_head_and_a_path_that_are_not_there_are_refused(wandering):
    for call, message in (
        (lambda: incoming(wandering, layer=2), r"layer: expected 0 to 1, found 2"),
        (lambda: incoming(wandering, head=1), r"head: expected a layer with it, found head 1 alone"),
        (lambda: incoming(wandering, 0, 0, excess=500), r"excess: 500 in queries can never hold here"),
        (lambda: incoming("nowhere"), "no trace at nowhere"),
    ):
        with pytest.raises((CallError, TraceError), match=message):
            call()


def test_notebooks_show_panels_and_figures_though_pyplot_does_not_know_them(wandering):
    for shown in (incoming(wandering, *MOVING), draw_figure("5", wandering)):
        content = shown._repr_png_()
        assert content.startswith(b"\x89PNG") and len(content) > 5000


def test_a_causal_map_is_empty_above_its_diagonal(causal):
    seen = np.tri(POSITIONS)
    figure = attention_map(causal, 0, 1, 2, seen * causal.column_sums[0, 1, 2] / seen.sum(axis=0))
    image = figure.axes[0].get_images()[0].get_array()
    assert np.ma.getmaskarray(image)[np.triu_indices(POSITIONS, 1)].all()
    assert not np.ma.getmaskarray(image)[np.tril_indices(POSITIONS)].any()
