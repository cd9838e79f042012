"""The verdict on compression, by the rules that `compression.py` fixed, from the tables that it wrote.

Command   python experiments/compression_verdict.py [CAUSAL SIBLING]     # writes README.md and verdict.json beside them
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _settings import Arguments, run_script
from compression import OUT, Arm

from sinkscope.evaluation.paired_tests import holm, p_text, paired_difference, points
from sinkscope.statistics.intervals import interval_of_means

BREAKS, HALF = 0.5, 0.5
PAIR = ("smollm2", "smollm2-diffusion")
LAB = ("lab-autoregressive", "lab-diffusion")
SINKS = ("heads", "first", "largest", "stay", "peak")
Rows = Mapping[Arm, Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """A mean over texts in nats a token with its 95 % interval, and the p-value of no change (Wilcoxon)."""

    mean: float
    low: float
    high: float
    p: float

    @property
    def text(self) -> str:
        return f"{self.mean:+.2f} ({self.low:+.2f} … {self.high:+.2f})"


def change_of(values: np.ndarray) -> Change:
    """Return the change of one value a text."""
    from scipy.stats import wilcoxon

    found = interval_of_means(values[:, None])
    p = float(wilcoxon(values).pvalue) if values.any() else 1.0
    return Change(float(values.mean()), float(found.low[0]), float(found.high[0]), p)


def rows_of(name: str) -> Rows:
    document = json.loads((OUT / f"{name}.json").read_text())
    return {Arm(row["method"], row["level"], row["kept"]): row for row in document["rows"]}


def losses(row: Mapping[str, Any]) -> np.ndarray:
    """Return the loss of each text, mean over the shares of masks."""
    return np.mean(list(row["loss"].values()), axis=0)


def rises(rows: Rows) -> dict[Arm, np.ndarray]:
    """Return by how much the loss of each text rises."""
    plain = losses(rows[Arm("none", "")])
    return {arm: losses(row) - plain for arm, row in rows.items() if arm.method != "none"}


def fate(rise: Change) -> str:
    return "breaks" if rise.low > BREAKS else "spared" if rise.high < BREAKS else "undecided"


def adjusted(changes: Sequence[Change]) -> list[Change]:
    """Return changes with p-values after Holm."""
    found = holm([one.p for one in changes])
    return [Change(one.mean, one.low, one.high, p) for one, p in zip(changes, found, strict=True)]


def breaking(causal: Mapping[Arm, np.ndarray], sibling: Mapping[Arm, np.ndarray]) -> list[dict[str, Any]]:
    """Return, for each arm without anything kept, the rises of both models, their difference and what it decides."""
    arms = [arm for arm in causal if arm.kept == "nothing" and arm in sibling]
    differences = adjusted([change_of(causal[arm] - sibling[arm]) for arm in arms])
    found = []
    for arm, difference in zip(arms, differences, strict=True):
        both = [change_of(rises[arm]) for rises in (causal, sibling)]
        alone = [fate(one) for one in both] == ["breaks", "spared"] and difference.mean > 0 and difference.p < 0.05
        found.append({"arm": arm, "causal": both[0], "sibling": both[1], "difference": difference, "alone": alone})
    return found


def restoring(rises: Mapping[Arm, np.ndarray]) -> list[dict[str, Any]]:
    """Return, for everything kept that has a control, what it takes back of the rise, and how much more than that."""
    arms = [
        arm for arm in rises if arm.kept in ("dimension", "tokens") and Arm(*_of(arm), f"random {arm.kept}") in rises
    ]
    controls = [rises[Arm(*_of(arm), f"random {arm.kept}")] for arm in arms]
    over = adjusted([change_of(control - rises[arm]) for arm, control in zip(arms, controls, strict=True)])
    found = []
    for arm, more in zip(arms, over, strict=True):
        without = rises[Arm(*_of(arm))]
        share = 1 - float(rises[arm].mean() / without.mean())
        reason = share >= HALF and more.low > 0 and more.p < 0.05
        found.append({"arm": arm, "share": share, "more": more, "breaks": fate(change_of(without)), "reason": reason})
    return found


def _of(arm: Arm) -> tuple[str, str]:
    return arm.method, arm.level


def page(causal: str, sibling: str) -> tuple[str, dict[str, Any]]:
    """Return the page of all results, and the verdicts as plain values."""
    tables = {name: rows_of(name) for name in (causal, sibling)}
    found = {name: rises(rows) for name, rows in tables.items()}
    first = breaking(found[causal], found[sibling])
    lines = [
        "# Everything that was measured about compression\n",
        "`python experiments/compression_verdict.py` writes this page from the JSON files beside it; rules, settings and "
        "commands: `experiments/compression.py`;\n[docs/compression.md](../../docs/compression.md) says what it means. Rises "
        "of the loss in nats a token, with 95 % intervals over 12 texts; p after Holm.\n",
        "## Nothing kept\n",
        "| method | level | causal | | diffusion | | causal − diffusion | p | breaks alone |\n|---|---|--:|---|--:|---|--:|--:|---|",
    ]
    for one in first:
        left, right, apart = one["causal"], one["sibling"], one["difference"]
        cells = (*_of(one["arm"]), left.text, fate(left), right.text, fate(right), apart.text, p_text(apart.p))
        lines.append(f"| {' | '.join(cells)} | {'**yes**' if one['alone'] else 'no'} |")
    verdicts: dict[str, Any] = {"alone": [_of(one["arm"]) for one in first if one["alone"]]}
    for name, kind in ((causal, "causal"), (sibling, "diffusion")):
        lines += [
            f"\n## Kept in full precision, {kind} model\n",
            "| method | level | without | kept | taken back | more than its control | p | the reason |\n|---|---|---|---|--:|--:|--:|---|",
        ]
        kept = restoring(found[name])
        for one in kept:
            cells = (*_of(one["arm"]), one["breaks"], one["arm"].kept, f"{100 * one['share']:.0f} %")
            said = "**yes**" if one["reason"] and one["breaks"] == "breaks" else "no"
            lines.append(f"| {' | '.join(cells)} | {one['more'].text} | {p_text(one['more'].p)} | {said} |")
        verdicts[f"reason {kind}"] = [
            (*_of(one["arm"]), one["arm"].kept) for one in kept if one["reason"] and one["breaks"] == "breaks"
        ]
    for name, rows in tables.items():
        lines += [
            f"\n## Sinks, {name}\n",
            "*heads*: share with a sink; *first*, *largest*: share of attention of the first token and of the largest column; "
            "*stay*: main sinks in their old place;\n*peak*: largest hidden value over its layer's median; *change*: of the "
            "weights, over their norm.\n",
            "| method | level | heads | first | largest | stay | peak | change |\n|---|---|--:|--:|--:|--:|--:|--:|",
        ]
        for arm, row in rows.items():
            if arm.kept == "nothing":
                means = [float(np.mean(row["sinks"][one])) for one in SINKS]
                cells = [f"{one:.0f}" if one > 9 else f"{one:.2f}" for one in means]
                lines.append(f"| {' | '.join((*_of(arm), *cells))} | {row.get('change', 0):.3f} |")
    if all((OUT / f"{name}.json").exists() for name in LAB):
        lines += _lab()
    return "\n".join(lines) + "\n", verdicts


def _lab() -> list[str]:
    tables = [rows_of(name) for name in LAB]
    plain = [rows[Arm("none", "")]["right"] for rows in tables]
    accuracy = " and ".join(f"{np.mean(one):.3f}" for one in plain)
    lines = [
        "\n## The lab's problems\n",
        f"Without compression {' and '.join(LAB)} solve {accuracy} of {len(plain[0])}. Change in points (95 %, Tango):\n",
        f"| method | level | {' | '.join(LAB)} |\n|---|---|--:|--:|",
    ]
    for arm, row in tables[0].items():
        if "right" in row and arm.method != "none" and "right" in tables[1].get(arm, {}):
            both = [
                points(vars(paired_difference(rows[arm]["right"], one)))
                for rows, one in zip(tables, plain, strict=True)
            ]
            lines.append(f"| {' | '.join((*_of(arm), *both))} |")
    return lines


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("models", nargs="*", default=PAIR)
    text, verdicts = page(*(Path(name).name for name in parser.parse_args().models))
    (OUT / "README.md").write_text(text)
    (OUT / "verdict.json").write_text(json.dumps(verdicts, indent=1) + "\n")
    print(json.dumps(verdicts))


if __name__ == "__main__":
    run_script(main)
