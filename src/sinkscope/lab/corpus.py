"""Long texts as training data: tokenized once into flat files, from which windows of one length are drawn.

A corpus is a folder: ``train.bin`` and ``held-out.bin`` (uint16 tokens, one document after another with EOS between
them), a tokenizer, and ``corpus.json`` with the titles, sizes and checksums. `sinkscope train RECIPE --data FOLDER`
reads it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import PROMPT, Canvases
from sinkscope.lab.vocabulary import BOS, EOS, MASK
from sinkscope.progress import show_progress
from sinkscope.runs.files import compare_checksum, compare_file, read_json_object, sha256_of, with_checksum
from sinkscope.runs.folder import new_folder

MANIFEST, TRAIN, HELD_OUT, TOKENIZER = "corpus.json", "train.bin", "held-out.bin", "tokenizer"
CORE, SETTINGS = f"{TOKENIZER}/tokenizer.json", f"{TOKENIZER}/tokenizer_config.json"
ADVICE = "make the corpus again"
TOKENIZER_SAMPLE = 24_000_000
"""Characters that the tokenizer is trained on: the beginnings of all training documents, in equal shares."""


@dataclass(frozen=True)
class LongText:
    """A document of a corpus.

    Attributes:
        title: its name in ``corpus.json``.
        text: the whole document.
        held_out: kept for validation; never trained on.
    """

    title: str
    text: str
    held_out: bool = False


@dataclass(frozen=True, eq=False)
class Corpus:
    """A folder of tokenized text.

    Attributes:
        fingerprint: checksum of the tokens and the tokenizer.
        folder: of its files.
        train, held_out: uint16 [token], mapped from the disk.
        vocabulary: number of different tokens.
    """

    fingerprint: str
    folder: Path
    train: np.ndarray
    held_out: np.ndarray
    vocabulary: int

    def tokenizer(self) -> Any:
        """Return the tokenizer of the corpus."""
        from sinkscope.models.families import FAMILIES
        from sinkscope.models.tokenization import load_tokenizer

        return load_tokenizer(self.folder / TOKENIZER, FAMILIES["llama"], {})


def make_corpus(
    texts: Iterable[LongText], out: Path, *, vocabulary: int = 4096, source: str = "", progress: bool = True
) -> Path:
    """Write a corpus folder, which holds nothing until it is complete.

    Args:
        texts: the documents; at least one of them held out.
        out: a new or empty folder.
        vocabulary: tokens of the byte-level BPE tokenizer, at most 65,536.
        source: where the texts come from, for the manifest.
        progress: shows how far it has come.

    Raises:
        CallError: the folder holds something, nothing to train on or to hold out, or a text with a special token.
        TrainingError: the folder cannot be written.
    """
    from sinkscope.lab.texts import train_tokenizer_on

    texts = list(texts)
    if not any(text.held_out for text in texts) or all(text.held_out for text in texts):
        raise CallError(f"expected documents to train on and to hold out, found {len(texts)} documents of one kind")
    for text in texts:
        if special := next((token for token in (BOS, EOS, MASK) if token in text.text), None):
            raise CallError(f"{text.title!r}: expected text without special tokens, found {special!r}; take it out")
    training, listed = [text for text in texts if not text.held_out], []
    share = TOKENIZER_SAMPLE // len(training)
    with (
        new_folder(out, TrainingError, "a corpus", MANIFEST) as place,
        (place / TRAIN).open("wb") as train,
        (place / HELD_OUT).open("wb") as held_out,
        show_progress(len(texts), "corpus", "documents", shown=progress) as bar,
    ):
        tokenizer = train_tokenizer_on((text.text[:share] for text in training), vocabulary)
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
        files = {name: sha256_of(place / name) for name in (TRAIN, HELD_OUT, CORE, SETTINGS)}
        manifest = {"format": 1, "source": source, "vocabulary": len(tokenizer), "files": files, "documents": listed}
        written = json.dumps(with_checksum(manifest), indent=1, ensure_ascii=False) + "\n"
        (place / MANIFEST).write_text(written, encoding="utf-8")
    return out


def open_corpus(folder: str | Path, *, verify: bool = True) -> Corpus:
    """Open a corpus folder and check it against its checksums.

    Raises:
        CallError: no corpus there.
        TrainingError: a file of it is missing or was changed.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    manifest = read_json_object(path, CallError, f"expected a corpus, a folder with {MANIFEST}")
    files = manifest["files"]
    if verify:
        compare_checksum(manifest, path, TrainingError, ADVICE)
        for name, sha256 in files.items():
            compare_file(folder / name, sha256, TrainingError, MANIFEST, ADVICE)
    digest = hashlib.sha256("".join(files[name] for name in sorted(files)).encode()).hexdigest()[:16]
    train, held_out = (np.memmap(folder / name, dtype="<u2", mode="r") for name in (TRAIN, HELD_OUT))
    return Corpus(f"corpus sha256:{digest}", folder, train, held_out, manifest["vocabulary"])


def draw_windows(corpus: Corpus, tokens: int, length: int, *, bos_id: int | None) -> Callable[[int, int], Canvases]:
    """Return a function (seed, update) → batch of windows; held-out text where the update is negative.

    Args:
        tokens: tokens of a batch; it has ``tokens // length`` rows.
        length: of a window.
        bos_id: stands first in every window; None puts text there.

    Raises:
        TrainingError: the corpus is shorter than a window.
    """
    shortest = min(len(corpus.train), len(corpus.held_out))
    if shortest <= length:
        raise TrainingError(f"{corpus.folder}: expected more than {length} tokens in each file, found {shortest}")
    text = length if bos_id is None else length - 1

    def draw(seed: int, update: int) -> Canvases:
        source = corpus.held_out if update < 0 else corpus.train
        rng = np.random.default_rng([seed % 2**32, update % 2**32])
        rows = np.stack(
            [source[start : start + text] for start in rng.integers(0, len(source) - text, max(1, tokens // length))]
        )
        canvas = torch.from_numpy(rows.astype(np.int64))
        answers = torch.zeros_like(canvas)
        if bos_id is not None:
            canvas = torch.cat([torch.full_like(canvas[:, :1], bos_id), canvas], dim=1)
            answers = torch.cat([torch.full_like(answers[:, :1], PROMPT), answers], dim=1)
        return Canvases(canvas, answers)

    return draw
