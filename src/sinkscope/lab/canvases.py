"""Training canvases; batch number n is a pure function of (seed, n), so a resumed run sees the same batches.

Those of problems pack several one after another, as a few-shot prompt with its answer, filled up with EOS. Those of
letters and nulls are a task whose truth about sinks is known, for small specimens of both kinds of model: a canvas
begins with random letters and some nulls ``_`` among them, the front. Behind it, in the body, some tokens are answers:
the letter that occurs most often so far. All others are random letters. The autoregressive form marks the token before
each answer with a trigger ``?``; the diffusion form has its answers at fixed places. A head that counts letters for the
answers has nothing to do in all other queries, where letters spoil their prediction: its attention is best parked on
any null. Masks hold no letter either.
"""

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F

from sinkscope.lab.problems import question_text, training_problems

PROMPT = -1
LETTERS = "abcd"
NULL, TRIGGER, MASK = "_", "?", "<|mask|>"
EVERY = 4  # of so many tokens of the body the last one is an answer, in the diffusion form
PROMPTS_STREAM = -2  # the stream of prompts; trainings draw from 0 upwards, and validate on −1
SPARE = 32  # canvases of which the first with a trigger becomes a prompt; one canvas in fifty has none
TRIGGERS = 0.25  # share of places at which a trigger is drawn, in the autoregressive form; it needs the margin too
LEAST_MARGIN = 2  # how much oftener the most frequent letter must occur than the next one


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
    streams = {False: training_problems(rng, "lab-arith", mix.templates), True: training_problems(rng, "lab-code")}
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


@dataclass(frozen=True)
class NullTask:
    """The canvases of the task: ``nulls``, its dial, stand among the ``front`` letters, before ``body`` tokens.

    ``answers`` are triggered in the autoregressive form, placed in the diffusion form.
    """

    nulls: int
    answers: Literal["triggered", "placed"]
    front: int = 16
    body: int = 40
    rows: int = 64


@cache
def null_tokenizer() -> Any:
    """Return the tokenizer of the task, whose tokens stand between blanks."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*LETTERS, NULL, TRIGGER, MASK]
    words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=NULL))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, mask_token=MASK)


def draw_nulls(task: NullTask, seed: int, update: int) -> Canvases:
    """Return batch number ``update`` of the stream ``seed``; the front and the triggers are prompt, the rest answer."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + update) % 2**63)
    front = task.front + task.nulls
    tokens = torch.randint(0, len(LETTERS), (task.rows, front + task.body), generator=generator)
    order = torch.rand(task.rows, front, generator=generator, dtype=torch.float32).argsort(1)
    tokens.scatter_(1, order[:, : task.nulls], len(LETTERS))
    if task.answers == "placed":
        # letters of the front, at random places, become one that is then ahead by the margin
        most = torch.randint(0, len(LETTERS), (task.rows, 1), generator=generator)
        for at in order[:, task.nulls :].T:
            counts = _counts(tokens[:, :front])
            ahead = counts.gather(1, most)[:, 0] - counts.scatter(1, most, -1).amax(1)
            short = ahead < LEAST_MARGIN
            tokens[short, at[short]] = most[short, 0]
        tokens[:, front + EVERY - 1 :: EVERY] = most
    else:
        drawn = torch.rand(tokens.shape, generator=generator, dtype=torch.float32) < TRIGGERS
        counts, free = _counts(tokens[:, :front]), torch.ones(task.rows, dtype=torch.bool)
        for at in range(front, tokens.shape[1] - 1):
            (first, second), letters = (part.T for part in counts.topk(2, 1))
            trigger = free & drawn[:, at] & (first - second >= LEAST_MARGIN)
            tokens[trigger, at] = len(LETTERS) + 1
            tokens[trigger, at + 1] = letters[0][trigger]
            counts += _counts(tokens[:, at : at + 1])
            free = ~trigger
    answers = torch.zeros_like(tokens)
    answers[:, :front] = PROMPT
    answers[tokens == len(LETTERS) + 1] = PROMPT
    return Canvases(tokens, answers)


def draw_prompt(task: NullTask, number: int) -> dict[str, str]:
    """Return ``prompt`` and ``answer``, the rest, of canvas ``number`` of a stream that no training sees.

    A prompt of the autoregressive form ends with the last trigger; one of the diffusion form is the front.
    """
    drawn = draw_nulls(replace(task, rows=SPARE), PROMPTS_STREAM, number).tokens.tolist()
    tokens, cut, trigger = drawn[0], task.front + task.nulls, len(LETTERS) + 1
    if task.answers == "triggered":
        tokens = next(row for row in drawn if trigger in row)
        cut = len(tokens) - tokens[::-1].index(trigger)
    decode = null_tokenizer().decode
    return {"prompt": decode(tokens[:cut]), "answer": decode(tokens[cut:])}


def _counts(tokens: torch.Tensor) -> torch.Tensor:
    """Return the number of each letter in each row, int64 [row, letter]."""
    return F.one_hot(tokens, len(LETTERS) + 2)[..., : len(LETTERS)].sum(1)
