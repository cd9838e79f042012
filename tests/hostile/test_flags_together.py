"""Flags that another flag, or what is read, leaves without a meaning are refused by name."""

import gzip

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
    "--samples": "evaluate model --tasks arc_easy --method chain_rule --samples 4 --out out",
    "--job-options": f"evaluate model {SMALL} --job-options a=1 --out out",
    "--ks": "reproduce paper2 --dry-run --ks 2",
    "--seeds": "reproduce paper2 --dry-run --seeds 2",
    "--traces": "reproduce paper2 --dry-run --traces 2",
    "--head": "roles model --problems 10 --dry-run --head 0.1",
    "--problems": "roles model --prompts prompts.jsonl --problems 10 --out out",
    "--shots": "roles model --prompts prompts.jsonl --shots 1 --out out",
    "--no-sweep": "analyse --definitions --no-sweep",
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


def test_traces_that_definitions_would_ignore(place):
    outcome = trial.run("analyse", "trace", "--definitions", cwd=place)
    assert (
        trial.faults(outcome) == []
        and outcome.status == 2
        and "--definitions reads no traces, found trace" in outcome.err
    ), outcome


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


OTHERS = {
    "train lab-nulls-diffusion-0 --updates 1 --watch 5 --out out": "--watch: expected at most the 1 updates of the training, found 5",
    "map trace --step 1 --layer 0 --head 1 --model nosuch": "no model 'nosuch'",
    "map trace --step 1 --layer 0 --head 1 --device nosuch": "--device 'nosuch' cannot be used here",
    "map trace --step 1 --layer 0 --head 1 --model lab-diffusion": "trace was written by weights",
    "explore trace --serve --no-browser --model lab-diffusion": "trace was written by weights",
    "figures trace --only 3 --model nosuch --out out": "no model 'nosuch'",
    "figures trace --only 3 --device nosuch --out out": "--device 'nosuch' cannot be used here",
    "export trace --to numpy --out out.zarr": "expected a name in .npz for numpy, found one in .zarr",
    "export trace --to zarr --out out.nc": "expected a name in .zarr for zarr, found one in .nc",
    f"evaluate model {SMALL} --method chain_rule --out out": "method: expected a task of likelihoods beside it, such as arc_easy, found",
    f"evaluate model {SMALL} --samples 5 --dry-run": "samples: expected a task of likelihoods beside it, such as arc_easy, found lab-arith",
    f"evaluate model {SMALL} --protocol fast-dllm --out out": "protocol: fast-dllm is not used by the tasks of the lab",
    f"compare-caches model {SMALL} --policies none --protocol paper1 --dry-run": "protocol: paper1 is not used by the tasks of the lab",
    f"evaluate model {SMALL} --protocol nosuch --out out": "model has no protocol 'nosuch' for lab-arith; expected one of auto, none",
    "train lab-text-diffusion --out out": "expected a corpus folder as --data, found none",
    "train lab-sink-token --seed -1 --out out": "--seed: expected a whole number from 0 upwards for a network with a sink token, found -1",
    "problems --task lab-sum": "no task 'lab-sum': expected one of lab-arith, lab-code, lab-sums",
    f"compare-caches model {SMALL} --policies block:keep=top --out out": "give --budget 16,64, or write block:keep=top,budget=64",
    "trace model --prompt Q --length 4 --cache block:keep=top --out out": "write keep=top,budget=64",
    "trace model --prompt Q --length 4 --cache block:budget=3 --out out": "write keep=sinks,budget=3",
    "reproduce paper1 --dry-run --traces 0": "--traces: expected a whole number from 1 upwards, found 0",
    "reproduce paper1 --dry-run --limit 0": "--limit: expected a whole number from 1 upwards, found 0",
    "reproduce paper1 --dry-run --seeds -1": "--seeds: expected a whole number from 0 upwards, found -1",
    "reproduce paper1 --dry-run --ks=": "--ks: expected whole numbers from 1 upwards, separated by commas, found ''",
    "reproduce paper1 --dry-run --models lab --data gsm8k=prompts.jsonl": "--data gsm8k is not used by these models, whose tasks are",
    "roles lab-nulls-diffusion-3-0 --problems 10 --out out": "no model 'lab-nulls-diffusion-3-0': ",
    "analyse trace trace --no-choice --no-sweep": "traces: expected each trace once, as it is one prompt, found trace twice",
    "analyse trace ./trace/../trace --no-choice --no-sweep": "traces: expected each trace once, as it is one prompt",
    "analyse trace bundle --no-choice --no-sweep": "expected each trace once, as it is one prompt, found the values of trace in bundle too",
    "figures statistics --only 1 --out out": "expected at least one figure that can be drawn, found none. Figure 1 is not drawn for",
    "figures statistics --only 1,2 --out a/b/out": "expected at least one figure that can be drawn, found none. Figure 1 is not drawn for",
}


