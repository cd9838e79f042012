"""`compare_caches` and its command: arms as text, the table against numbers counted here, resumption, and every
refusal."""

import csv
import json
import shutil

import pytest

import sinkscope
from sinkscope.counts import counted
from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation import cache_comparison
from sinkscope.evaluation.cache_arms import PLAIN, Arm, read_arms
from sinkscope.evaluation.cache_comparison import COMPARISON, compare_caches
from sinkscope.evaluation.cache_tables import comparison_table, on_sinks
from sinkscope.evaluation.paired_tests import Difference, paired_difference
from sinkscope.lab.prompts import few_shot_prompt, held_out
from sinkscope.runs.files import with_checksum

POLICIES = "fast-dllm-dual,none@threshold=0.3,block:keep=top,block:every=3,keep=no-sinks,budget=9,block:keep=no-sinks"
ARMS = [
    "none",
    "fast-dllm-dual",
    "none@threshold=0.3",
    "block:keep=top,budget=4",
    "block:keep=top,budget=7",
    "block:every=3,keep=no-sinks,budget=9",
    "block:keep=no-sinks,budget=4",
    "block:keep=no-sinks,budget=7",
]
SMALL = {"tasks": ["lab-sums"], "limit": 5, "batch": 2, "settings": {"length": 8, "block": 4}, "progress": False}
NOISY = ("seconds", "processor_seconds", "peak_memory", "checksum", "tokens_per_second", "speed_ratio")


def test_arms_are_read_from_text():
    arms = read_arms(POLICIES, [4, 7])
    assert [arm.text for arm in arms] == ARMS and arms[0] == PLAIN
    assert read_arms(",".join(ARMS)) == arms
    assert arms[2].settings == {"threshold": 0.3} and arms[1].settings == {"cache": "fast-dllm-dual"}
    assert (arms[3].keep, arms[3].budget, arms[1].keep, arms[1].budget) == ("top", 4, None, None)
    assert read_arms("dkv-decode@factor=0.5,none")[1:] == [Arm("dkv-decode", factor=0.5)]
    near = read_arms("none@threshold=0.1000001,none@threshold=0.1,none@threshold=1")
    assert [arm.text for arm in near[1:]] == ["none@threshold=0.1000001", "none@threshold=0.1", "none@threshold=1"]


@pytest.mark.parametrize(
    ("text", "budgets", "message"),
    [
        ("", (), "policies: expected at least one, such as fast-dllm-dual, found none"),
        ("fast", (), "no cache 'fast'; expected one of none, block"),
        (
            "fast-dllm-dual",
            (4,),
            "budget: expected a policy that leaves its budget open, such as block:keep=sinks, found fast-dllm-dual",
        ),
        ("block:keep=sinks", (), "expected a budget of keys; give --budget 16,64, or write block:keep=sinks,budget=64"),
        (
            "none@temperature=1",
            (),
            "expected threshold=… or factor=… up to 1 behind the @, each once, found 'temperature=1'",
        ),
        ("block@threshold=2", (), "found 'threshold=2'"),
        ("block@threshold=x", (), "found 'threshold=x'"),
    ],
)
def test_arms_that_make_no_sense_are_refused(text, budgets, message):
    with pytest.raises(CallError) as error:
        read_arms(text, budgets)
    assert message in str(error.value)


