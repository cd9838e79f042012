"""Flags that would be ignored, and mislead, are refused by name."""

import pytest
from hostile import trial

SMALL = "--limit 1 --shots 0 --length 4 --steps 4 --block 4"
PAIRS = {
    "--top": "trace model --prompt Q --length 4 --keep columns --top 4 --out out",
    "--cluster": f"evaluate model {SMALL} --cluster local --out out",
    "--samples": "evaluate model --tasks arc_easy --method chain_rule --samples 4 --out out",
    "--job-options": f"evaluate model {SMALL} --job-options a=1 --out out",
    "--ks": "reproduce paper2 --dry-run --ks 2",
    "--seeds": "reproduce paper2 --dry-run --seeds 2",
    "--traces": "reproduce paper2 --dry-run --traces 2",
    "--problems": "roles model --prompts prompts.jsonl --problems 10 --out out",
    "--shots": "roles model --prompts prompts.jsonl --shots 1 --out out",
    "--excess": "sinks statistics --excess 2",
    "--unit": "sinks statistics --unit percent",
    "--canvases": "watch-training watch --canvases 2 --out out",
    "--data": "watch-training watch --data corpus --out out",
    "--layer": "figures trace --only 3 --layer 0 --out out",
}


@pytest.mark.parametrize("flag", PAIRS)
def test_a_flag_that_would_be_ignored(place, flag):
    before = {*place.iterdir()}
    outcome = trial.run(*PAIRS[flag].split(), cwd=place)
    assert trial.faults(outcome) == [] and outcome.status == 2, outcome
    assert f"{flag} is not used " in outcome.err and {*place.iterdir()} == before, outcome


def test_a_map_of_a_step_that_will_not_be(place):
    outcome = trial.run(
        "trace", "model", "--prompt", "Q", "--length", "4", "--keep-maps", "0:0:0,4:0:0", "--out", "out", cwd=place
    )
    assert (
        trial.faults(outcome, out=place / "out") == []
        and "--keep-maps: expected steps from 0 to 3, found 4" in outcome.err
    ), outcome


@pytest.mark.parametrize("keep", ["statistics", "drift"])
def test_a_prompt_that_would_count_twice(place, tmp_path, keep):
    prompts = tmp_path / "twice.jsonl"
    prompts.write_text('{"prompt": "Q"}\n{"prompt": "A"}\n\n{"prompt": "Q"}\n')
    outcome = trial.run(
        "trace", "model", "--prompts", str(prompts), "--length", "4", "--keep", keep, "--out", "out", cwd=place
    )
    told = f"--prompts {prompts}, line 4: expected each prompt once, found that of line 1 again; leave it out"
    assert trial.faults(outcome, out=place / "out") == [] and told in outcome.err, outcome
    prompts.write_text('{"prompt": "Q"}\n{"prompt": "A"}\n')
    words = ("--length", "4", "--keep", keep, "--out", str(tmp_path / keep))
    assert trial.run("trace", "model", "--prompts", str(prompts), *words, cwd=place).status == 0


def test_a_second_processor(place):
    outcome = trial.run("check", "model", "--device", "cpu:7", cwd=place)
    assert trial.faults(outcome) == [] and "'cpu:7' cannot be used here" in outcome.err, outcome


def test_roles_of_another_control(place):
    words = "roles model --problems 10 --length 4 --steps 4 --block 4 --canvases 1 --out found".split()
    outcome = trial.run(*words, "--control-seed", "7", cwd=place)
    assert trial.faults(outcome) == [] and "its control_seed is 0, now it is 7" in outcome.err, outcome
