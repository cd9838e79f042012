"""`compare_caches` and its command: arms as text, the table against numbers counted here, resumption."""

import csv
import json

import pytest
from processes import without

import sinkscope
from sinkscope.errors import CallError
from sinkscope.evaluation import cache_comparison
from sinkscope.evaluation.cache_comparison import Arm, compare_caches, on_sinks, read_arms
from sinkscope.evaluation.paired_tests import Difference, paired_difference
from sinkscope.lab.prompts import few_shot_prompt, held_out

POLICIES = "fast-dllm-dual,none@threshold=0.3,block:keep=top,block:every=3,keep=no-sinks,budget=9,block:keep=no-sinks"
ARMS = ["none", "fast-dllm-dual", "none@threshold=0.3", "block:keep=top,budget=4", "block:keep=top,budget=7"]
ARMS += ["block:every=3,keep=no-sinks,budget=9", "block:keep=no-sinks,budget=4", "block:keep=no-sinks,budget=7"]
PLAIN = Arm()
SMALL = {"tasks": ["lab-sums"], "limit": 5, "batch": 2, "settings": {"length": 8, "block": 4}, "progress": False}
NOISY = ("seconds", "processor_seconds", "peak_memory", "checksum", "tokens_per_second", "speed_ratio")


def test_arms_are_read_from_text():
    arms = read_arms(POLICIES, [4, 7])
    assert [arm.text for arm in arms] == ARMS and arms[0] == PLAIN
    assert read_arms(",".join(ARMS)) == arms
    assert arms[2].settings == {"threshold": 0.3} and arms[1].settings == {"cache": "fast-dllm-dual"}
    assert (arms[3].budget, arms[1].budget) == (4, None)
    assert read_arms("dkv-decode@factor=0.5,none")[1:] == [Arm("dkv-decode", factor=0.5)]
    with pytest.raises(CallError, match="expected a budget of keys; give --budget 16,64"):
        read_arms("block:keep=sinks")
    with pytest.raises(CallError, match="expected threshold=… or factor=… behind the @, found 'temperature'"):
        read_arms("none@temperature=1")


