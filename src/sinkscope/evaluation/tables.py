"""Tables of results: paper 1's layout as Markdown and LaTeX, one row for each result as CSV and JSON."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal

from sinkscope.evaluation.comparisons import Row, arranged, compare, remarks
from sinkscope.evaluation.paired_tests import Difference, p_text
from sinkscope.evaluation.results import Result
from sinkscope.runs.files import in_markdown, json_text, markdown_cell, printable

Format = Literal["markdown", "latex", "csv", "json"]
NOTES = (
    "Accuracy with Wilson's 95 % interval over problems; it speaks of one checkpoint, not of a way to train.",
    "Change: hidden minus unhidden in points, paired by problem, Tango's 95 % interval; p: McNemar's exact, after "
    "Holm, controls apart.",
    "Verdict, fixed beforehand: robust when the lower bound is above −2 points, degraded when the upper bound is below "
    "−2, else undecided.",
    "Against controls: what hiding sinks changes beyond hiding the control's keys, averaged over its seeds; p: exact, "
    "after Holm.",
    "Removed: attention the hidden keys would have had, of all attention in the heads and steps where the rule holds; "
    "at commits: of the queries whose tokens were committed.",
)
_COMPARED = "model,task,hidden,n,change,p,verdict,removed,at commits,hit rate,against controls".split(",")
_FLAT = "model task hide n correct accuracy".split()
_MORE = "removed_share removed_share_committed hit_rate weight_hash config_hash device dtype seconds".split()
_MARKS = {"robust": r"$^{\circ}$", "degraded": r"$^{\downarrow}$", "undecided": "$^{?}$"}
_TEXT = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "|": "bar", "<": "less", ">": "greater"}
_IN_LATEX = {one: f"\\{one}" for one in "_&%#${}"} | {one: rf"\text{name}{{}}" for one, name in _TEXT.items()}


def table(results: Sequence[Result]) -> dict[str, Any]:
    """Return ``{"rows": [...], "remarks": [...]}``: each result without its outcomes, but with its comparisons."""
    return table_of(compare(arranged(results)))


def table_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return compared rows as the JSON document of `sinkscope table`."""
    return {"rows": [_document(row) for row in rows], "remarks": remarks(rows)}


def _document(row: Row) -> dict[str, Any]:
    values = {name: value for name, value in asdict(row.result).items() if name != "outcomes"}
    published, error = row.published or (None, None)
    return values | {
        "interval": list(row.result.interval),
        "not_enforced": list(row.result.not_enforced),
        "published": published,
        "published_error": error,
        "change": None if row.change is None else _difference(row.change, row.adjusted),
        "controls": [
            {name: getattr(one, name) for name in ("control", "seeds", "removed_share", "removed_share_committed")}
            | _difference(one.difference, one.adjusted)
            for one in row.contrasts
        ],
    }


def _difference(change: Difference, adjusted: float | None) -> dict[str, Any]:
    derived = {name: getattr(change, name) for name in ("verdict", "needed", "too_small")}
    return {**asdict(change), "p_holm": adjusted, **derived}


def write_table(results: Sequence[Result], form: Format = "markdown") -> str:
    """Return a table as text, without a last line break."""
    return write_rows(compare(arranged(results)), form)


def write_rows(rows: Sequence[Row], form: Format = "markdown") -> str:
    """Return compared rows as a table in Markdown, LaTeX, CSV or JSON."""
    if form == "json":
        return json_text(table_of(rows))
    return {"markdown": _markdown, "latex": _latex, "csv": _csv}[form](rows)


def _layout(rows: Sequence[Row], cell: Callable[[Row], str]) -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    """Return paper 1's layout: the models, and for each task and rule a cell a model, "–" without a result."""
    models = list(dict.fromkeys(row.result.model for row in rows))
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    tasks = list(dict.fromkeys(row.result.task for row in rows))
    for row in sorted(rows, key=lambda row: tasks.index(row.result.task)):
        place = cells.setdefault((row.result.task, row.result.hide), {})
        place.setdefault(row.result.model, []).append(cell(row))
    return models, [(*place, ["; ".join(found.get(one, ["–"])) for one in models]) for place, found in cells.items()]


