"""results/table-1 and results/table-1-smollm2 follow from the outcomes that lie beside them, by one command."""

import json

import pytest
from table_one import FOLDER, PAIR, cell_of, documents, with_outcomes

from sinkscope.evaluation.paired_tests import holm
from sinkscope.evaluation.tables import compare


def flat(value, place=()):
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(one, (*place, key))
    else:
        yield place, value


@pytest.mark.parametrize("folder", [FOLDER, PAIR])
def test_the_table_is_what_the_command_writes(folder):
    document, text = documents(folder)
    assert (folder / "table.md").read_text() == text
    found, stored = dict(flat(document)), dict(flat(json.loads((folder / "table.json").read_text())))
    assert found.keys() == stored.keys()
    for place, value in found.items():
        assert value == (pytest.approx(stored[place]) if isinstance(value, float) else stored[place]), place


@pytest.mark.parametrize(("folder", "count"), [(FOLDER, 168), (PAIR, 55)])
def test_every_cell_has_as_many_outcomes_as_problems(folder, count):
    rows = json.loads((folder / "table.json").read_text())["rows"]
    cells = {(row["model"], row["task"], row["hide"]): row for row in rows}
    results = with_outcomes(folder)
    assert len(cells) == len(rows) == len(results) == count
    assert {cell_of(one) for one in results} == cells.keys()
    for one in results:
        assert len(one.outcomes) == one.n == cells[cell_of(one)]["n"]
        assert one.outcomes.count("1") == one.correct == cells[cell_of(one)]["correct"]


def test_the_p_values_are_adjusted_over_all_cells():
    """Holm by hand: sorted, times the number that are left, never falling."""
    rows = compare(with_outcomes())
    tops = [row["change"] for row in rows if row["change"] is not None and row["hide"].startswith("top:")]
    ranked, least = sorted(tops, key=lambda change: change["p_value"]), 0.0
    for number, change in enumerate(ranked):
        least = max(least, min(1.0, change["p_value"] * (len(ranked) - number)))
        assert change["p_holm"] == pytest.approx(least)
    contrasts = [one for row in rows for one in row["controls"]]
    assert [one["p_holm"] for one in contrasts] == pytest.approx(holm([one["p_value"] for one in contrasts]))
