"""How far apart two computations of the same numbers may lie: the one tolerance of the suite.

Equality to the bit is a *promise* where the same tensors go through the same kernels in the same shape, or through none
at all: tokens, canvases, a trace that is read back, weights that were saved and loaded, a rule at strength zero, one
call after another. Promises are compared with ``torch.equal``. It is an *accident* wherever kernels may differ: in
another batch or length, behind a cache, with weights at another place in memory (a product with one row adds up in
another order where they do not lie at multiples of 16 bytes, and a file that is mapped into memory puts them wherever
its header ends), with other instructions, another number of threads, another processor. Whatever is no promise is
compared here.
"""

import math

import numpy as np
import torch

DEVIATIONS = 9.0
"""λ: roundings of a sum go further astray than this many of their standard deviations for one sum in 10^17."""


def tolerance(*compared, terms, dtype=None, scores=(0.0, 0)):
    """The largest difference that the order of additions explains, as a number.

    A sum of n terms is rounded n times, each time by at most ε/2 of a partial sum. In the worst case all errors point
    in one direction, n·ε/2 on each side of the comparison (Higham, Accuracy and Stability, 2002, eq. 3.5). Such sums
    are made by hand: errors that do not know of each other stay within λ·√n·ε/2 with probability 1 − 2·exp(−λ²/2)
    (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4). Both sides together get ε times the smaller of n and
    λ·√n. All of it is relative to the largest number compared: terms are of that size, also in a sum in which they
    cancel.

    Args:
        compared: tensors, arrays or numbers; NaN and ±∞ are left out.
        terms: n, how many numbers are added up on the longest way from the inputs to a result (see `terms_of`).
        dtype: in which they are rounded; else the coarsest float type among those compared.
        scores: the largest argument of an exponential on that way, and the terms of its own sum: what is an absolute
            error in it is a relative one behind the exponential.
    """
    largest, summed = scores
    return _epsilon(compared, dtype) * (_roundings(terms) + largest * _roundings(summed)) * _largest(compared)


def assert_close(found, expected, *, terms, dtype=None, scores=(0.0, 0), what=""):
    """Fails where shapes differ, where one is NaN or infinite and the other is not the same, and beyond `tolerance`.

    ``expected`` may be one number for all; of a Python float ``dtype`` has to say what it was before.
    """
    one = _array(found)
    other = np.full(one.shape, expected, dtype=np.float64) if isinstance(expected, int | float) else _array(expected)
    assert one.shape == other.shape, f"{what or 'numbers'}: expected shape {other.shape}, found {one.shape}"
    finite = np.isfinite(other)
    np.testing.assert_array_equal(one[~finite], other[~finite], err_msg=f"{what}: where something is no number")
    allowed = tolerance(found, expected, terms=terms, dtype=dtype, scores=scores)
    off = np.abs(np.where(finite, one, 0.0) - np.where(finite, other, 0.0))
    worst = float(off.max(initial=0.0))
    if not worst <= allowed:  # also where only one of them is a number
        at = tuple(int(place) for place in np.unravel_index(int(off.argmax()), off.shape))
        told = f"found {one[at]:.9g}, expected {other[at]:.9g} ± {allowed:.3g}"
        raise AssertionError(f"{what or 'numbers'}: off by {worst:.3g} at {at}: {told}")


def _roundings(terms):
    return min(terms, DEVIATIONS * math.sqrt(terms))


def terms_of(network, positions):
    """How many numbers are added up one after the other in a call of a network: every matrix and norm adds its last
    axis, every layer of attention twice as many as there are positions. Matrices beside each other (queries, keys,
    values) are all counted, which widens the tolerance by less than a half.
    """
    layers = getattr(getattr(network, "config", None), "num_hidden_layers", 1)
    return sum(parameter.shape[-1] for parameter in network.parameters() if parameter.ndim) + 2 * layers * positions


def probabilities_of(network, tokens):
    """Arguments of `assert_close` for probabilities that a network gives: exponentials of logits over their sum."""
    with torch.no_grad():
        logits = network(tokens).logits
    return {"terms": logits.shape[-1], "scores": (float(logits.abs().max()), terms_of(network, tokens.shape[-1]))}


def _array(one):
    return one.detach().cpu().double().numpy() if isinstance(one, torch.Tensor) else np.asarray(one, dtype=np.float64)


def _epsilon(compared, dtype):
    if dtype is not None:
        return torch.finfo(dtype).eps
    return max(_epsilon_of(one) for one in compared)


def _epsilon_of(one):
    if isinstance(one, torch.Tensor):
        return torch.finfo(one.dtype).eps if one.dtype.is_floating_point else torch.finfo(torch.float64).eps
    kind = np.asarray(one).dtype
    return float(np.finfo(kind).eps) if kind.kind == "f" else float(np.finfo(np.float64).eps)


def _largest(compared):
    arrays = [_array(one) for one in compared]
    return max(float(np.abs(one[np.isfinite(one)]).max(initial=0.0)) for one in arrays)
