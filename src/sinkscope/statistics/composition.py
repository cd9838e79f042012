"""Tokens that are sinks (Table 2), by token and by class, against the canvas and against training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.definition import CLASSES
from sinkscope.statistics.intervals import quotient
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds
from sinkscope.statistics.thresholds import Threshold

MOST_TOKENS = 10
MADE_OF = "sinks are new lines, punctuation, masks (Table 2)"


class Composition(Statistic):
    """Shares of the sinks by class of token beside the shares of the canvas, and their ratio."""

    order = 4
    definitions: ClassVar = {
        "composition.share_of_sinks": Definition("sinks on tokens of a class", "share of sinks", MADE_OF),
        "composition.share_of_canvas": Definition("tokens of a class, all steps", "share of canvas", MADE_OF),
        "composition.times_expected": Definition("share of sinks, over that of their canvases", "ratio", MADE_OF),
        "composition.times_training": Definition("share of sinks, over that of the training corpus", "ratio", MADE_OF),
        "composition.frequency_correlation": Definition(
            "rank correlation of sinks per occurrence of a token with its frequency in training",
            "Spearman's ρ",
            MADE_OF,
        ),
        "composition.token": Definition("sinks on one token; prompts without it count 0", "share of sinks", MADE_OF),
        "composition.token_on_canvas": Definition("that token, all steps", "share of canvas", MADE_OF),
    }

    def values(self, prompt: PromptSummary) -> Values:
        return at_thresholds(prompt, _values_at)


def _values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
    sinks, canvas = prompt.sinks_by_token(threshold), prompt.canvas
    classes, counts = canvas.token_classes, canvas.token_counts
    of_sinks, of_canvas = (
        np.bincount(classes, weights=one, minlength=len(CLASSES)) / max(1, one.sum()) for one in (sinks, counts)
    )
    expected = np.bincount(classes, weights=expected_shares(prompt, threshold), minlength=len(CLASSES))
    training, trained, corpus = canvas.settings.training, None, None
    if training is not None:
        trained = np.array([training.get(token, 0) for token in canvas.token_ids.tolist()], dtype=np.float64)
        corpus = np.bincount(classes, weights=trained, minlength=len(CLASSES)) / max(1, sum(training.values()))
    values: Values = {}
    if not sinks.any():
        of_sinks = np.full(len(CLASSES), np.nan)
    for number, name in enumerate(CLASSES):
        at = (("class", name),)
        values["composition.share_of_sinks", at] = float(of_sinks[number])
        values["composition.share_of_canvas", at] = float(of_canvas[number])
        values["composition.times_expected", at] = quotient(of_sinks[number], expected[number])
        if corpus is not None:
            values["composition.times_training", at] = quotient(of_sinks[number], corpus[number])
    if trained is not None:
        from scipy.stats import spearmanr

        but_mask = canvas.token_ids != canvas.settings.mask_id
        pair = np.array([sinks / np.maximum(counts, 1), trained])[:, but_mask]
        varied = pair.shape[1] > 2 and np.ptp(pair, axis=1).all()
        values["composition.frequency_correlation", ()] = float(np.asarray(spearmanr(*pair))[0]) if varied else np.nan
    return values


def expected_shares(prompt: PromptSummary, threshold: Threshold) -> Float[np.ndarray, " token"]:
    """Return each token's share of the sinks if sinks were any tokens of their own step's canvas."""
    canvas = prompt.canvas
    weight = prompt.counts(threshold).sum(axis=(1, 2)) / np.maximum(canvas.lengths, 1)
    indices = canvas.token_indices + 1  # 0 beyond the canvas
    weights = np.broadcast_to(weight[:, None], indices.shape)
    by_token = np.bincount(indices.ravel(), weights=weights.ravel(), minlength=len(canvas.token_ids) + 1)[1:]
    return by_token / max(by_token.sum(), 1e-12)


@dataclass(frozen=True, eq=False)
class TokenShares:
    """The tokens of one prompt's canvas, with their shares of the sinks (0 without sinks) and of the canvas."""

    ids: Int[np.ndarray, " token"]
    of_sinks: Float[np.ndarray, "threshold token"]
    of_canvas: Float[np.ndarray, " token"]

    @classmethod
    def of(cls, prompt: PromptSummary) -> "TokenShares":
        tally = np.array([prompt.sinks_by_token(threshold) for threshold in prompt.thresholds])
        shares = tally / np.maximum(tally.sum(axis=1, keepdims=True), 1)
        counts = prompt.canvas.token_counts
        return cls(prompt.canvas.token_ids, shares.astype(np.float32), (counts / counts.sum()).astype(np.float32))


def leading_tokens(prompts: Sequence[TokenShares], number: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return {token: shares of sinks, of canvas by prompt} of the ten most frequent sinks; NaN for a prompt without."""
    ids = np.concatenate([one.ids for one in prompts])
    distinct, place = np.unique(ids, return_inverse=True)
    total = np.bincount(place, weights=np.concatenate([one.of_sinks[number] for one in prompts]))
    found = {}
    for token in distinct[np.lexsort((distinct, -total))][:MOST_TOKENS][: np.count_nonzero(total)].tolist():
        shares = np.full((2, len(prompts)), np.nan)
        for prompt, one in enumerate(prompts):
            if one.of_sinks[number].any():
                at = one.ids == token
                shares[:, prompt] = one.of_sinks[number][at].sum(), one.of_canvas[at].sum()
        found[token] = (shares[0], shares[1])
    return found
