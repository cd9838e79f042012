import dataclasses
import gzip
import json
import re

import pytest
import torch

import sinkscope
from sinkscope.commands.train import Train
from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import PROMPT, CanvasMix
from sinkscope.lab.checkpoint import train_checkpoint
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.run_folder import RECIPE
from sinkscope.lab.texts import Document, TextCanvases, read_texts, train_tokenizer
from sinkscope.lab.training import train
from sinkscope.lab.vocabulary import build_tokenizer

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
        ("a.jsonl", '{"prompt": "x"}\n', r"a\.jsonl, line 1: expected one of"),
        ("a.jsonl", '\n{"text": "x", "prompt": "y", "answer": "z"}', "line 2: expected one of .*, found"),
        ("a.jsonl", '\n{"text": "x"}\nnonsense', r"line 3: expected JSON"),
        ("a.json", '[{"text": "x"}]', r"expected plain text or JSON lines; .* into a file whose name ends in \.jsonl"),
        ("a.txt", " \n\n ", "expected text to train on, found none"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CallError, match=message):
        read_texts(tmp_path / name)
    with pytest.raises(CallError, match="cannot be read"):
        read_texts(tmp_path / "nothing.txt")


def test_a_tokenizer_of_the_texts_is_lossless_and_always_the_same(poem):
    one, other = (train_tokenizer(read_texts(poem), vocabulary=300) for _ in range(2))
    assert one.get_vocab() == other.get_vocab() and len(one) == 300
    assert one.decode(one(POEM).input_ids, skip_special_tokens=True) == POEM
    assert (one.bos_token_id, one.eos_token_id, one.mask_token_id) == (0, 1, 2) and one("a").input_ids[0] == 0


def test_canvases_are_the_texts_and_prompts_stay_visible(tmp_path):
    rows = [{"prompt": f"sum of {n} and 1?", "answer": f" {n + 1}"} for n in range(10, 30)]
    texts = read_texts(lines(tmp_path / "a.jsonl", *rows))
    tokenizer = train_tokenizer(texts)
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
    tokenizer = train_tokenizer(texts)
    source = TextCanvases(texts, tokenizer, CanvasMix(tokens=96, lengths=(96,), weights=(1.0,)))
    seen = " ".join(tokenizer.decode(source.draw(0, update).tokens[0]) for update in range(30))
    held = " ".join(tokenizer.decode(source.draw(-1, -1 - update).tokens[0]) for update in range(30))
    mine, theirs = ([f"Über {number} grüne" in text for number in range(1, 41)] for text in (seen, held))
    assert (
        [number for number, found in enumerate(theirs) if found] == [0, 20]
        and not mine[0]
        and not mine[20]
        and sum(mine) > 30
    )


def test_a_long_text_is_seen_from_anywhere():
    from sinkscope.lab.texts import Texts

    texts = Texts("long", (Document("", " ".join(map(str, range(1000)))),))
    tokenizer = train_tokenizer(texts, vocabulary=270)
    source = TextCanvases(texts, tokenizer, CanvasMix(tokens=64, lengths=(32,), weights=(1.0,)))
    begins = {tokenizer.decode(row[1:6]) for update in range(20) for row in source.draw(0, update).tokens}
    assert len(begins) > 30


def test_a_tokenizer_that_does_not_know_the_text_is_refused(poem):
    with pytest.raises(TrainingError, match=r"poem\.txt .*: expected words of the tokenizer, .* in 'Über 1 grüne"):
        TextCanvases(read_texts(poem), build_tokenizer(), MIX)


@pytest.mark.parametrize("special", ["<|mask|>", "<|eos|>", "<|bos|>"])
def test_tokens_that_mean_something_to_a_training_are_refused_in_a_text(special):
    from sinkscope.lab.texts import Texts

    texts = Texts(
        "odd", tuple(Document("", f"line {number} {special if number == 7 else ''} ends") for number in range(30))
    )
    with pytest.raises(
        TrainingError,
        match=rf"odd: expected words of the tokenizer, without special tokens, found '{re.escape(special)}' in 'line 7",
    ):
        TextCanvases(texts, train_tokenizer(texts, vocabulary=270), MIX)


def test_json_lines_may_be_packed(tmp_path):
    rows = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(3))
    (tmp_path / "a.jsonl").write_text(rows)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    plain, packed = (read_texts(tmp_path / name) for name in ("a.jsonl", "a.jsonl.gz"))
    assert plain.documents == packed.documents and len(plain.documents) == 3
    assert plain.fingerprint.split()[1] == packed.fingerprint.split()[1]


@pytest.mark.slow
def test_a_recipe_trains_on_the_users_text(poem, tmp_path):
    out = train_checkpoint(TINY, tmp_path / "model", texts=read_texts(poem))
    model = sinkscope.load(str(out))
    assert model.card.sink_token == "token" and len(model.tokenizer) == model.card.vocabulary
    written = sinkscope.generate(model, "Über 3", length=8, steps=4, block=8)
    assert model.decode(written.tokens[: written.prompt_length]) == "Über 3"
    assert json.loads((out / RECIPE).read_text())["data"] == read_texts(poem).fingerprint


def test_a_run_on_other_text_is_refused(poem, tmp_path):
    train(dataclasses.replace(TINY, updates=1), tmp_path / "run", texts=read_texts(poem), progress=False)
    with pytest.raises(TrainingError, match=r"data 'poem\.txt sha256:\w+' → None"):
        train(dataclasses.replace(TINY, updates=1), tmp_path / "run", progress=False)


@pytest.mark.slow
def test_the_command_takes_data_and_a_variant(poem, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(RECIPES, "lab-diffusion", dataclasses.replace(TINY, name="lab-diffusion", sink_token="none"))
    Train(recipe="lab-diffusion", out=tmp_path / "model", updates=2, data=poem, sink_token="token-zero-value").run()
    said = capsys.readouterr()
    assert said.out.strip() == str(tmp_path / "model") and "shards" not in said.err
    assert sinkscope.load(str(tmp_path / "model")).card.sink_token == "token-zero-value"
    with pytest.raises(CallError, match="no variant 'tokens'"):
        Train(recipe="lab-diffusion", out=tmp_path / "other", sink_token="tokens").run()


def test_a_text_without_spaces_is_cut_for_its_tokenizer(tmp_path):
    """Its time grows with the square of a word: a genome in one line would take hours."""
    (tmp_path / "genome.txt").write_text("ACGT" * 50_000 + "\n\nTwo words")
    tokenizer = train_tokenizer(read_texts(tmp_path / "genome.txt"), 300)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("A" * 450 + " two words")
    assert [end - start for _, (start, end) in pieces] == [200, 200, 50, 4, 6]
    text = "G" * 777 + " two words"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
