"""Writes results/table-1/table.md and table.json from the outcomes of every problem that lie beside them.

Command   python experiments/table_one_page.py [--add FOLDER…]
Cost      seconds.

``results/table-1/MODEL/results.json.gz`` holds the outcomes of a model, one character a problem; everything in the table is computed from
them. ``--add`` takes outcomes from the folders of finished evaluations (`table_one.py --out`) first; where a cell is known already, the
new outcomes count.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _settings import Arguments, run_script

from sinkscope.evaluation.comparisons import compare
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


def documents(folder: Path = FOLDER) -> tuple[dict[str, Any], str]:
    """Return table.json and table.md as they follow from the outcomes."""
    rows = compare(with_outcomes(folder))
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
    print(f"{FOLDER / 'table.md'}: {len(with_outcomes())} cells")


if __name__ == "__main__":
    run_script(main)
