import dataclasses
import json

import pytest
import torch

import sinkscope
from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import PROMPT, CanvasMix
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.run_folder import RECIPE
from sinkscope.lab.texts import Document, TextCanvases, Texts, read_texts
from sinkscope.lab.training import train_checkpoint

SMALL = Architecture(layers=2, hidden_size=24, heads=3, kv_heads=3, intermediate_size=40, max_positions=96)
MIX = CanvasMix(tokens=192, lengths=(32, 48), weights=(0.5, 0.5))
TINY = dataclasses.replace(RECIPES["lab-sink-token"], architecture=SMALL, canvases=MIX, updates=5, autocast=False)
POEM = "\n\n".join(
    f"Über {number} grüne Wälder flog der Vogel, {number} Tage lang.\nDann ruhte er." for number in range(1, 41)
)


@pytest.fixture
def poem(tmp_path):
    (tmp_path / "poem.txt").write_text(POEM)
    return tmp_path / "poem.txt"


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_plain_text_is_split_at_blank_lines(poem):
    texts = read_texts(poem)
    assert len(texts.documents) == 40 and texts.documents[2] == Document("", POEM.split("\n\n")[2])
    assert texts.fingerprint.startswith("poem.txt sha256:") and read_texts(str(poem)) == texts


def test_json_lines_have_texts_or_prompts_with_answers(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"text": "one", "more": 1}, {"text": None, "prompt": "two?", "answer": " 2"})
    assert read_texts(path).documents == (Document("", "one"), Document("two?", " 2"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "x"}\n', r"a\.jsonl, line 1: expected .*, found"),
        ("a.jsonl", '\n{"text": "x"}\nnonsense', r"line 3: expected JSON"),
        ("a.json", '[{"text": "x"}]', "expected plain text, or JSON lines in a file"),
        ("a.txt", " \n\n ", "expected plain text, or JSON lines in a file"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(CallError, match=message):
        read_texts(tmp_path / name)


def test_a_tokenizer_of_the_texts_is_lossless_and_always_the_same(poem):
    one, other = (read_texts(poem).tokenizer(300) for _ in range(2))
    assert one.get_vocab() == other.get_vocab() and len(one) == 300
    assert one.decode(one(POEM).input_ids, skip_special_tokens=True) == POEM
    assert (one.bos_token_id, one.eos_token_id, one.mask_token_id) == (0, 1, 2) and one("a").input_ids[0] == 0


def test_canvases_are_the_texts_and_prompts_stay_visible(tmp_path):
    rows = [{"prompt": f"sum of {n} and 1?", "answer": f" {n + 1}"} for n in range(10, 30)]
    texts = read_texts(lines(tmp_path / "a.jsonl", *rows))
    tokenizer = texts.tokenizer()
    source = TextCanvases(texts, tokenizer, MIX)
    batch = source.draw(0, 4)
    again, other = source.draw(0, 4), source.draw(1, 4)
    assert torch.equal(batch.tokens, again.tokens) and torch.equal(batch.answers, again.answers)
    assert batch.tokens.shape != other.tokens.shape or not torch.equal(batch.tokens, other.tokens)
    assert batch.tokens.numel() == 192 and batch.tokens.shape[1] in (32, 48)
    for tokens, answers in zip(batch.tokens, batch.answers, strict=True):
        assert int(tokens[0]) == tokenizer.bos_token_id and int(answers[0]) == PROMPT
        first = tokens[answers == 0]
        assert int(first[-1]) == tokenizer.eos_token_id
        assert tokenizer.decode(first[:-1]) in [row["answer"] for row in rows]
        assert "sum of" in tokenizer.decode(tokens[answers == PROMPT])


def test_every_twentieth_document_is_held_out(poem):
    texts = read_texts(poem)
    tokenizer = texts.tokenizer()
    source = TextCanvases(texts, tokenizer, CanvasMix(tokens=96, lengths=(96,), weights=(1.0,)))
    seen = " ".join(tokenizer.decode(source.draw(0, update).tokens[0]) for update in range(30))
    held = " ".join(tokenizer.decode(source.draw(-1, -1 - update).tokens[0]) for update in range(30))
    mine, theirs = ([f"Über {number} grüne" in text for number in range(1, 41)] for text in (seen, held))
    assert [number for number, found in enumerate(theirs) if found] == [0, 20]
    assert not mine[0] and not mine[20] and sum(mine) > 30


def test_tokens_that_mean_something_to_a_training_are_refused_in_a_text():
    lines_of = tuple(Document("", f"line {number} {'<|eos|>' if number == 7 else ''} ends") for number in range(30))
    with pytest.raises(TrainingError, match=r"odd: expected no special token, found '<\|eos\|>' in 'line 7"):
        TextCanvases(Texts("odd", lines_of), Texts("odd", lines_of).tokenizer(270), MIX)


def test_a_text_shorter_than_a_canvas_is_refused():
    texts = Texts("short", (Document("", "a short text"),))
    with pytest.raises(TrainingError, match="short: expected 30 tokens, a canvas, or more, found"):
        TextCanvases(texts, texts.tokenizer(), MIX)


@pytest.mark.slow
def test_a_recipe_trains_on_the_users_text(poem, tmp_path):
    out = train_checkpoint(TINY, tmp_path / "model", texts=read_texts(poem))
    model = sinkscope.load(str(out))
    assert model.card.sink_token == "token" and len(model.tokenizer) == model.card.vocabulary
    written = sinkscope.generate(model, "Über 3", length=8, steps=4, block=8)
    assert model.decode(written.tokens[: written.prompt_length]) == "Über 3"
    assert json.loads((out / RECIPE).read_text())["data"] == read_texts(poem).fingerprint


def test_a_text_without_spaces_is_cut_for_its_tokenizer(tmp_path):
    """Its time grows with the square of a word: a genome in one line would take hours."""
    (tmp_path / "genome.txt").write_text("ACGT" * 50_000 + "\n\nTwo words")
    tokenizer = read_texts(tmp_path / "genome.txt").tokenizer(300)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("A" * 450 + " two words")
    assert [end - start for _, (start, end) in pieces] == [200, 200, 50, 4, 6]
    text = "G" * 777 + " two words"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
