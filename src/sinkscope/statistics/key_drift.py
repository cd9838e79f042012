"""Drift of keys and values: how far those of one position move from a step to a later one, which is what a cache
forgoes.

Measures   ``key_cosine`` and ``value_cosine``, between then and now; ``key_norm`` and ``value_norm``, by how much the
norm has changed, as
           a share of what it was.
Lags       how many steps lie between.
Classes    *new*: written in between, a mask then and a token now; *sink*: a sink by Eq. 3 now, in some head that reads
these keys; *mask*:
           a mask then and now; *text*: all others, prompt and answer. A position belongs to the first that fits.

A value is a mean over the steps and positions of one prompt, in one layer and head of keys. Intervals are over prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.statistics.intervals import interval_of_means

MEASURES = ("key_cosine", "value_cosine", "key_norm", "value_norm")
CLASSES = ("new", "sink", "mask", "text")


def drift_document(
    sums: Sequence[Float[np.ndarray, "measure lag class layer kv_head"]],
    counts: Sequence[Float[np.ndarray, "lag class layer kv_head"]],
    lags: Sequence[int],
) -> dict[str, Any]:
    """Return the means of every measure as plain values: by layer with intervals over prompts, and by layer and head.

    Args:
        sums: of each prompt, over its steps and positions.
        counts: how many there were.
        lags: in steps.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.stack([one / count for one, count in zip(sums, counts, strict=True)])
    there = ~np.isnan(values)
    heads = np.where(there.any(-1), np.where(there, values, 0).sum(-1) / np.maximum(there.sum(-1), 1), np.nan)
    by_layer = interval_of_means(heads.reshape(len(values), -1))
    shape = heads.shape[1:]
    in_heads = np.where(there.any(0), np.where(there, values, 0).sum(0) / np.maximum(there.sum(0), 1), np.nan)
    rows = []
    for measure, name in enumerate(MEASURES):
        for lag, steps in enumerate(lags):
            for at, kind in enumerate(CLASSES):
                place = (measure, lag, at)
                layers = {which: getattr(by_layer, which).reshape(shape)[place] for which in ("mean", "low", "high")}
                rows.append(
                    {
                        "measure": name,
                        "lag": steps,
                        "class": kind,
                        "positions": int(sum(count[lag, at].sum() for count in counts) // max(1, counts[0].shape[-1])),
                        "by_layer": {which: _plain(one) for which, one in layers.items()},
                        "by_layer_and_head": [_plain(one) for one in in_heads[place]],
                    }
                )
    return {"prompts": len(values), "lags": list(lags), "classes": list(CLASSES), "drift": rows}


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(one) else float(one) for one in values]


def drift_table(document: Mapping[str, Any]) -> str:
    """Return the means over layers as a Markdown table, a row for each lag and class."""
    lines = [f"| steps between | class | {' | '.join(MEASURES)} |", "|---" * (2 + len(MEASURES)) + "|"]
    for lag in document["lags"]:
        for kind in document["classes"]:
            rows = [row for row in document["drift"] if (row["lag"], row["class"]) == (lag, kind)]
            cells = [[one for one in row["by_layer"]["mean"] if one is not None] for row in rows]
            lines.append(
                f"| {lag} | {kind} | " + " | ".join(f"{np.mean(cell):.4f}" if cell else "–" for cell in cells) + " |"
            )
    return "\n".join(lines)
