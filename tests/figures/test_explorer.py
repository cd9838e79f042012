"""The explorer's data: what is on the page is what is in the trace, within the error that the page states."""

import re

import numpy as np
import pytest
from explorer_reader import ReadPage, decode
from full_disk import room_for
from wandering import FLIPPING, HEADS, LAYERS, MOVING, POSITIONS, STEPS, wandering_columns, write_wandering

from sinkscope.errors import CallError, TraceError
from sinkscope.figures.explorer import explore, explorer_page, tile_path
from sinkscope.sinks import find_sinks, last_query_window, track


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A trace with everything that the explorer shows."""
    rng = np.random.default_rng(3)
    shape = (STEPS, POSITIONS)
    confidence = np.where(rng.random(shape) < 0.5, np.nan, rng.random(shape)).astype(np.float32)
    more = {
        "value_norms": 0.5 + rng.random((STEPS, LAYERS, 1, POSITIONS)).astype(np.float32),
        "hidden_norms": 3 + rng.random((STEPS, LAYERS, POSITIONS)).astype(np.float32),
        "confidence": confidence,
        "self_attention": rng.random((STEPS, LAYERS, HEADS, POSITIONS)).astype(np.float32) / 9,
    }
    return write_wandering(tmp_path_factory.mktemp("traces") / "full", wandering_columns(4), **more)


@pytest.fixture(scope="module")
def page(full, causal):
    return ReadPage(explore([full, causal]).page())


def assert_within(shown, recorded, error, low):
    """Values above ``low`` are within the relative error, smaller ones are shown as nothing."""
    recorded = np.nan_to_num(recorded)
    told = recorded >= low
    assert told.any()
    assert np.abs(shown[told] / recorded[told] - 1).max() <= error * 1.001
    assert (shown[recorded < low * (1 - 1e-5)] == 0).all()


@pytest.mark.parametrize(("name", "tensor"), [("columns", "column_sums"), ("self", "self_attention")])
def test_columns_of_every_step_layer_head_and_position_are_those_of_the_trace(page, full, name, tensor):
    quantity = page.quantity(0, name)
    assert quantity["error"] < 0.03
    for layer in range(LAYERS):
        recorded = getattr(full, tensor)[:, layer]
        assert_within(page.layer(0, name, layer), recorded, quantity["error"], quantity["layers"][layer][0])
    recorded = getattr(full, tensor)[:].mean(axis=2)
    for part, mean in (("mean", recorded), ("all", recorded.mean(axis=1))):
        shown = decode(quantity[part], page.tile(0, f"{name}/{part}"))
        assert_within(shown, mean, quantity["error"], quantity[part][0])


def test_layers_with_fewer_key_heads_show_those_that_they_have(tmp_path):
    norms = 0.5 + np.random.default_rng(5).random((STEPS, LAYERS, HEADS, POSITIONS)).astype(np.float32)
    norms[:, 1, 1:] = np.nan
    page = ReadPage(explore(write_wandering(tmp_path / "run", wandering_columns(4), value_norms=norms)).page())
    quantity = page.quantity(0, "values")
    assert quantity["heads"] == HEADS
    expected = norms.copy()
    expected[:, 1] = norms[:, 1, :1]
    for layer, (low, _) in enumerate(quantity["layers"]):
        assert_within(page.layer(0, "values", layer), expected[:, layer], quantity["error"], low)


def test_the_largest_columns_are_exact(page, full):
    for layer in range(LAYERS):
        keys, sizes = page.tile(0, f"strongest-keys/{layer}"), page.tile(0, f"strongest/{layer}")
        columns = full.column_sums[:, layer]
        assert keys.shape == (STEPS, HEADS, 8)
        assert (np.take_along_axis(columns, keys.astype(int), axis=-1) == sizes).all()
        assert (np.sort(columns, axis=-1)[..., ::-1][..., :8] == sizes).all()


def test_an_autoregressive_model_is_followed_in_its_newest_queries(page, causal):
    assert page.traces[1]["followed"] == "newest"
    for layer in range(LAYERS):
        recorded = last_query_window(causal.last_query[:][:, layer : layer + 1])[:, 0]
        recorded /= np.minimum(np.arange(len(recorded)) + 1, 16)[:, None, None].astype(np.float32)
        quantity = page.quantity(1, "newest")
        assert_within(page.layer(1, "newest", layer), recorded, quantity["error"], quantity["layers"][layer][0])
        keys = page.tile(1, f"strongest-keys/{layer}").astype(int)
        assert (np.take_along_axis(recorded, keys, axis=-1) == page.tile(1, f"strongest/{layer}")).all()


def test_sinks_main_sinks_moves_and_swaps_are_those_of_tracks(page, full, causal):
    for number, trace in enumerate((full, causal)):
        sinks = find_sinks(trace)
        tracks = track(sinks)
        assert (page.tile(number, "main").astype(int) - 1 == tracks.main).all()
        for layer in range(LAYERS):
            shown = {tuple(row) for row in page.tile(number, f"sinks/{layer}").tolist()}
            assert shown == {(head, key, step) for step, head, key in np.argwhere(sinks.moving[:, layer]).tolist()}
        assert (page.tile(number, "sink-heads") == sinks.moving.sum(axis=(1, 2))).all()
        for head in tracks.heads:
            place = (head.layer, head.head)
            swaps = [one[3] for one in page.traces[number]["changes"] if tuple(one[1:3]) == place]
            assert (swaps.count(0), swaps.count(1)) == (head.moves, head.swaps)
            assert page.tile(number, "heads/moves")[place] == head.moves
            assert page.tile(number, "heads/swaps")[place] == head.swaps
            assert page.tile(number, "heads/steps-with")[place] == head.steps_with_sink
            drift = page.tile(number, "heads/drift")[place]
            assert np.isnan(drift) if head.drift_per_step is None else drift == np.float32(head.drift_per_step)
    assert page.tile(0, "heads/moves")[MOVING] > 5
    assert page.tile(0, "heads/moves")[FLIPPING] == STEPS - 1


def test_the_canvas_is_that_of_the_trace(page, full):
    ids = np.array(page.traces[0]["tokenIds"])
    for name in ("tokens", "written"):
        assert (ids[page.tile(0, name)] == getattr(full, name)[:]).all()
    assert (page.tile(0, "masked") == full.masked[:]).all()
    assert (page.tile(0, "lengths") == full.lengths[:]).all()
    confidence, recorded = page.confidence(0), full.confidence[:]
    assert (np.isnan(confidence) == np.isnan(recorded)).all()
    assert np.nanmax(np.abs(confidence - recorded)) < 1e-5


def test_tokens_are_text_and_nothing_else(page):
    assert "<script>alert('x')</script>" in [text for text, _ in page.traces[0]["tokens"]]
    assert page.html.count("<script>") == 1 and "<script>alert" not in page.html
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page.html)[1]
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy and "unsafe-inline" not in policy
    assert not re.search(r"https?://", page.html)


def test_a_folder_holds_the_same_tiles_in_small_files_or_nothing(full, tmp_path, monkeypatch):
    explorer, out = explore(full), tmp_path / "folder"
    with room_for(1, monkeypatch), pytest.raises(TraceError, match="No space"):
        explorer.write_folder(out)
    assert not (out / "index.html").exists()
    index = explorer.write_folder(out)
    assert index == out / "index.html" and "connect-src 'self'" in index.read_text()
    for name, content in explorer.tiles.content.items():
        assert (out / tile_path(name)).read_bytes() == content
    with pytest.raises(CallError, match="folder"):
        explorer.write_folder(out)


def test_a_page_that_would_be_too_large_keeps_the_strongest_columns_and_says_so(full, monkeypatch):
    monkeypatch.setattr(explorer_page, "LARGEST_PAGE", 1000)
    page = ReadPage(explore([full]).page())
    assert "--out FOLDER" in page.document["notes"][-1]
    assert "0/columns/1" not in page.tiles.content
    assert {"0/columns/mean", "0/strongest/1", "0/strongest-keys/1"} <= page.tiles.content.keys()
