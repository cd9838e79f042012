"""Draw the numbers of ``sink_on_its_way.py``: python experiments/sink_on_its_way_figure.py NUMBERS.json FIGURE.png"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

NAMES = {"text": "both ways from the start", "textrow": "the same, first token sees only itself"}
COLOURS = {"text": "#0072b2", "textrow": "#d55e00"}
LINES = {"top": "-", "rowmass": "--", "first": ":"}


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean over windows and half of its 95 % interval (Student's t)."""
    from scipy.stats import t

    return float(np.mean(values)), float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", type=Path)
    parser.add_argument("figure", type=Path)
    given = parser.parse_args()
    rows = json.loads(given.numbers.read_text())["rows"]
    causal = next(row for row in rows if row["name"] == "causal")
    fig, axes = plt.subplots(1, 4, figsize=(12.5, 3.1), layout="constrained")
    for name, colour in COLOURS.items():
        mine: list[dict[str, Any]] = [row for row in rows if row["part"] == "training" and row["name"] == name]
        updates = [row["at"] for row in mine]
        for axis, values in (
            (axes[0], [row["nats"] for row in mine]),
            (axes[1], [row["first_share"] for row in mine]),
            (axes[2], [[row["first_norm_over_median"]] * 2 for row in mine]),
        ):
            means, errors = zip(*map(mean_and_error, values), strict=True)
            axis.errorbar(updates, means, errors, color=colour, marker="o", markersize=3, label=NAMES[name])
        for rule, line in LINES.items():
            if (name, rule) != ("text", "first"):
                means, errors = zip(*(mean_and_error(row[rule]["more"]) for row in mine), strict=True)
                axes[3].errorbar(updates, means, errors, color=colour, linestyle=line, marker="o", markersize=3)
    for axis, key in ((axes[1], "first_share"), (axes[2], "first_norm_over_median"), (axes[3], None)):
        level = np.mean(causal[key]) if key else np.mean(causal["first"]["more"])
        axis.axhline(level, color="0.4", linewidth=1)
        axis.annotate(
            "the causal model", (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8
        )
    axes[2].set_yscale("log")
    titles = (
        "masked loss, nats",
        "attention on the first token",
        "its hidden norm over the median",
        "cost of hiding, nats",
    )
    for axis, title in zip(axes, titles, strict=True):
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlim(-0.15, 1300)
        axis.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1,000"])
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("update")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=8, frameon=False, loc="lower left")
    for rule, line in LINES.items():
        axes[3].plot(
            [],
            [],
            line,
            color="0.3",
            label={"top": "largest key", "first": "first token"}.get(rule, "random keys of equal weight"),
        )
    axes[3].set_ylim(-0.15, 1.3)
    axes[3].legend(fontsize=7, frameon=False, loc="upper left", ncols=2)
    fig.savefig(given.figure, dpi=130)


if __name__ == "__main__":
    main()
