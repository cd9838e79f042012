"""The explorer in a real browser: every view is drawn, keys and clicks select, the address keeps the selection, nothing
is fetched.

It needs Chromium (Debian: `apt-get install chromium`), or the path of one in the variable CHROMIUM.
"""

import re
import threading
from importlib.resources import files

import numpy as np
import pytest
from browser import Browser, find_browser
from wandering import (
    HEADS,
    LAYERS,
    MOVING,
    POSITIONS,
    PROMPT,
    STEPS,
    wandering_columns,
    write_causal,
    write_wandering,
)

from sinkscope.figures.explorer import ExplorerServer, explore
from sinkscope.sinks import find_sinks, track

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine: apt-get install chromium, or set CHROMIUM"
)

MARKUP = ["<script>document.title='owned'</script>", "<img src=x onerror=alert(1)>"]
HOSTILE = ["<|mask|>", "\n", *MARKUP, "\u202eabc\u202c", "a\x00\x1b[31m", "漢"]

INK_AND_GROUND = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (one, found = parts(getComputedStyle(one).backgroundColor)) =>
    found[3] === 0 ? ground(one.parentElement) : found;
  const told = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const seen = [...document.querySelectorAll("body :not(option)")].filter(
    (one) => one.getClientRects().length && told(one));
  return seen.map((one) => [parts(getComputedStyle(one).color), ground(one)]);
})()"""


def contrast(one, other):
    """Of two colours, each as red, green and blue of 255 (WCAG 2)."""
    parts = np.array([one[:3], other[:3]]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    darker, lighter = np.sort(linear @ [0.2126, 0.7152, 0.0722]) + 0.05
    return lighter / darker


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
    causal = [write_causal(folder / "two")]
    return [
        write_wandering(folder / "one", wandering_columns(), **more),
        *causal,
        write_wandering(folder / "three", wandering_columns(2)),
    ]


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
    page = browser.open(address + f"#step=6&layer={MOVING[0]}&head={MOVING[1]}&second=2", width, 900, dark)
    views = ".model-view .heads|.heat-view .heat|.heads-view .heads|#track-view|#token-view|#norm-view|#order-view"
    views += "|#difference"
    for view in views.split("|"):
        assert dots(page, view) > 500, view
    assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.complaints() == [] and len(page.requests()) == 1
    pairs = page.evaluate(INK_AND_GROUND)
    assert len(pairs) > 50 and min(contrast(*pair) for pair in pairs) >= 4.5


@pytest.mark.parametrize("dark", [False, True])
def test_lines_are_seen_on_every_colour_of_a_map(browser, address, dark):
    script = (files("sinkscope.figures.explorer") / "assets" / "drawing.js").read_text()
    shades = re.findall(r'"([0-9a-f]{6})"', script)
    assert len(shades) > 35
    style = "getComputedStyle(document.documentElement).getPropertyValue('--{}')"
    page = browser.open(address, dark=dark)
    core, casing = (bytes.fromhex(page.evaluate(style.format(name))[1:] * 2)[:3] for name in ("mark", "casing"))
    for shade in map(bytes.fromhex, shades):
        assert max(contrast(*map(list, pair)) for pair in ((core, shade), (casing, shade))) >= 3


def test_the_page_opens_on_the_last_step_with_the_main_sink_of_most_heads(browser, tmp_path):
    columns = wandering_columns()
    columns[:, 0, 2, 4] = 9.25
    tracks = track(find_sinks(trace := write_wandering(tmp_path / "run", columns)))
    page = browser.open(explore(trace).write_page(tmp_path / "page.html").as_uri())
    moves, swaps = (sum(getattr(one, name) for one in tracks.heads) for name in ("moves", "swaps"))
    assert (moves, swaps) == (30, 0)
    said = page.text("#headline")
    assert "position 4, is the main sink of 2 of 6 heads in the last step." in said
    assert f"Over {STEPS} steps main sinks move {moves} times and swap never, in 2 heads." in said
    assert page.text("#sentence").startswith(f"Step {STEPS - 1}, layer 0 head 1: the main sink is")
    cells = (
        "[...document.querySelectorAll('.sinks tbody tr')].map((one) => [...one.cells].map((cell) => cell.textContent))"
    )
    rows = {int(row[1]): (int(row[3]), float(row[4])) for row in page.evaluate(cells)}
    assert rows == {4: (2, 9.38), PROMPT + 12: (1, 8.25), 2: (1, 7.25)}
    legend = page.evaluate(
        "[...document.querySelectorAll('.model-view .marks span:not([hidden])')].map((one) => one.innerText)"
    )
    assert legend == [" none: 2 heads", " newline: 1 head", " content: 3 heads"]


def test_a_map_of_heads_tells_numbers_that_had_not_been_read_and_opens_a_head(browser, address):
    page = browser.open(address + "#step=0&layer=0&head=0&second=-1&statistic=moves")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="End")
    box = page.box(".model-view .heads")
    x, y = box["x"] + 42 + (box["width"] - 50) * 2.5 / HEADS, box["y"] + 6 + (box["height"] - 44) * 0.25
    page.move(x, y)
    page.settle()
    said = page.text("#tip")
    assert f"at position {PROMPT + 12}" in said and "8.25 queries’ worth" in said and "12 moves" in said
    assert dots(page, "#tip") > 1000
    page.click(x, y)
    assert (hash_of(page)["layer"], hash_of(page)["head"]) == (str(LAYERS - 1), "2")


def test_a_difference_is_drawn_of_the_same_model_prompt_and_quantity_only(browser, address):
    drawn = "[...document.querySelectorAll('#difference .drawing')].some((one) => one.getClientRects().length)"
    assert browser.open(address + "#second=2").evaluate(drawn)
    other = browser.open(address + "#second=1")
    assert not other.evaluate(drawn) and "the models differ" in other.text("#difference .what")


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


def test_a_lens_is_a_strip_for_each_number_with_sinks_beside_their_matches(browser, traces, tmp_path):
    rng, names = np.random.default_rng(4), ("entropy", "kl", "agreement.next", "rank.next")
    numbers = rng.uniform(1, 9, (2, len(names), LAYERS)).round(2)
    groups = [
        {
            "place": place,
            "kind": kind,
            "positions": 7,
            "by_layer": {
                name: {end: (mean + more).round(2).tolist() for end, more in (("mean", 0), ("low", -1), ("high", 1))}
                for name, mean in zip(names, of_kind * scale, strict=True)
            },
            "top": [{"token": 5, "text": MARKUP[1], "share": 0.5}, {"token": 6, "text": None, "share": 0.25}],
        }
        for place, scale in (("masked", 1), ("prompt", 2))
        for kind, of_kind in zip(("sink", "match"), numbers, strict=True)
    ]
    lens = {"weight_hash": traces[0].manifest["model"]["weight_hash"], "model": "planted", "headline": "said first"}
    lens |= {"layers": LAYERS, "traces": 1, "tuned": False, "over": "steps", "predicts": "next", "groups": groups}
    groups[1]["by_layer"]["kl"]["mean"][0] = None
    address = explore(traces[0], lens=lens).write_page(tmp_path / "page.html").as_uri()
    page = browser.open(address + "#layer=0")
    rows = "[...document.querySelectorAll('#lens tbody tr')].map((one) => [...one.cells].map((cell) => cell.innerText))"
    shown = page.evaluate(rows)
    assert [row[0] for row in shown] == ["1", "0"]
    for layer, row in zip((1, 0), shown, strict=True):
        expected = [float(numbers[kind, at, layer]) for at in range(len(names)) for kind in range(2)]
        there = [(cell, one) for cell, one in zip(row[1:-1], expected, strict=True) if cell != "–"]
        assert len(there) == 8 - (layer == 0) and all(float(cell) == one for cell, one in there)
    assert [row[-1] for row in shown] == ["<6> 25 %", f"“{MARKUP[1]}” 50 %"]
    assert page.text("#lens [aria-pressed=true]") == "0" and page.text("#lens .legend").startswith("said first")
    low = numbers[0, 0, 1] - 1
    assert page.evaluate("document.querySelector('#lens td[title]').title").startswith(f"{low:g} to ")
    page.evaluate("document.querySelector('#lens button').click()")
    assert hash_of(page)["layer"] == "1" and page.text("#lens [aria-pressed=true]") == "1"
    page.evaluate("((one) => (one.value = 'prompt', one.dispatchEvent(new Event('change'))))"
                  "(document.querySelector('#lens select'))")  # fmt: skip
    page.settle()
    assert float(page.evaluate(rows)[0][1]) == pytest.approx(2 * numbers[0, 0, 1], rel=0.01)
    assert page.complaints() == [] and min(contrast(*pair) for pair in page.evaluate(INK_AND_GROUND)) >= 4.5
    assert not browser.open(explore(traces[0]).write_page(tmp_path / "none.html").as_uri()).evaluate(
        "document.querySelector('#lens').getClientRects().length"
    )


def test_a_served_page_computes_maps(browser, traces):
    attention = np.random.default_rng(0).dirichlet(np.ones(POSITIONS), POSITIONS).astype(np.float32)
    server = ExplorerServer(explore(traces), traces, lambda trace, step, layer, head: attention * (step == 2))
    threading.Thread(target=server.serve_forever, daemon=True).start()
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
    server.shutdown()
    server.server_close()
