"""The explorer inside a notebook."""

import sys
from pathlib import Path

import pytest

import sinkscope
from sinkscope.errors import CallError

pytest.importorskip("anywidget", reason="no anywidget: pip install 'sinkscope[notebook]'")


def test_the_page_is_in_a_frame_that_may_run_its_script_and_nothing_else(wandering, monkeypatch):
    explorer = sinkscope.explore(wandering)
    widget = explorer.widget(height=640)
    assert (widget.page, widget.height) == (explorer.page(), 640)
    assert widget._esm.count("sandbox") == 1 and 'setAttribute("sandbox", "allow-scripts")' in widget._esm
    monkeypatch.setattr("sinkscope.figures.explorer.explorer_page.LARGEST_INLINE", 1)
    assert "This trace is too large for one page" in explorer.widget().page


def test_without_anywidget_the_message_says_what_to_install(wandering, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    explorer = sinkscope.explore(wandering)
    with pytest.raises(CallError, match=r"anywidget, which is not installed: pip install 'sinkscope\[notebook\]'"):
        explorer.widget()
    (text,) = explorer._repr_mimebundle_().values()
    assert text.startswith("Explorer(org/planted): a notebook shows the explorer by anywidget")


def test_traces_come_one_by_one_in_a_list_or_as_paths(wandering, causal):
    for given in ([wandering, causal], [[wandering, str(causal.folder)]], [(Path(wandering.folder), causal)]):
        explorer = sinkscope.explore(*given)
        assert [one["label"] for one in explorer.document["traces"]] == ["org/planted", "my-llama"]
