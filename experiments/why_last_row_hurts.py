"""Why does hiding the top key of the last row hurt lab-autoregressive, and hiding the top column not?

Claim     Llama falls from .85 to .02 when the key that its newest query attended to most may not be seen next (arXiv
          2510.15731, Table 1): the paper takes that key for a sink.
Command   python experiments/why_last_row_hurts.py --out results/hiding/last_row.json [--problems 96] [--shots 5]
Cost      a minute or two of one core.

Method    Every problem is answered once with nothing hidden, and prompt and answer are read again in one call. The
          query of every answer token (from the second on: step 0 is spared) loses, in every head, the key that the
          query before it attended to most: what the previous-step rule does, on the unhidden run's own tokens. Counted:
          whether the next token stays the same. Each arm hides only some of these keys. The unit of evidence is the
          problem.

Hypotheses, fixed before the first run; an arm counts as doing the damage when the 95 % interval of its loss leaves out
0 and it has at
least half of the loss of the whole rule:
  S sinks       The damage comes from keys at the first position, or from sinks by Eq. 3 on the running column sums.
  C content     It comes from the other keys: what this token's query reads, or its neighbours.
  P predictor   The rule picks the previous query's neighbour: in heads that look a fixed distance back it hides a key
                that the next query does not want (its own needed key is one further), so that the loss should grow with
                the attention that is removed.
Found     docs/findings.md
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import Arguments, made_by, run_script
from scipy.stats import bootstrap
from transformers import DynamicCache

import sinkscope
from sinkscope.attention import Columns, Hidden, Hider, LayerCall, Watcher, subscribed
from sinkscope.interventions.rule_context import class_in
from sinkscope.lab.prompts import few_shot_prompt, held_out
from sinkscope.sinks.definition import CLASSES

EXCESS = 3.0


class Reader(Watcher):
    """Attention [head, query, key] and norms of values [head, key] of every layer, one text at a time."""

    def __init__(self) -> None:
        self.weights: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def watch(self, call: LayerCall, columns: Columns) -> None:
        groups = call.query.shape[1] // call.key.shape[1]
        scores = (call.query @ call.key.repeat_interleave(groups, 1).mT / call.query.shape[-1] ** 0.5)[0]
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        self.weights[call.index] = torch.softmax(scores.masked_fill(later, -torch.inf), -1)
        self.values[call.index] = call.value[0].norm(dim=-1).repeat_interleave(groups, 0)


class Rows(Hider):
    """Hides keys [row, head, query, key] by layer, every row of the batch its own, and adds up what that removes."""

    def __init__(self, keys: dict[int, torch.Tensor], zeroed: bool) -> None:
        self.keys, self.zeroed = keys, zeroed
        self.removed: torch.Tensor | float = 0.0

    def hide(self, call: LayerCall) -> list[Hidden]:
        return [Hidden(self.keys[call.index], None, self.zeroed)]

    def observe(self, call: LayerCall, columns: Columns) -> None:
        assert columns.removed is not None
        self.removed = self.removed + columns.removed.sum((1, 2))


def choices(
    reader: Reader, start: int, classes: torch.Tensor, number: int
) -> dict[str, tuple[dict[int, torch.Tensor], bool]]:
    """Return arms by name: keys [head, query, key] by layer, queries from ``start`` on, and whether weights become 0
    after the softmax.
    """
    arms: dict[str, dict[int, torch.Tensor]] = {}
    for layer, whole in reader.weights.items():
        size = whole.shape[-1]
        weights, before, running = whole[:, start:], whole[:, start - 1 : -1], whole.cumsum(1)[:, start - 1 : -1]
        place, asking = torch.arange(size), torch.arange(start, size)
        asked = (asking > start)[None, :, None] & (place[None] < asking[:, None])[
            None
        ]  # the new key was not there to be seen before
        last = one_hot(before.masked_fill(~asked, -1.0).argmax(-1), size) & asked
        column = one_hot(running.masked_fill(~asked, -1.0).argmax(-1), size) & asked
        total = asking[None, :, None].float()
        sink = (running - (total - running) / (total - 1).clamp(min=1)) > EXCESS
        back = (asking[:, None] - place[None])[None]
        source = torch.Generator().manual_seed(1000 * number + layer)
        drawn = torch.rand(weights.shape, generator=source)
        free = asked & ~last & ~sink
        order = drawn.masked_fill(~free, 2.0).argsort(-1)
        masses = []
        for row in (before, weights):  # matched where the rule looks, and where it takes effect
            held = (row * free).gather(-1, order)
            enough = held.cumsum(-1) - held / 2 < (row * last).sum(-1, keepdim=True)
            masses.append(torch.zeros_like(free).scatter_(-1, order, enough) & free)
        every = {
            "top of the last row": last,
            "top of the columns": column,
            "random of equal mass in the row before": masses[0],
            "random of equal mass": masses[1],
            "random": one_hot(order[..., 0], size) & free,
            "last row, first position": last & (place == 0),
            "last row, sinks by Eq. 3": last & sink,
            "last row, no sinks": last & ~sink,
            "last row, one back": last & (back == 1),
            "last row, two back": last & (back == 2),
            "last row, further back in the answer": last & (back > 2) & (place >= start),
            "last row, in the prompt": last & (place < start) & (place > 0) & (back > 2),
            "last row, still the top": last & one_hot(weights.masked_fill(~asked, -1.0).argmax(-1), size),
            "last row, no longer the top": last & ~one_hot(weights.masked_fill(~asked, -1.0).argmax(-1), size),
            "what the query itself attends to most": one_hot(weights.argmax(-1), size)
            & (asking > start)[None, :, None],
            **{f"last row, {name}": last & (classes == index) for index, name in enumerate(CLASSES)},
            **{f"last row, layer {layer}": last},
        }
        for name, keys in every.items():
            arms.setdefault(name, {})[layer] = keys
    return {
        **{name: (keys, False) for name, keys in arms.items()},
        "top of the last row, zeroed": (arms["top of the last row"], True),
    }


def one_hot(place: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(place, size).bool()


def interval(values: np.ndarray) -> list[float]:
    if np.ptp(values) == 0:
        return [float(values[0])] * 2
    found = bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return [float(found.low), float(found.high)]


@torch.no_grad()
def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=96)
    parser.add_argument("--shots", type=int, default=5)
    arguments = parser.parse_args()
    model = sinkscope.load("lab-autoregressive")
    prompts = [
        few_shot_prompt(held_out("lab-arith")[number], number, arguments.shots) for number in range(arguments.problems)
    ]
    answers = sinkscope.generate(model, prompts, length=32)
    kept: dict[str, list[float]] = {}
    whole: dict[str, list[float]] = {}
    removed: dict[str, list[float]] = {}
    share: dict[str, list[float]] = {}
    described: list[dict[str, float]] = []
    for number, answer in enumerate(answers):
        tokens, start = answer.tokens, answer.prompt_length - 1
        classes = torch.tensor([CLASSES.index(class_in(model, int(token))) for token in tokens[:-1]])
        with subscribed(model.network, reader := Reader()):
            plain = model.network(input_ids=tokens[None, :-1]).logits[0, start + 1 :].argmax(-1)
        cache = DynamicCache(config=model.network.config)
        model.network(input_ids=tokens[None, :start], past_key_values=cache, use_cache=True)
        counted = len(tokens) - 2 - start
        chosen = choices(reader, start, classes, number)
        layers, heads = len(reader.weights), reader.weights[0].shape[0]
        for zeroed in (False, True):
            names = [name for name, one in chosen.items() if one[1] == zeroed]
            rows = {
                layer: torch.stack([chosen[name][0].get(layer, torch.zeros_like(keys)) for name in names])
                for layer, keys in chosen["top of the last row"][0].items()
            }
            behind = copy.deepcopy(cache)
            behind.batch_repeat_interleave(len(names))
            fresh = tokens[None, start:-1].expand(len(names), -1)
            with subscribed(model.network, hider := Rows(rows, zeroed)):
                found = model.network(input_ids=fresh, past_key_values=behind, use_cache=True).logits[:, 1:].argmax(-1)
            assert isinstance(hider.removed, torch.Tensor)
            for row, name in enumerate(names):
                same = (found[row] == plain).float()
                kept.setdefault(name, []).append(float(same.mean()))
                whole.setdefault(name, []).append(float(same.min()))
                removed.setdefault(name, []).append(float(hider.removed[row]) / counted / heads / layers)
                share.setdefault(name, []).append(
                    sum(float(one[row].any(-1).sum()) for one in rows.values()) / counted / heads / layers
                )
        described.append(describe(reader, slice(start + 1, len(tokens) - 1)))
        print(number, f"{kept['top of the last row'][-1]:.2f}", end=" ", flush=True)
    print()
    loss = {name: 1 - np.array(values) for name, values in kept.items()}
    document = {
        "experiment": "why_last_row_hurts",
        **made_by(),
        "model": model.card.as_dict(),
        "problems": arguments.problems,
        "shots": arguments.shots,
        "arms": {
            name: {
                "kept": float(np.mean(kept[name])),
                "kept_interval": interval(np.array(kept[name])),
                "whole_answer_kept": float(np.mean(whole[name])),
                "removed_share": float(np.mean(removed[name])),
                "heads_that_lose_a_key": float(np.mean(share[name])),
                "share_of_the_loss": float(values.mean() / max(1e-9, loss["top of the last row"].mean())),
            }
            for name, values in loss.items()
        },
        "keys": {name: float(np.nanmean([one[name] for one in described])) for name in described[0]},
    }
    for name, arm in document["arms"].items():
        print(
            f"{name:<40}kept {arm['kept']:.3f}  whole {arm['whole_answer_kept']:.2f}  removed {arm['removed_share']:.4f}"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")


def describe(reader: Reader, queries: slice) -> dict[str, float]:
    """Describe the keys of the two rules, as shares over layers, heads and queries of an answer."""
    found: dict[str, list[Any]] = {}
    for layer, weights in reader.weights.items():
        size = weights.shape[-1]
        place = torch.arange(size)
        asked = (place[None] < place[:, None])[None]
        before, running = weights.roll(1, dims=1), weights.cumsum(1).roll(1, dims=1)
        values = reader.values[layer] / reader.values[layer].median(-1, keepdim=True).values
        for name, seen in (("last row", before), ("columns", running)):
            top = seen.masked_fill(~asked, -1.0).argmax(-1)[:, queries]
            mine = weights[:, queries].gather(-1, top[..., None])[..., 0]
            count = place[queries][None]
            found.setdefault(f"{name}: attention of the query that loses it", []).append(mine.mean())
            found.setdefault(f"{name}: first position", []).append((top == 0).float().mean())
            found.setdefault(f"{name}: one back", []).append((count - top == 1).float().mean())
            found.setdefault(f"{name}: in the last eight", []).append((count - top <= 8).float().mean())
            found.setdefault(f"{name}: value over the median", []).append(values.gather(-1, top).mean())
            sums = running[:, queries].gather(-1, top[..., None])[..., 0]
            found.setdefault(f"{name}: sink by Eq. 3", []).append(
                (sums - (count - sums) / (count - 1) > EXCESS).float().mean()
            )
            found.setdefault(f"{name}: layer {layer}, first position", []).append((top == 0).float().mean())
    return {name: float(torch.stack(values).mean()) for name, values in found.items()}


if __name__ == "__main__":
    run_script(main)
