"""The summary of many prompts as ``sinkscope sinks --json`` prints it: counts, means and statistics as plain values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.sinks.token_classes import CLASSES, token_class
from sinkscope.statistics.averages import ratio
from sinkscope.statistics.intervals import intervals_of_sums
from sinkscope.statistics.norms import NORM_KINDS
from sinkscope.statistics.prompt_sums import PROMPT_MEANS
from sinkscope.statistics.statistic import order_of
from sinkscope.statistics.summary import Summary
from sinkscope.statistics.thresholds import EPSILONS, THRESHOLDS, UNITS, Threshold

MOST_TOKENS = 50


def document_of(
    summary: Summary, texts: Mapping[int, str] | None = None, mask_id: int | None = None, special: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Return counts, means and statistics of many prompts as plain values.

    Args:
        texts: how tokens read, for their classes.
        mask_id, special: the mask token, and others that are special.
    """
    arrays = summary.arrays
    tokens = _token_rows(summary, texts or {}, mask_id, special)
    counts: dict[str, Any] = {
        "prompts": summary.prompts,
        "steps": summary.steps,
        "columns": summary.columns,
        "sinks": summary.sinks,
        "heads_with_sink": int(summary.steps_with_sink.sum()),
        "moves": int(arrays["moves.moves"].sum()),
        "swaps": int(arrays["moves.swaps"].sum()),
        "steps_in_a_row_with_sink": int(arrays["moves.pairs"].sum()),
        "groups_compared": int(arrays["groups.compared"].sum()),
        "groups_split": int(arrays["groups.split"].sum()),
        "above_epsilon": {unit: above.sum(axis=0).tolist() for unit, above in zip(UNITS, summary.above, strict=True)},
        "column_sums": arrays["histogram.columns"].sum(axis=0).tolist(),
        "heads_by_number_of_sinks": arrays["strength.per_head"].tolist(),
        "tokens": [row for row in tokens[:MOST_TOKENS] if row["sinks"]],
        "classes": _by_class(tokens),
    }
    means: dict[str, Any] = {
        "by_prompt": _prompt_means(summary),
        "by_layer_and_head": {name: plain(values) for name, values in summary.by_head.items()},
        "norms_by_layer": {name: plain(values) for name, values in _norms_by_layer(summary).items()},
        "epsilon_curve": {
            "epsilon": EPSILONS.tolist(),
            **{
                f"not_sinks_{unit}": plain(1 - ratio(above.sum(axis=0), summary.columns))
                for unit, above in zip(UNITS, summary.above, strict=True)
            },
        },
    }
    return {"counts": counts, "means": means, "statistics": statistics_of(summary)}


def _norms_by_layer(summary: Summary) -> dict[str, Float[np.ndarray, " layer"]]:
    found, mean, effect = {}, summary.norms.mean, summary.norms.effect
    for number, kind in enumerate(NORM_KINDS):
        found[f"{kind}_sinks"], found[f"{kind}_others"], found[f"{kind}_effect_size"] = *mean[number], effect[number]
    return found


def _prompt_means(summary: Summary) -> dict[str, Any]:
    count = summary.arrays["prompts.count"]
    mean, low, high = intervals_of_sums(count, summary.arrays["prompts.sum"], summary.arrays["prompts.square"])
    return {
        name: {
            "mean": plain(mean[at]),
            "interval": None if np.isnan(low[at]) else [float(low[at]), float(high[at])],
            "prompts": int(count[at]),
        }
        for at, name in enumerate(PROMPT_MEANS)
    }


def _token_rows(
    summary: Summary, texts: Mapping[int, str], mask_id: int | None, special: tuple[int, ...]
) -> list[dict[str, Any]]:
    found = summary.token_tallies()
    rows = (
        dict(zip(found, row, strict=True)) for row in zip(*(values.tolist() for values in found.values()), strict=True)
    )
    return [
        {
            **row,
            "text": texts.get(row["token"]),
            "class": token_class(texts.get(row["token"]), row["token"] == mask_id, row["token"] in special),
        }
        for row in rows
    ]


def statistics_of(summary: Summary) -> list[dict[str, Any]]:
    """Return rows like those of `Analysis.as_dict`, with intervals by Student's t over prompts."""
    return sorted([*_means(summary), *_agreements(summary)], key=lambda row: order_of(row["name"]))


def _means(summary: Summary) -> Iterator[dict[str, Any]]:
    count = summary.values[:, 0].astype(np.int64)
    tests = summary.trigger_tests()
    p_values = {threshold: test.p_values() for threshold, test in tests.items()}
    for number, numbers in enumerate(zip(*intervals_of_sums(count, *summary.values[:, 1:].T), strict=True)):
        (name, place), more = summary.keys[number], {}
        at = dict(place)
        value, low, high = (plain(one) for one in numbers)
        if name == "triggers.over_chance" and count[number]:
            threshold = Threshold(at["excess"], at["unit"])
            more["p"] = p_values[threshold][at["trigger"]]
            if low is not None:
                low, high = tests[threshold].widened(at["trigger"], low, high)
        yield {"name": name, "at": at, "value": value, "low": low, "high": high, "prompts": int(count[number]), **more}


def _agreements(summary: Summary) -> Iterator[dict[str, Any]]:
    """Yield agreement between prompts, a mean over pairs of different prompts: Σ_i≠j p_i·p_j = |Σ p_i|² − Σ |p_i|²."""
    arrays = summary.arrays
    having = arrays["profiles.heads_with_sink"]
    pairs = (having * (having - 1)).sum(axis=(1, 2))
    for name in ("place", "class"):
        products = np.square(arrays[f"profiles.{name}"]).sum(axis=(1, 2, 3)) - arrays[f"profiles.{name}_square"]
        for number, (threshold, value) in enumerate(zip(THRESHOLDS, ratio(products, pairs).tolist(), strict=True)):
            row = {"name": f"agreement.prompts_{name}", "at": dict(threshold.place), "value": plain(value)}
            yield {**row, "low": None, "high": None, "prompts": int(arrays["profiles.with_sink"][number])}


def _by_class(tokens: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    names = ("sinks", "main_sinks", "canvas")
    classes: dict[str, dict[str, int]] = {kind: dict.fromkeys(names, 0) for kind in CLASSES}
    for row in tokens:
        for name in names:
            classes[row["class"]][name] += row[name]
    return classes


def plain(values: Any) -> Any:
    """Return arrays as nested lists and numbers as they are, with None where there is no number."""
    if isinstance(values, np.ndarray | np.generic):
        values = values.tolist()
    if isinstance(values, list):
        return [plain(one) for one in values]
    return None if isinstance(values, float) and not np.isfinite(values) else values
