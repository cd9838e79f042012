"""The explorer inside a notebook: the widget is drawn in a real browser, in a frame of its own, as Jupyter would draw it.

It needs the extra `notebook` (anywidget); the tests of what is drawn need Chromium as well.
"""

import base64
import json
import sys
from pathlib import Path

import pytest
from browser import Browser, Page, find_browser
from wandering import STEPS

import sinkscope
from sinkscope.errors import CallError

anywidget = pytest.importorskip("anywidget", reason="no anywidget: pip install 'sinkscope[notebook]'")
in_a_browser = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine: apt-get install chromium, or set CHROMIUM"
)

HOST = """<!doctype html><meta charset="utf-8"><title>a notebook</title><body>
<script type="application/json" id="state">{state}</script>
<script type="module">
  import widget from "data:text/javascript;base64,{script}";
  const state = JSON.parse(document.getElementById("state").textContent), listeners = {{}};
  window.model = {{
    get: (name) => state[name],
    set: (name, value) => {{ state[name] = value; listeners["change:" + name](); }},
    on: (event, listener) => {{ listeners[event] = listener; }},
  }};
  window.dispose = widget.render({{ model: window.model, el: document.body }});
</script>"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


def host(folder, widget):
    """A page that draws a widget as a notebook does: it calls ``render`` of the module with the state."""
    state = json.dumps({"page": widget.page, "height": widget.height}).replace("<", "\\u003c")
    path = folder / "notebook.html"
    path.write_text(HOST.format(state=state, script=base64.b64encode(widget._esm.encode()).decode()))
    return path


def frame_of(browser, seconds=30):
    """The page inside the frame, drawn; a sandboxed frame is a target of its own."""
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for target in browser.call("Target.getTargets")["targetInfos"]:
            if target["type"] == "iframe":
                inner = Page(
                    browser,
                    browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"],
                )
                for domain in ("Runtime", "Network", "Log"):
                    inner.call(f"{domain}.enable")
                inner.wait(
                    "document.readyState === 'complete' && document.querySelector('.tokens span')?.textContent !== ''"
                )
                inner.settle()
                return inner
        time.sleep(0.05)
    raise TimeoutError("no frame")


@in_a_browser
def test_the_page_is_drawn_in_a_frame_and_answers_keys(browser, wandering, tmp_path):
    widget = sinkscope.explore(wandering).widget(height=640)
    page = browser.open(host(tmp_path, widget).as_uri(), ready="document.querySelector('iframe') !== null")
    inner = frame_of(browser)
    assert f"step 0 of {STEPS - 1}" in inner.evaluate("document.body.textContent")
    key = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
    inner.evaluate(key % "ArrowRight")
    inner.wait(f"document.body.textContent.includes('step 1 of {STEPS - 1}')")
    inner.evaluate(key % "b")  # the head that moves most
    inner.wait("document.body.textContent.includes('layer 1 head 0')")
    inner.settle()
    painted = "(one) => one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some((byte) => byte > 0 && byte < 255)"
    assert inner.evaluate(f"[...document.querySelectorAll('canvas')].some({painted})")
    assert inner.complaints() == [] and page.complaints() == []
    assert inner.requests() == []
    assert page.box("iframe")["height"] == 640
    page.evaluate("model.set('height', 300)")
    assert page.box("iframe")["height"] == 300
    page.evaluate("dispose()")
    assert page.evaluate("document.querySelector('iframe')") is None


@in_a_browser
def test_the_frame_runs_its_script_and_reaches_nothing_else(browser, wandering, tmp_path):
    widget = sinkscope.explore(wandering).widget()
    page = browser.open(host(tmp_path, widget).as_uri(), ready="document.querySelector('iframe') !== null")
    frame_of(browser)
    assert page.evaluate("document.querySelector('iframe').getAttribute('sandbox')") == "allow-scripts"
    assert page.evaluate("document.querySelector('iframe').contentDocument") is None, "an origin of its own"
    attack = "<script>try { parent.document.title = 'owned' } catch (error) { document.title = 'kept out' }</script>"
    page.evaluate(f"model.set('page', {json.dumps(attack)})")
    page.settle()
    assert page.evaluate("document.title") == "a notebook"
    page.evaluate("dispose()")


def test_without_anywidget_the_message_says_what_to_install(wandering, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "sinkscope.figures.explorer.notebook_widget", raising=False)
    explorer = sinkscope.explore(wandering)
    with pytest.raises(CallError, match=r"anywidget, which is not installed: pip install 'sinkscope\[notebook\]'"):
        explorer.widget()
    (text,) = explorer._repr_mimebundle_().values()
    assert (
        text.startswith("Explorer(org/planted): a notebook shows the explorer by anywidget")
        and "sinkscope explore" in text
    )


def test_traces_come_one_by_one_in_a_list_or_as_paths(wandering, causal):
    both = [one["label"] for one in sinkscope.explore(wandering, causal).document["traces"]]
    assert both == ["org/planted", "my-llama"]
    for given in ([wandering, str(causal.folder)], (Path(wandering.folder), causal)):
        assert [one["label"] for one in sinkscope.explore(given).document["traces"]] == both
    assert repr(sinkscope.explore(wandering, causal)) == "Explorer(org/planted and my-llama)"
    with pytest.raises(CallError, match="expected at least one trace, found none"):
        sinkscope.explore()
