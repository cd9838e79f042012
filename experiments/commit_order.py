"""Does the order in which tokens are committed protect a diffusion model from losing its sinks?

Claim     Hiding a sink makes the tokens that relied on it less sure, so that they are committed later, when the sink
          has moved: that is why diffusion models are robust (arXiv 2510.15731, §5.2).
Command   python experiments/commit_order.py --work DIR --out results/hiding/commit_order.json [--problems 48] [--shots
          0] The same command goes on where it stopped; more problems extend it.
Cost      three seconds of one core a problem without shots.

Fixed before the first run:
  1  On the unhidden run's canvases, with the top key hidden: Spearman's ρ, within a step, of a position's own attention
     to the hidden keys with the change of its confidence and with how many places later it comes; mean over problems.
     The explanation wants the first below 0 and the second above 0, each with a 95 % interval (over problems) off 0.
  2  Accuracy with the top key hidden, minus accuracy with nothing hidden, in four orders: the model's own, one token a
     step; random; the unhidden run's own order, forced; and 2, 4 and 8 tokens a step. The explanation wants the loss to
     be larger in a random and in the forced order than in the model's own (difference of differences, interval off 0),
     and to grow with tokens a step.
  A verdict needs both; anything else is "not shown". One random key is hidden in the same way as a control, with three
  seeds (one until 22 November 2026).
Found     docs/findings.md

Two instruments: `reliance` reads every step of an unhidden run again with the sinks hidden, on the same canvas, so that
only the hiding differs. `write_in_order` writes in an order that is given: if hiding is harmless because tokens wait,
it is no longer harmless when they may not. LLaDA's own ``remasking="random"`` also takes the choice of the order away.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _canvases import Diary
from _settings import Arguments, made_by, run_script
from scipy.stats import bootstrap, spearmanr
from torch import Tensor

import sinkscope
from sinkscope.attention import Columns, LayerCall, StepContext, Watcher, subscribed
from sinkscope.decoding import Generation, make_batch, resolve_settings
from sinkscope.decoding.canvas import publishing
from sinkscope.errors import CallError
from sinkscope.evaluation.tasks import score_number
from sinkscope.interventions import Composed, Intervention
from sinkscope.lab.prompts import few_shot_prompt, held_out
from sinkscope.models import Model

RULES = ("none", "top:1", *(f"random:1@seed={seed}" for seed in range(3)))
LENGTH, BLOCK, BATCH = 32, 16, 8
ARMS: dict[str, dict[str, Any]] = {
    "own order": {"steps": 32},
    "2 tokens a step": {"steps": 16},
    "4 tokens a step": {"steps": 8},
    "8 tokens a step": {"steps": 4},
    "random order": {"steps": 32, "remasking": "random"},
    "forced order": {},
}


# The experiment


def work_on(model: Any, shots: int, first: int, number: int) -> list[dict[str, Any]]:
    """Write some problems in every order and under every rule; return one record each."""
    problems = [held_out("lab-arith")[index] for index in range(first, first + number)]
    prompts = [few_shot_prompt(problem, index, shots) for index, problem in enumerate(problems, first)]
    records: list[dict[str, Any]] = [{"correct": {}} for _ in prompts]
    orders: list[list[list[int]]] = []
    for arm, settings in ARMS.items():
        for rule in RULES:
            diary = Diary() if (arm, rule) == ("own order", "none") else None
            with sinkscope.parse_rule(rule)(model):
                if arm == "forced order":
                    answers = [
                        write_in_order(model, prompt, order) for prompt, order in zip(prompts, orders, strict=True)
                    ]
                elif diary is None:
                    answers = sinkscope.generate(model, prompts, length=LENGTH, block=BLOCK, seed=first, **settings)
                else:
                    with subscribed(model.network, diary):
                        answers = sinkscope.generate(model, prompts, length=LENGTH, block=BLOCK, seed=first, **settings)
            for record, problem, answer in zip(records, problems, answers, strict=True):
                record["correct"][f"{arm}, {rule}"] = int(score_number(problem, answer.text).correct)
            if diary is not None:
                for row, record in enumerate(records):
                    start = diary.steps[0][0].shape[1] - diary.lengths[row]
                    own = [
                        (before[row, start:].numpy(), written[row, start:].numpy()) for before, written in diary.steps
                    ]
                    orders.append([np.flatnonzero(written >= 0).tolist() for _, written in own])
                    record["reliance"] = relied(model, own, diary.lengths[row] - LENGTH)
    return records


def relied(model: Any, own: list[tuple[np.ndarray, np.ndarray]], prompt: int) -> dict[str, float]:
    canvases = np.stack([before for before, _ in own])
    masked = canvases == model.card.mask_id
    place, stops = np.arange(canvases.shape[1]), np.repeat(np.arange(BLOCK, LENGTH + 1, BLOCK), BLOCK)
    candidates = masked & (place[None] < prompt + stops[: len(own), None])
    return reliance(model, canvases, sinkscope.HideTopSinks(1), candidates).correlations()


def interval(values: np.ndarray) -> list[float]:
    if not len(values) or np.ptp(values) == 0:
        return [float(values[0])] * 2 if len(values) else [float("nan")] * 2
    found = bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return [float(found.low), float(found.high)]


def told(values: np.ndarray) -> dict[str, Any]:
    return {"mean": float(values.mean()), "interval": interval(values), "n": len(values)}


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    correct = {key: np.array([one["correct"][key] for one in records], dtype=float) for key in records[0]["correct"]}
    loss = {
        arm: {rule: correct[f"{arm}, {rule}"] - correct[f"{arm}, none"] for rule in RULES[1:]} for arm in ARMS
    }  # a forced order without hiding writes what the free one did
    found: dict[str, Any] = {"accuracy": {key: told(values) for key, values in correct.items()}}
    found["loss"] = {arm: {rule: told(values) for rule, values in one.items()} for arm, one in loss.items()}
    found["loss_beyond_own_order"] = {
        arm: told(one["top:1"] - loss["own order"]["top:1"]) for arm, one in loss.items() if arm != "own order"
    }
    rho = {name: np.array([one["reliance"][name] for one in records]) for name in ("confidence", "order")}
    found["reliance"] = {name: told(values[~np.isnan(values)]) for name, values in rho.items()}
    return found


# What hiding does to the confidence of the tokens that relied on the hidden keys


@dataclass(frozen=True)
class Reliance:
    """What a rule did to confidence: one row for every masked position of every step in which the rule hides something.

    Attributes:
        step, position: int [row].
        attention: [row], share of the position's own attention that went to the keys hidden from it, mean over layers
            and heads.
        confidence, confidence_hidden: [row], probability of the most likely token without and with the hiding.
        order, order_hidden: int [row], its place in the step's order of confidence, 0 for the surest, ties to the lower
            position.
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
        """Return Spearman's ρ of a position's attention to the hidden keys with the effect of hiding, mean over steps
        of 3 rows or more.

        ``confidence``: with the change of its confidence (the explanation predicts a negative ρ); ``order``: with how
        many places later it comes (positive). Steps in which nothing varies are left out; NaN where none is left.
        """
        changes = {
            "confidence": self.confidence_hidden - self.confidence,
            "order": (self.order_hidden - self.order).astype(float),
        }
        return {name: self._within_steps(change) for name, change in changes.items()}

    def _within_steps(self, change: np.ndarray) -> float:
        found = []
        for step in np.unique(self.step):
            rows = self.step == step
            if rows.sum() >= 3 and np.ptp(self.attention[rows]) > 0 and np.ptp(change[rows]) > 0:
                found.append(spearmanr(self.attention[rows], change[rows])[0])
        return float(np.mean(found)) if found else float("nan")


