"""Semantic or positional: a conditional-logit model of the position of the canvas at which a main sink is placed.

P(main sink at j in step t) = exp(β·x_tj) / Σ_k exp(β·x_tk), with three blocks of features: class of an unmasked token;
place (left, right, frontier); mask or not. A block is worth the bits per choice that held-out prompts lose without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float

from sinkscope.sinks.definition import CLASSES
from sinkscope.statistics.intervals import product, quotient
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
PLACED = "placement is semantic in LLaDA, positional in Dream (§4.2)"


class Placement(Statistic):
    """Gains of the model, in bits per choice, of several prompts together (`held_out_gains`)."""

    order = 5
    definitions: ClassVar = {
        f"choice.{name}": Definition(f"held-out gain {text}", "bits per choice", PLACED)
        for name, text in {
            "all": "of the whole model over equal probabilities",
            "class": "by token class, given position and mask state",
            "position": "by position (left, right, frontier), given class and mask state",
            "mask_state": "by mask state, given class and position",
        }.items()
    }

    def values(self, prompt: PromptSummary) -> Values:
        return {}


@dataclass(frozen=True, eq=False)
class Choices:
    """Choice sets of one prompt, of up to 16 canvases: which positions are there, how many main sinks stand on each."""

    features: Float[np.ndarray, "step position feature"]
    there: Bool[np.ndarray, "step position"]
    chosen: Float[np.ndarray, "threshold step position"]

    @classmethod
    def of(cls, prompt: PromptSummary) -> "Choices":
        canvas = prompt.canvas
        steps = np.unique(np.linspace(0, prompt.steps - 1, min(MOST_STEPS, prompt.steps)).round().astype(int))
        indices, masked = canvas.token_indices[steps], canvas.masked[steps]
        width, there = indices.shape[1], indices >= 0
        chosen = []
        for threshold in prompt.thresholds:
            main = prompt.main_at(threshold)[steps].reshape(len(steps), -1)
            step, _ = places = np.nonzero((main >= 0) & (main < width))
            counts = np.bincount(step * width + main[places], minlength=len(steps) * width)
            chosen.append(counts.reshape(len(steps), width))
        classes, lengths = np.where(there, canvas.token_classes[indices], -1), canvas.lengths[steps]
        here = np.broadcast_to(np.arange(width), masked.shape)
        right = np.maximum(lengths[:, None] - 1 - here, 0)
        frontier = np.where(masked.any(axis=1), masked.argmax(axis=1), lengths)[:, None]
        distances = [np.log1p(one) / np.log1p(width) for one in (here, right, np.abs(here - frontier))]  # at most 1
        place = [here == 0, right == 0, *distances, here >= frontier, here < canvas.settings.prompt_length]
        words = [(classes == CLASSES.index(name)) & ~masked for name in _UNMASKED]
        features = np.stack([*words, *place, masked], axis=-1, dtype=np.float32, casting="unsafe")  # as `BLOCKS`
        return cls(features, there, np.array(chosen, dtype=np.float32))


def fit_choices(
    features: Float[np.ndarray, "set position feature"],
    there: Bool[np.ndarray, "set position"],
    chosen: Float[np.ndarray, "set position"],
) -> Float[np.ndarray, " feature"]:
    """Return the coefficients of largest penalised likelihood (convex)."""
    from scipy.optimize import minimize

    some = chosen.any(axis=1)
    features, there, chosen = features[some], there[some], chosen[some]
    weight, flat = chosen.sum(axis=1, keepdims=True), features.reshape(-1, features.shape[-1])
    penalty = RIDGE * weight.sum()

    def loss_and_gradient(beta: np.ndarray) -> tuple[float, np.ndarray]:
        logs = _log_shares(beta, features, there)
        loss = penalty * product(beta, beta) / 2 - (chosen * np.where(there, logs, 0.0)).sum()
        return loss, product((weight * np.exp(logs) - chosen).ravel(), flat) + penalty * beta

    return minimize(loss_and_gradient, np.zeros(flat.shape[1]), jac=True, method="L-BFGS-B", tol=1e-10).x


def _log_shares(beta: np.ndarray, features: np.ndarray, there: np.ndarray) -> np.ndarray:
    from scipy.special import log_softmax

    return log_softmax(np.where(there, product(features, beta), -np.inf), axis=1)


def bits_per_choice(beta: np.ndarray, choices: Choices, number: int, kept: np.ndarray) -> float:
    """Return the mean −log₂ P of the main sinks of one prompt at the threshold of that number; NaN without a sink."""
    logs = _log_shares(beta, choices.features[..., kept].astype(np.float64), choices.there)
    chosen = choices.chosen[number].astype(np.float64)
    return -quotient((chosen * np.where(choices.there, logs, 0.0)).sum(), chosen.sum()) / np.log(2)


def held_out_gains(prompts: Sequence[Choices], number: int) -> dict[str, np.ndarray]:
    """Return the held-out bits per choice of every prompt at a threshold, cross-validated in five folds of prompts: the
    gain over equal probabilities, and the loss without each block; NaN without a sink, or with one prompt that has one.
    """
    gains = {name: np.full(len(prompts), np.nan) for name in MODELS}
    having = [one for one, choices in enumerate(prompts) if choices.chosen[number].any()]
    folds = [having[fold::FOLDS] for fold in range(min(FOLDS, len(having)))]
    for fold in folds if len(having) > 1 else []:
        features, there, chosen = _stacked([prompts[one] for one in having if one not in fold], number)
        bits = {}
        for name, without in MODELS.items():
            kept = ~np.isin(BLOCKS, without)
            beta = fit_choices(features[..., kept], there, chosen)
            bits[name] = np.array([bits_per_choice(beta, prompts[one], number, kept) for one in fold])
        for name in list(MODELS)[1:]:
            gains[name][fold] = bits[name] - bits["all"]
        for one, of_model in zip(fold, bits["all"], strict=True):
            weight = prompts[one].chosen[number].sum(axis=1)
            uniform = (weight * np.log2(prompts[one].there.sum(axis=1))).sum() / weight.sum()
            gains["all"][one] = float(uniform) - of_model
    return gains


def _stacked(prompts: Sequence[Choices], number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return prompts below each other, padded to the widest canvas; each prompt weighs the same."""
    width, parts = max(one.there.shape[1] for one in prompts), []
    for one in prompts:
        room, chosen = [(0, 0), (0, width - one.there.shape[1])], one.chosen[number] / one.chosen[number].sum()
        parts.append((np.pad(one.features, [*room, (0, 0)]), np.pad(one.there, room), np.pad(chosen, room)))
    features, there, chosen = map(np.concatenate, zip(*parts, strict=True))
    return features.astype(np.float64), there, chosen.astype(np.float64)
