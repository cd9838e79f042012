import hashlib

import pytest

from sinkscope.lab.canvases import PROMPT, CanvasMix, draw_canvases
from sinkscope.lab.nulls import NullTask, draw_nulls
from sinkscope.lab.recipes import SHORT
from sinkscope.lab.vocabulary import build_tokenizer

MIX = CanvasMix(tokens=1200, lengths=(72, 150, 300), weights=(0.5, 0.3, 0.2), code_share=0.3)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def batches(tokenizer):
    return [draw_canvases(MIX, tokenizer, seed=4, update=update) for update in range(25)]


def rows_of(batches):
    return [
        (tokens.tolist(), answers.tolist())
        for batch in batches
        for tokens, answers in zip(batch.tokens, batch.answers, strict=True)
    ]


def shots(tokens, tokenizer):
    """Text of a canvas: (question with "Q: " and "A:", answer with its leading space), and how many EOS follow."""
    assert tokens[0] == tokenizer.bos_token_id
    padding = len(tokens) - tokens.index(tokenizer.eos_token_id)
    assert tokens[-padding:] == [tokenizer.eos_token_id] * padding
    text = tokenizer.decode(tokens[1:-padding])
    pairs = [shot.split("\nA:") for shot in text.split("\n\n")]
    return [(f"{question}\nA:", answer) for question, answer in pairs], padding


def test_answers_mark_exactly_the_answer_tokens(batches, tokenizer):
    for tokens, answers in rows_of(batches):
        pairs, padding = shots(tokens, tokenizer)
        expected = [PROMPT]
        for number, (question, answer) in enumerate(pairs):
            assert question.startswith("Q: ") and answer.startswith(" ")
            before = ("\n\n" if number else "") + question
            expected += [PROMPT] * len(tokenizer(before, add_special_tokens=False).input_ids)
            expected += [number] * len(tokenizer(answer, add_special_tokens=False).input_ids)
        assert answers == expected + [len(pairs) - 1] * padding


def test_a_canvas_reads_token_by_token_as_its_text(batches, tokenizer):
    """Pieces were put side by side as ids; a prompt at evaluation comes as one text."""
    for tokens, _ in rows_of(batches)[::5]:
        body = tokens[: tokens.index(tokenizer.eos_token_id)]
        assert tokenizer(tokenizer.decode(body[1:])).input_ids == body


def test_the_streams_are_fixed(tokenizer):
    """A change moves every training, so it must be made on purpose."""
    drawn = [draw_canvases(mix, tokenizer, 0, update) for update in range(6) for mix in (CanvasMix(), SHORT)]
    nulls = [draw_nulls(NullTask(2, answers), 0, 3) for answers in ("triggered", "placed")]
    for batches, digest in ((drawn, "be09f59a3dee81f2"), (nulls, "6139be39dfc542e2")):
        content = b"".join(one.numpy().tobytes() for batch in batches for one in (batch.tokens, batch.answers))
        assert hashlib.sha256(content).hexdigest()[:16] == digest
