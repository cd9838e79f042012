"""The books that the text models are trained on, and the pages of them that this repository holds."""

import dataclasses
import json
import subprocess
from pathlib import Path

import books_corpus
import pytest

from sinkscope.commands.trace import read_prompts
from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.corpus import open_corpus
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.training import train

EXCERPT = Path(books_corpus.__file__).with_name("books_excerpt.jsonl")


def write(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["books_corpus.py", *map(str, arguments)])
    books_corpus.main()


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository of four books that may be used, one that is too young and one without a year."""
    folder = tmp_path / "clone"
    years = {"A/Old": "1900", "B/Ancient": "-300", "C/Young": "1929", "D/Without": "unknown", "E/Late": "1928"}
    for name, year in years.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True)
        body = "\n\n".join(f"{name} has page {number}. It says nothing." for number in range(200))
        path.write_text(f"# {name}\n\n## Year: {year}\n\n-------\n{body}\n")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm books"):
        subprocess.run(["git", "-C", str(folder), *command.split()], check=True)
    monkeypatch.setattr(books_corpus, "COMMIT", "HEAD")
    monkeypatch.setattr(books_corpus, "HELD_OUT_EVERY", 2)
    return folder


def test_books_before_1929_are_taken_and_every_so_many_held_out(clone, tmp_path, monkeypatch, capsys):
    write(monkeypatch, clone, "--out", tmp_path / "books", "--vocabulary", 400)
    documents = json.loads((tmp_path / "books" / "corpus.json").read_text())["documents"]
    found = [(one["title"], one["held_out"]) for one in documents]
    assert found == [("A/Old", False), ("B/Ancient", True), ("E/Late", False)]
    assert "books differ from books.json" in capsys.readouterr().out


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
