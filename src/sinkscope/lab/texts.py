"""The user's own text as training canvases: documents of a file, or a corpus of long texts.

A ``.jsonl`` file, plain or in gzip, has one document a line, ``{"text": …}`` or ``{"prompt": …, "answer": …}``, whose
prompt is never masked. Documents of any other file are separated by blank lines. Every twentieth is held out; of fewer
than twenty, none. A corpus is a folder: ``train.bin`` and ``held-out.bin`` (uint16 tokens, EOS between documents), a
tokenizer, and ``corpus.json`` with the titles, sizes and checksums.
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import PROMPT, Canvases, CanvasMix
from sinkscope.lab.prompts import BOS, EOS, MASK, as_transformers
from sinkscope.progress import show_progress
from sinkscope.runs import files
from sinkscope.runs.folder import new_folder

HELD_OUT_EVERY = 20
LONGEST_WORD = 200  # the time of a tokenizer's training grows with its square (genomes have no spaces)
TOKENIZER_SAMPLE = 24_000_000  # characters of a corpus: the beginnings of all training documents, in equal shares
MANIFEST, TRAIN, HELD_OUT, TOKENIZER = "corpus.json", "train.bin", "held-out.bin", "tokenizer"
ADVICE = "make the corpus again"


@dataclass(frozen=True)
class Document:
    """A text to learn, and a prompt before it, which is never masked."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Texts:
    """The documents of one file, in its order, and the name and checksum that are stored with a run."""

    fingerprint: str
    documents: tuple[Document, ...]

    @property
    def holds_out(self) -> bool:
        return len(self.documents) >= HELD_OUT_EVERY

    def tokenizer(self, vocabulary: int = 2048) -> Any:
        return train_tokenizer((document.prompt + document.text for document in self.documents), vocabulary)


def read_texts(path: str | Path) -> Texts:
    """Return the documents of a file; raise CallError where it holds no text, or a line is no document."""
    path = Path(path)
    text = files.read_text(path, CallError, "give a file of UTF-8 text")
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        documents = [_document(line, f"{path}, line {number}") for number, line in files.numbered(text)]
    else:
        parts = [] if path.suffix == ".json" else re.split(r"\n\s*\n", text)
        documents = [Document("", part.strip()) for part in parts if part.strip()]
    if not documents:
        raise CallError(f"{path}: expected plain text, or JSON lines in a file whose name ends in .jsonl, found none")
    return Texts(f"{path.name} sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}", tuple(documents))


