"""The page on caches shows what results/caches holds, and each plan's policies can be read."""

import json
import re
from pathlib import Path

import caches
import pytest
import stale_keys

from sinkscope.evaluation.cache_arms import read_arms
from sinkscope.evaluation.cache_tables import comparison_of, points

ROOT = Path(__file__).parents[2]
RESULTS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "results" / "caches").glob("*.json"))}
DOCUMENTS = {name: document for name, document in RESULTS.items() if name in caches.PLANS}
PAGE = (ROOT / "docs" / "caches.md").read_text().splitlines()
TABLES = (ROOT / "results" / "caches" / "README.md").read_text().splitlines()
KEYS = {name: DOCUMENTS[name] for name in caches.PLANS if name in DOCUMENTS and "budgets" in caches.PLANS[name]}
LINES = caches.savings_table(DOCUMENTS["lab-diffusion"]) + caches.keys_table(KEYS)
LINES += caches.savings_table(DOCUMENTS["lab-diffusion-newer"], caches.SAME_AS_BLOCK)


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_tables_is_on_the_page(line):
    assert line in PAGE + TABLES


def test_the_oracle_is_better_than_all_but_one_at_the_smaller_budget():
    undecided = []
    for name, document in KEYS.items():
        smaller = caches.PLANS[name]["budgets"][0]
        for line in caches.pairs(document, "oracle"):
            if f"budget {smaller}:" in line and (" (-" in line or float(line.rpartition("p ")[2]) >= 0.05):
                undecided.append((name, line.partition(",")[0], line.partition(": ")[2].partition(", p")[0]))
    assert undecided == [
        ("lab-diffusion-keys", "oracle − attended", "-1.2 (-3.4 … +0.3)"),
        ("lab-shifted", "oracle − attended", "+1.1 (-0.7 … +3.4)"),
    ]
    assert "about as good on lab-diffusion (−1.2, −3.4 … +0.3) and lab-shifted (+1.1, −0.7 … +3.4)." in " ".join(PAGE)


def test_the_two_caches_of_fast_dllm_on_twice_as_many_problems_are_told_as_measured():
    rows = {row["policy"]: row for row in DOCUMENTS["lab-diffusion-more"]["rows"]}
    dual, prefix = (rows[f"fast-dllm-{kind}"]["difference"] for kind in ("dual", "prefix"))
    dual, prefix = ({name: 100 * one[name] for name in ("mean", "low", "high")} for one in (dual, prefix))
    told = "On 1,024, `fast-dllm-dual` loses a point ({mean:.1f}, {low:.1f} … {high:+.1f})".format(**dual)
    told += " and `fast-dllm-prefix` {0:.1f} ({low:.1f} … {high:+.1f})".format(-prefix["mean"], **prefix)
    assert told.replace("-", "−").replace("fast−dllm−", "fast-dllm-") in " ".join(" ".join(PAGE).split())
    assert {row["n"] for row in rows.values()} == {1024} and max(dual["low"], prefix["low"]) < -1


def test_triggers_that_are_left_out_of_the_table_hardly_ever_fire():
    rows = {row["policy"]: row for row in DOCUMENTS["lab-diffusion-newer"]["rows"]}
    assert set(caches.SAME_AS_BLOCK) <= set(
        rows
    ) and f"plain sampling solves {rows['none']['accuracy']:.3f}" in " ".join(TABLES)
    for trigger in ("confidence", "entropy"):
        found = rows[f"block:trigger={trigger}"]
        assert (
            found["outcomes"] == rows["block"]["outcomes"]
            and 1 <= found["work"]["total"] / rows["block"]["work"]["total"] < 1.005
        )


def test_watching_attention_costs_more_seconds_than_multiply_adds():
    rows = {row["policy"]: row for row in DOCUMENTS["lab-diffusion-newer"]["rows"]}
    for policy in ("block:trigger=sink", "d2cache"):
        work, speed = (rows["block"][name] / rows[policy][name] for name in ("work_ratio", "speed_ratio"))
        assert speed > 1.4 * work


@pytest.mark.parametrize(("name", "policy"), [("lab-sink-token", "block"), ("lab-shifted", "block:every=16")])
def test_what_the_other_models_gain_is_on_the_page(name, policy):
    (row,) = (row for row in DOCUMENTS[name]["rows"] if row["policy"] == policy)
    page = " ".join(TABLES)
    assert row["same_answers"] == 1 and re.search(rf"`{policy}`\D{{,30}} all {row['n']}\b[^.]*? of {name}\b", page)
    assert f"{row['speed_ratio']:.1f} times as fast with {row['work_ratio']:.1f} times fewer" in page


def test_the_page_stays_short():
    assert len("\n".join(PAGE).split()) <= 1200


def test_stale_keys_are_on_the_page():
    """The means at the longest interval with their intervals, as text; every mean is that of its answers, and moves less with the token."""
    page = " ".join(TABLES)
    assert set(RESULTS) - set(DOCUMENTS) == {"stale-keys", "stale-keys-arms"}
    models = RESULTS["stale-keys"]["models"]
    for document in models.values():
        for row in document["rows"]:
            low, high = row["interval"]
            assert row["every"] < 32 or f"{row['mean']:.1e} ({low:.1e} … {high:.1e})" in page
            assert (
                row["mean"] == pytest.approx(sum(row["answers"]) / len(row["answers"])) and low <= row["mean"] <= high
            )
        means = [row["mean"] for row in document["rows"]]
        assert means == sorted(means)
    for one, other in zip(*(models[name]["rows"] for name in ("lab-sink-token", "lab-diffusion")), strict=True):
        assert one["interval"][1] < other["interval"][0]


def test_stale_keys_of_models_trained_alike_are_on_the_page():
    """Ratios follow from the answers; the seeds contradict each other, so the verdict is undecided at every interval."""
    document, page = RESULTS["stale-keys-arms"], " ".join(TABLES)
    found = {
        arm: {seed: {int(every): values for every, values in one.items()} for seed, one in seeds.items()}
        for arm, seeds in document["answers"].items()
    }
    rows = stale_keys.ratios(found)
    assert [(row["arm"], row["every"], row["verdict"]) for row in rows] == [
        (row["arm"], row["every"], row["verdict"]) for row in document["rows"]
    ]
    for row, stored in zip(rows, document["rows"], strict=True):
        assert [row["ratio"], *row["interval"]] == pytest.approx([stored["ratio"], *stored["interval"]])
        assert len(row["seeds"]) == 3 and row["verdict"] == "undecided"
        low, high = row["interval"]
        if row["every"] == 32:
            *first, last = (f"{one['ratio']:.2g}" for one in row["seeds"].values())
            assert (
                f"{row['ratio']:.2g} ({low:.2g} … {high:.2g}) times as far" in page
                and f"({', '.join(first)} and {last})" in page
            )
    assert "**Undecided**: we trained text models with and without the token" in page


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
    items = {
        (row["task"], arm): [
            {
                "correct": int(one),
                "tokens": [int(one)],
                "work": work,
                "canvas": 1,
                "processor_seconds": 1,
                "peak_memory": None,
            }
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
