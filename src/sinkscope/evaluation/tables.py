"""Tables of results: each compared with the unhidden run and with its controls, for terminals and papers."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from textwrap import fill
from typing import Any, Literal

from sinkscope.counts import counted
from sinkscope.errors import CallError
from sinkscope.evaluation.paired_tests import Difference, after_holm, against_controls, p_text, points
from sinkscope.evaluation.protocols import published_accuracy
from sinkscope.evaluation.results import Result, cell_of, hides_k, mean_of, rule_of, takes_seed
from sinkscope.runs.files import in_markdown, json_text, markdown_cell, printable

Format = Literal["text", "markdown", "latex", "csv", "json"]
WIDTH = 80
Row = dict[str, Any]
SEEDS = 3
_MATCHED = 1.5
"""Largest ratio between the attention that a rule and its control of equal mass take away."""
_MATCHED_IN = {
    "mass": ("removed_share", ""),
    "rowmass": ("removed_share_committed", " at the positions being committed"),
}
"""For each control of equal mass the share that it is to match, and its name in a sentence."""
NOTES = (
    "Accuracy with Wilson's 95 % interval over problems; it speaks of one checkpoint, not of a way to train.",
    "Change: hidden minus unhidden in points, paired by problem; Tango's 95 % interval is that of one rule alone.",
    "p (of any change; McNemar's, exact) and verdict are both after Holm over the table, controls and contrasts apart.",
    "Verdict, fixed beforehand: robust when the change is shown to lie above −2 points, degraded when below, else "
    "undecided.",
    "Against controls (− control): what hiding sinks changes beyond hiding the control's keys, averaged over its "
    "seeds.",
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
    rows = compare(results)
    return {"rows": rows, "remarks": remarks(rows)}


def write_table(results: Sequence[Result], form: Format = "markdown") -> str:
    """Return a table as text, without a last line break."""
    if form == "json":
        return json_text(table(results))
    if form == "text":
        return _text(results)
    return {"markdown": _markdown, "latex": _latex, "csv": _csv}[form](compare(results))


def compare(results: Sequence[Result]) -> list[Row]:
    """Return a row for each result, in order; runs are paired over the problems that both have.

    A row has the fields of `Result` but ``outcomes``, paper 1's ``published`` and ``published_error``, ``change``, a
    `Difference` from the unhidden run of the same weights, settings and problems, and ``controls`` with the same K.
    ``p_holm``, ``p_margin`` and so the verdict are adjusted over all rows: rules that hide sinks, controls, and
    contrasts are three families. CallError for two results of one cell, which would count as two tests.
    """
    cells: dict[str, Result] = {}  # a rule that is written in two ways counts once
    for one in results:
        other = cells.get(cell_of(one))
        if other is not None and (other.hide == one.hide or other.outcomes != one.outcomes):
            raise CallError(f"expected each model, task and rule once, found {one.model}, {one.task}, {one.hide} twice")
        cells[cell_of(one)] = one
    changes = _corrected({cell: [one] for cell, one in cells.items()}, results)
    contrasts: dict[str, list[Row]] = {cell: list(_contrasts(one, results)) for cell, one in cells.items()}
    every = [one for found in contrasts.values() for one in found]
    for one, test in zip(every, after_holm([one.pop("difference") for one in every]), strict=True):
        one |= _told(*test)
    rows = []
    for one in results:
        values = {name: value for name, value in asdict(one).items() if name != "outcomes"}
        values |= {name: list(values[name]) for name in ("interval", "not_enforced", "without_effect")}
        published, error = published_accuracy(one.model, one.task, one.hide) or (None, None)
        found = {"change": changes[cell_of(one)], "controls": contrasts[cell_of(one)]}
        rows.append({**values, "published": published, "published_error": error, **found})
    return rows


def _word(rule: str) -> str:
    return rule.partition(":")[0]


def _told(change: Difference, p_holm: float) -> Row:
    found = {name: getattr(change, name) for name in ("verdict", "needed", "too_small")}
    return asdict(change) | found | {"p_holm": p_holm}


def _change(runs: Sequence[Result], results: Sequence[Result]) -> Difference | None:
    """Return the mean accuracy of runs of one rule, one a seed, minus that of the unhidden run."""
    bases = [one for one in results if one.hide == "none" and _comparable(one, runs[0])]
    if runs[0].hide == "none" or not bases:
        return None
    base, *hidden = _common([max(bases, key=lambda one: one.n), *runs])
    return against_controls(base, hidden, -1)


def _corrected(runs: Mapping[Any, Sequence[Result]], results: Sequence[Result]) -> dict[Any, Row | None]:
    """Return changes after Holm; claims on sinks do not depend on many controls, which are a family of their own."""
    found: dict[Any, Row | None] = dict.fromkeys(runs)
    for control in (False, True):
        mine = [key for key, (one, *_) in runs.items() if control == (takes_seed(_word(one.hide)) is not None)]
        family = {key: one for key in mine if (one := _change(runs[key], results)) is not None}
        found |= zip(family, (_told(*one) for one in after_holm(list(family.values()))), strict=True)
    return found


def _contrasts(result: Result, results: Sequence[Result]) -> Iterator[Row]:
    """Yield the contrast of a rule that hides K keys with each kind of control, averaged over its seeds."""
    word, *rest = rule_of(result)
    if not rest or not hides_k(word):
        return
    k, _, *options = rest
    kinds: dict[str, dict[str, Result]] = {}
    for one in results:
        kind, *other = rule_of(one)
        # controls but random stand in for the top K
        if takes_seed(kind) is None or (word != "top" and kind != "random") or not _comparable(one, result):
            continue
        if (other[0], other[2:]) == (k, options):
            runs = kinds.setdefault(kind, {})
            runs[other[1]] = max(one, runs.get(other[1], one), key=lambda run: run.n)
    for kind, by_seed in kinds.items():
        sink, *controls = _common([result, *by_seed.values()])
        found: Row = {"control": f"{kind}:{k}" + (f"@{','.join(options)}" if options else ""), "seeds": len(by_seed)}
        for name in ("removed_share", "removed_share_committed"):
            found[name] = mean_of(getattr(run, name) for run in by_seed.values())
        yield found | {"difference": against_controls(sink, controls)}


def _comparable(one: Result, other: Result) -> bool:
    keys = "model task weight_hash settings dtype device".split()  # the last two alone move accuracies by points
    same = all(getattr(one, key) == getattr(other, key) for key in keys)
    older = ("data", "config_hash")  # empty in older results
    same = same and all(len({getattr(one, key), getattr(other, key)} - {""}) < 2 for key in older)
    return same and bool(one.outcomes and other.outcomes)


def _common(results: Sequence[Result]) -> list[list[int]]:
    shortest = min(len(one.outcomes) for one in results)
    return [list(map(int, one.outcomes[:shortest])) for one in results]


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return warnings about rows: too few problems or seeds, no comparison, controls that do not match."""
    said: list[str] = []
    small: dict[tuple[str, str, int], dict[str, int]] = {}
    for row in rows:
        hide, change, controls = row["hide"], row["change"], row["controls"]
        where = f"{row['model']}, {row['task']}, {hide}"
        said += [f"{where}: {line}" for line in row["without_effect"]]
        if change is not None and change["too_small"]:
            rules = small.setdefault((row["model"], row["task"], change["n"]), {})
            rules[_unseeded(hide)] = max(rules.get(_unseeded(hide), 0), change["needed"])
        elif hide != "none" and change is None:
            same = "weights, problems, settings, dtype and device"
            said.append(f"{where}: no unhidden run of the same {same} to compare with")
        for one in controls:
            if one["seeds"] < SEEDS and takes_seed(_word(one["control"])):
                said.append(f"{where}: {one['seeds']} of at least {SEEDS} seeds of {one['control']}")
            if _word(one["control"]) in _MATCHED_IN:
                name, of_what = _MATCHED_IN[_word(one["control"])]
                mine, theirs = row[name], one[name]
                if mine and theirs and not 1 / _MATCHED <= theirs / mine <= _MATCHED:
                    took = f"{one['control']} took away {100 * theirs:.1f} % of the attention{of_what}"
                    said.append(f"{where}: {took}, the sinks' rule {100 * mine:.1f} %; they do not match in mass")
        for n in sorted({one["n"] for one in controls} - {row["n"]}):
            some = ", ".join(one["control"] for one in controls if one["n"] == n)
            said.append(f"{where}: set against {some} over the {counted(n, 'problem')} that both have")
        if hides_k(_word(hide)) and not any(takes_seed(_word(one["control"])) for one in controls):
            said.append(f"{where}: no random control with its K and options; hiding any keys may hurt as much")
    for (model, task, n), rules in small.items():
        needed = ", ".join(f"{rule} ({count})" for rule, count in rules.items())
        some = f"for a verdict on these rules (in brackets how many would do): {needed}"
        said.append(f"{model}, {task}: {counted(n, 'problem')} {'is' if n == 1 else 'are'} too few {some}")
    return said


