"""The outcome of a comparison of caches: a row a policy, verdicts on sinks, Markdown. Rules were fixed beforehand.

A policy is *within a point* where the lower end of the 95 % interval of its accuracy minus plain sampling's, paired by
problem, lies above −1 point. ``verdict`` is that of `paired_tests`, with a margin of 2 points.

Two policies that differ in nothing else decide whether sinks are to be read: ``keep=top`` (the largest columns, sinks
among them) and ``keep=no-sinks`` (the largest columns that are no sinks), at an equal budget. The verdict, by the
interval of the first minus the second:

keep        it lies above 0
filter      it lies below 0
discount    neither, and it lies within ±2 points: that a key is a sink says nothing
undecided   otherwise
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sinkscope.counts import counted
from sinkscope.evaluation.paired_tests import MARGIN, Difference, holm, p_text, paired_difference, wilson_interval
from sinkscope.runs.files import printable

POINT = 0.01
PLAIN = "none"
"""The text of plain sampling."""
Items = Sequence[Mapping[str, Any]]
NOTES = (
    "Accuracy with Wilson's 95 % interval; difference: minus plain sampling in points, paired by problem, Tango's 95 % "
    "interval; p: McNemar's exact, after Holm. Ratios are of plain sampling over the policy, on the same problems; "
    "parallel decoding is behind an @.",
    "Seconds are those of the processor on a CPU, and of the clock on a GPU. Memory: the largest of any batch on a GPU.",
)


def comparison_of(found: Mapping[tuple[str, Any], Items]) -> dict[str, Any]:
    """Return rows and verdicts from the items of every task and arm, in order, plain sampling among them."""
    rows = []
    for task in dict.fromkeys(task for task, _ in found):
        mine = {arm: items for (name, arm), items in found.items() if name == task}
        plain = next(items for arm, items in mine.items() if arm.text == PLAIN)
        compared = [_row(task, arm, items, plain) for arm, items in mine.items()]
        _adjust([row["difference"] for row in compared if row["difference"] is not None])
        rows += compared
    return {"rows": rows, "sinks": _verdicts(found)}


def _adjust(tests: Sequence[dict[str, Any]]) -> None:
    for one, adjusted in zip(tests, holm([one["p_value"] for one in tests]), strict=True):
        one["p_holm"] = adjusted


def _row(task: str, arm: Any, items: Items, plain: Items) -> dict[str, Any]:
    """Return an arm beside plain sampling of the same problems."""
    right = _right(items)
    change = None if arm.text == PLAIN else paired_difference(right, _right(plain))
    pairs = [(item["tokens"], other["tokens"]) for item, other in zip(items, plain, strict=True)]
    work, before = _work(items), _work(plain)
    written, seconds = sum(len(one) for one, _ in pairs), _seconds(items)
    difference = change and {**asdict(change), "verdict": change.verdict, "needed": change.needed}
    return {
        "task": task,
        "policy": arm.text,
        "cache": arm.cache,
        "budget": arm.budget,
        "threshold": arm.threshold,
        "factor": arm.factor,
        "n": len(items),
        "accuracy": sum(right) / len(items),
        "interval": list(wilson_interval(sum(right), len(items))),
        "difference": difference,
        "within_a_point": change and change.low > -POINT,
        "same_tokens": sum(a == b for pair in pairs for a, b in zip(*pair, strict=True)) / written,
        "same_answers": sum(one == other for one, other in pairs) / len(pairs),
        "canvas": [min(item["canvas"] for item in items), max(item["canvas"] for item in items)],
        "work": {name: value / len(items) for name, value in work.items()},
        "work_ratio": before["total"] / work["total"],
        "rows_ratio": before["rows"] / work["rows"],
        "speed_ratio": _seconds(plain) / seconds if seconds else None,
        "tokens_per_second": written / seconds if seconds else None,
        "peak_memory": max((item["peak_memory"] for item in items if item["peak_memory"] is not None), default=None),
        "outcomes": "".join(map(str, right)),
    }


def _right(items: Items) -> list[int]:
    return [int(item["correct"]) for item in items]


def _work(items: Items) -> dict[str, int]:
    return {name: sum(item["work"][name] for item in items) for name in items[0]["work"]}


def _seconds(items: Items) -> float:
    """Return the time of the answers: on a CPU seconds of the processor, which other programs do not lengthen."""
    return sum(item["processor_seconds" if item.get("on_cpu", True) else "seconds"] for item in items)


def _verdicts(found: Mapping[tuple[str, Any], Items]) -> list[dict[str, Any]]:
    """Return a verdict on sinks for each task and budget that has both policies, p-values adjusted together."""
    verdicts = []
    for (task, arm), items in found.items():
        other = replace(arm, cache=arm.cache.replace("keep=top", "keep=no-sinks"))
        if arm.budget is not None and other != arm and (task, other) in found:
            change = paired_difference(_right(items), _right(found[task, other]))
            arms = {"task": task, "with": arm.text, "without": other.text, "budget": arm.budget}
            verdicts.append({**arms, **asdict(change), "verdict": on_sinks(change)})
    _adjust(verdicts)
    return verdicts


def on_sinks(change: Difference) -> str:
    """Return the verdict of the module on the accuracy with sinks read minus that without."""
    if change.low > 0:
        return "keep"
    if change.high < 0:
        return "filter"
    return "discount" if change.low > -MARGIN and change.high < MARGIN else "undecided"


def points(change: Mapping[str, Any]) -> str:
    """Return a difference of accuracies with its interval, in points."""
    return f"{100 * change['mean']:+.1f} ({100 * change['low']:+.1f} … {100 * change['high']:+.1f})"


HEAD = "policy,accuracy,difference,p,within a point,same tokens,same answers,multiply-adds".split(",")
HEAD += ["attention", "projections", "MLP", "positions", "forwards", "tokens a second", "memory, MiB"]


def comparison_table(document: Mapping[str, Any]) -> str:
    """Return the rows of a comparison as Markdown, a table for each task, and the verdicts on sinks."""
    lines: list[str] = []
    for task in dict.fromkeys(row["task"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["task"] == task]
        low, high = min(row["canvas"][0] for row in rows), max(row["canvas"][1] for row in rows)
        canvases = f"{'' if low == high else f'{low} to '}{counted(high, 'token')}"
        lines += [f"{task}: {counted(rows[0]['n'], 'problem')}, canvases of {canvases}", ""]
        lines += ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
        lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows] + [""]
    for one in document["sinks"]:
        said = f"sinks read minus left out {points(one)}, p {p_text(one['p_holm'])}: {one['verdict']}"
        lines.append(f"{one['task']}, budget {one['budget']}: {said}")
    return "\n".join([*lines, *([""] if document["sinks"] else []), *NOTES])


def _cells(row: Mapping[str, Any]) -> list[str]:
    low, high = row["interval"]
    change, work = row["difference"], row["work"]
    compared = ["–"] * 3
    if change is not None:
        compared = [points(change), p_text(change["p_holm"]), "yes" if row["within_a_point"] else "not shown"]
    return [
        "plain sampling" if row["policy"] == PLAIN else f"`{printable(row['policy'])}`",
        f"{row['accuracy']:.3f} ({low:.3f}–{high:.3f})",
        *compared,
        f"{row['same_tokens']:.3f}",
        f"{row['same_answers']:.3f}",
        f"{work['total'] / 1e6:.4g} M (1 / {row['work_ratio']:.1f})",
        *(f"{work[name] / 1e6:.4g} M" for name in ("attention", "projections", "mlp")),
        f"{work['rows']:.0f}",
        f"{work['forwards']:.1f}",
        "–" if row["tokens_per_second"] is None else f"{row['tokens_per_second']:.0f} (× {row['speed_ratio']:.1f})",
        "–" if row["peak_memory"] is None else f"{row['peak_memory'] / 2**20:.0f}",
    ]
