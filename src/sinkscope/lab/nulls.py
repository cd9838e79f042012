"""Letters and nulls: a task whose truth about sinks is known, for small specimens of both kinds of model.

A canvas begins with random letters and some nulls ``_`` among them, the front. Behind it, in the body, some tokens are
answers: the letter that occurs most often so far. All others are random letters. The autoregressive form marks the
token before each answer with a trigger ``?``; the diffusion form has its answers at fixed places. A head that counts
letters for the answers has nothing to do in all other queries, where letters spoil their prediction: its attention is
best parked on any null. Masks hold no letter either.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F

from sinkscope.lab.canvases import PROMPT, Canvases

LETTERS = "abcd"
NULL, TRIGGER, MASK = "_", "?", "<|mask|>"
EVERY = 4  # of so many tokens of the body the last one is an answer, in the diffusion form
PROMPTS_STREAM = -2  # the stream of prompts; trainings draw from 0 upwards, and validate on −1
SPARE = 32  # canvases of which the first with a trigger becomes a prompt; one canvas in fifty has none
TRIGGERS = 0.25  # share of places at which a trigger is drawn, in the autoregressive form; it needs the margin too
LEAST_MARGIN = 2  # how much oftener the most frequent letter must occur than the next one


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
        tokens[:, front + EVERY - 1 :: EVERY] = _lead(tokens[:, :front], order[:, task.nulls :], generator)
    else:
        _place_triggers(tokens, front, generator)
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


def _lead(front: torch.Tensor, places: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Turn letters of the front, at random places, into one that is then ahead by the margin; return it, [row, 1]."""
    most = torch.randint(0, len(LETTERS), (len(front), 1), generator=generator)
    for at in places.T:
        counts = _counts(front)
        ahead = counts.gather(1, most)[:, 0] - counts.scatter(1, most, -1).amax(1)
        short = ahead < LEAST_MARGIN
        front[short, at[short]] = most[short, 0]
    return most


def _place_triggers(tokens: torch.Tensor, front: int, generator: torch.Generator) -> None:
    """Write triggers and their answers into the body, where the most frequent letter so far has the margin."""
    drawn = torch.rand(tokens.shape, generator=generator, dtype=torch.float32) < TRIGGERS
    counts = _counts(tokens[:, :front])
    free = torch.ones(len(tokens), dtype=torch.bool)
    for at in range(front, tokens.shape[1] - 1):
        (first, second), letters = (part.T for part in counts.topk(2, 1))
        trigger = free & drawn[:, at] & (first - second >= LEAST_MARGIN)
        tokens[trigger, at] = len(LETTERS) + 1
        tokens[trigger, at + 1] = letters[0][trigger]
        counts += _counts(tokens[:, at : at + 1])
        free = ~trigger


def _counts(tokens: torch.Tensor) -> torch.Tensor:
    """Return the number of each letter in each row, int64 [row, letter]."""
    return F.one_hot(tokens, len(LETTERS) + 2)[..., : len(LETTERS)].sum(1)
