"""Two instruments for paper 1's explanation of why hiding a sink costs a diffusion model little (§5.2).

The explanation: tokens that relied on the sink become less confident and are committed later, when the sink has moved.

`reliance` reads every step of an unhidden run again with the sinks hidden, on the same canvas, so that only the hiding differs.
`write_in_order` writes in an order that is given: if hiding is harmless because tokens wait, it is no longer harmless when they may
not. LLaDA's own ``remasking="random"`` also takes the choice of the order away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention import Columns, LayerCall, StepContext, Watcher, subscribed
from sinkscope.decoding import Generation, make_batch, resolve_settings
from sinkscope.decoding.canvas import publishing
from sinkscope.errors import CallError
from sinkscope.interventions import Composed, Intervention
from sinkscope.models import Model


@dataclass(frozen=True)
class Reliance:
    """What a rule did to confidence: one row for every masked position of every step in which the rule hides something.

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
        """Return Spearman's ρ of a position's attention to the hidden keys with the effect of hiding, mean over steps of 3 rows or more.

        ``confidence``: with the change of its confidence (the explanation predicts a negative ρ); ``order``: with how many places
        later it comes (positive). Steps in which nothing varies are left out; NaN where none is left.
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
    """The share of attention that each query loses in the running step, mean over layers and heads; None where nothing is hidden."""

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
    """Compute what a rule does to the confidence of every masked position, on the canvases of a run in which nothing was hidden.

    Args:
        model: from `load`, a diffusion model.
        canvases: token ids [step, position] that went into each step, such as ``trace.tokens[:]``.
        rule: what is hidden.
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
    """Return the most likely token of every position, and its probability."""
    states = model.network.model(input_ids=canvas[None], use_cache=False).last_hidden_state[0]
    if model.family.shift:
        states = torch.cat([states[:1], states[:-1]])
    best = torch.softmax(model.network.lm_head(states).float(), dim=-1).max(-1)
    return best.indices.cpu().numpy(), best.values.cpu().numpy()


def _order(confidence: np.ndarray) -> np.ndarray:
    places = np.empty(len(confidence), dtype=np.int64)
    places[np.argsort(-confidence, kind="stable")] = np.arange(len(confidence))
    return places


def order_of(written: np.ndarray) -> list[list[int]]:
    """Return the positions that each step of a trace committed, from ``trace.written[:]`` [step, position]."""
    return [np.flatnonzero(step >= 0).tolist() for step in written]


@torch.no_grad()
def write_in_order(model: Model, prompt: str | Sequence[int], order: Sequence[Sequence[int]]) -> Generation:
    """Write with a masked diffusion model, committing in each step the positions of ``order``; arg-max tokens, no guidance.

    Args:
        model: from `load`, a diffusion model.
        prompt: text or token ids.
        order: positions of the canvas, prompt included, for every step; together all positions behind the prompt.

    Raises:
        CallError: an autoregressive model, or an order that leaves out a position or names one twice.
    """
    mask = model.card.mask_id
    if mask is None:
        raise CallError(f"{model.card.name} has no mask token; it writes from left to right")
    ids = model.encode(prompt)
    length = sum(map(len, order))
    if sorted(place for places in order for place in places) != list(range(len(ids), len(ids) + length)):
        raise CallError(f"order: expected every position from {len(ids)} (behind the prompt) on once, found another set")
    batch = make_batch(model, [ids], [prompt if isinstance(prompt, str) else None], length)
    canvas = torch.cat([batch.tokens, batch.tokens.new_full((1, length), mask)], dim=1)
    lengths = torch.tensor([canvas.shape[1]])
    settings = resolve_settings(model.family, length=length)
    with publishing(model, batch, settings) as publisher:
        for places in order:
            publisher.before(canvas, canvas == mask, lengths, (0,))
            states = model.network.model(input_ids=canvas, use_cache=False).last_hidden_state
            if model.family.shift:
                states = torch.cat([states[:, :1], states[:, :-1]], dim=1)
            likely = torch.softmax(model.network.lm_head(states).float(), dim=-1).max(-1)
            written = torch.full_like(canvas, -1)
            written[:, list(places)] = likely.indices[:, list(places)]
            publisher.after(written, likely.indices, likely.values.masked_fill(canvas != mask, torch.nan))
            canvas = torch.where(written >= 0, written, canvas)
    tokens = canvas[0].cpu()
    return Generation(tokens, model.answer_text(tokens[len(ids) :]), len(order), len(ids))
