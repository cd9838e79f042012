"""Probes: canvases on which sinks are hidden, and the predictions that are compared.

A diffusion model is probed on canvases from the middle of its own generations, where it predicts every masked token. An
autoregressive model is probed on its whole answer at once, where each query predicts the next token.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import nn
from transformers import DynamicCache

from sinkscope.attention import Session
from sinkscope.decoding import generate, resolve_settings
from sinkscope.errors import CallError
from sinkscope.models import Model, block_length

CANVASES = 4


@dataclass(frozen=True, eq=False)
class Probe:
    """One canvas of the prompt of that number, at that ``step`` of its generation (causal: the last).

    Attributes:
        readers: the queries whose predictions are compared: of masked tokens, one place to the left for a family with a
            logit shift; of an autoregressive model those that predict its answer.
        committed: those readers whose prediction is committed in this step; all of them for an autoregressive model.
        block: tokens of the blocks in which block diffusion wrote it; None for the checkpoint's, and other models.
    """

    prompt: int
    step: int
    tokens: Int[np.ndarray, " position"]
    readers: Bool[np.ndarray, " position"]
    committed: Bool[np.ndarray, " position"]
    block: int | None = None


def check_probe(model: Model, probe: Probe, where: str) -> None:
    """Raise CallError for a probe that is too long for a network."""
    if len(probe.tokens) > model.card.max_positions:
        raise CallError(f"{where}: {model.limit}, found one of {len(probe.tokens)}")


def make_probes(model: Model, prompt: Any, number: int = 0, canvases: int = CANVASES, **settings: Any) -> list[Probe]:
    """Write an answer and return probes of it, at most ``canvases``; CallError where there is nothing to compare."""
    mask, shift = model.card.mask_id, int(model.family.shift)
    if model.family.causal:
        answer = generate(model, prompt, **settings)
        tokens = answer.tokens.numpy()
        readers = np.zeros(len(tokens), bool)
        readers[answer.prompt_length - 1 : -1] = True
        if not readers.any():
            raise CallError(f"prompt {number}: {model.card.name} wrote nothing; there is no prediction to compare")
        return [Probe(number, answer.steps - 1, tokens, readers, readers)]
    steps: list[tuple[np.ndarray, np.ndarray]] = []

    def keep(step: Any) -> None:
        written = step.written[0].cpu()
        if (written >= 0).any():
            steps.append((step.tokens[0].cpu().masked_fill(written >= 0, mask).numpy(), (written >= 0).numpy()))

    generate(model, prompt, on_step=keep, **settings)
    in_blocks = block_length(model.network) is not None
    block = getattr(resolve_settings(model.family, **settings), "block", None) if in_blocks else None
    found = []
    for step in np.unique(np.linspace(0, len(steps) - 1, canvases + 2).round().astype(int)[1:-1]):
        tokens, committed = steps[step]
        readers, committed = (_to_the_left(one, shift) for one in (tokens == mask, committed))
        found.append(Probe(number, int(step), tokens, readers, committed, block))
    return found


def as_written(model: Model, probe: Probe) -> AbstractContextManager[None]:
    """Return a context in which block diffusion sees the blocks that a probe was written in."""
    return nullcontext() if probe.block is None else model.network.model.blocks_of(probe.block)


def _to_the_left(places: np.ndarray, shift: int) -> np.ndarray:
    if not shift:
        return places
    moved = np.zeros_like(places)
    moved[:-1] = places[1:]
    moved[0] |= places[0]  # the first token is read at its own place
    return moved


def first_reader(model: Model, probe: Probe) -> int:
    """Return the first position that loses keys: a causal model's text in front of its readers is context."""
    return int(probe.readers.argmax()) if model.family.causal else 0


def predictions(
    model: Model,
    tokens: torch.Tensor,
    readers: torch.Tensor,
    stored: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
) -> torch.Tensor:
    """Return log-probabilities float32 [row, reader, vocabulary] of canvases [row, position], without gradients;
    ``stored``: keys and values of each layer at the first positions, which are not computed again.
    """
    if model.family.causal:
        cache, first = None, 0
        if stored:
            cache, first = DynamicCache(), stored[0][0].shape[2]
            for layer, pair in enumerate(stored):
                key, value = (one.expand(len(tokens), -1, -1, -1) for one in pair)
                cache.update(key, value, layer)
        logits = model.logits(tokens[:, first:], readers[first:], past_key_values=cache, use_cache=bool(stored)).float()
    else:
        states = model.network.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = model.network.lm_head(states[:, readers.to(states.device)]).float()
    return torch.log_softmax(logits, -1, out=logits)


def divergence(
    said: Float[torch.Tensor, "reader vocabulary"], changed: Float[torch.Tensor, "row reader vocabulary"]
) -> Float[torch.Tensor, " row"]:
    """Return the mean KL divergence of changed predictions from those said, in nats; ``changed`` is used up."""
    return torch.sub(said, changed, out=changed).mul_(said.exp()).sum(-1).mean(-1).clamp(min=0)


def blocks_of(session: Session) -> list[nn.Module]:
    """Return the layers of a network with one stack, by the numbers of their attention."""
    return [*session.stacks[0].blocks.values()]


@contextmanager
def beginning_at(
    session: Session, layer: int, outputs: Sequence[torch.Tensor], rows: int, first: int = 0
) -> Iterator[None]:
    """Let the layers below one return what the layer in front of it did, ``outputs`` from the ``first`` position on,
    instead of computing it again.
    """
    with ExitStack() as patches:
        if layer and outputs:
            below = outputs[layer - 1][:, first:].expand(rows, -1, -1)
            for block in dict.fromkeys(blocks_of(session)[:layer]):
                patches.enter_context(mock.patch.object(block, "forward", lambda *given, **named: below))
        yield
