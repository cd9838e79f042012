"""Results of caches are those of their plans, and their verdicts follow from the answers."""

import json
from pathlib import Path

import caches
import pytest
import stale_keys

from sinkscope.evaluation.cache_comparison import comparison_of, points, read_arms

ROOT = Path(__file__).parents[2]
RESULTS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "results" / "caches").glob("*.json"))}
DOCUMENTS = {name: document for name, document in RESULTS.items() if name in caches.PLANS}


@pytest.mark.parametrize(
    ("found", "verdict"), [([0.5, 0.52, 0.48], "holds"), ([2.0, 2.1, 1.9], "refuted"), ([0.2, 8.0, 1.0], "undecided")]
)
def test_seeds_decide_on_stale_keys(found, verdict):
    told = stale_keys.over_seeds(found)
    assert told["verdict"] == verdict and told["interval"][0] < told["ratio"] < told["interval"][1]


def test_results_are_those_of_the_plans():
    assert {"lab-diffusion", "lab-diffusion-keys"} <= set(DOCUMENTS)
    for name, document in DOCUMENTS.items():
        plan = caches.PLANS[name]
        (task,) = document["tasks"].values()
        assert (task["task"], document["limit"]) == (plan["task"], plan.get("limit"))
        assert {row["policy"] for row in document["rows"]} <= {
            arm.text for arm in read_arms(plan["policies"], plan.get("budgets", ()))
        }


@pytest.mark.parametrize("name", DOCUMENTS)
def test_verdicts_follow_from_the_answers(name):
    """What stands beside the outcomes is what they give again."""
    rows = DOCUMENTS[name]["rows"]
    work, plain = {"total": 1, "rows": 1}, rows[0]
    answer = {"work": work, "canvas": 1, "processor_seconds": 1, "peak_memory": None}
    items = {
        (row["task"], read_arms(row["policy"])[-1]): [
            {"correct": int(one), "tokens": [int(one)], **answer} for one in row["outcomes"]
        ]
        for row in rows
    }
    again = comparison_of(items)
    for row, found in zip(rows, again["rows"], strict=True):
        for name_of_value in ("difference", "interval", "within_a_point"):
            assert row[name_of_value] == found[name_of_value]
    assert again["sinks"] == DOCUMENTS[name]["sinks"]
    assert plain["policy"] == "none" and points({"mean": 0.5, "low": -0.01, "high": 0.021}) == "+50.0 (-1.0 … +2.1)"


def test_stale_keys_are_those_of_their_answers():
    """Ratios follow from the answers; the seeds contradict each other, so the verdict is undecided at each interval."""
    for document in RESULTS["stale-keys"]["models"].values():
        for row in document["rows"]:
            low, high = row["interval"]
            assert (
                row["mean"] == pytest.approx(sum(row["answers"]) / len(row["answers"])) and low <= row["mean"] <= high
            )
    document = RESULTS["stale-keys-arms"]
    found = {
        arm: {seed: {int(every): values for every, values in one.items()} for seed, one in seeds.items()}
        for arm, seeds in document["answers"].items()
    }
    for row, stored in zip(stale_keys.ratios(found), document["rows"], strict=True):
        assert (row["arm"], row["every"], row["verdict"]) == (stored["arm"], stored["every"], "undecided")
        assert [row["ratio"], *row["interval"]] == pytest.approx([stored["ratio"], *stored["interval"]])
