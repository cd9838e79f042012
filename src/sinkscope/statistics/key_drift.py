"""Drift of keys and values of one position from a step to a later one, which a cache forgoes.

Norms change by a share of the old one. A position's class is the first that fits: *new*, a mask then and a token now;
*sink*, by Eq. 3 now, in some head that reads these keys; *mask*, then and now; *text*.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.statistics.intervals import interval_of_means, known, ratio

MEASURES = ("key_cosine", "value_cosine", "key_norm", "value_norm")
CLASSES = ("new", "sink", "mask", "text")


def drift_document(
    sums: Sequence[Float[np.ndarray, "measure lag class layer kv_head"]],
    counts: Sequence[Float[np.ndarray, "lag class layer kv_head"]],
    lags: Sequence[int],
) -> dict[str, Any]:
    """Return the means of every measure, by layer with intervals and by head, from each prompt's sums and counts."""
    values = np.stack([ratio(one, count) for one, count in zip(sums, counts, strict=True)])
    there = ~np.isnan(values)
    heads, in_heads = (ratio(np.where(there, values, 0).sum(axis), there.sum(axis)) for axis in (-1, 0))
    by_layer = interval_of_means(heads.reshape(len(values), -1))
    shape = heads.shape[1:]
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
                        "by_layer": {which: list(map(known, one)) for which, one in layers.items()},
                        "by_layer_and_head": [list(map(known, one)) for one in in_heads[place]],
                    }
                )
    return {"prompts": len(values), "lags": list(lags), "classes": list(CLASSES), "drift": rows}


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
