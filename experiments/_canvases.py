"""Canvases of unhidden runs, read again with keys hidden that were chosen beforehand; for the experiments of this
folder.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from _settings import SETTINGS

import sinkscope
from sinkscope.attention import Columns, Hidden, Hider, LayerCall, StepContext, StepResult, Watcher, subscribed
from sinkscope.interventions.rule_context import class_in
from sinkscope.lab.prompts import few_shot_prompt, held_out
from sinkscope.sinks.definition import CLASSES

RESULTS, OTHERS = 2, 1  # canvases of each problem, at most: those that commit a number behind "=", and others
CHUNK = 24  # canvases that go through the network together

Masks = dict[int, torch.Tensor]


@dataclass(frozen=True)
class Canvas:
    """One step of an unhidden run: its tokens, the position that was committed with its token, and whether that is a
    result, behind "=".
    """

    problem: int
    tokens: list[int]
    prompt: int
    position: int
    token: int
    result: bool


class Diary(Watcher):
    """Keeps the canvases of a batch and what was committed in them."""

    def __init__(self) -> None:
        self.steps: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._before: torch.Tensor | None = None
        self.lengths: list[int] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        pass

    def begin_step(self, context: StepContext) -> None:
        self._before, self.lengths = context.tokens.clone(), context.lengths.tolist()

    def end_step(self, result: StepResult | None) -> None:
        assert self._before is not None and result is not None
        self.steps.append((self._before, result.written.clone()))


def collect(model: Any, problems: int, shots: int) -> list[Canvas]:
    """Write problems with nothing hidden, and return the canvases to be read again, those of a problem side by side."""
    found = []
    equals = [token for token in range(model.card.vocabulary) if model.decode([token]).strip() == "="]
    for first in range(0, problems, CHUNK):
        numbers = range(first, min(first + CHUNK, problems))
        prompts = [few_shot_prompt(held_out("lab-arith")[number], number, shots) for number in numbers]
        diary = Diary()
        with subscribed(model.network, diary):
            sinkscope.generate(model, prompts, **SETTINGS["lab-diffusion"])
        for row, number in enumerate(numbers):
            width = diary.steps[0][0].shape[1]
            start = width - diary.lengths[row]
            prompt = diary.lengths[row] - SETTINGS["lab-diffusion"]["length"]
            own = [(before[row, start:], written[row, start:]) for before, written in diary.steps]
            final = torch.where(own[-1][1] >= 0, own[-1][1], own[-1][0])
            answering = [
                Canvas(number, before.tolist(), prompt, place, int(written[place]), int(final[place - 1]) in equals)
                for before, written in own[1:]
                for place in torch.nonzero(written > model.card.eos_id)[:, 0].tolist()
            ]
            for result, most in ((True, RESULTS), (False, OTHERS)):
                some = [one for one in answering if one.result == result]
                places = (
                    np.unique(np.linspace(0, len(some) - 1, most).round().astype(int)) if most > 1 else [len(some) // 2]
                )
                found += [some[place] for place in places if some]
    return found


@dataclass(frozen=True)
class Chunk:
    """Canvases side by side, left-padded, and what the unhidden network shows on them: tensors [canvas, head, key] by
    layer.
    """

    tokens: torch.Tensor
    real: torch.Tensor
    position: torch.Tensor
    token: torch.Tensor
    result: torch.Tensor
    prompt_end: torch.Tensor
    classes: torch.Tensor
    columns: Masks = field(default_factory=dict)
    values: Masks = field(default_factory=dict)
    breadth: Masks = field(default_factory=dict)
    own: Masks = field(default_factory=dict)
    diagonal: Masks = field(default_factory=dict)
    top_value: Masks = field(default_factory=dict)  # of the largest column, [canvas, head, dim]
    plain: list[torch.Tensor] = field(default_factory=list)


def make_chunk(model: Any, canvases: list[Canvas]) -> Chunk:
    width = max(len(one.tokens) for one in canvases)
    tokens = torch.full((len(canvases), width), model.card.eos_id)
    real = torch.zeros(len(canvases), width, dtype=torch.bool)
    for row, one in enumerate(canvases):
        tokens[row, width - len(one.tokens) :] = torch.tensor(one.tokens)
        real[row, width - len(one.tokens) :] = True
    starts = torch.tensor([width - len(one.tokens) for one in canvases])
    position = starts + torch.tensor([one.position for one in canvases])
    classes = torch.tensor([[CLASSES.index(class_in(model, int(token))) for token in row] for row in tokens])
    prompt_end = starts + torch.tensor([one.prompt for one in canvases])
    token, result = torch.tensor([one.token for one in canvases]), torch.tensor([one.result for one in canvases])
    return Chunk(tokens, real, position, token, result, prompt_end, classes)


class Reader(Watcher):
    """Fills a chunk with the attention and the values of the unhidden network."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk

    def watch(self, call: LayerCall, columns: Columns) -> None:
        chunk, layer, rows = self.chunk, call.index, torch.arange(len(self.chunk.tokens))
        real = chunk.real[:, None]
        chunk.columns[layer] = columns.sums[:, :, 0].masked_fill(~real, -1.0)
        groups = call.query.shape[1] // call.key.shape[1]
        chunk.values[layer] = call.value.norm(dim=-1).repeat_interleave(groups, 1)
        scores = call.query @ call.key.repeat_interleave(groups, 1).mT / call.query.shape[-1] ** 0.5
        weights = torch.softmax(scores.masked_fill(~real[:, :, None], -torch.inf), -1) * real[..., None]
        chunk.own[layer] = weights[rows, :, chunk.position]
        # How many queries a column's attention comes from, as a share of all: (Σa)² / Σa² / S.
        chunk.breadth[layer] = (
            weights.sum(2) ** 2 / (weights**2).sum(2).clamp(min=1e-12) / chunk.real.sum(-1)[:, None, None]
        )
        chunk.diagonal[layer] = torch.diagonal(weights, dim1=-2, dim2=-1)
        largest = chunk.columns[layer].argmax(-1)[..., None, None].expand(-1, -1, 1, call.value.shape[-1])
        chunk.top_value[layer] = call.value.repeat_interleave(groups, 1).gather(2, largest)[:, :, 0]


