"""The small version of the published Table 1, compared with the stored outcomes."""

import json
from pathlib import Path

import pytest

from sinkscope.evaluation.results import read_results
from sinkscope.evaluation.tables import table

FOLDER = Path(__file__).parents[2] / "results" / "table-1"


def test_rows_follow_from_the_outcomes_beside_them():
    published = {
        (row["model"], row["task"], row["hide"]): row for row in json.loads((FOLDER / "table.json").read_text())["rows"]
    }
    results = read_results(FOLDER / "lab-diffusion")
    assert len(results) >= 20
    for result in results:
        assert len(result.outcomes) == result.n and result.outcomes.count("1") == result.correct
    for row in table(results)["rows"]:
        other = published[row["model"], row["task"], row["hide"]]
        assert (row["n"], row["correct"], row["weight_hash"]) == (other["n"], other["correct"], other["weight_hash"])
        if row["change"] is not None:
            for name in ("n", "mean", "low", "high", "p_value"):
                assert row["change"][name] == pytest.approx(other["change"][name]), name
        contrasts = {one["control"]: one for one in other["controls"]}
        for one in row["controls"]:
            for name in ("n", "seeds", "mean", "low", "high", "p_value"):
                assert one[name] == pytest.approx(contrasts[one["control"]][name]), name
