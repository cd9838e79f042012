"""Semantic or positional: a conditional-logit model of the position of the canvas at which a main sink is placed.

    P(main sink at j in step t) = exp(β·x_tj) / Σ_k exp(β·x_tk)

with three blocks of features: the class of an unmasked token; its place (left, right, frontier); whether it is masked.
A block is worth the bits per choice that held-out prompts lose when the model is fitted without it: "class given
position", "position given class". Nothing is gained on held-out prompts by a block that says nothing. Heads share the
coefficients: the model describes where sinks stand on the canvas, not which head puts them there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks.token_classes import CLASSES
from sinkscope.statistics.averages import product
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values

MOST_PROMPTS = 32
MOST_STEPS = 16
FOLDS = 5
RIDGE = 1e-3
"""Penalty on β²/2 per choice, so that a class that is never chosen keeps a finite coefficient."""

_UNMASKED = [name for name in CLASSES if name not in ("mask", "word")]
CLASS, POSITION, MASKED = range(3)
BLOCKS = np.array([CLASS] * len(_UNMASKED) + [POSITION] * 7 + [MASKED])
MODELS = {"all": (), "class": (CLASS,), "position": (POSITION,), "mask_state": (MASKED,)}
"""The whole model, and the models without a block."""
PLACED = "placement is semantic in LLaDA, positional in Dream (§4.2)"


class Placement(Statistic):
    """What the model gains, in bits per choice: it compares prompts (`PlacementModel`), so that one prompt by itself
    has no number.
    """

    order = 5
    definitions: ClassVar = {
        "choice.all": Definition(
            "held-out gain of the whole model over equal probabilities", "bits per choice", PLACED
        ),
        "choice.class": Definition(
            "held-out gain by token class, given position and mask state", "bits per choice", PLACED
        ),
        "choice.position": Definition(
            "held-out gain by position (left, right, frontier), given class and mask state", "bits per choice", PLACED
        ),
        "choice.mask_state": Definition(
            "held-out gain by mask state, given class and position", "bits per choice", PLACED
        ),
    }

    def values(self, prompt: PromptSummary) -> Values:
        return {}


@dataclass(frozen=True, eq=False)
class Choices:
    """Choice sets of one prompt: the canvases of up to 16 steps, spread evenly over the denoising.

    Attributes:
        there: which positions can be chosen.
        chosen: how many heads have their main sink there.
    """

    features: Float[np.ndarray, "step position feature"]
    there: Bool[np.ndarray, "step position"]
    chosen: Float[np.ndarray, "threshold step position"]

    @classmethod
    def of(cls, prompt: PromptSummary) -> "Choices":
        """Return the choice sets of one prompt, at its thresholds."""
        canvas = prompt.canvas
        steps = np.unique(np.linspace(0, prompt.steps - 1, min(MOST_STEPS, prompt.steps)).round().astype(int))
        indices, masked = canvas.token_indices[steps], canvas.masked[steps]
        width, there = indices.shape[1], indices >= 0
        chosen = []
        for threshold in prompt.thresholds:
            main = prompt.main_at(threshold)[steps].reshape(len(steps), -1)
            step, _ = places = np.nonzero((main >= 0) & (main < width))
            chosen.append(
                np.bincount(step * width + main[places], minlength=len(steps) * width).reshape(len(steps), width)
            )
        classes = np.where(there, canvas.token_classes[indices], -1)
        features = choice_features(classes, masked, canvas.lengths[steps], canvas.prompt_length)
        return cls(features.astype(np.float32), there, np.array(chosen, dtype=np.float32))


def choice_features(
    classes: Int[np.ndarray, "step position"],
    masked: Bool[np.ndarray, "step position"],
    lengths: Int[np.ndarray, " step"],
    prompt_length: int,
) -> Float[np.ndarray, "step position feature"]:
    """Return the features of every position, in the order of `BLOCKS`; distances as log(1 + positions), scaled to at
    most 1.
    """
    steps, width = masked.shape
    here = np.arange(width)
    right = np.maximum(lengths[:, None] - 1 - here, 0)
    frontier = np.where(masked.any(axis=1), masked.argmax(axis=1), lengths)[:, None]
    place = [
        np.broadcast_to(here == 0, (steps, width)),
        right == 0,
        np.broadcast_to(np.log1p(here), (steps, width)) / np.log1p(width),
        np.log1p(right) / np.log1p(width),
        np.log1p(np.abs(here - frontier)) / np.log1p(width),
        here >= frontier,
        np.broadcast_to(here < prompt_length, (steps, width)),
    ]
    words = [(classes == CLASSES.index(name)) & ~masked for name in _UNMASKED]
    return np.stack([*words, *place, masked], axis=-1).astype(np.float64)


def fit_choices(
    features: Float[np.ndarray, "set position feature"],
    there: Bool[np.ndarray, "set position"],
    chosen: Float[np.ndarray, "set position"],
    start: np.ndarray | None = None,
) -> Float[np.ndarray, " feature"]:
    """Return the coefficients of largest penalised likelihood, by Newton's method with step halving; the problem is
    convex.
    """
    weight = chosen.sum(axis=1)
    used = weight > 0
    features, there, chosen, weight = features[used], there[used], chosen[used], weight[used]
    beta = np.zeros(features.shape[-1]) if start is None else start.copy()
    penalty = RIDGE * weight.sum()
    value, shares = _objective(beta, features, there, chosen, weight, penalty)
    observed = np.einsum("sp,spf->f", chosen, features)
    for _ in range(50):
        weighted = shares * weight[:, None]
        means = np.einsum("sp,spf->sf", shares, features)
        gradient = np.einsum("sp,spf->f", weighted, features) - observed + penalty * beta
        flat = features.reshape(-1, features.shape[-1])
        second_moment = product(flat.T, flat * weighted.reshape(-1, 1))
        curvature = second_moment - product(means.T, means * weight[:, None]) + penalty * np.eye(len(beta))
        move = np.linalg.solve(curvature, gradient)
        size = 1.0
        while size > 1e-6:
            tried, tried_shares = _objective(beta - size * move, features, there, chosen, weight, penalty)
            if tried <= value:
                break
            size /= 2
        else:
            return beta
        beta, gained = beta - size * move, value - tried
        value, shares = tried, tried_shares
        if gained <= 1e-7 * weight.sum():
            break
    return beta


def _objective(
    beta: np.ndarray, features: np.ndarray, there: np.ndarray, chosen: np.ndarray, weight: np.ndarray, penalty: float
) -> tuple[float, np.ndarray]:
    scores = np.where(there, product(features, beta), -np.inf)
    top = scores.max(axis=1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(axis=1, keepdims=True)
    log_total = np.log(total[:, 0]) + top[:, 0]
    likelihood = (chosen * np.where(there, scores, 0.0)).sum() - product(weight, log_total)
    return float(-likelihood + penalty * product(beta, beta) / 2), powers / total


def bits_per_choice(beta: np.ndarray, choices: Choices, number: int, kept: np.ndarray) -> float:
    """Return the mean −log₂ P of the main sinks of one prompt at the threshold of that number; NaN without a sink."""
    chosen = choices.chosen[number].astype(np.float64)
    weight = chosen.sum(axis=1)
    if not weight.any():
        return float("nan")
    value, _ = _objective(beta, choices.features[..., kept].astype(np.float64), choices.there, chosen, weight, 0.0)
    return value / weight.sum() / np.log(2)


@dataclass
class PlacementModel:
    """Collects the choice sets of the first 32 prompts and cross-validates over prompts, in five folds."""

    prompts: list[Choices] = field(default_factory=list)

    def add(self, choices: Choices) -> None:
        """Take in one prompt's choice sets."""
        if len(self.prompts) < MOST_PROMPTS:
            self.prompts.append(choices)

    def result(self, number: int) -> dict[str, np.ndarray]:
        """Return the held-out bits per choice of every prompt at the threshold of that number.

        ``all``: what the whole model gains over equal probabilities; ``class``, ``position``, ``mask_state``: what is
        lost without the block. NaN without a sink, or with fewer than two prompts that have one.
        """
        gains = {name: np.full(len(self.prompts), np.nan) for name in MODELS}
        having = [one for one, choices in enumerate(self.prompts) if choices.chosen[number].any()]
        folds = [having[fold::FOLDS] for fold in range(min(FOLDS, len(having)))]
        for fold in folds if len(having) > 1 else []:
            data = _stacked([self.prompts[one] for one in having if one not in fold], number)
            bits = {}
            for name, without in MODELS.items():
                kept = ~np.isin(BLOCKS, without)
                beta = fit_choices(data[0][..., kept], data[1], data[2])
                bits[name] = [bits_per_choice(beta, self.prompts[one], number, kept) for one in fold]
            for place, one in enumerate(fold):
                gains["all"][one] = _uniform_bits(self.prompts[one], number) - bits["all"][place]
                for name in list(MODELS)[1:]:
                    gains[name][one] = bits[name][place] - bits["all"][place]
        return gains


def _uniform_bits(choices: Choices, number: int) -> float:
    weight = choices.chosen[number].sum(axis=1)
    return float((weight * np.log2(choices.there.sum(axis=1))).sum() / weight.sum())


def _stacked(prompts: Sequence[Choices], number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return prompts below each other, padded to the widest canvas; each prompt weighs the same."""
    width = max(one.there.shape[1] for one in prompts)

    def padded(array: np.ndarray, axis: int) -> np.ndarray:
        room = [(0, 0)] * array.ndim
        room[axis] = (0, width - array.shape[axis])
        return np.pad(array, room)

    features = np.concatenate([padded(one.features, 1) for one in prompts]).astype(np.float64)
    there = np.concatenate([padded(one.there, 1) for one in prompts])
    chosen = np.concatenate([padded(one.chosen[number] / one.chosen[number].sum(), 1) for one in prompts]).astype(
        np.float64
    )
    return features, there, chosen
