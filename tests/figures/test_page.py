"""The page: its content, the source of its numbers, and that it loads nothing else."""

import json
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from wandering import MASK, STEPS, wandering_columns, write_wandering

from sinkscope.errors import TraceError
from sinkscope.figures import draw_figures, find_figures, page_numbers, write_page
from sinkscope.figures.subject import subject_of
from sinkscope.sinks import find_sinks, is_sink, track

ONLY = ("3", "5")
FILES = [find_figures()[name].file for name in ONLY]


@pytest.fixture(scope="module")
def compared(wandering, causal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return SimpleNamespace(folder=folder, paths=draw_figures([wandering, causal], folder, compare=True, only=ONLY))


class Page(HTMLParser):
    """The parts of a page that matter here: whether its elements nest, its loads and its text."""

    void = frozenset({"meta", "img", "br", "hr", "link", "input"})

    def __init__(self, text):
        super().__init__()
        self.open, self.faults, self.loads, self.tags, self.text = [], [], [], Counter(), ""
        self.feed(text)
        self.close()
        self.faults += self.open

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.loads += [value for key, value in attrs if key in ("src", "href", "srcset", "data", "poster", "action")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}>")

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page(wandering, causal, compared):
    rows, names = [["org/planted", "12 of 50 & more"]], ("title", "columns", "rows", "caption")
    table = dict(zip(names, ("Hiding <sinks>", ["model", "exact"], rows, "Fifty problems."), strict=True))
    command = "sinkscope demo --out demo"
    path = write_page([wandering, causal], compared.folder, figures=compared.paths, tables=[table], command=command)
    return SimpleNamespace(path=path, source=path.read_text(), parsed=Page(path.read_text()))


def test_page_stands_alone_and_nests(page, wandering, compared):
    assert page.path == compared.folder / "report.html"
    assert page.parsed.faults == []
    assert page.source.index("<img") < page.source.index('<section id="numbers">'), "the first figure is seen first"
    assert "explorer.html" not in page.source
    (compared.folder / "explorer.html").touch()
    assert 'href="explorer.html"' in write_page([wandering], compared.folder / "linked.html").read_text()
    assert page.parsed.tags["img"] == len(FILES)
    assert all(value.startswith(("data:image/png;base64,", "#")) for value in page.parsed.loads)
    assert "http://" not in page.source and "https://" not in page.source
    assert "script" not in page.parsed.tags


def test_page_escapes_what_models_write(page):
    assert "<script" not in page.source
    assert "&lt;b&gt;bold" in page.source
    assert "Is 1 < 2 & 3 > 2? <b>bold</b>" in page.parsed.text
    assert "Hiding <sinks>" in page.parsed.text and "12 of 50 & more" in page.parsed.text


def test_page_shows_the_numbers_and_where_they_come_from(page, wandering):
    numbers = page_numbers(wandering)
    text = page.parsed.text
    assert f"{numbers['movement']['moves_per_head']:.2f}" in text
    assert f"({numbers['movement']['null_moves']['low']:.2f} … {numbers['movement']['null_moves']['high']:.2f})" in text
    assert f"{numbers['selected_share']:.2%}" in text
    for expected in ("0123abcd", "llada: length 18, steps 19", "sinkscope demo --out demo", "16 newest queries"):
        assert expected in text
    assert text.count("What it does not show:") == len(FILES)


def test_incomplete_traces_are_marked(tmp_path):
    trace = write_wandering(tmp_path / "cut", wandering_columns()[:5], complete=False)
    page = Page(write_page([trace], tmp_path / "out" / "cut.html").read_text())
    assert (
        "Incomplete. The generation was cut short; the numbers below are of the 5 complete steps on disk." in page.text
    )
    assert page.faults == []
    assert subject_of(trace).heading == "org/planted (incomplete), prompt of 11 tokens"
    assert page_numbers(trace)["complete"] is False


def test_a_trace_without_a_whole_step(tmp_path):
    trace = write_wandering(tmp_path / "empty", wandering_columns()[:0], complete=False)
    page = Page(write_page([trace], tmp_path / "out").read_text())
    assert "There is no complete step on disk, so there are no numbers." in page.text
    assert page.faults == []
    for reads in (page_numbers, lambda trace: draw_figures([trace], tmp_path / "out")):
        with pytest.raises(TraceError, match="holds no whole step yet"):
            reads(trace)


def test_numbers_agree_with_the_whole_trace_in_memory(wandering):
    numbers, sinks, tokens = page_numbers(wandering), find_sinks(wandering), wandering.tokens[:]
    tracks = track(sinks)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert numbers["sinks"] == len(sinks) == 3 * STEPS
    assert numbers["sinks_in_percent_unit"] == is_sink(wandering.column_sums[:], 3.0, "percent").sum()
    assert numbers["tracks"] == tracks.kinds
    assert numbers["movement"]["moves_per_head"] == pytest.approx(np.mean([12, STEPS - 1, 0]))
    drifts = [head.drift_per_step for head in tracks.heads if head.steps_with_sink]
    assert numbers["movement"]["drift_per_step"] == pytest.approx(np.mean(drifts))
    null = numbers["movement"]["null_drift"]
    assert null["low"] <= null["mean"] <= null["high"]
    expected, canvas = Counter(sinks.token.tolist()), Counter(tokens.ravel().tolist())
    found = {row["token"]: row for row in numbers["sink_tokens"]}
    assert {token: row["sinks"] for token, row in found.items()} == expected and found[MASK]["text"] == "[M]"
    for token, row in found.items():
        assert row["share_of_canvas"] == pytest.approx(canvas[token] / tokens.size)
        assert row["share_of_sinks"] == pytest.approx(expected[token] / len(sinks))
        assert row["expected_share"] == pytest.approx((tokens[sinks.step] == token).mean())
        assert row["times_expected"] == pytest.approx(row["share_of_sinks"] / row["expected_share"])
    assert page_numbers(wandering, excess=8.5)["sinks"] == STEPS


def test_of_an_autoregressive_model_two_counts_of_heads_are_told_apart(causal):
    numbers = page_numbers(causal)
    assert (numbers["heads_with_sink"], numbers["heads_with_main_sink"]) == (3, 1)
