r"""Training canvases: several problems packed one after another, as a few-shot prompt with its answer, filled up with
EOS.

Batch number n is a pure function of (seed, n), so a resumed run sees exactly the batches of an uninterrupted one.
"""

import random
from dataclasses import dataclass
from typing import Any

import torch

from sinkscope.lab.problems import training_code_tasks, training_problems
from sinkscope.lab.vocabulary import question_text

PROMPT = -1


@dataclass(frozen=True)
class CanvasMix:
    """So many tokens an update, in rows of one of the lengths, drawn by their weights; a share of rows has code tasks,
    the others word problems of these templates, or of all.
    """

    tokens: int = 3072
    lengths: tuple[int, ...] = (72, 144, 288, 384, 1024)
    weights: tuple[float, ...] = (0.50, 0.25, 0.18, 0.06, 0.01)
    code_share: float = 0.15
    templates: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Canvases:
    """A batch of canvases: ``tokens``, int64 [row, position], and ``answers`` of the same shape, which hold the number
    of the problem in the row at its answer, −1 (`PROMPT`) elsewhere.
    """

    tokens: torch.Tensor
    answers: torch.Tensor


def draw_canvases(mix: CanvasMix, tokenizer: Any, seed: int, update: int) -> Canvases:
    """Return batch number ``update`` of the stream ``seed``."""
    rng = random.Random(f"canvases {seed} {update}")
    length = rng.choices(mix.lengths, mix.weights)[0]
    streams = {False: training_problems(rng, mix.templates), True: training_code_tasks(rng)}
    rows = [
        _fill_row(length, streams[rng.random() < mix.code_share], tokenizer, rng) for _ in range(mix.tokens // length)
    ]
    return Canvases(torch.tensor([tokens for tokens, _ in rows]), torch.tensor([answers for _, answers in rows]))


def _fill_row(length: int, stream: Any, tokenizer: Any, rng: random.Random) -> tuple[list[int], list[int]]:
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    separator, tokens, answers, count = encode("\n\n"), [tokenizer.bos_token_id], [PROMPT], 0
    spare = rng.randint(0, min(128, length // 4))  # more EOS, as follows the answer in a longer generation
    while True:
        problem = next(stream)
        question, answer = encode(question_text(problem)), encode(f" {problem.worked}")
        if count:
            question = separator + question
        if len(tokens) + len(question) + len(answer) + 1 + (spare if count else 0) > length:
            break
        tokens += question + answer
        answers += [PROMPT] * len(question) + [count] * len(answer)
        count += 1
    padding = length - len(tokens)
    return tokens + [tokenizer.eos_token_id] * padding, answers + [count - 1] * padding
