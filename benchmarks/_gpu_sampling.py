"""Rows of gpu.py about sampling: each of our loops against the form of the published one, and whether they wrote the
same.
"""

import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from _gpu_model import over, wait
from torch import Tensor

LOOPS = ("llada", "mmada", "dream")


def of_family(model: Any, family: str) -> Any:
    """The same weights, sampled as another family is."""
    from sinkscope.models import FAMILIES

    return replace(model, family=FAMILIES[family], card=replace(model.card, family=family))


@torch.no_grad()
def published_block(model: Any, prompt: Tensor, length: int, steps: int, precision: torch.dtype | None) -> list[Tensor]:
    """LLaDA's and, with a ``precision`` for the softmax, MMaDA's loop in one block at temperature 0; the canvas after
    each step.

    As published everything is of the whole canvas, and the numbers of tokens to commit lie on the device, so that each
    step waits.
    """
    mask_id, canvases = model.card.mask_id, []
    canvas = torch.cat([prompt, torch.full((length,), mask_id, device=prompt.device)])[None]
    quotas = torch.full((steps,), length // steps, device=prompt.device)
    quotas[: length % steps] += 1
    for step in range(steps):
        logits = model.network(input_ids=canvas, use_cache=False).logits
        masked = canvas == mask_id
        token = logits.argmax(-1)
        sure = torch.softmax(logits, dim=-1, dtype=precision).gather(-1, token[..., None])[..., 0]
        sure = torch.where(masked, sure, -torch.inf)
        token = torch.where(masked, token, canvas)
        commits = torch.zeros_like(masked)
        commits[0, sure[0].topk(int(quotas[step])).indices] = True
        canvas = canvas.clone()
        canvas[commits] = token[commits]
        canvases.append(canvas[0])
    return canvases


@torch.no_grad()
def published_dream(model: Any, prompt: Tensor, length: int, steps: int, eps: float = 1e-3) -> list[Tensor]:
    """Dream's loop with maskgit_plus at temperature 0; the canvas after each step."""
    mask_id, canvases = model.card.mask_id, []
    canvas = torch.cat([prompt, torch.full((length,), mask_id, device=prompt.device)])[None]
    times = torch.linspace(1, eps, steps + 1, device=prompt.device)
    for step in range(steps):
        masked = canvas == mask_id
        logits = model.network(input_ids=canvas, use_cache=False).logits
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)[masked]
        sure, token = torch.softmax(logits, dim=-1).max(-1)
        share = 1 - times[step + 1] / times[step]
        count = int(masked.sum() * share) if step < steps - 1 else int(masked.sum())
        everywhere = torch.full(canvas.shape, -torch.inf, dtype=sure.dtype, device=canvas.device)
        everywhere[masked] = sure
        would = canvas.clone()
        would[masked] = token
        if count:
            chosen = everywhere[0].topk(count).indices
            canvas = canvas.clone()
            canvas[0, chosen] = would[0, chosen]
        canvases.append(canvas[0])
    return canvases


def loops(model: Any, given: Any, family: str, steps: int, ours: list[Tensor], theirs: list[Tensor]) -> dict[str, Any]:
    """Both loops as calls that leave their canvases behind."""
    import sinkscope

    prompt = torch.arange(given.length - given.written) % 400 + 4
    settings = {"algorithm": "maskgit_plus"} if family == "dream" else {"block": given.written}

    def run_ours() -> None:
        ours.clear()
        sinkscope.generate(
            model,
            prompt,
            length=given.written,
            steps=steps,
            on_step=lambda step: ours.append(step.tokens[0]),
            **settings,
        )

    def run_theirs() -> None:
        there = prompt.to(given.device)
        theirs.clear()
        if family == "dream":
            theirs.extend(published_dream(model, there, given.written, steps))
        else:
            theirs.extend(
                published_block(model, there, given.written, steps, torch.float64 if family == "mmada" else None)
            )

    return {"ours": run_ours, "published": run_theirs}


@torch.no_grad()
def difference(model: Any, given: Any, family: str, ours: list[Tensor], theirs: list[Tensor]) -> dict[str, Any]:
    """Where the loops part: the first step, and how close the choice was that they made differently.

    ``logit_gap`` is the smallest distance of the two best logits among the places written differently,
    ``confidence_gap`` the largest
    distance of their confidences: within the rounding of the dtype a difference is one of products with other numbers
    of rows.
    """
    parted = next(
        (
            step
            for step, (one, other) in enumerate(zip(ours, theirs, strict=True))
            if not torch.equal(one.to(other), other)
        ),
        None,
    )
    if parted is None:
        return {"same_tokens": True, "first_difference": None}
    mask_id = model.card.mask_id
    masks = torch.full((given.written,), mask_id, device=given.device)
    before = torch.cat([theirs[0][: given.length - given.written], masks]) if parted == 0 else theirs[parted - 1]
    logits = model.network(input_ids=before[None], use_cache=False).logits[0].float()
    logits = torch.cat([logits[:1], logits[:-1]]) if family == "dream" else logits
    places = (ours[parted].to(theirs[parted]) != theirs[parted]).nonzero().flatten()
    best = logits[places].topk(2, dim=-1).values
    sure = torch.softmax(logits[places], dim=-1).amax(-1)
    return {
        "same_tokens": False,
        "first_difference": parted,
        "logit_gap": float((best[:, 0] - best[:, 1]).min()),
        "confidence_gap": float(sure.max() - sure.min()),
    }


def sampling(model: Any, given: Any, family: str) -> dict[str, Any]:
    """The published loop over ours in time."""
    model, steps = of_family(model, family), given.written // 2
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    runs = loops(model, given, family, steps, ours, theirs)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(given.rounds + 1):
        for name, one in runs.items():
            wait(given.device)
            started = time.perf_counter()
            one()
            wait(given.device)
            if number:
                found[name].append(1000 * (time.perf_counter() - started) / steps)
    return {
        "time": over(found, "published", "ours"),
        "ms": round(median(found["ours"]), 3),
        "published_ms": round(median(found["published"]), 3),
        "steps": steps,
        **difference(model, given, family, ours, theirs),
    }


def control(model: Any, given: Any, family: str) -> dict[str, Any]:
    """The same tokens in float32, where products with other numbers of rows round far below the distances of logits;
    changes the model.
    """
    model.network.float()
    model, steps = of_family(model, family), max(1, given.written // 8)
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    for one in loops(model, given, family, steps, ours, theirs).values():
        one()
    return {"steps": steps, **difference(model, given, family, ours, theirs)}