def _document(line: str, where: str) -> Document:
    match files.parse_json(line, where, CallError):
        case {"text": str(text), **rest} if text.strip() and not rest.get("answer"):
            return Document("", text)
        case {"prompt": str(prompt), "answer": str(text), **rest} if text.strip() and not rest.get("text"):
            return Document(prompt, text)
    raise CallError(f'{where}: expected {{"text": "…"}} or {{"prompt": "…", "answer": "…"}}, found {line[:60]!r}')


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer trained on texts, with the lab's special tokens; same texts, same tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(rf"\S{{{LONGEST_WORD}}}"), "isolated")
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
    """Batches of a user's documents; batch number n of a stream is a pure function of (seed, n). Raise TrainingError
    where a text holds special or unknown tokens, all is shorter than a canvas, or every prompt fills one.
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
        kept = texts.holds_out
        self._training = [one for number, one in enumerate(pieces) if not kept or number % HELD_OUT_EVERY]
        self._held_out = pieces[::HELD_OUT_EVERY] if kept else pieces
        room = min(mix.lengths) - 2
        if (found := sum(len(part) for piece in pieces for part in piece)) < room:
            raise TrainingError(f"{texts.fingerprint}: expected {room} tokens, a canvas, or more, found {found}")
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


@dataclass(frozen=True)
class LongText:
    """A document of a corpus; one that is ``held_out`` is kept for validation."""

    title: str
    text: str
    held_out: bool = False


@dataclass(frozen=True, eq=False)
class Corpus:
    """A folder of tokenized text; its tokens, uint16 [token], are mapped from the disk."""

    fingerprint: str
    folder: Path
    train: np.ndarray
    held_out: np.ndarray

    def tokenizer(self) -> Any:
        from sinkscope.models.families import FAMILIES
        from sinkscope.models.tokenization import load_tokenizer

        return load_tokenizer(self.folder / TOKENIZER, FAMILIES["llama"], {})


def make_corpus(
    texts: Iterable[LongText], out: Path, *, vocabulary: int = 4096, source: str = "", progress: bool = True
) -> Path:
    """Write a corpus into a new or empty folder, which holds nothing until it is complete.

    Some texts must be held out, and none may hold a special token (CallError). The tokenizer is byte-level BPE of so
    many tokens, at most 65,536; ``source`` stands in the manifest.
    """
    texts = list(texts)
    training = [text for text in texts if not text.held_out]
    for text in texts:
        if special := next((token for token in (BOS, EOS, MASK) if token in text.text), None):
            raise CallError(f"{text.title!r}: expected text without special tokens, found {special!r}; take it out")
    share, listed = TOKENIZER_SAMPLE // len(training), []
    with (
        new_folder(out, TrainingError, "a corpus", MANIFEST) as place,
        (place / TRAIN).open("wb") as train,
        (place / HELD_OUT).open("wb") as held_out,
        show_progress(len(texts), "corpus", "documents", shown=progress) as bar,
    ):
        tokenizer = train_tokenizer((text.text[:share] for text in training), vocabulary)
        tokenizer.save_pretrained(place / TOKENIZER)
        for text in texts:
            tokens = tokenizer(text.text, add_special_tokens=False, verbose=False).input_ids
            file = held_out if text.held_out else train
            file.write(np.asarray([*tokens, tokenizer.eos_token_id], dtype="<u2").tobytes())
            digest = hashlib.sha256(text.text.encode()).hexdigest()
            listed.append({"title": text.title, "held_out": text.held_out, "tokens": len(tokens), "sha256": digest})
            bar.advance()
        train.flush()
        held_out.flush()
        names = (TRAIN, HELD_OUT, f"{TOKENIZER}/tokenizer.json", f"{TOKENIZER}/tokenizer_config.json")
        digests = {name: files.sha256_of(place / name) for name in names}
        manifest = {"format": 1, "source": source, "vocabulary": len(tokenizer), "files": digests, "documents": listed}
        written = json.dumps(files.with_checksum(manifest), indent=1, ensure_ascii=False) + "\n"
        (place / MANIFEST).write_text(written, encoding="utf-8")
    return out


def open_corpus(folder: str | Path) -> Corpus:
    """Open a corpus folder; raise CallError where there is none, TrainingError where a file is missing or changed."""
    folder = Path(folder)
    manifest = files.read_json_object(folder / MANIFEST, CallError, f"expected a corpus, a folder with {MANIFEST}")
    files.compare_checksum(manifest, folder / MANIFEST, TrainingError, ADVICE)
    digests = manifest["files"]
    for name, sha256 in digests.items():
        files.compare_file(folder / name, sha256, TrainingError, MANIFEST, ADVICE)
    digest = hashlib.sha256("".join(digests[name] for name in sorted(digests)).encode()).hexdigest()[:16]
    train, held_out = (np.memmap(folder / name, dtype="<u2", mode="r") for name in (TRAIN, HELD_OUT))
    return Corpus(f"corpus sha256:{digest}", folder, train, held_out)


def draw_windows(corpus: Corpus, tokens: int, length: int, *, bos_id: int | None) -> Callable[[int, int], Canvases]:
    """Return a function (seed, update) → batch of ``tokens // length`` windows; of held-out text where the update is
    negative; raise CallError where either is shorter. ``bos_id`` stands first in every window; None puts text there.
    """
    text = length if bos_id is None else length - 1
    for name, part in ((TRAIN, corpus.train), (HELD_OUT, corpus.held_out)):
        if len(part) <= text:
            raise CallError(f"{corpus.folder / name}: expected more than {text} tokens, a canvas, found {len(part)}")

    def draw(seed: int, update: int) -> Canvases:
        source = corpus.held_out if update < 0 else corpus.train
        rng = np.random.default_rng([seed % 2**32, update % 2**32])
        starts = rng.integers(0, len(source) - text, max(1, tokens // length))
        canvas = torch.from_numpy(np.stack([source[start : start + text] for start in starts]).astype(np.int64))
        answers = torch.zeros_like(canvas)
        if bos_id is not None:
            canvas = torch.cat([torch.full_like(canvas[:, :1], bos_id), canvas], dim=1)
            answers = torch.cat([torch.full_like(answers[:, :1], PROMPT), answers], dim=1)
        return Canvases(canvas, answers)

    return draw
