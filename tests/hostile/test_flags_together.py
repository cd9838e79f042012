"""Flags that another flag, or what is read, leaves without a meaning are refused by name."""

import pytest
from hostile import trial

SMALL = "--limit 1 --shots 0 --length 4 --steps 4 --block 4"
PAIRS = {
    "--top": "trace model --prompt Q --length 4 --keep columns --top 4 --out out",
    "--precision": "bundle bundle --check --precision float16",
    "--no-page": "bundle bundle --check --no-page",
    "--out": "compare-caches model --definitions --out out",
    "--dry-run": "compare-caches model --definitions --dry-run",
    "--gpu": f"compare-caches model {SMALL} --gpu h100 --out out",
    "--tflops": f"evaluate model {SMALL} --tflops 5 --out out",
    "--cluster": f"evaluate model {SMALL} --cluster local --out out",
    "--job-options": f"evaluate model {SMALL} --job-options a=1 --out out",
    "--ks": "reproduce paper2 --dry-run --ks 2",
    "--seeds": "reproduce paper2 --dry-run --seeds 2",
    "--traces": "reproduce paper2 --dry-run --traces 2",
    "--head": "roles model --problems 10 --dry-run --head 0.1",
    "--problems": "roles model --prompts prompts.jsonl --problems 10 --out out",
    "--shots": "roles model --prompts prompts.jsonl --shots 1 --out out",
    "--no-sweep": "analyse trace --definitions --no-sweep",
    "--format": "table results --json --format latex",
    "--excess": "sinks statistics --excess 2",
    "--unit": "sinks statistics --unit percent",
    "--canvases": "watch-training watch --canvases 2 --out out",
    "--data": "watch-training watch --data corpus --out out",
    "--data gsm8k": f"evaluate model {SMALL} --data gsm8k=prompts.jsonl --out out",
    "--layer": "figures trace --only 3 --layer 0 --out out",
    "--no-browser": "explore trace --no-browser --out out.html",
    "--model": "explore trace --model model --out out.html",
}


@pytest.mark.parametrize("flag", PAIRS)
def test_a_flag_that_would_be_ignored(place, flag):
    before = {*place.iterdir()}
    outcome = trial.run(*PAIRS[flag].split(), cwd=place)
    assert trial.faults(outcome) == [] and outcome.status == 2, outcome
    assert f"{flag} is not used " in outcome.err and {*place.iterdir()} == before, outcome


def test_a_map_of_a_step_that_will_not_be(place):
    outcome = trial.run("trace", "model", "--prompt", "Q", "--length", "4", "--keep-maps", "0:0:0,4:0:0", "--out", "out", cwd=place)
    assert trial.faults(outcome, out=place / "out") == [] and "--keep-maps: expected steps from 0 to 3, found 4" in outcome.err, outcome


def test_a_second_processor(place):
    outcome = trial.run("check", "model", "--device", "cpu:7", cwd=place)
    assert trial.faults(outcome) == [] and "'cpu:7' cannot be used here" in outcome.err, outcome


OTHERS = {
    "train lab-nulls-diffusion-0 --updates 1 --watch 5 --out out": "--watch: expected at most the 1 updates of the training, found 5",
    "map trace --step 1 --layer 0 --head 1 --model nosuch": "no model 'nosuch'",
    "map trace --step 1 --layer 0 --head 1 --device nosuch": "--device 'nosuch' cannot be used here",
    "figures trace --only 3 --model nosuch --out out": "no model 'nosuch'",
    "figures trace --only 3 --device nosuch --out out": "--device 'nosuch' cannot be used here",
    "export trace --to numpy --out out.zarr": "expected a name in .npz for numpy, found one in .zarr",
    "export trace --to zarr --out out.nc": "expected a name in .zarr for zarr, found one in .nc",
}


@pytest.mark.parametrize("words", OTHERS)
def test_a_value_that_would_not_be_looked_at(place, words):
    before = {*place.iterdir()}
    outcome = trial.run(*words.split(), cwd=place)
    assert trial.faults(outcome) == [] and OTHERS[words] in outcome.err and {*place.iterdir()} == before, outcome