def _layout(rows: Sequence[Row], cell: Callable[[Row], str]) -> list[list[str]]:
    """Return paper 1's layout: its head, and for each task and rule a cell a model, "–" without a result."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in sorted(rows, key=lambda row: tasks.index(row["task"])):
        cells.setdefault((row["task"], row["hide"]), {}).setdefault(row["model"], []).append(cell(row))
    lines = ([*place, *("; ".join(found.get(one, ["–"])) for one in models)] for place, found in cells.items())
    return [["task", "hidden", *models], *lines]


def _text(results: Sequence[Result]) -> str:
    """Return a table for each model and task, with a row a rule whose seeds are pooled, for a terminal."""
    rows, groups = compare(results), dict[tuple[Any, ...], dict[str, tuple[Result, Row]]]()
    for one, row in zip(results, rows, strict=True):
        rule = _unseeded(one.hide) if takes_seed(_word(one.hide)) else one.hide
        key = (one.model, one.task, rule, one.n, one.weight_hash, one.dtype, one.device, str(one.settings))
        groups.setdefault(key, {})[cell_of(one)] = one, row
    runs = {key: [one for one, _ in group.values()] for key, group in groups.items()}
    changes = _corrected(runs, results)
    tables: dict[str, list[list[str]]] = {}
    for key, mine in runs.items():
        _, first = next(iter(groups[key].values()))
        change, times = changes[key], f" ×{len(mine)}" if len(mine) > 1 else ""
        share = mean_of(one.removed_share for one in mine)
        paper = "" if first["published"] is None else f"{first['published']:.2f}"
        line = [f"{key[2]}{times}", str(key[3]), f"{sum(one.accuracy for one in mine) / len(mine):.3f}", paper]
        line += [*_tested(change), "" if change is None else change["verdict"]]
        lines = tables.setdefault(f"{key[0]}, {key[1]}", [])
        lines.append([*line, "" if share is None else f"{100 * share:.1f} %"])
        beyond = ((f"  − {one['control']} ×{one['seeds']}", one) for one in first["controls"])
        lines += [[name, "", "", "", *_tested(one), "", ""] for name, one in beyond]
    heads = ["hidden", "n", "acc.", "paper", "change (95 %)", "p", "verdict", "taken"]
    text = "\n\n".join(text_table(title, heads, lines) for title, lines in tables.items())
    notes = (*NOTES, *map(printable, remarks(rows)))
    return "\n".join([text, "", *(fill(line, WIDTH, subsequent_indent="  ") for line in notes)])


def _unseeded(rule: str) -> str:
    word, _, options = rule.partition("@")
    kept = ",".join(one for one in options.split(",") if not one.startswith("seed="))
    return f"{word}@{kept}" if kept else word


def _tested(change: Row | None) -> list[str]:
    return ["", ""] if change is None else [points(change, ", "), p_text(change["p_holm"])]


def text_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of at most 80 columns for a terminal; columns without any cell are left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(printable(title)), title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    kept = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    for at in kept:
        made.add_column(heads[at], justify="right" if at else "left", overflow="fold", no_wrap=at > 0)
    for row in rows:
        made.add_row(*(Text(printable(row[at])) for at in kept))
    out = io.StringIO()
    Console(file=out, width=WIDTH).print(made)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _markdown(rows: Sequence[Row]) -> str:
    head, *lines = _layout(rows, _cell)
    lines = [_markdown_line(head), "|---" * len(head) + "|", *map(_markdown_line, lines)]
    changed = [row for row in rows if row["change"] is not None]
    if changed:
        lines += ["", _markdown_line(_COMPARED), "|---" * len(_COMPARED) + "|"]
        lines += [_markdown_line(_comparison(row)) for row in changed]
    return "\n".join([*lines, "", *NOTES[: None if changed else 1], *map(in_markdown, remarks(rows))])


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def _cell(row: Row) -> str:
    low, high = row["interval"]
    paper = "" if row["published"] is None else f" [paper {row['published']:.2f} ± {row['published_error']:.2f}]"
    return f"{row['accuracy']:.3f} ({low:.3f}–{high:.3f}), n = {row['n']}{paper}"


def _comparison(row: Row) -> list[str]:
    change = row["change"]
    against = [
        f"{one['control']} ×{one['seeds']}: {points(one, ' to ')}, p {p_text(one['p_holm'])}" for one in row["controls"]
    ]
    verdict = change["verdict"] + (" (n too small)" if change["too_small"] else "")
    shares = [row[name] for name in ("removed_share", "removed_share_committed", "hit_rate")]
    return [
        *(row["model"], row["task"], row["hide"], str(change["n"])),
        *(points(change, " to "), p_text(change["p_holm"]), verdict),
        *("–" if share is None else f"{100 * share:.1f} %" for share in shares),
        "; ".join(against) or "–",
    ]


def _latex(rows: Sequence[Row]) -> str:
    head, *found = _layout(rows, _latex_cell)
    lines = [r"\begin{tabular}{" + "l" * len(head) + "}", r"\hline"]
    lines += [" & ".join(map(_escaped, head)) + r" \\", r"\hline"]
    for task, hide, *cells in found:
        lines.append(" & ".join([_escaped(task), _escaped(hide), *cells]).replace("–", "--") + r" \\")
    lines += [r"\hline", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {line}" for line in (*NOTES, *map(printable, remarks(rows))))])


def _latex_cell(row: Row) -> str:
    low, high = row["interval"]
    mark = "" if row["change"] is None else _MARKS[row["change"]["verdict"]]
    paper = "" if row["published"] is None else f" [{row['published']:.2f} $\\pm$ {row['published_error']:.2f}]"
    return f"{row['accuracy']:.3f} ({low:.3f}--{high:.3f}){mark}{paper}"


def _escaped(text: str) -> str:
    return "".join(_IN_LATEX.get(one, one) for one in printable(text))


def _csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    tests = [*(field.name for field in fields(Difference)), "p_holm"]
    writer = csv.writer(out, lineterminator="\n")
    header = [*_FLAT, "low", "high", "published", "published_error", *(f"change_{name}" for name in tests)]
    writer.writerow([*header, "verdict", "too_small", "controls", *_MORE])
    for row in rows:
        change, controls = row["change"] or {}, row["controls"]
        cells = [*(row[name] for name in _FLAT), *row["interval"], row["published"], row["published_error"]]
        cells += [change.get(name) for name in (*tests, "verdict", "too_small")]
        writer.writerow([*cells, json_text(controls) if controls else None, *(row[name] for name in _MORE)])
    return out.getvalue().rstrip("\n")
