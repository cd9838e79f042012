"""Writes results/table-1/table.md and table.json from the outcomes of every problem that lie beside them.

Command   python experiments/table_one_page.py [--add FOLDER…]
Cost      seconds.

``results/table-1/MODEL/results.json.gz`` holds the outcomes of a model, one character a problem. A cell with outcomes is computed from
them: accuracy, paired difference, contrasts with the controls that have outcomes too. A cell without keeps the row that table.json has of
it, and so does a contrast with a control that has outcomes of fewer seeds than it had. Holm's adjustment is done anew over all cells.
``--add`` takes outcomes from the folders of finished evaluations (`table_one.py --out`) first; where a cell is known already, the new
outcomes count.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from _arguments import Arguments, run_script

from sinkscope.evaluation.comparisons import Contrast, Row, adjust, compare
from sinkscope.evaluation.paired_tests import Difference
from sinkscope.evaluation.results import Result, read_results, write_compressed
from sinkscope.evaluation.tables import table_of, write_rows

FOLDER = Path(__file__).parents[1] / "results" / "table-1"
Cell = tuple[str, str, str]


def add(folders: Sequence[Path], to: Path = FOLDER) -> None:
    """Take outcomes from folders of evaluations into the compressed file of each model."""
    found = {cell_of(one): one for one in (*with_outcomes(to), *read_results(*folders))}
    for model in dict.fromkeys(one.model for one in found.values()):
        write_compressed(to / model, [one for one in found.values() if one.model == model])


def with_outcomes(folder: Path = FOLDER) -> list[Result]:
    """Return the results of all cells that have outcomes."""
    kept = sorted(path.parent for path in folder.glob("*/results.json.gz"))
    return read_results(*kept) if kept else []


def cell_of(result: Result) -> Cell:
    return result.model, result.task, result.hide


def rows_of(stored: Sequence[Mapping[str, Any]], results: Sequence[Result]) -> list[Row]:
    """Return the rows of the whole table, in the order of the stored ones."""
    old = {(row["model"], row["task"], row["hide"]): stored_row(row) for row in stored}
    new = {cell_of(row.result): row for row in compare(results)}
    rows = []
    for cell in dict.fromkeys((*old, *new)):
        before, now = old.get(cell), new.get(cell)
        if before is None or now is None:
            rows.append(now or before)
            continue
        stored_seeds = {one.control: one.seeds for one in before.contrasts}
        computed = [one for one in now.contrasts if one.seeds >= stored_seeds.get(one.control, 0)]
        known = {one.control for one in computed}
        contrasts = (*computed, *(one for one in before.contrasts if one.control not in known))
        order = [one.control for one in before.contrasts]
        contrasts = sorted(contrasts, key=lambda one: order.index(one.control) if one.control in order else len(order))
        rows.append(replace(now, change=now.change or before.change, contrasts=tuple(contrasts)))
    return adjust(rows)


def stored_row(row: Mapping[str, Any]) -> Row:
    """Return a row of table.json as it was computed, without outcomes."""
    published = None if row["published"] is None else (row["published"], row["published_error"])
    result = Result(**{one.name: row[one.name] for one in fields(Result) if one.name in row})
    result = replace(result, interval=tuple(row["interval"]), not_enforced=tuple(row["not_enforced"]))
    contrasts = (
        Contrast(one["control"], one["seeds"], difference(one), one["p_holm"], one["removed_share"], one.get("removed_share_committed"))
        for one in row["controls"]
    )
    change = None if row["change"] is None else difference(row["change"])
    return Row(result, published, change, None, tuple(contrasts))


def difference(row: Mapping[str, Any]) -> Difference:
    return Difference(**{one.name: row[one.name] for one in fields(Difference)})


def documents(folder: Path = FOLDER) -> tuple[dict[str, Any], str]:
    """Return table.json and table.md as they follow from what is stored."""
    rows = rows_of(json.loads((folder / "table.json").read_text())["rows"], with_outcomes(folder))
    return table_of(rows), write_rows(rows) + "\n"


def write(folder: Path = FOLDER) -> None:
    """Write both files."""
    document, text = documents(folder)
    (folder / "table.json").write_text(json.dumps(document, ensure_ascii=False) + "\n")
    (folder / "table.md").write_text(text)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--add", type=Path, nargs="*", default=[], metavar="FOLDER", help="of a finished evaluation")
    arguments = parser.parse_args()
    if arguments.add:
        add(arguments.add)
    write()
    cells = len(json.loads((FOLDER / "table.json").read_text())["rows"])
    print(f"{FOLDER / 'table.md'}: {cells} cells, {len(with_outcomes())} of them computed from outcomes")


if __name__ == "__main__":
    run_script(main)