class _Lost(Watcher):
    """The share of attention that each query loses in the running step, mean over layers and heads; None where nothing
    is hidden.
    """

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
    model: Model,
    canvases: Sequence[np.ndarray] | np.ndarray,
    rule: Intervention | Composed,
    candidates: np.ndarray | None = None,
) -> Reliance:
    """Compute what a rule does to the confidence of every masked position, on the canvases of a run in which nothing
    was hidden.

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
        raise CallError(
            f"{model.card.name} has no mask token; confidence and order of commitment are those of a diffusion model"
        )
    array = np.asarray(canvases)
    if (
        array.ndim != 2
        or array.dtype.kind != "i"
        or (array < 0).any()
        or (candidates is not None and candidates.shape != array.shape)
    ):
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


# Writing in a given order


def order_of(written: np.ndarray) -> list[list[int]]:
    """Return the positions that each step of a trace committed, from ``trace.written[:]`` [step, position]."""
    return [np.flatnonzero(step >= 0).tolist() for step in written]


@torch.no_grad()
def write_in_order(model: Model, prompt: str | Sequence[int], order: Sequence[Sequence[int]]) -> Generation:
    """Write with a masked diffusion model, committing in each step the positions of ``order``; arg-max tokens, no
    guidance.

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
        raise CallError(
            f"order: expected every position from {len(ids)} (behind the prompt) on once, found another set"
        )
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


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--shots", type=int, default=0)
    arguments = parser.parse_args()
    model, records = sinkscope.load("lab-diffusion"), []
    for first in range(0, arguments.problems, BATCH):
        kept = arguments.work / f"{model.card.weight_hash[:12]}-{arguments.shots}-{first:04d}.json"
        if not kept.exists():
            found = work_on(model, arguments.shots, first, BATCH)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.with_suffix(".writing").write_text(json.dumps(found))
            kept.with_suffix(".writing").rename(kept)
        records += json.loads(kept.read_text())
        document = {"experiment": "commit_order", **made_by(), "model": model.card.as_dict(), "shots": arguments.shots}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document | {"problems": len(records)} | summary(records), indent=1) + "\n")
        print(
            len(records), {key: round(one["mean"], 2) for key, one in summary(records)["accuracy"].items()}, flush=True
        )


if __name__ == "__main__":
    run_script(main)
