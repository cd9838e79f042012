"""What sinks are made of (Table 2): sink tokens by token and by class, against the canvas and against training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.candidates import Candidates
from sinkscope.sinks.layers import Canvas
from sinkscope.sinks.points import Point, Values
from sinkscope.sinks.token_classes import CLASSES, token_class

if TYPE_CHECKING:
    from sinkscope.sinks.profile import Profile

TOKENS = 10


@dataclass(frozen=True)
class Composition:
    """Attributes: tally: [point, …, token], how often each token of the canvas (in order of its id) is a sink."""

    tally: Int[np.ndarray, "point *layer token"]


def classes_of(canvas: Canvas, tokens: Int[np.ndarray, " token"]) -> Int[np.ndarray, " token"]:
    """Number in `CLASSES` of each token id."""
    names = [token_class(canvas.vocabulary.get(token), token == canvas.mask_id, token in canvas.special_ids) for token in tokens.tolist()]
    return np.array([CLASSES.index(name) for name in names], dtype=np.int64)


def canvas_tally(canvas: Canvas) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The token ids of a canvas, how often each stands on it over all steps, and [step, position] as indices into the ids."""
    ids, indices, counts = np.unique(canvas.tokens, return_inverse=True, return_counts=True)
    beyond = int(ids[0] < 0)  # −1 sorts first
    return ids[beyond:], counts[beyond:], indices.reshape(canvas.tokens.shape) - beyond


def layer_composition(sinks: Candidates, indices: Int[np.ndarray, "step position"], tokens: int) -> Composition:
    """One layer's; a causal trace's columns never reach beyond its canvas."""
    return Composition(sinks.tally(indices[sinks.step, sinks.key], tokens)[:, :tokens])


def composition_values(profile: "Profile", point: Point, training: Mapping[int, int] | None = None) -> Values:
    """Shares of the sinks by class beside the shares of the canvas, and their ratio.

    Args:
        training: how often each token id stands in the training corpus.
    """
    sinks = profile.composition.tally[profile.points.index(point)].sum(axis=0)
    ids, counts = profile.token_ids, profile.token_counts
    classes = classes_of(profile.canvas, ids)
    of_sinks, of_canvas = (np.bincount(classes, weights=one, minlength=len(CLASSES)) / max(1, one.sum()) for one in (sinks, counts))
    beside = _beside_sinks(profile, point, classes)
    corpus = None
    if training is not None:
        trained = np.array([training.get(token, 0) for token in ids.tolist()], dtype=np.float64)
        corpus = np.bincount(classes, weights=trained, minlength=len(CLASSES)) / max(1, sum(training.values()))
    values: Values = {}
    any_sink = sinks.sum() > 0
    for number, name in enumerate(CLASSES):
        at = (("class", name),)
        values["composition.share_of_sinks", at] = float(of_sinks[number]) if any_sink else float("nan")
        values["composition.share_of_canvas", at] = float(of_canvas[number])
        values["composition.times_expected", at] = _ratio(of_sinks[number], beside[number], any_sink)
        if corpus is not None:
            values["composition.times_training", at] = _ratio(of_sinks[number], corpus[number], any_sink)
    if training is not None:
        values["composition.frequency_correlation", ()] = _rank_correlation(
            sinks / np.maximum(counts, 1), trained, ids != profile.canvas.mask_id
        )
    return values


def _beside_sinks(profile: "Profile", point: Point, classes: np.ndarray) -> Float[np.ndarray, " class"]:
    """Shares of the classes on the canvases that the sinks stand on, each step as often as it has sinks.

    Where masks are many in the same steps as sinks, they would else seem to be sinks.
    """
    indices, lengths = profile.token_indices, profile.canvas.lengths
    weight = profile.concentration.counts[profile.points.index(point)].sum(axis=(1, 2)) / np.maximum(lengths, 1)
    by_token = np.bincount(
        (indices + 1).ravel(), weights=np.broadcast_to(weight[:, None], indices.shape).ravel(), minlength=len(classes) + 1
    )[1:]
    return np.bincount(classes, weights=by_token, minlength=len(CLASSES)) / max(by_token.sum(), 1e-12)


@dataclass(frozen=True)
class TokenShares:
    """One prompt's tokens.

    Attributes:
        ids: the tokens of its canvas.
        of_sinks: [point, token], share of the sinks, 0 throughout without sinks; of_canvas: [token].
    """

    ids: Int[np.ndarray, " token"]
    of_sinks: Float[np.ndarray, "point token"]
    of_canvas: Float[np.ndarray, " token"]


def token_shares(profile: "Profile") -> TokenShares:
    """Shares of every token of one prompt."""
    tally = profile.composition.tally.sum(axis=1)
    shares = tally / np.maximum(tally.sum(axis=1, keepdims=True), 1)
    return TokenShares(profile.token_ids, shares.astype(np.float32), (profile.token_counts / profile.token_counts.sum()).astype(np.float32))


def leading_tokens(prompts: Sequence[TokenShares], number: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """The ten tokens that are sinks most often at a point, each prompt counting alike: shares of sinks and canvas, [prompt].

    A prompt that lacks the token counts 0, one without any sink is NaN.
    """
    ids = np.concatenate([one.ids for one in prompts])
    distinct, place = np.unique(ids, return_inverse=True)
    total = np.bincount(place, weights=np.concatenate([one.of_sinks[number] for one in prompts]))
    found = {}
    for token in distinct[np.lexsort((distinct, -total))][:TOKENS][: np.count_nonzero(total)].tolist():
        shares = np.full((2, len(prompts)), np.nan)
        for prompt, one in enumerate(prompts):
            if one.of_sinks[number].any():
                at = one.ids == token
                shares[:, prompt] = one.of_sinks[number][at].sum(), one.of_canvas[at].sum()
        found[token] = (shares[0], shares[1])
    return found


def _ratio(part: float, expected: float, defined: bool) -> float:
    return float(part / expected) if defined and expected > 0 else float("nan")


def _rank_correlation(first: np.ndarray, second: np.ndarray, where: np.ndarray) -> float:
    """Spearman's, over the distinct tokens of the canvas; NaN with fewer than three or without variation."""
    from scipy.stats import rankdata

    if where.sum() < 3 or np.ptp(first[where]) == 0 or np.ptp(second[where]) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(first[where]), rankdata(second[where]))[0, 1])
