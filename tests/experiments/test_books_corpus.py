"""The books that the text models are trained on, and the pages of them that this repository holds."""

import dataclasses
import json
from pathlib import Path

import books_corpus

from sinkscope.commands.trace import read_prompts
from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.texts import open_corpus
from sinkscope.lab.training import train

EXCERPT = Path(books_corpus.__file__).with_name("books_excerpt.jsonl")


def write(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["books_corpus.py", *map(str, arguments)])
    books_corpus.main()


def test_a_network_of_text_is_trained_on_the_excerpt_in_seconds(tmp_path, monkeypatch, capsys):
    pages = read_prompts(EXCERPT)
    assert len(pages) == 17 and all(1000 < len(page) <= books_corpus.PAGE for page in pages)
    write(monkeypatch, EXCERPT, "--out", tmp_path / "pages", "--vocabulary", 600)
    corpus = open_corpus(tmp_path / "pages")
    shape = {"hidden_size": 24, "heads": 2, "kv_heads": 2, "intermediate_size": 32, "max_positions": 64, "tied": True}
    changes = {
        "architecture": Architecture(layers=1, **shape),
        "canvases": CanvasMix(tokens=128, lengths=(64,), weights=(1.0,)),
        "snapshots": (0, 30),
    }
    for name in ("lab-text-autoregressive", "lab-text-diffusion"):
        recipe = dataclasses.replace(RECIPES[name], **changes, updates=30, autocast=False, log_every=1)
        train(recipe, tmp_path / name, texts=corpus, progress=False)
        log = map(json.loads, (tmp_path / name / "training.jsonl").read_text().splitlines())
        losses = [row["loss"] for row in log if row.get("loss") is not None]
        assert sum(losses[-5:]) < sum(losses[:5])
