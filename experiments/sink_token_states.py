"""Is attending to a sink close to doing nothing, does the token keep the tokens of the text apart, and what does it
say?

Claims    mixing   Sinks have small values, so that attending to one adds little; they protect against over-mixing, and
          the token takes that
                   over (arXiv 2601.19657, §3 and Fig. 1: values of LLaDA's sinks ≈ 2.4 against ≈ 7.6, Dream's ≈ 3.0
                   against ≈ 7.9). Read on half-written canvases: held-out sums with their own answers, every second
                   token of which is a mask.
          content  The token holds negligible semantic content (§4.3): a logit lens on its row, layer by layer. Beside
                   it stand the tokens of the text on held-out sums, and rows drawn at random with the norm of the
                   token's, as rows without any content.
Command   python experiments/sink_token_states.py mixing ARMS [--problems 40] --out results/sink-token/mixing
          python experiments/sink_token_states.py content ARMS --problems 20 --out results/sink-token/content
Cost      about half a minute an arm on one core.
Expected  The token's value norm is below that of the text; tokens of the last layer are further apart with it than with
          it hidden. Through norm and head the token's row gives a distribution that is far from any word and from that
          of text tokens.
Found     results/sink-token once the arms are trained.
"""

import argparse
import contextlib
import time
from typing import Any

import numpy as np
import torch
from _mixing import effective_rank, mean_cosine, perturbation_spread
from _settings import run_script
from _sink_arms import Arm, arguments_of, find_arms, measure_arms, prompts, show, sums, write

from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.errors import CallError
from sinkscope.interventions import HideSinkToken
from sinkscope.lab.problems import question_text
from sinkscope.sinks import is_sink


def canvases(arm: Arm, model: Any, count: int) -> list[torch.Tensor]:
    """Return canvases of question and worked answer, every second token of the answer masked, of one length so that
    sums compare.
    """
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
    """Value norms, mean over key heads, of the sink token, of sinks of the text (Eq. 3, ε = 3) and of the other tokens;
    and what
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
    """Compute the measures of mixing of the states that leave the last layer, per token where the number of tokens
    bounds them.
    """
    before = states(model, tokens)
    other = tokens.clone()
    other[0, 1] = tokens[0, 2]
    spread = perturbation_spread(before, states(model, other), 1)
    return {
        "effective rank per token, last layer": float(effective_rank(before[-1])) / tokens.shape[1],
        "mean cosine, last layer": float(mean_cosine(before[-1])),
        "reach of a changed token, last layer": float(spread[-1]),
    }


def _nanmean(values: list[float]) -> float:
    there = [value for value in values if not np.isnan(value)]
    return float(np.mean(there)) if there else float("nan")


def measure_mixing(arguments: argparse.Namespace) -> None:
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


def rows_of_tokens(stack: Any) -> list[torch.Tensor]:
    """Return states [sink, width] of the sink tokens, as they enter each layer and leave the last; each is a sequence
    of its own.
    """
    hidden = stack.sink_token.embedding[:, None]
    rotations = stack.rotary_emb(hidden, position_ids=torch.zeros(1, 1, dtype=torch.long))
    found = [hidden[:, 0]]
    for layer in stack.layers:
        if stack.sink_token.variant.zero_value:  # its attention gives nothing
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        else:
            hidden = layer(hidden, position_embeddings=rotations)
        found.append(hidden[:, 0])
    return found


def lens(network: Any, hidden: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(network.lm_head(network.model.norm(hidden)).float(), dim=-1)


def bits(logs: torch.Tensor) -> np.ndarray:
    return (-(logs.exp() * logs).sum(-1) / np.log(2)).numpy()


def measure_content(arguments: argparse.Namespace) -> None:
    started = time.time()
    arms = [arm for arm in find_arms(arguments.arms) if arm.recipe["sink_token"].startswith("token")]
    if not arms:
        raise CallError(f"{arguments.arms}: expected arms with a token, found none")
    words: dict[str, list[str]] = {}

    def measure(arm: Arm, model: Any) -> dict[str, np.ndarray]:
        network, found = model.network, {}
        own = rows_of_tokens(network.model)
        states = [[], *([] for _ in network.model.layers)]
        for prompt in prompts(arm, arguments.problems):
            tokens = torch.tensor([model.encode(prompt)])
            for kept, state in zip(
                states,
                network.model(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states,
                strict=True,
            ):
                kept.append(state[0])
        generator = torch.Generator().manual_seed(0)
        for number, hidden in enumerate(own):
            if number == len(own) - 1:
                break  # the last state of the text has gone through the norm already
            logs, text = lens(network, hidden), lens(network, torch.cat(states[number]))
            noise = torch.randn(200, hidden.shape[-1], generator=generator)
            random = lens(network, noise / noise.norm(dim=-1, keepdim=True) * hidden.norm(dim=-1).mean())
            found[f"layer {number}: bits, token"] = bits(logs)
            found[f"layer {number}: bits, tokens of the text"] = bits(text)
            found[f"layer {number}: bits, random rows"] = bits(random)
            found[f"layer {number}: probability of its first word, token"] = logs.exp().amax(-1).numpy()
            found[f"layer {number}: probability of their first word, text"] = text.exp().amax(-1).numpy()
            for place, best in enumerate(log.topk(5) for log in logs):
                shown = [
                    f"{model.tokenizer.decode([int(token)])!r} {float(p.exp()):.2f}"
                    for token, p in zip(best.indices, best.values, strict=True)
                ]
                which = f", token {place + 1} of {len(logs)}" if len(logs) > 1 else ""
                words.setdefault(f"{arm.name}, seed {arm.seed}{which}", []).append(
                    f"layer {number}: " + ", ".join(shown)
                )
        return {key: np.array([values.mean()]) for key, values in found.items()}

    rows = measure_arms(arms, measure).rows()
    text = (
        show(rows)
        + "\n\n"
        + "\n\n".join(f"{name}:\n\n" + "\n".join(f"* {line}" for line in lines) for name, lines in words.items())
    )
    write(arguments.out, "What the sink token says", {"rows": rows, "words": words}, text, arms, started)


MEASURES = {"mixing": measure_mixing, "content": measure_content}


def measure_all(given: argparse.Namespace) -> None:
    MEASURES[given.what](given)


if __name__ == "__main__":
    run_script(lambda: measure_all(arguments_of(__doc__, MEASURES, 40)))
