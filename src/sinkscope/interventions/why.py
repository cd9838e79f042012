"""Why hiding a sink may cost little (paper 1, §5.2): what it does to the confidence of the tokens that looked at it.

The paper's explanation: tokens that relied on the sink become less sure and are committed later, when the sink has moved.
Here every step of an unhidden run is looked at again with the sinks hidden, on the same canvas, so that only the hiding differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention import Columns, LayerCall, StepContext, Watcher, subscribed
from sinkscope.errors import CallError
from sinkscope.interventions.composition import Composed
from sinkscope.interventions.intervention import Intervention
from sinkscope.models import Model


@dataclass(frozen=True)
class Reliance:
    """One row for every masked position of every step from which on the rule hides something.

    Attributes:
        step, position: int [row].
        attention: [row], share of the position's own attention that went to the keys hidden from it, mean over layers and heads.
        confidence, confidence_hidden: [row], probability of the most likely token without and with the hiding.
        order, order_hidden: int [row], its place in the step's order of confidence, 0 for the surest, ties to the lower position.
        same_token: bool [row], whether the most likely token stayed the same.
    """

    step: np.ndarray
    position: np.ndarray
    attention: np.ndarray
    confidence: np.ndarray
    confidence_hidden: np.ndarray
    order: np.ndarray
    order_hidden: np.ndarray
    same_token: np.ndarray

    def correlations(self) -> dict[str, float]:
        """Spearman's ρ of a position's attention to the hidden keys with what hiding did to it, mean over the steps with at least 3 rows.

        ``confidence``: with its change (the explanation wants it negative); ``order``: with how many places later it comes
        (positive). Steps in which nothing varies are left out; NaN where none is left.
        """
        changes = {"confidence": self.confidence_hidden - self.confidence, "order": (self.order_hidden - self.order).astype(float)}
        return {name: self._within_steps(change) for name, change in changes.items()}

    def _within_steps(self, change: np.ndarray) -> float:
        from scipy.stats import spearmanr

        found = []
        for step in np.unique(self.step):
            rows = self.step == step
            if rows.sum() >= 3 and np.ptp(self.attention[rows]) > 0 and np.ptp(change[rows]) > 0:
                found.append(spearmanr(self.attention[rows], change[rows])[0])
        return float(np.mean(found)) if found else float("nan")


class _Lost(Watcher):
    """Mean over layers and heads of what each query loses in the running step; None where nothing was hidden."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._layers = 0

    def begin_step(self, context: StepContext) -> None:
        self._sum, self._layers = None, 0

    def watch(self, call: LayerCall, columns: Columns) -> None:
        self._layers += 1
        if columns.removed is not None:
            mine = columns.removed[0].mean(0)
            self._sum = mine if self._sum is None else self._sum + mine

    @property
    def share(self) -> Tensor | None:
        """[query]."""
        return None if self._sum is None else self._sum / self._layers


@torch.no_grad()
def reliance(
    model: Model, canvases: Sequence[np.ndarray] | np.ndarray, rule: Intervention | Composed, candidates: np.ndarray | None = None
) -> Reliance:
    """What a rule does to the confidence of every masked position, on the canvases of a run in which nothing was hidden.

    Args:
        canvases: token ids [step, position] that went into each step, such as ``trace.tokens[:]``.
        candidates: bool [step, position], the positions among which a step commits; all masked ones when None. With
            blocks, ``~numpy.isnan(trace.confidence[:])``.

    Raises:
        CallError: an autoregressive model, or canvases that are no array of tokens.
    """
    mask = model.card.mask_id
    if mask is None:
        raise CallError(f"{model.card.name} has no mask token; confidence and order of commitment are those of a diffusion model")
    array = np.asarray(canvases)
    if array.ndim != 2 or array.dtype.kind != "i" or (array < 0).any() or (candidates is not None and candidates.shape != array.shape):
        raise CallError(
            f"canvases: expected token ids [step, position], with candidates of the same shape, found {array.shape} of {array.dtype}"
        )
    tokens = torch.from_numpy(array.astype(np.int64)).to(model.device)
    plain = [_most_likely(model, canvas) for canvas in tokens]
    hidden, shares = [], []
    with rule(model), subscribed(model.network, lost := _Lost()):
        for canvas in tokens:
            hidden.append(_most_likely(model, canvas))
            shares.append(lost.share)
    rows: list[dict[str, np.ndarray]] = []
    for step, share in enumerate(shares):
        among = (tokens[step] == mask).cpu().numpy() if candidates is None else candidates[step]
        places = np.flatnonzero(among)
        if share is None or not len(places):
            continue
        (token, sure), (token_hidden, sure_hidden) = plain[step], hidden[step]
        rows.append(
            {
                "step": np.full(len(places), step),
                "position": places,
                "attention": share.cpu().numpy()[places],
                "confidence": sure[places],
                "confidence_hidden": sure_hidden[places],
                "order": _order(sure[places]),
                "order_hidden": _order(sure_hidden[places]),
                "same_token": token[places] == token_hidden[places],
            }
        )
    names = Reliance.__dataclass_fields__
    return Reliance(**{name: np.concatenate([row[name] for row in rows]) if rows else np.zeros(0) for name in names})


def _most_likely(model: Model, canvas: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The most likely token of every position, and its probability."""
    states = model.network.model(input_ids=canvas[None], use_cache=False).last_hidden_state[0]
    if model.family.shift:
        states = torch.cat([states[:1], states[:-1]])
    best = torch.softmax(model.network.lm_head(states).float(), dim=-1).max(-1)
    return best.indices.cpu().numpy(), best.values.cpu().numpy()


def _order(confidence: np.ndarray) -> np.ndarray:
    places = np.empty(len(confidence), dtype=np.int64)
    places[np.argsort(-confidence, kind="stable")] = np.arange(len(confidence))
    return places
