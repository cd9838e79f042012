"""The page on caches shows what results/caches holds, by the rules that were written down beforehand."""

import json
from pathlib import Path

import caches
import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads((ROOT / "results" / "caches" / "lab-diffusion.json").read_text())
PAGE = (ROOT / "docs" / "caches.md").read_text()


@pytest.mark.parametrize("line", [line for line in caches.tables(DOCUMENT) if line])
def test_every_line_of_the_tables_is_on_the_page(line):
    assert line in PAGE.splitlines()


def test_the_numbers_of_an_arm_are_those_of_its_problems():
    work = {"forwards": 2, "rows": 4, "total": 10}
    plain = {0: {"correct": [1, 0], "tokens": [[5, 6], [7, 8]], "seconds": 6.0, "work": [work, {**work, "total": 30}]}}
    mine = {0: {"correct": [1, 1], "tokens": [[5, 6], [7, 9]], "seconds": 2.0, "work": [work, work]}, 16: plain[0]}
    row = caches.row(mine, plain)
    assert (row["problems"], row["accuracy"], row["difference"]) == (2, 1.0, 0.5)
    assert (row["same_tokens"], row["same_answers"]) == (0.75, 0.5)
    assert (row["work_ratio"], row["speed_ratio"], row["tokens_per_second"]) == (2.0, 3.0, 2.0)
    assert row["interval"][0] < 0.5 < row["interval"][1] and not row["within_a_point"]
    assert caches.points({"difference": 0.5, "interval": [-0.01, 0.021]}) == "+50.0 (-1.0 … +2.1)"
