"""Over-mixing (paper 2): how alike the tokens of a layer have become. Pure functions of hidden states and of attention.

Hidden states come from a forward call with ``output_hidden_states=True`` (what enters each layer, then what leaves the
last), or from a forward hook on each layer; turn them into float arrays [layer, position, dim], padding left out. Run
the same canvas with the sinks hidden for the comparison, and once with one token replaced for `perturbation_spread`.
"""

import numpy as np
from jaxtyping import Float


def effective_rank(
    hidden: Float[np.ndarray, "*layer position dim"], centred: bool = False
) -> Float[np.ndarray, "*layer"]:
    """Return the exponential of the entropy of the singular values' shares (Roy & Vetterli 2007), from 1 to
    min(position, dim).

    1 where all tokens point the same way: fully mixed.

    Args:
        centred: takes the mean token away first, which hides the direction that all share.
    """
    values = np.linalg.svd(_prepared(hidden, centred), compute_uv=False)
    total = values.sum(axis=-1, keepdims=True)
    share = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
    logs = np.log(np.where(share > 0, share, 1.0))
    return np.asarray(np.exp(-(share * logs).sum(axis=-1)))


def mean_cosine(hidden: Float[np.ndarray, "*layer position dim"], centred: bool = False) -> Float[np.ndarray, "*layer"]:
    """Return the mean cosine between two different tokens: 1 where all point the same way. NaN for fewer than two
    tokens.
    """
    hidden = _prepared(hidden, centred)
    norms = np.linalg.norm(hidden, axis=-1, keepdims=True)
    direction = np.divide(hidden, norms, out=np.zeros_like(hidden), where=norms > 0)
    tokens = hidden.shape[-2]
    if tokens < 2:
        return np.full(hidden.shape[:-2], np.nan)
    together = (direction.sum(axis=-2) ** 2).sum(axis=-1) - (direction**2).sum(axis=(-2, -1))
    return np.asarray(together / (tokens * (tokens - 1)))


def perturbation_spread(
    before: Float[np.ndarray, "*layer position dim"], after: Float[np.ndarray, "*layer position dim"], position: int
) -> Float[np.ndarray, "*layer"]:
    """Return how far the change of one token has reached: mean relative change of the other tokens, over that of the
    token itself.

    Args:
        before, after: hidden states of the same canvas, with the token at ``position`` replaced in the second.

    0 where only the token itself changed, 1 where the others changed as much. NaN where the token did not change.
    """
    before, after = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    norms = np.maximum(np.linalg.norm(before, axis=-1), np.finfo(np.float64).tiny)
    change = np.linalg.norm(after - before, axis=-1) / norms
    own = change[..., position]
    others = np.delete(change, position, axis=-1).mean(axis=-1)
    return np.divide(others, own, out=np.full(own.shape, np.nan), where=own > 0)


def attention_variance(attention: Float[np.ndarray, "*head query key"]) -> Float[np.ndarray, "*head"]:
    """Return the variance of attention between queries: mean over keys of Var over queries, times the number of keys
    squared.

    0 where all queries attend alike, whatever they attend to (a static sink alone, or full mixing); scaled so that it
    does not shrink with the length of the canvas. Rows of one query each, such as `sinkscope.attention` gives them.
    """
    attention = np.asarray(attention, dtype=np.float64)
    return np.asarray(attention.var(axis=-2).mean(axis=-1) * attention.shape[-1] ** 2)


def _prepared(hidden: np.ndarray, centred: bool) -> np.ndarray:
    hidden = np.asarray(hidden, dtype=np.float64)
    return hidden - hidden.mean(axis=-2, keepdims=True) if centred else hidden