class Planned(Hider):
    """Hides what was chosen beforehand: by layer, keys [canvas, head, key], from some queries [canvas, query]."""

    def __init__(self, keys: Masks, queries: torch.Tensor | None = None, zeroed: bool = False) -> None:
        self.keys, self.queries, self.zeroed = keys, queries, zeroed
        self.removed = 0.0

    def hide(self, call: LayerCall) -> list[Hidden]:
        keys = self.keys.get(call.index)
        return [] if keys is None else [Hidden(keys[:, :, None], self.queries, self.zeroed)]

    def observe(self, call: LayerCall, columns: Columns) -> None:
        assert call.membership is not None and columns.removed is not None
        self.removed += float((columns.removed * call.membership[:, :1]).sum())


class Replaced(Planned):
    """Keeps the attention to the chosen key of every head, and puts a constant in the place of its value.

    Args:
        keys: one key a head.
        real: bool [canvas, key].
        constants: [head, dim] by layer.
    """

    def __init__(self, keys: Masks, real: torch.Tensor, constants: Masks) -> None:
        super().__init__(keys, zeroed=True)
        self.real, self.constants = real, constants
        self.added: Masks = {}

    def hide(self, call: LayerCall) -> list[Hidden]:
        groups = call.query.shape[1] // call.key.shape[1]
        scores = call.query @ call.key.repeat_interleave(groups, 1).mT / call.query.shape[-1] ** 0.5
        weights = torch.softmax(scores.masked_fill(~self.real[:, None, None], -torch.inf), -1)
        lost = (weights * self.keys[call.index][:, :, None]).sum(-1, keepdim=True)  # [canvas, head, query, 1]
        self.added[call.index] = (lost * self.constants[call.index][:, None]).transpose(1, 2).flatten(2)
        return super().hide(call)

    def add(self, layer: int) -> Callable[..., Any]:
        """Return a hook that adds the replaced values before the output projection of a layer."""
        return lambda module, given: (given[0] + self.added.pop(layer), *given[1:])


@torch.no_grad()
def read(model: Any, chunk: Chunk, hanging: Any = None) -> torch.Tensor:
    """Return log-probabilities [canvas, vocabulary] at the positions that were committed."""

    def forward() -> torch.Tensor:
        positions = (chunk.real.long().cumsum(-1) - 1).clamp(min=0)
        states = model.network.model(
            input_ids=chunk.tokens, attention_mask=chunk.real.long(), position_ids=positions, use_cache=False
        ).last_hidden_state
        return torch.log_softmax(model.network.lm_head(states[torch.arange(len(states)), chunk.position]), -1)

    if hanging is None:
        return forward()
    with subscribed(model.network, hanging), contextlib.ExitStack() as hooks:
        for number, layer in enumerate(model.network.model.layers) if isinstance(hanging, Replaced) else ():
            hooks.callback(layer.self_attn.o_proj.register_forward_pre_hook(hanging.add(number)).remove)
        return forward()


