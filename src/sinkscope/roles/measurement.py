"""What is measured on one canvas: which heads have a sink, and what becomes of the predictions without it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.models import Model
from sinkscope.roles.probes import Probe
from sinkscope.roles.removal import Removal, divergences, removals_of
from sinkscope.roles.sight import Sight, look, sinks_of
from sinkscope.roles.verdict import Rules


def sinks_by_head(model: Model, probe: Probe, rules: Rules) -> dict[str, Any]:
    """Return which heads have a sink on one canvas, [layer][head]."""
    return {"sink": sinks_of(look(model, probe), rules.excess).any(-1).tolist()}


def measure_heads(
    model: Model, probe: Probe, heads: Sequence[tuple[int, int]], rules: Rules, rows: int, seed: int
) -> list[dict[str, Any]]:
    """Return one row for each head on one canvas."""
    sight = look(model, probe)
    sinks = sinks_of(sight, rules.excess)
    with_sink = [(layer, head) for layer, head in heads if sinks[layer, head].any()]
    removals = [
        one
        for layer, head in with_sink
        for one in removals_of(sight, sinks[layer, head], layer, head, seed + probe.prompt)
    ]
    kl, kept = divergences(model, probe, sight.log_probabilities, removals, rows)
    found: dict[tuple[int, int], dict[str, Any]] = {
        (layer, head): {"prompt": probe.prompt, "layer": layer, "head": head, "sink": (layer, head) in with_sink}
        for layer, head in heads
    }
    for one, divergence, share in zip(removals, kl.tolist(), kept.tolist(), strict=True):
        row = found[one.layer, one.head]
        row[f"kl.{one.name}"], row[f"kept.{one.name}"] = divergence, share
        if not one.zeroed and one.name in ("sink", "rowmass"):
            row[f"taken.{one.name}"] = float(sight.reader_rows[one.layer, one.head][one.keys].sum())
    for layer, head in with_sink:
        found[layer, head] |= described_head(sight, probe, layer, head, sinks[layer, head], rules)
    return list(found.values())


def described_head(
    sight: Sight, probe: Probe, layer: int, head: int, sinks: np.ndarray, rules: Rules
) -> dict[str, Any]:
    """Return where the sink of a head is, what it takes, and where its attention would go without it."""
    columns, norms = sight.columns[layer, head], sight.output_norms[layer, head]
    top = int(sight.order[layer, head, 0])
    median = float(np.median(norms))
    ratios = norms / median if median > 0 else np.full_like(norms, np.nan)
    moved = sight.moved[layer, head]
    substitutes = sinks & (ratios < rules.small)
    substitutes[top] = False
    return {
        "position": top,
        "token": int(probe.tokens[top]),
        "place": top / max(1, len(columns) - 1),
        "share": float(columns[top] / columns.sum()),
        "committed_share": float(sight.committed_rows[layer, head, top]),
        "norm_ratio": float(ratios[top]),
        "evenness": float(sight.evenness[layer, head]),
        "to_substitutes": float(moved[substitutes].sum()),
        "to_itself": float(sight.itself[layer, head][~substitutes].sum()),
        "to_text": float((moved - sight.itself[layer, head])[~substitutes].sum()),
        "to_sink_token": float(sight.sink_token[layer, head]),
    }


def measure_together(
    model: Model, probe: Probe, heads: Sequence[tuple[int, int]], rules: Rules, rows: int, seed: int
) -> dict[str, float]:
    """Return what becomes of the predictions on one canvas when the sinks of several heads are hidden at once."""
    sight = look(model, probe)
    sinks = sinks_of(sight, rules.excess)
    by_name: dict[str, list[Removal]] = {"sink": [], "rowmass": []}
    for layer, head in heads:
        if sinks[layer, head].any():
            for one in removals_of(sight, sinks[layer, head], layer, head, seed + probe.prompt):
                if one.name in by_name:
                    by_name[one.name].append(one)
    kl, kept = divergences(model, probe, sight.log_probabilities, list(by_name.values()), rows)
    return {
        f"{kind}.{name}": float(one)
        for kind, found in (("kl", kl), ("kept", kept))
        for name, one in zip(by_name, found, strict=True)
    }
