"""The cards that notebooks show of traces, sinks, tracks, generations, effects and roles: small, as text, loading
nothing.
"""

from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import sinkscope
from sinkscope.notebook_card import MOST_ROWS, card, visible
from sinkscope.traces import TraceWriter

HOSTILE = ["<script>alert(1)</script>", "</td></table><img src=x onerror=alert(1)>", "\x00\x1b[31m", "\u202eg", "'\"&"]
STEPS, LAYERS, HEADS, POSITIONS = 9, 3, 4, 20
LARGEST = 20_000


class Shown(HTMLParser):
    """The text of a card, and what of it would load or run anything."""

    def __init__(self, html):
        super().__init__()
        self.text, self.active = "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag not in "div b br table thead tbody tr th td i bdi".split() or {name for name, _ in attrs} - {"style"}:
            self.active.append((tag, attrs))

    def handle_data(self, data):
        self.text += data + " "


def shown(thing):
    html = thing._repr_html_()
    page = Shown(html)
    assert page.active == [] and len(html) < LARGEST
    assert all(letter.isprintable() for letter in page.text), "no control character, no mark that turns the direction"
    return " ".join(page.text.split())


@pytest.fixture(
    scope="module", params=[["lab", "Is 1 < 2?", "top:1", "Yes.", " and"], HOSTILE], ids=["plain", "hostile"]
)
def trace(request, tmp_path_factory):
    texts, folder = request.param, tmp_path_factory.mktemp("cards") / "t"
    columns = np.full((STEPS, LAYERS, HEADS, POSITIONS), 0.5, np.float32)
    columns[:4, 0, 1, 3] = columns[4:, 0, 1, 7] = columns[:, 2, 2, 5] = 9
    folder.mkdir()
    manifest = {
        "model": {"name": texts[0], "weight_hash": "0123"},
        "causal": False,
        "prompt": texts[1],
        "prompt_length": 6,
        "layers": [f"layers.{layer}" for layer in range(LAYERS)],
        "heads": HEADS,
        "hidden": [{"rule": texts[2]}],
        "vocabulary": {str(token): texts[token % len(texts)] for token in range(POSITIONS)},
    }
    writer = TraceWriter(folder, manifest)
    for sums in columns:
        tokens = np.arange(POSITIONS, dtype=np.int32)
        writer.add({"tokens": tokens, "lengths": np.array(POSITIONS, np.int32), "column_sums": sums})
    writer.close(complete=True, text=texts[3])
    return sinkscope.open_trace(folder)


def test_a_trace_its_sinks_and_tracks(trace):
    sinks = sinkscope.find_sinks(trace)
    trace_card, sinks_card, tracks_card = shown(trace), shown(sinks), shown(sinkscope.track(sinks))
    if trace.manifest["model"]["name"] == "lab":
        assert (
            "lab, bidirectional, 3 layers × 4 heads steps : 9 prompt : 6 tokens: Is 1 < 2? answer : Yes." in trace_card
        )
        assert (
            "mean column a query that sees it 5 'lab' 9 9.0 0.500 7 'top:1' 5 9.0 0.500 3 'Yes.' 4 9.0 0.500"
            in sinks_card
        )
        assert tracks_card.endswith("layer head moves swaps drift steps with a sink 0 1 1 0 +0.67 9")


def test_a_generation(diffusion):
    answer = sinkscope.generate(diffusion, "Q: Tom has 7 apples.\nA:", length=8, steps=8, block=8)
    assert f"tokens : {answer.prompt_length} of the prompt, 8 written steps : 8" in shown(answer)
    assert "onerror" in shown(sinkscope.Generation(torch.zeros(9, dtype=torch.int64), HOSTILE[1] * 100, 3, 4))


def test_roles():
    from sinkscope.roles import Roles
    from sinkscope.roles.head_roles import Estimate, HeadRole, Rules

    measured = {"share": Estimate(0.25, 0.2, 0.3), "kl.sink.zero": Estimate(None, None, None)}
    told = [("needed", "broadcast", HOSTILE[0]), ("dispensable", "idle", " and"), ("open", "undecided", None)]
    heads = tuple(
        HeadRole(1, head, need, role, "", 1.0, 0.0, 7, token, measured, None, 1)
        for head, (need, role, token) in enumerate(told)
    )
    text = shown(Roles("lab", "0123", 6, 6, Rules(), heads, 16, 8, {}))
    assert "1 1 dispensable, idle ' and' 25.0% –" in text and "1 2 open, undecided at 7 25.0%" in text
    assert text.index("1 1 dispensable") < text.index("1 0 needed")


def test_a_card_stays_small_and_says_what_is_left_out():
    rows = [[number, "x" * 10_000, *HOSTILE] for number in range(10_000)]
    html = card("title " * 1000, {HOSTILE[0]: HOSTILE[4], "empty": None}, HOSTILE, rows, more=5)
    page = Shown(html)
    assert len(html) < LARGEST and page.active == [] and f"and {10_000 - MOST_ROWS + 5:,} more" in page.text
    assert visible("a\n\tb\x07\u202e漢") == "a↵⇥b��漢"
