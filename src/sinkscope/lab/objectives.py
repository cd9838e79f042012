"""The two training objectives: masked diffusion, with paper 2's schedule, and next-token prediction."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from sinkscope.errors import TrainingError
from sinkscope.lab.canvases import PROMPT, Canvases

LEAST_MASKED = 1e-3
IGNORED = -100  # a target that is no part of the loss


def mask_canvases(
    canvases: Canvases, mask_id: int, whole_canvas_share: float, generator: torch.Generator, *, first_stays: bool = True
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mask each answer of a canvas at its own rate p = (1 − 1e-3)·t + 1e-3 with t ~ U(0, 1) (paper 2, §4.1).

    Each packed problem counts as a sequence. The n values of t in a batch come from n equal strata, in random order:
    each is still uniform, and the sum of the 1/t weights varies less. Questions stay visible, as in LLaDA's
    supervised fine-tuning, but not in a ``whole_canvas_share`` of the rows: there every token is masked at one rate,
    except the first one if ``first_stays``.

    Returns:
        noisy: int64 [row, position], with masks.
        weights: float32 [row, position], 1/p where masked, 0 elsewhere.
        maskable: number of tokens that could be masked; TrainingError for none.
    """
    tokens, answers = canvases.tokens, canvases.answers
    rows, length = tokens.shape
    whole = torch.rand(rows, 1, generator=generator, dtype=torch.float32) < whole_canvas_share
    groups = torch.where(whole, 0, answers)
    if first_stays:
        groups[:, 0] = PROMPT
    slots = int(groups.max()) + 1
    if not slots:
        raise TrainingError(f"expected room for an answer, found none on {rows} of {length} tokens; choose longer ones")
    count = rows * slots
    t = torch.randperm(count, generator=generator) + torch.rand(count, generator=generator, dtype=torch.float32)
    t = t / count
    rates = ((1 - LEAST_MASKED) * t + LEAST_MASKED).view(rows, slots)
    rate = rates.gather(1, groups.clamp(min=0))
    maskable = groups != PROMPT
    masked = (torch.rand(rows, length, generator=generator, dtype=torch.float32) < rate) & maskable
    return tokens.masked_fill(masked, mask_id), torch.where(masked, 1 / rate, 0.0), int(maskable.sum())


def masked_diffusion_loss(
    network: Any,
    canvases: Canvases,
    *,
    mask_id: int,
    whole_canvas_share: float,
    generator: torch.Generator,
    shift: bool = False,
    first_stays: bool = True,
    flat: bool = False,
    body: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return the cross-entropy on masked tokens, weighted by 1/p, per maskable token: a scalar in nats.

    With ``flat`` it is the plain mean over masked tokens, which bounds no likelihood but is much less noisy. With
    ``shift`` a token is predicted from the position to its left, as a causal model is adapted to diffusion (Dream,
    paper 2's Qwen2.5); the first token of a canvas is then never masked. Masks are drawn on the CPU.
    """
    noisy, weights, maskable = mask_canvases(
        canvases, mask_id, whole_canvas_share, generator, first_stays=first_stays or shift
    )
    device = network.lm_head.weight.device
    own = body or (lambda tokens: network.model(input_ids=tokens, use_cache=False).last_hidden_state)
    hidden = own(noisy.to(device))
    chosen = weights > 0
    read = torch.cat([chosen[:, 1:], torch.zeros_like(chosen[:, :1])], dim=1) if shift else chosen
    logits = network.lm_head(hidden[read]).float()
    losses = F.cross_entropy(logits, canvases.tokens[chosen].to(device), reduction="none")
    if flat:
        return losses.sum() / max(1, losses.numel())
    return (losses * weights[chosen].to(device)).sum() / maskable


def next_token_loss(
    network: Any, canvases: Canvases, *, eos_id: int | None, only_answers: bool = False
) -> torch.Tensor:
    """Return the cross-entropy of each token given those before it, over a canvas or its answers only, in nats.

    After a complete answer the target is EOS, even where another problem follows on the canvas, so that a model stops
    after its answer. Natural text has no answers; its ``eos_id`` is None.
    """
    targets = canvases.tokens[:, 1:].clone()
    if eos_id is not None:
        finished = (canvases.answers[:, :-1] != PROMPT) & (canvases.answers[:, 1:] == PROMPT)
        targets[finished] = eos_id
    if only_answers:
        targets[canvases.answers[:, 1:] == PROMPT] = IGNORED
    device = network.lm_head.weight.device
    hidden = network.model(input_ids=canvases.tokens.to(device), use_cache=False).last_hidden_state
    logits = network.lm_head(hidden[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().to(device), ignore_index=IGNORED)
