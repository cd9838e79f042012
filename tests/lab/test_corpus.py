import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from closeness import assert_close, terms_of

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import PROMPT, CanvasMix
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.texts import LongText, draw_windows, make_corpus, open_corpus
from sinkscope.lab.training import mask_canvases, masked_diffusion_loss, train

SHAPE = Architecture(layers=2, hidden_size=24, heads=3, kv_heads=3, intermediate_size=40, max_positions=96, tied=True)
MIX = CanvasMix(tokens=96, lengths=(32,), weights=(1.0,))
BOOK = " ".join(
    f"Chapter {number}: the {'old ' * (number % 3)}whale swam {number} miles, and Ishmael slept."
    for number in range(200)
)


def tiny(name, **changes):
    small = {
        "architecture": SHAPE,
        "canvases": MIX,
        "updates": 6,
        "autocast": False,
        "save_every": 2,
        "log_every": 1,
        "snapshots": (0, 3, 6),
    }
    return dataclasses.replace(RECIPES[name], **{**small, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    texts = [LongText("Whales", BOOK), LongText("More whales", BOOK[::-1]), LongText("Out", BOOK[1000:5000], True)]
    out = tmp_path_factory.mktemp("corpora") / "whales"
    return make_corpus(texts, out, vocabulary=400, source="a test", progress=False)


def test_a_corpus_holds_its_texts_with_eos_between_them(folder):
    corpus = open_corpus(folder)
    tokenizer = corpus.tokenizer()
    first, second, rest = tokenizer.decode(corpus.train).split("<|eos|>")
    assert (first, second, rest) == (BOOK, BOOK[::-1], "")
    assert tokenizer.decode(corpus.held_out) == BOOK[1000:5000] + "<|eos|>"
    manifest = json.loads((folder / "corpus.json").read_text())
    assert [one["title"] for one in manifest["documents"]] == ["Whales", "More whales", "Out"]
    assert sum(one["tokens"] + 1 for one in manifest["documents"]) == len(corpus.train) + len(corpus.held_out)


def test_windows_are_stretches_of_the_text_and_a_function_of_seed_and_update(folder):
    corpus = open_corpus(folder)
    with pytest.raises(CallError, match=r"held-out.bin: expected more than \d+ tokens, a canvas, found"):
        draw_windows(corpus, 96, len(corpus.held_out), bos_id=None)
    for bos in (0, None):
        draw = draw_windows(corpus, 96, 32, bos_id=bos)
        batch, again, other = draw(1, 7), draw(1, 7), draw(1, 8)
        assert torch.equal(batch.tokens, again.tokens) and not torch.equal(batch.tokens, other.tokens)
        assert batch.tokens.shape == batch.answers.shape == (3, 32)
        assert (batch.answers == PROMPT).sum() == (0 if bos is None else 3) and (
            bos is None or batch.tokens[:, 0].tolist() == [0, 0, 0]
        )
        text = np.asarray(corpus.train).tobytes()
        for row in batch.tokens[:, 0 if bos is None else 1 :]:
            assert row.numpy().astype("<u2").tobytes() in text
        held_out = draw(-1, -1).tokens[0, 1:].numpy().astype("<u2").tobytes()
        assert held_out in np.asarray(corpus.held_out).tobytes()


def test_what_is_no_corpus_or_was_changed_is_refused(folder, tmp_path):
    with pytest.raises(CallError, match=r"corpus\.json: cannot be read .*; expected a corpus, a folder with"):
        open_corpus(tmp_path)
    for name in ("train.bin", "tokenizer/tokenizer.json"):
        copy = shutil.copytree(folder, tmp_path / name.replace("/", "-"))
        changed = bytearray((copy / name).read_bytes())
        changed[100] ^= 1
        (copy / name).write_bytes(changed)
        with pytest.raises(TrainingError, match=f"{name}: expected the bytes whose sha256 corpus.json gives"):
            open_corpus(copy)


def test_special_tokens_in_a_corpus_and_a_training_without_one_are_refused(tmp_path):
    with pytest.raises(CallError, match=r"'a': expected text without special tokens, found '<\|mask\|>'; take it"):
        make_corpus([LongText("a", BOOK + "<|mask|>"), LongText("b", BOOK, True)], tmp_path / "a")
    with pytest.raises(CallError, match="lab-text-diffusion: expected a corpus folder as --data"):
        train(tiny("lab-text-diffusion"), tmp_path / "a")


def test_flat_weights_are_the_plain_mean_over_masked_tokens_and_the_first_token_can_be_masked(folder):
    recipe = tiny("lab-text-diffusion")
    corpus = open_corpus(folder)
    tokenizer = corpus.tokenizer()
    network = build_network(recipe, tokenizer)
    canvases = draw_windows(corpus, 96, 32, bos_id=None)(0, 0)
    mask = tokenizer.mask_token_id

    def drawn(update):
        return torch.Generator().manual_seed(update)

    first = [
        bool(mask_canvases(canvases, mask, 1.0, drawn(update), first_stays=False)[0][:, 0].eq(mask).any())
        for update in range(8)
    ]
    assert any(first)
    assert not any(mask_canvases(canvases, mask, 1.0, drawn(update))[0][:, 0].eq(mask).any() for update in range(8))
    noisy, weights, _ = mask_canvases(canvases, mask, 1.0, drawn(3), first_stays=False)
    logits = network(noisy, use_cache=False).logits
    dense = torch.stack(
        [F.cross_entropy(logits[i, j], canvases.tokens[i, j]) for i, j in (weights > 0).nonzero().tolist()]
    ).mean()
    found = masked_diffusion_loss(
        network, canvases, mask_id=mask, whole_canvas_share=1.0, generator=drawn(3), first_stays=False, flat=True
    )
    assert_close(found, dense, terms=terms_of(network, noisy.shape[1]) + noisy.numel())
