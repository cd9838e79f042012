"""Writes results/hiding/README.md, every table behind docs/findings.md, from the JSON files beside it; a test compares
them.

Command   python experiments/hiding_page.py
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "hiding"
PAGE = RESULTS / "README.md"
HEAD = """# Everything that was measured about hiding

`python experiments/hiding_page.py` writes this page from the JSON files beside it; [docs/findings.md](../../docs/findings.md#on-the-labs-small-models) says what
they mean. Brackets hold 95 % intervals over problems. *Removed* is the share of attention that the hidden keys would have had, of all
attention in the layers and steps where the rule is in force (in the tables of single tokens: of all attention, and of that of the
position being written). Rules are written as in [docs/interventions.md](../../docs/interventions.md).

"""
PROVENANCE = (
    ("probe-0", "python experiments/why_hiding_hurts.py --shots 0 --out FILE", "5ddd492"),
    ("probe-0-heads", "python experiments/why_hiding_hurts.py --shots 0 --part heads --out FILE", "0ff76bb"),
    (
        "probe-0-layer-4",
        "python experiments/why_hiding_hurts.py --shots 0 --part heads --layer 4 --out FILE",
        "9e04a9a",
    ),
    ("probe-5", "python experiments/why_hiding_hurts.py --shots 5 --out FILE", "5ddd492"),
    ("last_row", "python experiments/why_last_row_hurts.py --out FILE", "e3c40b0"),
    ("arms", "python experiments/hiding_arms.py --work DIR --out FILE --problems 48", "in the file"),
    (
        "arms-rowmass",
        "python experiments/hiding_arms.py --work DIR --out FILE --model lab-diffusion --rules …",
        "in the file",
    ),
    (
        "by_role-0",
        "python experiments/hiding_arms.py --roles ROLES --work DIR --problems 144 --out FILE",
        "in the file",
    ),
    ("commit_order", "python experiments/commit_order.py --work DIR --out FILE --problems 192", "b18a0d2"),
    ("long_context", "python experiments/long_context.py --work DIR --out FILE --problems 192", "b18a0d2"),
    (
        "what_breaks",
        "python experiments/what_breaks.py DIR/lab-diffusion DIR/lab-autoregressive --out FILE",
        "in the file",
    ),
)
"""File, command, and the commit that stored it; DIR of the last one is that of table_one.py."""
KINDS_OF_ERROR = (
    "lines of the right form",
    "operands of the first line",
    "operation of the first line",
    "arithmetic",
    "going on with the result",
    "last number",
)
WHERE = "removed_where_written"
ORDER = """Paper 1 (§5.2) says that positions that attend to a hidden sink become unsure and are written later, which protects the
answer. They do, a little (ρ below). That this protects the answer is not shown: the order of the unhidden run (*forced order*) loses
about as much."""
PAST = """Paper 1 (§5.3) says that sinks among the masks carry the past. This is not shown: hiding the top one costs little more than a
random mask, with an interval that holds 0. Unforeseen: what lab-diffusion loses comes back when the first token stays (p = .013 for
having looked twice); no run keeps another token instead.

"""


def table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def span(interval: list[float], digits: int = 2) -> str:
    """Return an interval as text."""
    return f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def points(row: dict[str, Any]) -> str:
    """Return a difference of accuracies in points."""
    return f"{100 * row['mean']:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f}), p = {row['p_value']:.2g}"


def share(number: float | None) -> str:
    """Return a share in percent, nothing where there is none."""
    return "" if number is None else f"{100 * number:.1f} %"


def what_breaks(document: dict[str, Any]) -> str:
    """Return which part of the stored answers is right under each rule."""
    rows = [
        (
            one["model"],
            one["hide"],
            one["n"],
            *(f"{one[kind]['right']} of {one[kind]['of']}" for kind in KINDS_OF_ERROR),
        )
        for one in document["rows"]
    ]
    return "## What breaks in an answer\n\n" + table(("model", "hidden", "problems", *KINDS_OF_ERROR), rows)


def probe(document: dict[str, Any], more: str = "") -> str:
    """Return how many single tokens of lab-diffusion survive when keys are hidden."""
    part = f"{document['problems']} problems, {document['settings']['shots']} shots"
    rows = []
    for name, cell in document["cells"].items():
        kept = (f"{cell[which]:.2f} ({span(cell[f'{which}_interval'])})" for which in ("kept", "others_kept"))
        rows.append((name, *kept, share(cell["removed_share"]), *((share(cell[WHERE]),) if WHERE in cell else ())))
    lines = [
        f"## Single tokens, lab-diffusion, {part}{more}",
        "Means over the top keys: "
        + ", ".join(f"{name} {value:.3f}" for name, value in document["top_keys"]["mean"].items())
        + ".",
        table(
            ("hidden", "results kept", "other tokens kept", "removed", "removed where written")[: len(rows[0])], rows
        ),
    ]
    lines += [
        f"Larger minus smaller {name}: {row['difference']:+.3f} ({span(row['interval'], 3)})."
        for name, row in document["halves"].items()
    ]
    if spared := document["spared"]:
        heads = "; ".join(f"{half} problems: {', '.join(names)}" for half, names in spared["heads"].items())
        lines.append(f"Heads spared, found on the other half of the problems: {heads}.")
        for name in ("worst", "random"):
            one = spared[name]
            over = f"{one['over_top']['difference']:+.2f} ({span(one['over_top']['interval'])})"
            lines.append(
                f"Six {name} heads spared: {one['kept']:.2f} ({span(one['interval'])}) kept, {over} over none spared."
            )
    return "\n\n".join(lines)


def last_row(document: dict[str, Any]) -> str:
    """Return how many single tokens of lab-autoregressive survive when keys are hidden."""
    rows = []
    for name, cell in document["arms"].items():
        kept = f"{cell['kept']:.3f} ({span(cell['kept_interval'], 3)})"
        rows.append(
            (
                name,
                kept,
                f"{cell['whole_answer_kept']:.2f}",
                share(cell["removed_share"]),
                f"{cell['share_of_the_loss']:.2f}",
            )
        )
    keys = ", ".join(f"{name} {value:.3f}" for name, value in document["keys"].items())
    return "\n\n".join(
        (
            f"## Single tokens, lab-autoregressive, {document['problems']} problems, {document['shots']} shots",
            table(("hidden", "tokens kept", "whole answers kept", "removed", "share of the loss"), rows),
            f"Means over the hidden keys: {keys}.",
        )
    )


def arms(document: dict[str, Any], which: str = "") -> str:
    """Return the accuracy of whole answers under each rule."""
    sections = []
    for model, found in document["models"].items():
        rows = [
            (
                f"`{rule}`",
                f"{one['accuracy']:.2f} ({span(one['interval'])})",
                points(one["change"]) if "change" in one else "",
                share(one["removed_share"])
                + (
                    f", {share(one['removed_share_committed'])} where committed"
                    if one.get("removed_share_committed") is not None
                    else ""
                ),
                "" if one["hit_rate"] is None else f"{one['hit_rate']:.2f}",
            )
            for rule, one in found["arms"].items()
        ]
        settings = f"{found['problems']} problems, {found['settings']['shots']} shots, {found['dtype']}"
        pairs = "\n".join(
            f"* `{one['arm']}` minus {', '.join(f'`{name}`' for name in one['against'])}: {points(one)}"
            for one in found["pairs"]
        )
        head = table(("hidden", "accuracy", "change in points", "removed", "hit rate"), rows)
        sections.append(f"## Whole answers, {model}, {settings}{which}\n\n{head}\n\n{pairs}")
    return "\n\n".join(sections)


def by_role(document: dict[str, Any]) -> str:
    """Return the accuracy of whole answers with the top keys of some heads hidden, beside keys of equal attention in
    the same heads.
    """
    rows = []
    for arm, one in document["arms"].items():
        lost, over = one.get("points_lost"), one.get("points_more_than_top")
        rows.append(
            (
                arm,
                ", ".join(map(str, one["correct"])),
                "" if lost is None else f"{lost['mean']:.1f} ({span([lost['low'], lost['high']], 1)})",
                "" if over is None else f"{-over['mean']:+.1f} ({span([-over['high'], -over['low']], 1)})",
                share(one["removed_share"]),
                share(one["removed_share_committed"]),
            )
        )
    heads = "\n".join(f"* {kind}: {', '.join(found)}" for kind, found in document["heads"].items())
    verdicts = "\n".join(
        f"* {part}: {'not told' if held is None else 'yes' if held else 'no'}"
        for part, held in document["verdict"].items()
    )
    correct, beyond = f"correct of {document['judged_on']}", "points that the top key loses beyond it"
    columns = ("hidden", correct, "points lost", beyond, "removed", "of queries that may be committed")
    return (
        f"## Heads by what roles says of them, lab-diffusion, {document['shots']} shots\n\nHeads were chosen on {document['chosen_on']} "
        f"problems by whether their top key can be hidden, and judged on {document['judged_on']} others.\n\n{heads}\n\n"
        f"{table(columns, rows)}\n\n{verdicts}"
    )


def commit_order(document: dict[str, Any]) -> str:
    """Return the accuracy under each order of commitment."""
    rules = ("none", "top:1", *(f"random:1@seed={seed}" for seed in range(3)))
    rows = []
    for arm, loss in document["loss"].items():
        cells = (f"{document['accuracy'][f'{arm}, {rule}']['mean']:.2f}" for rule in rules)
        beyond = document["loss_beyond_own_order"].get(arm)
        more = "" if beyond is None else f"{beyond['mean']:+.2f} ({span(beyond['interval'])})"
        rows.append((arm, *cells, f"{loss['top:1']['mean']:+.2f} ({span(loss['top:1']['interval'])})", more))
    told = (
        f"* Spearman's ρ of the attention to the hidden key with the change of {name}: {one['mean']:+.3f} ({span(one['interval'], 3)})"
        for name, one in document["reliance"].items()
    )
    head = table(
        ("order", "nothing hidden", *(f"`{rule}`" for rule in rules[1:]), "loss by `top:1`", "beyond the own order's"),
        rows,
    )
    title = f"## Order of commitment, lab-diffusion, {document['problems']} problems, {document['shots']} shots"
    return "\n\n".join((title, ORDER, head, "\n".join(told)))


def long_context(document: dict[str, Any]) -> str:
    """Return the accuracy with half of the prompt hidden."""
    sections = []
    for model, found in document["models"].items():
        rows = [
            (
                arm,
                f"{one['accuracy']:.2f} ({span(one['interval'])})",
                one.get("against", ""),
                points(one) if "mean" in one else "",
                share(one["removed_share"]),
            )
            for arm, one in found["arms"].items()
        ]
        head = table(("hidden", "accuracy", "against", "difference in points", "removed"), rows)
        settings = f"{found['problems']} problems, {document['shots']} shots, {found['dtype']}"
        sections.append(f"## Dropping the past, {model}, {settings}\n\n{PAST if not sections else ''}{head}")
    return "\n\n".join(sections)


SECTIONS = (
    ("what_breaks", what_breaks),
    ("probe-0", probe),
    ("probe-0-heads", lambda document: probe(document, ", head by head")),
    ("probe-0-layer-4", lambda document: probe(document, ", layer 4")),
    ("probe-5", probe),
    ("arms", arms),
    ("arms-rowmass", lambda document: arms(document, ", with keys of equal attention where tokens are committed")),
    ("last_row", last_row),
    ("by_role-0", by_role),
    ("commit_order", commit_order),
    ("long_context", long_context),
)


def page(documents: dict[str, dict[str, Any]]) -> str:
    """Return the page as text."""
    made = table(
        ("file", "command", "commit that stored it"),
        [(f"`{name}.json`", f"`{command}`", commit) for name, command, commit in PROVENANCE],
    )
    return (
        HEAD
        + made
        + "\n\n"
        + "\n\n".join(section(documents[name]) for name, section in SECTIONS if name in documents)
        + "\n"
    )


def read() -> dict[str, dict[str, Any]]:
    """Return all results that are there, by name of the file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


if __name__ == "__main__":
    PAGE.write_text(page(read()))
    print(PAGE)