@pytest.fixture(scope="module")
def whole(diffusion, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return compare_caches(diffusion, arms=read_arms(POLICIES, [4, 7]), out=folder, **SMALL), folder


def quiet(content):
    """A document without what time and memory say."""
    if isinstance(content, dict):
        return {key: quiet(value) for key, value in content.items() if key not in NOISY}
    return [quiet(one) for one in content] if isinstance(content, list) else content


def items(folder):
    return {
        str(path.relative_to(folder)): quiet(json.loads(path.read_text())) for path in sorted(folder.rglob("*.json"))
    }


def test_rows_are_those_of_the_generations(whole, diffusion):
    document, folder = whole
    assert json.loads((folder / COMPARISON).read_text()) == json.loads(json.dumps(document))
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
    assert plain["difference"] is None and dual["difference"]["n"] == 5 and dual["difference"]["p_holm"] == 1
    assert (
        dual["work_ratio"] == pytest.approx(plain["work"]["total"] / dual["work"]["total"]) and dual["work_ratio"] > 1
    )
    assert dual["peak_memory"] is None or dual["peak_memory"] > 1 << 20
    assert dual["tokens_per_second"] > 0
    assert [(one["with"], one["without"], one["budget"]) for one in document["sinks"]] == [
        (ARMS[3], ARMS[6], 4),
        (ARMS[4], ARMS[7], 7),
    ]


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
    assert quiet(again) == quiet(document) and items(tmp_path) == items(folder)


def test_answers_of_unequal_lengths_are_refused(whole, diffusion, tmp_path):
    """They fit alone, but not to each other."""
    shutil.copytree(whole[1], tmp_path / "copy")
    path = tmp_path / "copy" / "lab-sums" / "fast-dllm-dual" / "000001.json"
    item = json.loads(path.read_text())
    item |= {"tokens": item["tokens"][:-1], "canvas": item["canvas"] - 1}
    path.write_text(json.dumps(with_checksum(item)))
    with pytest.raises(EvaluationError) as error:
        compare_caches(diffusion, arms=read_arms(POLICIES, [4, 7]), out=tmp_path / "copy", **SMALL)
    assert "lab-sums, fast-dllm-dual: expected an answer to problem 1 as long as" in str(error.value)


def test_finished_answers_are_not_written_again(whole, diffusion, monkeypatch):
    def never(*arguments, **settings):
        raise AssertionError("nothing is left to write")

    monkeypatch.setattr(cache_comparison, "generate", never)
    compare_caches(diffusion, arms=read_arms(POLICIES, [4, 7]), out=whole[1], **SMALL)


def test_a_table_that_holds_less_than_before_says_what_it_leaves_out(whole, diffusion, tmp_path, caplog):
    shutil.copytree(whole[1], tmp_path / "copy")
    call = {"arms": [PLAIN], "out": tmp_path / "copy"}
    compare_caches(diffusion, **call, **{**SMALL, "limit": 4})
    (said,) = caplog.messages
    begin = f"{tmp_path / 'copy' / COMPARISON} has fewer answers now, without some of lab-sums none (of 5), lab-sums fast-dllm-dual (of 5), "
    assert said.startswith(begin) and said.endswith(
        "; all are kept, and the call that asked for them counts them again"
    )
    caplog.clear()
    compare_caches(diffusion, **call, **SMALL)
    compare_caches(diffusion, arms=read_arms(POLICIES, [4, 7]), out=tmp_path / "copy", **SMALL)
    assert not caplog.messages


def test_counts_of_one_have_their_nouns_in_the_singular(whole):
    row = {**whole[0]["rows"][0], "task": "t", "n": 1, "canvas": [31, 31]}
    for shown, canvas in (("31 tokens", [31, 31]), ("30 to 31 tokens", [30, 31]), ("1 token", [1, 1])):
        assert comparison_table({"rows": [{**row, "canvas": canvas}], "sinks": []}).startswith(
            f"t: 1 problem, canvases of {shown}\n"
        )
    assert [counted(count, "move", ",") for count in (0, 1, 2000)] == ["0 moves", "1 move", "2,000 moves"]


def test_other_settings_and_other_runs_are_refused(whole, diffusion, tmp_path):
    with pytest.raises(CallError, match="holds another run"):
        compare_caches(diffusion, arms=[PLAIN], out=whole[1], **{**SMALL, "settings": {"length": 8, "block": 8}})
    sinkscope.evaluation.evaluate(
        diffusion, tasks=["lab-sums"], limit=1, settings={"length": 8}, out=tmp_path, progress=False
    )
    with pytest.raises(CallError, match="holds another run"):
        compare_caches(diffusion, arms=[PLAIN], out=tmp_path, **SMALL)


@pytest.mark.parametrize(
    ("change", "low", "high", "verdict"),
    [
        (0.4, 0.3, 0.5, "keep"),
        (-0.4, -0.5, -0.3, "filter"),
        (0.0, -0.019, 0.019, "discount"),
        (0.0, -0.03, 0.01, "undecided"),
    ],
)
def test_the_verdict_on_sinks(change, low, high, verdict):
    assert on_sinks(Difference(100, change, low, high, 0.5, 10)) == verdict


def test_the_difference_is_paired(whole):
    rows = {row["policy"]: row for row in whole[0]["rows"]}
    change = paired_difference(*([int(one) for one in rows[name]["outcomes"]] for name in ("fast-dllm-dual", "none")))
    assert (rows["fast-dllm-dual"]["difference"]["low"], rows["fast-dllm-dual"]["difference"]["high"]) == (
        change.low,
        change.high,
    )


FLAGS = ("--tasks", "lab-sums", "--limit", 3, "--length", 8, "--block", 4)


def test_the_command_prints_a_table_and_draws_a_figure(run, diffusion_folder, tmp_path):
    command = (
        "compare-caches",
        diffusion_folder,
        "--out",
        tmp_path / "c",
        *FLAGS,
        "--policies",
        "fast-dllm-dual,block:keep=top",
    )
    status, out, err = run(*command, "--budget", 5)
    assert status == 0, err
    assert "| plain sampling | 0.000" in out and "| `block:keep=top,budget=5` |" in out
    assert (tmp_path / "c" / "accuracy-against-work.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "c" / "accuracy-against-work.png").stat().st_size > 10_000
    rows = list(csv.DictReader((tmp_path / "c" / "accuracy-against-work.csv").read_text().splitlines()))
    status, out, _ = run(*command, "--budget", 5, "--json")
    document = json.loads(out)
    assert (
        [row["policy"] for row in rows]
        == [row["policy"] for row in document["rows"]]
        == ["none", "fast-dllm-dual", "block:keep=top,budget=5"]
    )
    assert [float(row["multiply_adds"]) for row in rows] == pytest.approx(
        [row["work"]["total"] for row in document["rows"]]
    )


def test_a_dry_run_counts_every_policy(run, diffusion_folder):
    status, out, err = run(
        "compare-caches", diffusion_folder, *FLAGS, "--policies", "fast-dllm-dual", "--dry-run", "--json"
    )
    assert status == 0, err
    costs = json.loads(out)
    assert [(part["part"], part["prompts"], part["forwards"]) for part in costs["parts"]] == [
        ("none", 3, 24),
        ("fast-dllm-dual", 3, 24),
    ]
    assert costs["assumptions"][-1].startswith("Every policy is counted as plain sampling")


def test_a_dry_run_counts_parallel_decoding_at_its_most(run, diffusion_folder):
    """A threshold that is never reached commits one token a call, whatever --steps says."""
    few, arms = (*FLAGS, "--steps", 2), "fast-dllm-dual@threshold=0.9,none@factor=0.5"
    status, out, err = run("compare-caches", diffusion_folder, *few, "--policies", arms, "--dry-run", "--json")
    assert status == 0, err
    assert [part["forwards"] for part in json.loads(out)["parts"]] == [3 * 2, 3 * 8, 3 * 8]
    status, out, err = run("evaluate", diffusion_folder, *few, "--threshold", 0.9, "--dry-run", "--json")
    assert status == 0 and [part["forwards"] for part in json.loads(out)["parts"]] == [3 * 8], err


def test_a_dry_run_refuses_what_the_run_would_refuse(run, diffusion_folder):
    status, out, err = run("compare-caches", diffusion_folder, *FLAGS, "--policies", "dkv-greedy", "--dry-run")
    assert (status, out) == (2, "") and "expected commits in a random order" in err.replace("\n", " ")


def test_numbers_of_points_at_one_place_stand_side_by_side():
    from sinkscope.figures.accuracy_and_work import _labels

    row = {"interval": [0.4, 0.9], "accuracy": 0.5}
    rows = [{**row, "policy": name, "work": {"total": work}} for name, work in (("a", 100), ("b", 101), ("c", 1000))]
    assert _labels(rows, ["a", "b", "c"]) == [((100, 50.0), "0, 1"), ((1000, 50.0), "2")]


def test_a_dry_run_knows_the_published_protocol(run):
    protocol = ("--protocol", "fast-dllm-512", "--tasks", "gsm8k")
    status, out, err = run("compare-caches", "GSAI-ML/LLaDA-8B-Instruct", *protocol, "--dry-run", "--json")
    assert status == 0, err
    parts = json.loads(out)["parts"]
    assert len(parts) == 6 and {part["forwards"] for part in parts} == {1319 * 512}
    assert parts[-1]["part"] == "fast-dllm-dual@threshold=0.9"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policies", "fast"], "no cache 'fast'"),
        (["--policies", "block:keep=top", "--budget", "0"], "budget: expected numbers of keys from 1 upwards"),
        (["--policies", "block:keep=top", "--budget", "9999"], "expected a budget of keys up to"),
        (["--cache", "block"], "cache: a comparison has it in its policies; write --policies block"),
        (["--threshold", "0.9"], "threshold: a comparison has it in its policies; write --policies none@threshold=0.9"),
        (["--guidance", "1"], "does not go with guidance 1.0"),
        (
            ["--tasks", "gsm8k_two_pass", "--shots", "0", "--data", "gsm8k={tmp}/gsm8k.jsonl"],
            "expected a task whose answers are written in one pass",
        ),
        (["--batch", "0"], "batch: expected at least 1, found 0"),
    ],
)
def test_bad_input_gets_one_message(run, diffusion_folder, tmp_path, arguments, says):
    (tmp_path / "gsm8k.jsonl").write_text(
        json.dumps({"question": "Q: Tom has 3 apples.", "answer": "3\n#### 3"}) + "\n"
    )
    given = [one.format(tmp=tmp_path) for one in arguments]
    task = () if "--tasks" in arguments else ("--tasks", "lab-sums")
    status, out, err = run("compare-caches", diffusion_folder, "--out", tmp_path / "c", "--limit", 2, *task, *given)
    assert says in err.replace("\n", " "), err
    assert (status, out) == (2, "") and not (tmp_path / "c" / "run.json").exists()


def test_an_autoregressive_model_is_refused(run, autoregressive_folder, tmp_path):
    status, _, err = run(
        "compare-caches", autoregressive_folder, "--out", tmp_path / "c", "--tasks", "lab-sums", "--limit", 2
    )
    assert status == 2 and "has no setting" in err


def test_torchrun_is_refused(diffusion, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CallError, match="caches are compared in one process"):
        compare_caches(diffusion, arms=[PLAIN], out=tmp_path, **SMALL)
