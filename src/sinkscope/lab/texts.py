"""The user's own text as training canvases: reads it, trains a tokenizer on it, and packs it.

A ``.jsonl`` file, plain or in gzip, has one document a line, ``{"text": …}`` or ``{"prompt": …, "answer": …}``; such a
prompt is never masked. Any other file is plain text, whose documents are separated by blank lines, and no JSON. Every
twentieth document is held out for validation. With fewer than twenty documents, validation uses the training text.
"""

import hashlib
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import PROMPT, Canvases, CanvasMix
from sinkscope.lab.vocabulary import BOS, EOS, MASK, as_transformers
from sinkscope.runs.files import numbered, parse_json, read_text

HELD_OUT_EVERY = 20
VOCABULARY = 2048
LONGEST_WORD = 200
"""Letters without a space that make one word: the time of a tokenizer's training grows with its square (genomes)."""


@dataclass(frozen=True)
class Document:
    """A text to learn. ``prompt`` precedes it and is never masked."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Texts:
    """The documents of one file.

    Attributes:
        fingerprint: name and checksum of the file, stored with a run.
        documents: in the order of the file.
    """

    fingerprint: str
    documents: tuple[Document, ...]


def read_texts(path: str | Path) -> Texts:
    """Return the documents of a file.

    Raises:
        CallError: the file cannot be read or holds no text, or a line is no document.
    """
    path = Path(path)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        text = read_text(path, CallError, "give a file of JSON lines")
        documents = [_document(line, f"{path}, line {number}") for number, line in numbered(text)]
    elif path.suffix == ".json":
        raise CallError(f"{path}: expected plain text, or JSON lines in a file whose name ends in .jsonl")
    else:
        text = read_text(path, CallError, "give a file of UTF-8 text")
        documents = [Document("", part.strip()) for part in re.split(r"\n\s*\n", text) if part.strip()]
    if not documents:
        raise CallError(f"{path}: expected text to train on, found none")
    return Texts(f"{path.name} sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}", tuple(documents))


def _document(line: str, where: str) -> Document:
    match parse_json(line, where, CallError):
        case {"text": str(text), **rest} if text.strip() and not rest.get("answer"):
            return Document("", text)
        case {"prompt": str(prompt), "answer": str(text), **rest} if text.strip() and not rest.get("text"):
            return Document(prompt, text)
    raise CallError(f'{where}: expected {{"text": "…"}} or {{"prompt": "…", "answer": "…"}}, found {line[:60]!r}')


def train_tokenizer(texts: Texts, vocabulary: int = VOCABULARY) -> Any:
    """Return a tokenizer trained on documents, see `train_tokenizer_on`."""
    return train_tokenizer_on((document.prompt + document.text for document in texts.documents), vocabulary)


def train_tokenizer_on(texts: Iterable[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer trained on texts, with the lab's special tokens; same texts, same tokenizer."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(tokenizers.Regex(rf"\S{{{LONGEST_WORD}}}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return as_transformers(tokenizer)


class TextCanvases:
    """Batches of a user's documents; batch number n of a stream is a pure function of (seed, n).

    Args:
        texts: the documents.
        tokenizer: with a BOS and an EOS.
        mix: lengths of the canvases.

    Raises:
        TrainingError: a text holds special or unknown tokens, or every prompt fills a canvas.
    """

    def __init__(self, texts: Texts, tokenizer: Any, mix: CanvasMix) -> None:
        self._first, self._last, self._mix = tokenizer.bos_token_id, tokenizer.eos_token_id, mix
        pieces = [
            [list(tokenizer(part, add_special_tokens=False).input_ids) for part in (document.prompt, document.text)]
            for document in texts.documents
        ]
        own = {self._first, self._last, tokenizer.mask_token_id, tokenizer.unk_token_id} - {None}
        for document, (prompt, text) in zip(texts.documents, pieces, strict=True):
            if special := [token for token in prompt + text if token in own]:
                token, found = tokenizer.convert_ids_to_tokens(special[0]), (document.prompt + document.text)[:60]
                raise TrainingError(f"{texts.fingerprint}: expected no special token, found {token!r} in {found!r}")
        few = len(pieces) < HELD_OUT_EVERY
        self._training = [one for number, one in enumerate(pieces) if few or number % HELD_OUT_EVERY]
        self._held_out = pieces if few else pieces[::HELD_OUT_EVERY]
        room = min(mix.lengths) - 2
        if any(min(len(prompt) for prompt, _ in each) > room for each in (self._training, self._held_out)):
            raise TrainingError(f"{texts.fingerprint}: expected a prompt of at most {room} tokens, found longer ones")

    def draw(self, seed: int, update: int) -> Canvases:
        """Return batch number ``update``; of held-out documents where it is negative."""
        rng = random.Random(f"texts {seed} {update}")
        documents = self._held_out if update < 0 else self._training
        length = rng.choices(self._mix.lengths, self._mix.weights)[0]
        rows = [self._row(documents, length, rng) for _ in range(max(1, self._mix.tokens // length))]
        while all(answer == PROMPT for _, answers in rows for answer in answers):  # long prompts have filled every row
            rows[0] = self._row(documents, length, rng)
        return Canvases(torch.tensor([tokens for tokens, _ in rows]), torch.tensor([answers for _, answers in rows]))

    def _row(self, documents: list[list[list[int]]], length: int, rng: random.Random) -> tuple[list[int], list[int]]:
        tokens, answers, count = [self._first], [PROMPT], 0
        while len(tokens) < length:
            prompt, text = rng.choice(documents)
            # A long text is read from a random place.
            start = rng.randint(0, max(0, len(text) + 2 - length)) if not prompt else 0
            own = [*text[start:], self._last]
            tokens += prompt + own
            answers += [PROMPT] * len(prompt) + [count] * len(own)
            count += 1
        return tokens[:length], answers[:length]
