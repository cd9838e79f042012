"""The explorer in a real browser: every view is drawn, keys and clicks select, the address keeps the selection, nothing
is fetched.

It needs Chromium (Debian: `apt-get install chromium`), or the path of one in the variable CHROMIUM.
"""

import re
import threading

import numpy as np
import pytest
from browser import Browser, find_browser
from wandering import HEADS, LAYERS, MOVING, POSITIONS, PROMPT, STEPS, wandering_columns, write_causal, write_wandering

from sinkscope.figures.explorer import ExplorerServer, explore

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine: apt-get install chromium, or set CHROMIUM"
)

MARKUP = ["<script>document.title='owned'</script>", "<img src=x onerror=alert(1)>"]
HOSTILE = ["<|mask|>", "\n", *MARKUP, "\u202eabc\u202c", "a\x00\x1b[31m", "漢"]


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    rng = np.random.default_rng(1)
    more = {name: 0.5 + rng.random((STEPS, LAYERS, HEADS, POSITIONS)) for name in ("value_norms", "key_norms")}
    more = {
        name: one.astype(np.float32) for name, one in (more | {"confidence": rng.random((STEPS, POSITIONS))}).items()
    }
    return [write_wandering(folder / "one", wandering_columns(), **more), write_causal(folder / "two")]


@pytest.fixture(scope="module")
def address(traces, tmp_path_factory):
    return explore(traces).write_page(tmp_path_factory.mktemp("page") / "page.html").as_uri()


def hash_of(page):
    page.evaluate("new Promise((done) => setTimeout(done, 200))")
    return dict(pair.split("=") for pair in page.evaluate("location.hash")[1:].split("&"))


def dots(page, selector):
    """How many dots of the two canvases of a drawing are painted."""
    return page.evaluate(
        f"[...document.querySelectorAll('{selector} canvas')].reduce((sum, one) => sum + one.getContext('2d')"
        ".getImageData(0, 0, one.width, one.height).data.filter((value, at) => at % 4 === 3 && value > 0).length, 0)"
    )


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_view_is_drawn_without_a_complaint_or_a_request(browser, address, width, dark):
    page = browser.open(address + f"#step=6&layer={MOVING[0]}&head={MOVING[1]}&second=1", width, 900, dark)
    views = ".heat-view .heat|.heads-view .heads|#track-view|#token-view|#norm-view|#order-view|#difference"
    for view in views.split("|"):
        assert dots(page, view) > 500, view
    assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.complaints() == [] and len(page.requests()) == 1


def test_the_page_says_where_the_main_sink_is_and_when_it_moved(browser, address):
    page = browser.open(address + f"#step=6&layer={MOVING[0]}&head={MOVING[1]}&second=-1")
    said = page.text("#sentence")
    assert f"at position {PROMPT + 6}, with 6.75 queries’ worth" in said
    assert "It has just moved from" in said
    assert "Over 19 steps it moves 12 times and swaps never" in said
    assert page.text(".tokens .main") == page.text(f"#token-0-{PROMPT + 6}")
    assert page.text(".tokens .now")


def test_one_colour_is_one_value_in_traces_side_by_side(browser, traces, tmp_path):
    halved = write_wandering(tmp_path / "halved", wandering_columns() / 2)
    address = explore([traces[0], halved]).write_page(tmp_path / "page.html").as_uri()

    def tops(state):
        page = browser.open(f"{address}#step=6&layer={MOVING[0]}&head={MOVING[1]}&statistic=strength&{state}")
        for view in ("heat-view", "heads-view"):
            bars = f"[...document.querySelectorAll('.{view} .bar')].map((one) => one.textContent).join('|')"
            (legend,) = {*page.evaluate(bars).split("|")}
            yield float(re.search(r"([\d.]+) queries", legend)[1])

    both, alone = [*tops("first=0&second=1")], [*tops("first=1&second=-1")]
    assert [one / other for one, other in zip(both, alone, strict=True)] == pytest.approx([2, 2], rel=0.05)


def test_hover_tells_the_exact_number_and_a_click_selects(browser, address, traces):
    page = browser.open(address + "#step=3&layer=0&head=1&second=-1")
    page.evaluate("document.querySelector('.heat').scrollIntoView({block: 'center'})")
    box = page.box(".heat")
    wide, tall = (box["width"] - 50) / POSITIONS, (box["height"] - 44) / STEPS
    x, y = box["x"] + 42 + 4.5 * wide, box["y"] + 6 + 8.5 * tall
    page.move(x, y)
    said = page.text("#tip")
    assert "position 4, step 8" in said and "9.5 queries’ worth" in said and "≈" not in said and "main sink" in said
    weak = int(np.argsort(traces[0].column_sums[8, 0, 1])[POSITIONS // 2])
    page.move(x + (weak - 4) * wide, y)
    assert f"position {weak}, step 8" in page.text("#tip") and "≈" in page.text("#tip") and "±" in page.text("#tip")
    page.click(x, y)
    assert (hash_of(page)["step"], hash_of(page)["token"]) == ("8", "4")
    box = page.box(".heads")
    page.click(box["x"] + 42 + (box["width"] - 50) * 2.5 / HEADS, box["y"] + 6 + (box["height"] - 44) * 0.25)
    assert (hash_of(page)["layer"], hash_of(page)["head"]) == (str(LAYERS - 1), "2")


def test_hostile_tokens_are_text(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("wandering.VOCABULARY", HOSTILE)
    trace = write_wandering(tmp_path / "hostile", wandering_columns())
    page = browser.open(explore([trace]).write_page(tmp_path / "page.html").as_uri())
    assert page.evaluate("document.title") == "org/planted · sinkscope"
    assert page.evaluate("document.querySelectorAll('.tokens img, .tokens script').length") == 0
    shown = page.evaluate("[...document.querySelectorAll('.tokens span')].map((one) => one.textContent)")
    assert {*MARKUP} <= {*shown}
    assert not {"\u202e", "\x1b", "\x00"} & set("".join(shown))
    assert page.complaints() == []


def test_a_served_page_computes_maps(browser, traces):
    attention = np.random.default_rng(0).dirichlet(np.ones(POSITIONS), POSITIONS).astype(np.float32)
    server = ExplorerServer(explore(traces), traces, lambda trace, step, layer, head: attention * (step == 2))
    threading.Thread(target=server.http.serve_forever, daemon=True).start()
    page = browser.open(server.url + "#step=2&layer=0&head=1&second=-1")
    page.evaluate("document.querySelector('#map-on').click()")
    page.settle()
    page.wait("document.querySelector('#map-view .bar').textContent !== ''")
    page.evaluate("document.querySelector('.map').scrollIntoView({block: 'center'})")
    box = page.box(".map")
    side = min(box["width"] - 64, box["height"] - 44)
    page.move(box["x"] + 56 + side * 5.5 / POSITIONS, box["y"] + 6 + side * 7.5 / POSITIONS)
    assert f"{attention[7, 5]:.4f}"[:5] in page.text("#tip")
    assert page.complaints() == []
    server.http.shutdown()
    server.http.server_close()