# Choices of the keys that `why_hiding_hurts.py` hides in an unhidden reading

EXCESS = 3.0  # Eq. 3 of the paper


def ranked(chunk: Chunk, rank: int) -> Masks:
    """Return the key of that rank in every head, 0 for the largest column."""
    found = {}
    for layer, columns in chunk.columns.items():
        place = columns.argsort(dim=-1, descending=True, stable=True)[..., rank : rank + 1]
        found[layer] = torch.zeros_like(columns, dtype=torch.bool).scatter_(-1, place, True)
    return found


def top(chunk: Chunk) -> Masks:
    return ranked(chunk, 0)


def at_top(values: Masks, chunk: Chunk) -> torch.Tensor:
    """Return the value at every top key, [layer, canvas, head]."""
    keys = top(chunk)
    return torch.stack([(values[layer] * keys[layer]).sum(-1) for layer in sorted(keys)])


def only(chunk: Chunk, where: torch.Tensor) -> Masks:
    """Return the top keys of the heads in which ``where`` [layer, canvas, head] holds."""
    return {layer: keys & where[layer][..., None] for layer, keys in top(chunk).items()}


def random_keys(chunk: Chunk, seed: int, like: Masks | None = None) -> Masks:
    """Draw random keys that are neither the top one nor sinks: one a head, or until they hold as much as the top key.

    ``like`` says what is held: ``chunk.columns``, the attention of all queries, or ``chunk.own``, that of the position
    being written.
    """
    found, keys = {}, top(chunk)
    for layer, columns in chunk.columns.items():
        source = torch.Generator().manual_seed(seed * 100 + layer)
        others = chunk.real[:, None] & ~keys[layer]
        drawn = torch.rand(columns.shape, generator=source) + (excess(chunk)[layer] > EXCESS).float()
        order = drawn.masked_fill(~others, 9.0).argsort(-1)
        if like is not None:
            held = (like[layer] * others).gather(-1, order)
            chosen = held.cumsum(-1) - held / 2 < (like[layer] * keys[layer]).sum(-1, keepdim=True)
        else:
            chosen = torch.arange(columns.shape[-1]).expand_as(order) < 1
        found[layer] = torch.zeros_like(others.expand_as(columns)).scatter_(-1, order, chosen) & others
    return found


def excess(chunk: Chunk) -> Masks:
    size = chunk.real.sum(-1)[:, None, None]
    return {layer: columns - (size - columns) / (size - 1) for layer, columns in chunk.columns.items()}


def value_ratio(chunk: Chunk) -> Masks:
    """Return |v| of every key over the median of the canvas."""
    found = {}
    for layer, norms in chunk.values.items():
        median = norms.masked_fill(~chunk.real[:, None], torch.nan).nanmedian(-1, keepdim=True).values
        found[layer] = norms / median
    return found


def contribution(chunk: Chunk) -> Masks:
    """Return c·|v| of every key as a share of the sum over keys."""
    found = {}
    for layer, norms in chunk.values.items():
        product = chunk.columns[layer].clamp(min=0) * norms
        found[layer] = product / product.sum(-1, keepdim=True)
    return found


def heads_only(chunk: Chunk, chosen: np.ndarray) -> Masks:
    """Return the top keys of the heads that are chosen, bool [layer, head]."""
    return only(chunk, torch.from_numpy(chosen)[:, None].expand(-1, len(chunk.tokens), -1))


def who(chunk: Chunk, group: str) -> torch.Tensor:
    """Return the queries of a group, bool [canvas, query]."""
    place = torch.arange(chunk.tokens.shape[1])[None]
    here = place == chunk.position[:, None]
    masked = chunk.classes == CLASSES.index("mask")
    answer = place >= chunk.prompt_end[:, None]
    return (
        chunk.real
        & {
            "committed position": here,
            "all but the committed position": ~here,
            "masked": masked,
            "masked but the committed position": masked & ~here,
            "prompt": ~answer,
            "answer so far": answer & ~masked,
        }[group]
    )


Choose = Callable[[Chunk], tuple[Masks, torch.Tensor | None, bool]]
