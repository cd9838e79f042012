"""Is attending to a sink close to doing nothing, and does the token keep the tokens of the text apart?

Claim     Sinks have small values, so that attending to one adds little; they protect against over-mixing, and the token takes that
          over (arXiv 2601.19657, §3 and Fig. 1: values of LLaDA's sinks ≈ 2.4 against ≈ 7.6, Dream's ≈ 3.0 against ≈ 7.9).
Command   python experiments/sink_token_mixing.py ARMS [--problems 40] --out results/sink-token/mixing
Cost      about half a minute an arm on one core.
Expected  The token's value norm is below that of the text; tokens of the last layer are further apart with it than with it hidden.
Found     results/sink-token/mixing.md once the arms are trained.

Everything is read on the same half-written canvases: held-out sums with their own answers, every second token of which is a mask.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _mixing import effective_rank, mean_cosine, perturbation_spread
from _settings import Arguments, run_script
from _sink_arms import Arm, find_arms, measure_arms, show, sums, write

from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.interventions import HideSinkToken
from sinkscope.lab.vocabulary import question_text
from sinkscope.sinks import is_sink


def canvases(arm: Arm, model: Any, count: int) -> list[torch.Tensor]:
    """Return canvases of question and worked answer, every second token of the answer masked, of one length so that sums compare."""
    made = []
    for problem in sums(arm, count):
        question = model.encode(question_text(problem))
        answer = list(model.tokenizer(" " + problem.worked, add_special_tokens=False).input_ids)
        made.append(
            torch.tensor(
                [question + [model.card.mask_id if place % 2 else token for place, token in enumerate(answer)]]
            )
        )
    return made


class Values(Watcher):
    """Value norms, mean over key heads, of the sink token, of sinks of the text (Eq. 3, ε = 3) and of the other tokens; and what
    each adds: Σ c·‖v‖ (of an arm with a gate: before the gate).
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        text = columns.sums[0, :, call.groups.index("all")]
        norms = call.value[0].norm(dim=-1)  # [kv head, key]
        norms = norms.repeat_interleave(text.shape[0] // norms.shape[0], dim=0)
        sinks = torch.from_numpy(is_sink(text[None].numpy())[0])
        added, total = text * norms, float((text * norms).sum())
        row = {
            "value norm of sinks of the text": _mean(norms[sinks]),
            "value norm of other tokens": _mean(norms[~sinks]),
        }
        if columns.prefix is not None and call.own is not None and call.own.keys is not None:
            values = call.own.values
            values = torch.zeros_like(call.own.keys) if values is None else values
            own = (values if values.ndim == 3 else values[0]).norm(dim=-1)  # [kv head, sink]
            given = columns.prefix[0, :, 0]
            share = float((given * own.repeat_interleave(text.shape[0] // own.shape[0], dim=0)).sum())
            total += share
            row |= {"value norm of the token": float(own.mean()), "share of Σ c·‖v‖ from the token": share / total}
        self.rows.append(row | {"share of Σ c·‖v‖ from sinks of the text": float(added[sinks].sum()) / total})


def _mean(values: torch.Tensor) -> float:
    return float(values.mean()) if values.numel() else float("nan")


def states(model: Any, tokens: torch.Tensor) -> np.ndarray:
    """Return states [layer, position, width], as they enter each layer and as they leave the last."""
    found = model.network.model(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states
    return torch.stack([one[0] for one in found]).numpy()


def mixing(model: Any, tokens: torch.Tensor) -> dict[str, float]:
    """Compute the measures of mixing of the states that leave the last layer, per token where the number of tokens bounds them."""
    before = states(model, tokens)
    other = tokens.clone()
    other[0, 1] = tokens[0, 2]
    spread = perturbation_spread(before, states(model, other), 1)
    return {
        "effective rank per token, last layer": float(effective_rank(before[-1])) / tokens.shape[1],
        "mean cosine, last layer": float(mean_cosine(before[-1])),
        "reach of a changed token, last layer": float(spread[-1]),
    }


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("arms", type=Path)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    started, arms = time.time(), find_arms(arguments.arms)

    def measure(arm: Arm, model: Any) -> dict[str, np.ndarray]:
        has_sink = model.card.sink_token not in (None, "gate")
        rows = []
        for tokens in canvases(arm, model, arguments.problems):
            watcher = Values()
            with subscribed(model.network, watcher):
                model.network.model(input_ids=tokens, use_cache=False)
            row = {key: _nanmean([one.get(key, np.nan) for one in watcher.rows]) for key in watcher.rows[0]} | mixing(
                model, tokens
            )
            with HideSinkToken()(model) if has_sink else contextlib.nullcontext():
                row |= (
                    {f"{key}, token hidden": value for key, value in mixing(model, tokens).items()} if has_sink else {}
                )
            rows.append(row)
        return {key: np.array([row[key] for row in rows]) for key in rows[0]}

    rows = measure_arms(arms, measure).rows()
    write(arguments.out, "A sink token and over-mixing", {"rows": rows}, show(rows), arms, started)


def _nanmean(values: list[float]) -> float:
    there = [value for value in values if not np.isnan(value)]
    return float(np.mean(there)) if there else float("nan")


if __name__ == "__main__":
    run_script(main)
