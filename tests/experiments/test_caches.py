"""The page on caches shows what results/caches holds, and each plan's policies can be read."""

import json
from pathlib import Path

import caches
import pytest

from sinkscope.evaluation.cache_arms import read_arms
from sinkscope.evaluation.cache_tables import comparison_of, points

ROOT = Path(__file__).parents[2]
RESULTS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "results" / "caches").glob("*.json"))}
DOCUMENTS = {name: document for name, document in RESULTS.items() if name in caches.PLANS}
PAGE = (ROOT / "docs" / "caches.md").read_text().splitlines()
KEYS = {name: DOCUMENTS[name] for name in caches.PLANS if name in DOCUMENTS and "budgets" in caches.PLANS[name]}
LINES = caches.savings_table(DOCUMENTS["lab-diffusion"]) + caches.keys_table(KEYS)


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_tables_is_on_the_page(line):
    assert line in PAGE


def test_the_work_of_the_newer_policies_is_on_the_page():
    page = " ".join(PAGE)
    for row in DOCUMENTS["lab-diffusion-newer"]["rows"]:
        if row["policy"] not in ("none", "block:trigger=confidence", "block:trigger=entropy"):
            assert f"{row['work_ratio']:.1f} (`{row['policy']}`)" in page or f"{row['work_ratio']:.1f} times (`{row['policy']}`)" in page


def test_the_page_stays_short():
    assert len("\n".join(PAGE).split()) <= 1600


def test_stale_keys_are_on_the_page():
    """Every mean with its interval, as text; and each is the mean of its answers."""
    page = "\n".join(PAGE)
    assert set(RESULTS) - set(DOCUMENTS) <= {"stale-keys"}
    for document in RESULTS.get("stale-keys", {"models": {}})["models"].values():
        for row in document["rows"]:
            low, high = row["interval"]
            assert f"{row['mean']:.1e} ({low:.1e} … {high:.1e})" in page
            assert row["mean"] == pytest.approx(sum(row["answers"]) / len(row["answers"])) and low <= row["mean"] <= high


def test_results_are_those_of_the_plans():
    assert {"lab-diffusion", "lab-diffusion-keys"} <= set(DOCUMENTS)
    for name, document in DOCUMENTS.items():
        plan = caches.PLANS[name]
        (task,) = document["tasks"].values()
        assert (task["task"], document["limit"]) == (plan["task"], plan.get("limit"))
        assert {row["policy"] for row in document["rows"]} <= {arm.text for arm in read_arms(plan["policies"], plan.get("budgets", ()))}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_verdicts_follow_from_the_answers(name):
    """What stands beside the outcomes is what they give again."""
    rows = DOCUMENTS[name]["rows"]
    work, plain = {"total": 1, "rows": 1}, rows[0]
    items = {
        (row["task"], arm): [
            {"correct": int(one), "tokens": [int(one)], "work": work, "canvas": 1, "processor_seconds": 1, "peak_memory": None}
            for one in row["outcomes"]
        ]
        for row in rows
        for arm in (read_arms(row["policy"])[-1],)
    }
    again = comparison_of(items)
    for row, found in zip(rows, again["rows"], strict=True):
        for name_of_value in ("difference", "interval", "within_a_point"):
            assert row[name_of_value] == found[name_of_value]
    assert again["sinks"] == DOCUMENTS[name]["sinks"]
    assert plain["policy"] == "none" and points({"mean": 0.5, "low": -0.01, "high": 0.021}) == "+50.0 (-1.0 … +2.1)"
