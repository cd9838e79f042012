"""The log-likelihood of a continuation: by Monte Carlo or the chain rule, or exact for autoregressive models.

Monte Carlo (LLaDA, arXiv 2502.09992, eq. 14; published: get_log_likelihood.py) masks l of the L tokens of the
continuation, l uniform from 1 to L, at uniform positions; (L/l) Σ log p(masked token) is an unbiased estimate of a
lower bound of the log-likelihood. Within a group of samples the l are spread evenly from one random offset, as
published. The chain rule (published: SMDM and Dream, nll_type ar_ftb) reveals one token at a time from the left.

Quirk: the published l are rounded half to even, a bias for lengths that are no multiples of 16. Not kept: halves are
rounded up.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.attention import current_session
from sinkscope.decoding.autoregressive import whole_cache
from sinkscope.decoding.blocks import quotas
from sinkscope.decoding.canvas import lay_out
from sinkscope.decoding.projection import check_finite, hidden_states, project, with_unconditional
from sinkscope.errors import CallError
from sinkscope.models import Family, Model, block_length
from sinkscope.models.devices import own_defaults

GROUP = 16  # samples whose numbers of masks are spread evenly (published: batch_size)


@dataclass(frozen=True)
class Likelihood:
    """The log-likelihood of a continuation.

    Attributes:
        total: log-likelihood of the whole continuation, in nats.
        standard_error: of ``total``; 0 where it is exact, NaN for a single Monte-Carlo sample and where all groups of
            samples have the same sum. Up to 32 samples are two groups, from which it is rough.
        samples: number of masked canvases that were averaged; 1 where it is exact.
        tokens: number of tokens of the continuation.
        greedy: whether each token is the most likely one given those before it; None for Monte Carlo.
        method: ``monte_carlo``, ``chain_rule``, or ``exact`` for autoregressive models.
    """

    total: float
    standard_error: float
    samples: int
    tokens: int
    greedy: bool | None
    method: str


@own_defaults()
@torch.no_grad()
def log_likelihood(
    model: Model,
    context: Any,
    continuation: Any,
    *,
    method: Literal["monte_carlo", "chain_rule"] = "monte_carlo",
    samples: int = 128,
    guidance: float = 0.0,
    seed: int = 0,
    batch: int = 16,
) -> Likelihood:
    """Compute the log-likelihood of a continuation given its context.

    Args:
        context, continuation: text or 1-D token ids. Two texts are encoded together; spaces between them belong to the
            continuation.
        method: how a diffusion model's is computed; that of an autoregressive model is always exact.
        samples: number of masked canvases of the Monte-Carlo estimate.
        guidance: unsupervised classifier-free guidance (published: ``cfg_scale``); 0 is none.
        seed: of the masks.
        batch: number of canvases in one forward call; it does not change the result.

    Raises:
        CallError: an argument does not fit, or a rule is in force that decides by the step before.
    """
    check_likelihood(model.family, model.card.name, method, guidance)
    refuse_block_diffusion(model)
    prefix, target = encode_pair(model, context, continuation)
    length = len(target)
    model.expect_room(len(prefix) + length, f"{len(prefix)} tokens of context and {length} of continuation")
    if model.family.causal:
        whole, tokens = (torch.tensor(ids, device=model.device) for ids in ([[*prefix, *target]], target))
        places = torch.arange(len(prefix) - 1, whole.shape[1] - 1, device=whole.device)
        with _canvases_of_their_own(model, len(prefix)):
            logits = check_finite(model.logits(whole, places, use_cache=False)[0].to(whole.device)).float()
        found = logits.log_softmax(-1).gather(-1, tokens[:, None]).double().sum()
        return Likelihood(float(found), 0.0, 1, length, bool((logits.argmax(-1) == tokens).all()), "exact")
    if method == "chain_rule":
        hidden = torch.ones(length, length, dtype=torch.bool, device="cpu").triu()
        asked = torch.eye(length, dtype=torch.bool, device="cpu")
        found, best = _score(model, prefix, target, hidden, asked, guidance, batch)
        return Likelihood(float(found.sum()), 0.0, 1, length, bool(best.diagonal().all()), method)
    groups = _groups(samples)
    masks = mask_patterns(length, groups, seed)
    distinct, which = torch.unique(masks, dim=0, return_inverse=True)
    found, _ = _score(model, prefix, target, distinct, distinct, guidance, batch)
    values = (found.sum(-1) * length / distinct.sum(-1))[which]
    return Likelihood(float(values.mean()), _standard_error(values, groups, length), samples, length, None, method)


def expected_masks(length: int, samples: int) -> float:
    """Return the mean number, over seeds, of different masked canvases of a continuation of ``length`` tokens."""
    found = 0.0
    for masked in range(1, length + 1):
        places = math.comb(length, masked)
        if places > 1e9:  # hardly any mask is drawn twice
            found += samples / length
            continue
        missed = 1.0  # the share of masks that no group draws; each group's offset is uniform
        for size, groups in Counter(_groups(samples)).items():
            drawn = Counter(offset % length for offset in _spread(length, size))
            missed *= (sum((1 - 1 / places) ** drawn[offset] for offset in range(length)) / length) ** groups
        found += places * (1 - missed)
    return found


def _groups(samples: int) -> list[int]:
    """Return the sizes of the groups of samples; there are at least two groups where there are two samples."""
    return quotas(samples, max(min(2, samples), -(-samples // GROUP)))


def _spread(length: int, size: int) -> list[int]:
    """Return the distances of a group's numbers of masks from its offset, halves rounded up."""
    return [(2 * number * length + size) // (2 * size) for number in range(size)]


def mask_patterns(length: int, groups: list[int], seed: int) -> Tensor:
    """Draw which tokens are masked, bool [sample, token]; a group's numbers are spread from a random offset."""
    source = torch.Generator("cpu").manual_seed(seed)
    patterns = []
    for size in groups:
        offset = int(torch.randint(1, length + 1, (), generator=source, device="cpu"))
        for further in _spread(length, size):
            masks = (offset - 1 + further) % length + 1
            order = torch.randperm(length, generator=source, device="cpu")
            patterns.append((torch.arange(length, device="cpu") < masks)[order])
    return torch.stack(patterns)


def _standard_error(values: Tensor, groups: list[int], length: int) -> float:
    """Compute it from the spread of the groups, whose samples depend on each other; NaN where it is not known."""
    if length == 1 or len(groups) < 2:  # one token can be masked in one way only
        return 0.0 if length == 1 else float("nan")
    sizes = torch.tensor(groups, dtype=torch.float64, device="cpu")
    sums = torch.stack([group.sum() for group in values.split(groups)])
    spread = ((sums - sizes * values.mean()) ** 2).sum() * len(groups) / (len(groups) - 1)
    error = float(spread.sqrt() / sizes.sum())
    tied = 1e-9 * abs(float(values.mean()))  # sums of groups that differ by less are the same sums, rounded
    return error if error > tied else float("nan")


def _score(
    model: Model, prefix: list[int], target: list[int], hidden: Tensor, asked: Tensor, guidance: float, batch: int
) -> tuple[Tensor, Tensor]:
    """Compute log p of the ``asked`` tokens of a continuation, float64 [canvas, token], 0 elsewhere, where others are
    ``hidden``, both bool [canvas, token]; and whether each is the most likely token.
    """
    mask_id, device, before = model.mask_id, model.device, len(prefix)
    whole = torch.tensor([*prefix, *target], device=device)
    found = torch.zeros(hidden.shape, dtype=torch.float64, device="cpu")
    best = torch.zeros_like(hidden)
    for begin in range(0, len(hidden), batch):
        places = asked[begin : begin + batch].to(device)
        canvas = whole.repeat(len(places), 1)
        canvas[:, before:].masked_fill_(hidden[begin : begin + batch].to(device), mask_id)
        layout = lay_out(torch.ones_like(canvas, dtype=torch.bool))
        prompt = (torch.arange(len(whole), device=device) < before).expand_as(canvas)
        chosen = torch.cat([torch.zeros_like(prompt[:, :before]), places], dim=1)
        with _canvases_of_their_own(model, before):
            states = hidden_states(model, with_unconditional(canvas, prompt, mask_id, guidance), layout)
        logits = project(model, states, chosen, layout, guidance).float()
        tokens = whole.expand_as(canvas)[chosen]
        scores = logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
        rows = slice(begin, begin + len(places))
        found[rows].masked_scatter_(asked[rows], scores.double().cpu())
        best[rows].masked_scatter_(asked[rows], (logits.argmax(-1) == tokens).cpu())
    return found, best


@torch.no_grad()
def nats_behind(model: Model, window: Sequence[int], context: int) -> float:
    """Return minus log p of a window's tokens behind its context under a causal model, in nats."""
    ids, cache = torch.tensor([list(window)], device=model.device), whole_cache(model.network)
    with _canvases_of_their_own(model, context):
        first = model.logits(ids[:, :context], 1, past_key_values=cache, use_cache=True)
        rest = model.logits(ids[:, context:], len(window) - context, past_key_values=cache, use_cache=True)
    logits = check_finite(torch.cat([first, rest[:, :-1]], dim=1)[0].to(ids.device)).double()
    return -float(logits.log_softmax(-1).gather(-1, ids[0, context:, None]).sum())


def _canvases_of_their_own(model: Model, context: int) -> AbstractContextManager[None]:
    """Let watchers and hiders take the canvases of the body for new texts with prompts of ``context`` tokens."""
    session = current_session(model.network)
    return nullcontext() if session is None else session.foreign_generation(context)


def encode_pair(model: Model, context: Any, continuation: Any) -> tuple[list[int], list[int]]:
    """Return the token ids of the context and of the continuation, as `log_likelihood` takes them."""
    if isinstance(context, str) and isinstance(continuation, str):
        bare = context.rstrip()
        prefix = model.encode(bare)
        target = model.encode(bare + context[len(bare) :] + continuation)[len(prefix) :]
    else:
        prefix = model.encode(context)
        text = isinstance(continuation, str)
        target = model.encode(model.tokenize(continuation, special=False) if text else continuation)
    if not target:
        raise CallError(f"expected a continuation of at least one token, found {continuation!r}, which adds none")
    return prefix, target


def refuse_block_diffusion(model: Model) -> None:
    """Raise CallError for block diffusion, whose likelihoods are not defined."""
    if block_length(model.network) is not None:
        raise CallError(
            f"{model.card.name}: a likelihood of block diffusion is not published; expected a family whose tokens see "
            f"the whole canvas, or an autoregressive one, found {model.family.name}"
        )


def check_likelihood(family: Family, name: str, method: str, guidance: float) -> None:
    """Raise CallError for an argument of `log_likelihood` that does not fit a model of this family and name."""
    if method not in ("monte_carlo", "chain_rule"):
        raise CallError(f"method: expected monte_carlo or chain_rule, found {method!r}")
    if guidance > 0 and family.causal:
        raise CallError(f"guidance: {name} is autoregressive, without a mask token for its context; leave it at 0")