@pytest.fixture(scope="module")
def whole(diffusion, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return compare_caches(diffusion, arms=read_arms(POLICIES, [4, 7]), out=folder, **SMALL), folder


def items(folder):
    paths = sorted(folder.rglob("*.json"))
    return {str(path.relative_to(folder)): without(json.loads(path.read_text()), NOISY) for path in paths}


def test_rows_are_those_of_the_generations(whole, diffusion):
    document, folder = whole
    assert json.loads((folder / "caches.json").read_text()) == json.loads(json.dumps(document))
    assert [row["policy"] for row in document["rows"]] == ARMS
    problems = [one for one in held_out("lab-arith") if one.template in ("buy", "give", "find")][:5]
    prompts = [few_shot_prompt(problem, index, 0) for index, problem in enumerate(problems)]
    found = {}
    for row, arm in zip(document["rows"], read_arms(",".join(ARMS)), strict=True):
        written = [
            one
            for start in (0, 2, 4)
            for one in sinkscope.generate(
                diffusion, prompts[start : start + 2], length=8, block=4, seed=start, **arm.settings
            )
        ]
        found[arm] = [one.tokens[one.prompt_length :].tolist() for one in written]
        assert row["n"] == 5 and len(row["outcomes"]) == 5
        for name, value in row["work"].items():
            assert value == pytest.approx(sum(getattr(one.work, name) for one in written) / 5), name
        assert row["same_answers"] == sum(one == other for one, other in zip(found[arm], found[PLAIN], strict=True)) / 5
        same = [
            a == b for one, other in zip(found[arm], found[PLAIN], strict=True) for a, b in zip(one, other, strict=True)
        ]
        assert row["same_tokens"] == pytest.approx(sum(same) / 40)
        assert row["canvas"] == [min(len(one.tokens) for one in written), max(len(one.tokens) for one in written)]
    assert len({json.dumps(one) for one in found.values()}) > 2
    plain, dual = document["rows"][:2]
    change = paired_difference(*([int(one) for one in row["outcomes"]] for row in (dual, plain)))
    assert plain["difference"] is None and dual["difference"]["low"] == change.low
    assert dual["work_ratio"] == pytest.approx(plain["work"]["total"] / dual["work"]["total"])
    assert dual["work_ratio"] > 1 and dual["peak_memory"] is None
    verdicts = [(one["with"], one["without"], one["budget"]) for one in document["sinks"]]
    assert verdicts == [(ARMS[3], ARMS[6], 4), (ARMS[4], ARMS[7], 7)]


def test_a_resumed_comparison_equals_an_uninterrupted_one(whole, diffusion, tmp_path, monkeypatch):
    """Killed within a batch, with an item of it lost, begun with fewer problems and arms: the same items and table."""
    document, folder = whole
    calls, plain = [], cache_comparison.generate

    def failing(*arguments, **settings):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return plain(*arguments, **settings)

    monkeypatch.setattr(cache_comparison, "generate", failing)
    compare_caches(diffusion, arms=read_arms("fast-dllm-dual"), out=tmp_path, **{**SMALL, "limit": 3})
    with pytest.raises(KeyboardInterrupt):
        compare_caches(diffusion, arms=read_arms(POLICIES, [4, 7]), out=tmp_path, **SMALL)
    lost = tmp_path / "lab-sums" / "fast-dllm-dual" / "000001.json"
    lost.unlink()
    monkeypatch.setattr(cache_comparison, "generate", plain)
    again = compare_caches(diffusion, arms=read_arms(POLICIES, [4, 7]), out=tmp_path, **SMALL)
    assert without(again, NOISY) == without(document, NOISY) and items(tmp_path) == items(folder)


def test_the_verdict_on_sinks():
    ends = {(0.3, 0.5): "keep", (-0.5, -0.3): "filter", (-0.019, 0.019): "discount", (-0.03, 0.01): "undecided"}
    for (low, high), verdict in ends.items():
        assert on_sinks(Difference(100, (low + high) / 2, low, high, 0.5, 10, 1.0)) == verdict


FLAGS = ("--tasks", "lab-sums", "--limit", 3, "--length", 8, "--block", 4)


def test_the_command_prints_a_table_and_draws_a_figure(run, diffusion_folder, tmp_path):
    policies = ("--policies", "fast-dllm-dual,block:keep=top", "--budget", 5)
    command = ("compare-caches", diffusion_folder, "--out", tmp_path / "c", *FLAGS, *policies)
    status, out, err = run(*command)
    assert status == 0, err
    assert "| plain sampling | 0.000" in out and "| `block:keep=top,budget=5` |" in out
    assert (tmp_path / "c" / "accuracy-against-work.pdf").read_bytes().startswith(b"%PDF")
    rows = list(csv.DictReader((tmp_path / "c" / "accuracy-against-work.csv").read_text().splitlines()))
    mine = json.loads(run(*command, "--json")[1])["rows"]
    names = ["none", "fast-dllm-dual", "block:keep=top,budget=5"]
    assert [row["policy"] for row in rows] == [row["policy"] for row in mine] == names
    assert [float(row["multiply_adds"]) for row in rows] == pytest.approx([row["work"]["total"] for row in mine])


def test_a_dry_run_counts_every_policy(run, diffusion_folder):
    """A threshold that is never reached commits one token a call, whatever --steps says."""
    command = ("compare-caches", diffusion_folder, *FLAGS, "--steps", 2, "--dry-run", "--json", "--policies")
    status, out, err = run(*command, "fast-dllm-dual,fast-dllm-dual@threshold=0.9,none@factor=0.5")
    assert status == 0, err
    costs = json.loads(out)
    assert [part["forwards"] for part in costs["parts"]] == [3 * 2, 3 * 2, 3 * 8, 3 * 8]
    assert costs["assumptions"][-1].startswith("Every policy is counted as plain sampling")


def test_bad_input_gets_one_message(run, diffusion_folder, tmp_path):
    (tmp_path / "lambada.jsonl").write_text(json.dumps({"text": "Tom has 7 apples"}) + "\n")
    lambada = ["--tasks", "lambada", "--data", f"lambada={tmp_path / 'lambada.jsonl'}"]
    for arguments, says in (
        (["--policies", "fast"], "no cache 'fast'"),
        (["--policies", "block:keep=top", "--budget", "9999"], "expected sinks and a budget of keys up to"),
        (["--cache", "block"], "cache: a comparison has it in its policies"),
        (lambada, "expected a task that is written in one pass"),
    ):
        task = () if "--tasks" in arguments else ("--tasks", "lab-sums")
        command = ("compare-caches", diffusion_folder, "--out", tmp_path / "c", "--limit", 2)
        status, out, err = run(*command, *task, *arguments)
        assert says in err.replace("\n", " "), err
        assert (status, out) == (2, "") and not (tmp_path / "c" / "run.json").exists()