def test_counts_that_give_a_token_twice(place):
    (place / "counts.json").write_text('{"03": 1, "3": 2}')
    outcome = trial.run("analyse", "trace", "--no-choice", "--no-sweep", "--training-counts", "counts.json", cwd=place)
    assert (
        trial.faults(outcome) == [] and "expected each token id once, found 3 twice; '3' is the second" in outcome.err
    ), outcome


def test_a_text_where_a_corpus_should_be(place):
    (place / "book.txt").write_text("Tom has 7 apples.")
    outcome = trial.run(*"train lab-text-diffusion --data book.txt --out out".split(), cwd=place)
    assert trial.faults(outcome, out=place / "out") == [], outcome
    assert "expected a corpus folder as --data, found a file of text" in outcome.err, outcome


def test_roles_of_another_control(place):
    words = "roles model --problems 10 --length 4 --steps 4 --block 4 --canvases 1 --out found".split()
    outcome = trial.run(*words, "--control-seed", "7", cwd=place)
    assert trial.faults(outcome) == [] and "its control_seed is 0, now it is 7" in outcome.err, outcome


@pytest.mark.parametrize("words", OTHERS)
def test_a_value_that_would_not_be_looked_at(place, words):
    before = {*place.iterdir()}
    outcome = trial.run(*words.split(), cwd=place)
    assert trial.faults(outcome) == [] and OTHERS[words] in outcome.err and {*place.iterdir()} == before, outcome


LONG = {
    "trace model --prompt Q --length 4 --out out --hide top:1@heads={heads}": "the model has the heads 0…1, found head 0.2",
    "trace model --prompt Q --length 4 --out out --cache block:{options}every=3": "every is given twice",
    "trace model --prompt Q --length 4 --out out --keep-maps {maps}": "--keep-maps: expected each place once, found '0:0:0' twice",
    "figures trace --out out --only {figures}": "no figure 'x0'",
}
"""What takes seconds where each word is compared with every other."""


@pytest.mark.parametrize("words", LONG)
def test_a_list_of_many_thousands(place, words):
    many = {
        "heads": "+".join(f"{number // 200}.{number % 200}" for number in range(20_000)),
        "options": "every=2," * 10_000,
        "maps": ",".join([*(f"{number}:0:0" for number in range(12_000)), "0:0:0"]),
        "figures": ",".join(f"x{number}" for number in range(16_000)),
    }
    outcome = trial.run(*(word.format(**many) for word in words.split()), cwd=place)
    assert trial.faults(outcome, out=place / "out") == [] and LONG[words] in outcome.err, (outcome.err, outcome.cpu)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "trace model --length 4 --keep statistics --out out --prompts many.jsonl.gz",
            "line 2: expected each prompt once",
        ),
        (
            f"evaluate model {SMALL} --tasks gsm8k --out out --data gsm8k=many.jsonl.gz",
            "row 1: expected the field 'question'",
        ),
    ],
)
def test_a_fault_at_the_beginning_of_a_large_file(place, words, told):
    (place / "many.jsonl.gz").write_bytes(gzip.compress(b'{"prompt":"a"}\n' * 1_000_000))
    outcome = trial.run(*words.split(), cwd=place)
    assert trial.faults(outcome, out=place / "out") == [] and told in outcome.err, (outcome.err, outcome.cpu)
