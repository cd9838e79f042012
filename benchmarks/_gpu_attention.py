"""Rows of gpu.py about the attention alone: with columns over flash attention, and which tiles its kernels like."""

from collections.abc import Callable
from itertools import product
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from _gpu_model import SHAPES, over, queued

GOAL = 1.7
CALLS = 20


def inputs(given: Any, length: int) -> tuple[torch.Tensor, ...]:
    """Query, key and value [batch, head, length, dim], and two query groups."""
    shape = SHAPES[given.shape]
    heads, dim, dtype = shape["heads"], shape["width"] // shape["heads"], getattr(torch, given.dtype)
    drawn = [torch.randn(given.batch, heads, length, dim, device=given.device, dtype=dtype) for _ in range(3)]
    return *drawn, torch.ones(given.batch, 2, length, device=given.device)


@torch.no_grad()
def over_flash(given: Any, length: int, kind: str) -> dict[str, Any]:
    """Attention with columns against torch's flash attention; ``kind`` is how ours runs.

    ``columns`` as it is chosen, ``own kernels`` both ours, ``hidden`` with a key of each head taken away, ``masked,
    hidden`` also behind a mask, as a padded batch has one, and ``cudnn`` and ``sdpa`` torch's other kernels without
    columns.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from sinkscope.attention import attend

    query, key, value, groups = inputs(given, length)
    hidden = torch.zeros(1, 1, length, dtype=torch.bool, device=given.device)
    hidden[..., 5] = True
    mask = (torch.arange(length, device=given.device) > 2)[None, None, None].expand(1, 1, length, length)
    plain, took = torch.nn.functional.scaled_dot_product_attention, []

    def flash() -> Any:
        """Called as torch calls it, without what choosing it by name costs Python."""
        if query.is_cuda:
            return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, False)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, False)

    def cudnn() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return plain(query, key, value)

    def noted(run: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: took.append(run()[1].path)

    def own_kernels() -> Any:
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):  # flash attention is switched off
            return attend(query, key, value, groups=groups)

    kinds: dict[str, Callable[[], Any]] = {
        "columns": noted(lambda: attend(query, key, value, groups=groups)),
        "own kernels": noted(own_kernels),
        "hidden": noted(lambda: attend(query, key, value, groups=groups, hidden=hidden)),
        "masked, hidden": noted(lambda: attend(query, key, value, groups=groups, mask=mask, hidden=hidden)),
        "cudnn": cudnn,
        "sdpa": lambda: plain(query, key, value),
    }
    found, host = queued({"flash": flash, kind: kinds[kind]}, given.device, given.rounds, CALLS)
    return {
        "time": over(found, kind, "flash"),
        "ms": round(median(found[kind]), 4),
        "flash_ms": round(median(found["flash"]), 4),
        "queueing_ms": round(host[kind], 4),
        "flash_queueing_ms": round(host["flash"], 4),
        "path": sorted(set(took)) or None,
    }


@torch.no_grad()
def tiles(given: Any, length: int, kernel: str, dressed: bool) -> dict[str, Any]:
    """Sizes of tile, warps and stages in one go: what `fused._tiles` and `fused._column_tiles` should say on this
    device.

    Args:
        kernel: ``columns``, behind torch's flash attention unless ``dressed``, or ``attention``, with the columns
            behind it as they are.
        dressed: with a mask and a hidden key, as a padded batch under a rule has them.
    """
    from sinkscope.attention import AttentionInputs, Hidden, fused

    query, key, value, groups = inputs(given, length)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=given.device) if dressed else None
    hidden = torch.zeros(1, 1, 1, length, dtype=torch.bool, device=given.device)
    hidden[..., 5] = True
    scale, taken = query.shape[-1] ** -0.5, [Hidden(hidden)] if dressed else []
    given_in = AttentionInputs(query, key, value, groups, scale, mask, hidden=taken)
    name, dim = {"columns": "_column_tiles", "attention": "_tiles"}[kernel], query.shape[-1]
    now = (
        fused._column_tiles(query, dim, dressed)
        if kernel == "columns"
        else fused._tiles(query, dim, dim, dressed, dressed)
    )
    sizes = (
        list(product((32, 64, 128), (32, 64), (4, 8), (2, 3)))
        if given.device.startswith("cuda")
        else [(16, 16, 4, 1), (32, 16, 4, 1)]
    )
    tried: dict[str, float | None] = {}
    by_torch = "flash" if kernel == "columns" and not dressed else None
    for size in [now, *sizes]:

        def run() -> Any:
            return fused.compute_fused(given_in)

        with (
            patch.object(fused, name, lambda *_, size=size: size),
            patch.object(fused, "_torch_takes", lambda *_: by_torch),
        ):
            try:
                found, _ = queued({"run": run}, given.device, 3, CALLS if given.device.startswith("cuda") else 1)
                tried[",".join(map(str, size))] = round(median(found["run"]), 4)
            except fused.KernelError:
                tried[",".join(map(str, size))] = None  # too large for this device
    timed = {size: ms for size, ms in tried.items() if ms is not None}
    if not timed:
        raise RuntimeError("no kernel runs on this device, whatever its tiles")
    first, best = next(iter(tried)), min(timed, key=timed.__getitem__)
    return {
        "now": first,
        "best": best,
        "best_over_now": None if first not in timed else round(timed[best] / timed[first], 3),
        "ms_by_tiles": tried,
    }