def _markdown(rows: Sequence[Row]) -> str:
    models, layout = _layout(rows, _cell)
    lines = [_markdown_line(["task", "hidden", *models]), "|---|---|" + "---|" * len(models)]
    lines += [_markdown_line([task, hide, *cells]) for task, hide, cells in layout]
    changed = [row for row in rows if row.change is not None]
    if changed:
        lines += ["", _markdown_line(_COMPARED), "|---" * len(_COMPARED) + "|"]
        lines += [_markdown_line(_comparison(row)) for row in changed]
    return "\n".join([*lines, "", *NOTES[: None if changed else 1], *map(in_markdown, remarks(rows))])


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def _cell(row: Row) -> str:
    low, high = row.result.interval
    paper = "" if row.published is None else f" [paper {row.published[0]:.2f} ± {row.published[1]:.2f}]"
    return f"{row.result.accuracy:.3f} ({low:.3f}–{high:.3f}), n = {row.result.n}{paper}"


def _comparison(row: Row) -> list[str]:
    result, change = row.result, row.change
    assert change is not None
    against = [
        f"{one.control} ×{one.seeds}: {_points(one.difference)}, p {p_text(one.adjusted)}" for one in row.contrasts
    ]
    verdict = change.verdict + (" (n too small)" if change.too_small else "")
    shares = (result.removed_share, result.removed_share_committed, result.hit_rate)
    return [
        *(result.model, result.task, result.hide, str(change.n), _points(change), p_text(row.adjusted), verdict),
        *("–" if share is None else f"{100 * share:.1f} %" for share in shares),
        "; ".join(against) or "–",
    ]


def _points(change: Difference) -> str:
    return f"{100 * change.mean:+.1f} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"


def _latex(rows: Sequence[Row]) -> str:
    models, layout = _layout(rows, _latex_cell)
    lines = [r"\begin{tabular}{ll" + "l" * len(models) + "}", r"\hline"]
    lines += [" & ".join(["task", "hidden", *map(_escaped, models)]) + r" \\", r"\hline"]
    lines += [
        " & ".join([_escaped(task), _escaped(hide), *(cell.replace("–", "--") for cell in cells)]) + r" \\"
        for task, hide, cells in layout
    ]
    lines += [r"\hline", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {line}" for line in (*NOTES, *map(printable, remarks(rows))))])


def _latex_cell(row: Row) -> str:
    low, high = row.result.interval
    mark = "" if row.change is None else _MARKS[row.change.verdict]
    paper = "" if row.published is None else f" [{row.published[0]:.2f} $\\pm$ {row.published[1]:.2f}]"
    return f"{row.result.accuracy:.3f} ({low:.3f}--{high:.3f}){mark}{paper}"


def _escaped(text: str) -> str:
    return "".join(_IN_LATEX.get(one, one) for one in printable(text))


def _csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    tests = [*(field.name for field in fields(Difference)), "p_holm"]
    writer = csv.writer(out, lineterminator="\n")
    header = [*_FLAT, "low", "high", "published", "published_error", *(f"change_{name}" for name in tests)]
    writer.writerow([*header, "verdict", "too_small", "controls", *_MORE])
    for row in table_of(rows)["rows"]:
        change, controls = row["change"] or {}, row["controls"]
        cells = [*(row[name] for name in _FLAT), *row["interval"], row["published"], row["published_error"]]
        cells += [change.get(name) for name in (*tests, "verdict", "too_small")]
        writer.writerow([*cells, json_text(controls) if controls else None, *(row[name] for name in _MORE)])
    return out.getvalue().rstrip("\n")
