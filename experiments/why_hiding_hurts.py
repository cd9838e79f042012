"""Why does hiding the top key of every head hurt lab-diffusion, when the paper's diffusion models hardly notice?

Claim     "Masking sinks leads to only a minor degradation in performance" of diffusion models (arXiv 2510.15731, §5.2).
Command   python experiments/why_hiding_hurts.py --out results/hiding/probe-5.json [--shots 5] [--problems 48] [--part
          heads]
Cost      about 10 minutes of one core with 5 shots, 4 without.

Method    Every problem is written once with nothing hidden. Up to two of the steps that committed a result (a number
          behind "="), and one that committed another token of the answer, are then read again, each time with some keys
          hidden, chosen by the columns of the unhidden reading. What is counted is whether the position that the
          unhidden run committed in that step still gets the same token ("kept", results and others apart), and by how
          much its log-probability fell. The unit of evidence is the problem (mean over its canvases); intervals are
          bootstrapped over problems. Results and others are apart because the first sixteen answers
          under top:1 had their operands and their form right and their sums wrong (what_breaks.py); verdicts are read
          off results.

Hypotheses, fixed before the first run, each with what would decide for it (difference in kept tokens, its 95 % interval
off 0):
  H1 carriers   The top column of a head is here no no-op: its value is as large as others', and hiding hurts because
                content is lost.
                For it: value norms of top keys not below the median (paper 2 reads about a third off its models);
                    hiding only the half of
                the top keys with the larger contribution c·|v| hurts more than hiding the half with the smaller.
  H2 mass       Hiding hurts by how much attention it takes away, whatever the key. For it: random keys of the same mass
                hurt as much. (Added after the first run, which matched the attention of all queries alone: random keys
                with as much attention of the position being written, "where written". A key that takes most of that row
                has no match, so the heads and canvases where the top key takes more than half of it are also told apart
                from those where it takes less.)
  H3 spreading  The keys themselves do not matter, the attention that is spread over the others does. For it: with their
                weights set to 0 after the softmax (no spreading) fewer tokens are lost than with −∞ before it.
  H4 few heads  A few heads do all of it. For it: with the six worst heads (found on the other half of the problems)
                spared, at least half of the damage is gone; sparing six random heads does not do that.
  H5 own query  It is the attention of the committed position itself that matters. For it: hiding from that query alone
                costs at least half of what hiding from all queries does.
  H6 constant   The top key serves as a constant that the network counts on, not as a carrier of what this text says.
                For it: with its value replaced by the mean value of that head's top keys (attention as it is), at least
                half of the tokens that zeroing loses are kept. (Added, like the split of results from others, after a
                try on four problems, before the first run.)
Found     docs/findings.md
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _canvases import (
    CHUNK,
    EXCESS,
    Choose,
    Chunk,
    Masks,
    Planned,
    Reader,
    Replaced,
    at_top,
    collect,
    contribution,
    excess,
    heads_only,
    make_chunk,
    only,
    random_keys,
    ranked,
    read,
    top,
    value_ratio,
    who,
)
from _settings import SETTINGS, Arguments, made_by, run_script
from scipy.stats import bootstrap

import sinkscope
from sinkscope.sinks.definition import CLASSES


def cells(layers: int, heads: int) -> dict[str, Choose]:
    """Return everything that is hidden, by name."""

    def halves(values: Callable[[Chunk], Masks], larger: bool) -> Choose:
        def choose(chunk: Chunk) -> tuple[Masks, None, bool]:
            found = at_top(values(chunk), chunk)
            middle = found.permute(1, 0, 2).flatten(1).median(-1).values[None, :, None]
            return only(chunk, (found > middle) if larger else (found <= middle)), None, False

        return choose

    def sinks(above: bool) -> Choose:
        return lambda chunk: (only(chunk, (at_top(excess(chunk), chunk) > EXCESS) == above), None, False)

    def of_class(name: str) -> Choose:
        def choose(chunk: Chunk) -> tuple[Masks, None, bool]:
            same = (chunk.classes == CLASSES.index(name))[:, None]
            return {layer: keys & same for layer, keys in top(chunk).items()}, None, False

        return choose

    def of_equal_mass(which: str, *seeds: int) -> dict[str, Choose]:
        name = "random of equal mass" + (" where written" if which == "own" else "")

        def choose(chunk: Chunk, seed: int) -> tuple[Masks, None, bool]:
            return random_keys(chunk, seed, getattr(chunk, which)), None, False

        return {f"{name}, seed {seed}": partial(choose, seed=seed) for seed in seeds}

    def most_of_the_row(above: bool) -> Choose:
        return lambda chunk: (only(chunk, (at_top(chunk.own, chunk) > 0.5) == above), None, False)

    def matched(chunk: Chunk, seed: int) -> tuple[Masks, None, bool]:
        where = at_top(chunk.own, chunk) <= 0.5
        return (
            {layer: keys & where[layer][..., None] for layer, keys in random_keys(chunk, seed, chunk.own).items()},
            None,
            False,
        )

    found: dict[str, Choose] = {
        "top": lambda chunk: (top(chunk), None, False),
        "top, zeroed": lambda chunk: (top(chunk), None, True),
        **of_equal_mass("columns", 0),
        "top, larger contribution": halves(contribution, True),
        "top, smaller contribution": halves(contribution, False),
        "top, sinks by Eq. 3": sinks(True),
        "top, no sinks by Eq. 3": sinks(False),
        "top, larger value": halves(value_ratio, True),
        "top, smaller value": halves(value_ratio, False),
        **of_equal_mass("columns", 1, 2),
        **of_equal_mass("own", 0, 1, 2),
        "top, most of the row where written": most_of_the_row(True),
        "top, less of it": most_of_the_row(False),
        **{
            f"random of equal mass where written, less of it, seed {seed}": partial(matched, seed=seed)
            for seed in (0, 1, 2)
        },
        "rank 2": lambda chunk: (ranked(chunk, 1), None, False),
        "random": lambda chunk: (random_keys(chunk, 0), None, False),
        "top, broader": halves(lambda chunk: chunk.breadth, True),
        "top, narrower": halves(lambda chunk: chunk.breadth, False),
        **{f"top, {name}": of_class(name) for name in CLASSES if name != "white space"},
    }
    for group in (
        "committed position",
        "all but the committed position",
        "masked but the committed position",
        "prompt",
        "answer so far",
    ):
        found[f"top, from {group}"] = lambda chunk, group=group: (top(chunk), who(chunk, group), False)
    for layer in range(layers):
        found[f"top, layer {layer}"] = lambda chunk, layer=layer: ({layer: top(chunk)[layer]}, None, False)
    for layer in range(layers):
        for head in range(heads):
            chosen = np.zeros((layers, heads), dtype=bool)
            chosen[layer, head] = True
            found[f"top, head {layer}.{head}"] = lambda chunk, chosen=chosen: (heads_only(chunk, chosen), None, False)
    return found


# The experiment


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="lab-diffusion")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--part", choices=("keys", "heads"), default="keys", help="heads: one at a time, and H4")
    parser.add_argument(
        "--layer", type=int, default=None, help="with --part heads: the heads of this layer only, without H4"
    )
    arguments = parser.parse_args()
    model = sinkscope.load(arguments.model)
    if arguments.layer is not None and (arguments.part != "heads" or arguments.layer >= model.card.layers):
        parser.error(
            f"--layer: expected --part heads and a layer from 0 to {model.card.layers - 1}, found {arguments.layer}"
        )
    layers, heads = model.card.layers, model.card.heads
    canvases = collect(model, arguments.problems, arguments.shots)
    order = sorted(range(len(canvases)), key=lambda index: len(canvases[index].tokens))
    chunks = [
        make_chunk(model, [canvases[index] for index in order[at : at + CHUNK]]) for at in range(0, len(order), CHUNK)
    ]
    for chunk in chunks:
        chunk.plain.append(read(model, chunk, Reader(chunk)))
    problem = np.array([canvases[index].problem for index in order])
    result = np.array([canvases[index].result for index in order])
    results: dict[str, dict[str, np.ndarray]] = {}

    means = {layer: torch.cat([chunk.top_value[layer] for chunk in chunks]).mean(0) for layer in range(layers)}

    def run(name: str, choose: Choose, replaced: bool = False) -> None:
        kept, fell, removed, looked, keys, own = [], [], 0.0, 0.0, 0.0, 0.0
        for chunk in chunks:
            chosen, queries, zeroed = choose(chunk)
            planned = Replaced(chosen, chunk.real, means) if replaced else Planned(chosen, queries, zeroed)
            found, rows = read(model, chunk, planned), torch.arange(len(chunk.token))
            kept.append((found.argmax(-1) == chunk.token).double().numpy())
            fell.append((found - chunk.plain[0])[rows, chunk.token].numpy())
            removed, looked = removed + planned.removed, looked + float(chunk.real.sum()) * layers * heads
            keys += sum(float(mask.sum()) for mask in chosen.values())
            from_it = (
                torch.ones(len(chunk.token))
                if queries is None
                else queries[torch.arange(len(chunk.token)), chunk.position].float()
            )
            own += sum(
                float((chunk.own[layer] * mask * from_it[:, None, None]).sum()) for layer, mask in chosen.items()
            )
        same = np.concatenate(kept)
        per_problem = {
            "kept": by_problem(same, problem, result),
            "others_kept": by_problem(same, problem, ~result),
            "log_probability": by_problem(np.concatenate(fell), problem, result),
        }
        results[name] = per_problem | {
            "removed_share": np.array(removed / looked),
            "keys_per_head": np.array(keys / len(problem) / layers / heads),
            "removed_where_written": np.array(own / len(problem) / layers / heads),
        }
        both = f"results kept {per_problem['kept'].mean():.3f}, others {per_problem['others_kept'].mean():.3f}"
        print(f"{name:<44}{both}  removed {results[name]['removed_share']:.4f}", flush=True)

    def write(spared: Any = None) -> None:
        document = {
            "experiment": "why_hiding_hurts",
            **made_by(),
            "model": model.card.as_dict(),
            "settings": {**SETTINGS["lab-diffusion"], "shots": arguments.shots},
            "problems": arguments.problems,
            "unhidden_log_probability": float(
                np.mean([float(c.plain[0][torch.arange(len(c.token)), c.token].mean()) for c in chunks])
            ),
            "top_keys": described,
            "cells": {name: summary(cell) for name, cell in results.items()},
            "against_top": {
                name: paired(results["top"]["kept"], cell["kept"]) for name, cell in results.items() if name != "top"
            },
            "halves": {
                name: paired(results[f"top, larger {name}"]["kept"], results[f"top, smaller {name}"]["kept"])
                for name in ("contribution", "value")
                if f"top, smaller {name}" in results
            },
            "spared": spared,
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")

    described = describe_top(chunks, layers, heads)
    every = cells(layers, heads)
    run("top", every.pop("top"))
    if arguments.part == "keys":
        run("top, value replaced by the mean", lambda chunk: (top(chunk), None, True), replaced=True)
    for name, choose in every.items():
        asked = arguments.layer is None or f", head {arguments.layer}." in name
        if (", head " in name) == (arguments.part == "heads") and asked:
            run(name, choose)
            write()
    if arguments.part == "heads" and arguments.layer is None:
        write(spare_heads(results, problem[result], chunks, layers, heads, run))


def by_problem(values: np.ndarray, problem: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return np.array([values[chosen & (problem == one)].mean() for one in np.unique(problem[chosen])])


def interval(values: np.ndarray) -> list[float]:
    if np.ptp(values) == 0:
        return [float(values[0])] * 2
    found = bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return [float(found.low), float(found.high)]


def summary(cell: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        "kept": float(cell["kept"].mean()),
        "kept_interval": interval(cell["kept"]),
        "others_kept": float(cell["others_kept"].mean()),
        "others_kept_interval": interval(cell["others_kept"]),
        "log_probability": float(cell["log_probability"].mean()),
        "log_probability_interval": interval(cell["log_probability"]),
        "removed_share": float(cell["removed_share"]),
        "keys_per_head": float(cell["keys_per_head"]),
        "removed_where_written": float(cell["removed_where_written"]),
    }


def paired(one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    return {"difference": float((one - other).mean()), "interval": interval(one - other)}


def spare_heads(
    results: Any, problem: np.ndarray, chunks: list[Chunk], layers: int, heads: int, run: Any
) -> dict[str, Any]:
    """Compute H4: heads are ranked on the even problems and judged on the odd ones, and the other way round."""
    numbers = np.unique(problem)
    even = numbers % 2 == 0
    damage = np.array(
        [[-results[f"top, head {layer}.{head}"]["log_probability"] for head in range(heads)] for layer in range(layers)]
    )  # [layer, head, problem]
    kept, rng = {"worst": np.zeros(len(numbers)), "random": np.zeros(len(numbers))}, np.random.default_rng(0)
    worst_heads = {}
    for half in (True, False):
        mean = damage[:, :, even == half].mean(-1)
        worst = np.zeros(layers * heads, dtype=bool)
        worst[np.argsort(-mean.ravel())[:6]] = True
        others = np.zeros(layers * heads, dtype=bool)
        others[rng.choice(np.flatnonzero(~worst), 6, replace=False)] = True
        for name, spared in (("worst", worst), ("random", others)):
            cell = f"top, {name} six heads of the {'even' if half else 'odd'} problems spared"
            run(cell, lambda chunk, spared=spared: (heads_only(chunk, ~spared.reshape(layers, heads)), None, False))
            kept[name][even != half] = results[cell]["kept"][even != half]
        worst_heads["even" if half else "odd"] = [
            f"{index // heads}.{index % heads}" for index in np.flatnonzero(worst)
        ]
    return {
        "heads": worst_heads,
        **{name: {"kept": float(values.mean()), "interval": interval(values), "over_top": paired(values, results["top"]["kept"])}
           for name, values in kept.items()},
    }  # fmt: skip


def describe_top(chunks: list[Chunk], layers: int, heads: int) -> dict[str, Any]:
    """Describe the top keys by head, as means over canvases."""
    parts: dict[str, list[torch.Tensor]] = {}
    for chunk in chunks:
        size = chunk.real.sum(-1)[None, :, None]
        first = chunk.real.long().argmax(-1)[None, :, None]
        place = torch.stack([columns.argmax(-1) for layer, columns in sorted(chunk.columns.items())])
        classes = chunk.classes[torch.arange(len(chunk.tokens))[None, :, None], place]
        held = chunk.tokens[torch.arange(len(chunk.tokens))[None, :, None], place]
        values = {
            "share": at_top(chunk.columns, chunk) / size,
            "sink": (at_top(excess(chunk), chunk) > EXCESS).float(),
            "value_ratio": at_top(value_ratio(chunk), chunk),
            "contribution": at_top(contribution(chunk), chunk),
            "breadth": at_top(chunk.breadth, chunk),
            "own_attention": at_top(chunk.own, chunk),
            "from_itself": at_top(chunk.diagonal, chunk) / at_top(chunk.columns, chunk),
            "first_position": (place == first).float(),
            "in_prompt": (place < chunk.prompt_end[None, :, None]).float(),
            "the_committed_position": (place == chunk.position[None, :, None]).float(),
            "holds_the_committed_token": (held == chunk.token[None, :, None]).float(),
            **{f"class: {name}": (classes == number).float() for number, name in enumerate(CLASSES)},
        }
        for name, found in values.items():
            parts.setdefault(name, []).append(found)
    whole = {name: torch.cat(found, dim=1) for name, found in parts.items()}
    return {
        "mean": {name: float(found.mean()) for name, found in whole.items()},
        "by_head": {name: found.mean(1).numpy().round(4).tolist() for name, found in whole.items()},
        "by_layer": {name: found.mean((1, 2)).numpy().round(4).tolist() for name, found in whole.items()},
    }


if __name__ == "__main__":
    run_script(main)
