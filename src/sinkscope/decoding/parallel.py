"""Parallel decoding: a step commits every mask that is sure enough, instead of a number that was set beforehand.

Source: Wu et al., 2025 (Fast-dLLM), section 3.3; NVlabs/Fast-dLLM, llada/generate.py for the threshold. The factor follows the paper: the
public code at hand has none.
"""

import torch
from torch import Tensor


def surest(confidence: Tensor, threshold: float, factor: float = 0.0) -> Tensor:
    """Return which candidates a step of parallel decoding commits, bool [batch, position]; the surest one always (Fast-dLLM, algorithm 1).

    Args:
        confidence: [batch, position], −∞ where there is no candidate.
        threshold: all candidates of at least this confidence are committed.
        factor: where it is not 0, the n surest, for the largest n up to which (n + 1)(1 − p_n) stays below it.
    """
    if factor:
        ordered, order = confidence.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(1, confidence.shape[-1] + 1, device=confidence.device)
        enough = ((rank + 1) * (1 - ordered) < factor).cumprod(dim=-1).bool()
        chosen = torch.zeros_like(enough).scatter(-1, order, enough)
    else:
        chosen = confidence >= threshold
    return chosen.scatter(-1, confidence.argmax(-1, keepdim=True), True) & confidence.isfinite()
