"""Faults that were found one by one: bombs in the sandbox, a line separator in JSON lines, weights of NaN, sizes no file can hold."""

import bz2
import gzip
import json
import lzma
import shutil
import time

import numpy as np
import pytest
import torch
from hostile import trial
from safetensors.torch import load_file, save_file

import sinkscope
from sinkscope.decoding.settings import LLaDASettings
from sinkscope.errors import CallError, ModelError
from sinkscope.models.loading import outline


def test_a_line_separator_does_not_end_a_line(tmp_path):
    from sinkscope.commands.trace import read_prompts
    from sinkscope.lab.texts import read_texts

    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b\x85c", "answer": "d"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_prompts(path) == ["a\u2028b\x85c"]
    assert read_texts(path).documents[0].prompt == "a\u2028b\x85c"


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    from sinkscope.commands.trace import read_prompts
    from sinkscope.documents import read_json_object
    from sinkscope.evaluation.task_data import _read_lines
    from sinkscope.lab.texts import read_texts

    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"prompt": "a", "answer": "d"}\n', encoding="utf-8")
    assert read_prompts(path) == ["a"] and read_texts(path).documents[0].prompt == "a"
    assert read_json_object(path, CallError) == {"prompt": "a", "answer": "d"} == next(_read_lines("gsm8k", path))


def test_data_of_a_task_may_be_in_gzip(tmp_path):
    """As HumanEval is published."""
    from sinkscope.evaluation.humaneval import FILES, HUB
    from sinkscope.evaluation.task_data import Source

    path, row = tmp_path / "HumanEval.jsonl.gz", {"task_id": "0", "prompt": "a"}
    path.write_bytes(gzip.compress((json.dumps(row) + "\n").encode()))
    for given in (path, tmp_path):
        assert Source("humaneval", given, HUB, ("task_id", "prompt"), FILES).rows("test") == (row,)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        CallError, match=r"HumanEval.jsonl.gz: expected a whole gzip file, found one that ends early; get it again"
    ):
        Source("humaneval", path, HUB, ("task_id", "prompt"), FILES).rows("test")


@pytest.mark.parametrize(
    ("pack", "found"), [(bz2.compress, "bzip2"), (lzma.compress, "xz"), (lambda _: b"PK\x03\x04", "a zip archive")]
)
def test_prompts_may_be_in_gzip_and_in_nothing_else(tmp_path, pack, found):
    from sinkscope.commands.trace import read_prompts

    path, content = tmp_path / "prompts.jsonl.gz", b'{"prompt": "a"}\n\n{"prompt": "b"}\n'
    path.write_bytes(gzip.compress(content))
    assert read_prompts(path) == ["a", "b"]
    path.write_bytes(pack(content))
    with pytest.raises(
        CallError, match=f"prompts.jsonl.gz: expected JSON lines, plain or in gzip, found {found}; unpack it first"
    ):
        read_prompts(path)


def test_prompts_in_utf_16_are_told_what_to_do(tmp_path):
    from sinkscope.commands.trace import read_prompts

    (tmp_path / "prompts.jsonl").write_bytes('{"prompt": "a"}\n'.encode("utf-16-le").join([b"\xff\xfe", b""]))
    with pytest.raises(
        CallError, match="expected JSON lines in UTF-8, found byte 0xff at 0; save the file as UTF-8"
    ) as error:
        read_prompts(tmp_path / "prompts.jsonl")
    assert str(error.value).count("expected") == 1


def test_logits_that_are_not_finite_are_an_error_that_names_the_step(place):
    model = sinkscope.load(place / "model")
    with torch.no_grad():
        model.network.lm_head.weight[5] = float("nan")  # a file with it is refused
    with pytest.raises(ModelError, match="model, step 0: expected finite logits, found nan; its weights are damaged"):
        sinkscope.generate(model, "Q: Tom\nA:", length=4, steps=4, block=4)
    with pytest.raises(CallError, match="lone surrogate"):
        sinkscope.generate(model, "Q: \ud800\nA:", length=4, steps=4, block=4)


def test_numbers_that_do_not_fit_are_refused_at_once(place):
    began = time.process_time()
    for length in (1000000000039, 16777213):
        with pytest.raises(CallError, match="length"):
            LLaDASettings(length=length, steps=128, block=128)
    with pytest.raises(CallError, match="try --block 4"):
        LLaDASettings(length=4, steps=4, block=16777213)
    path = place / "model/config.json"
    config = json.loads(path.read_text())
    for layers in (100_000, 10**7):
        path.write_text(json.dumps(config | {"num_hidden_layers": layers}))
        with pytest.raises(
            ModelError, match=r"num_hidden_layers: expected a whole number from 1 to \d+, which is what its \d+ tensors"
        ):
            sinkscope.load(place / "model")
    path.write_text(json.dumps(config | dict.fromkeys(("hidden_size", "intermediate_size"), 30 << 26)))
    with pytest.raises(
        ModelError, match=r"config.json: expected fields of which a network can be made, found hidden_size 2013265920"
    ):
        outline(str(place / "model"))
    assert time.process_time() - began < 4


@pytest.mark.parametrize("device", ["meta", "hpu", "foo", "cuda:77", "cpu:x"])
@pytest.mark.parametrize(
    "words", [["check", "{0}/model"], ["train", "lab-sink-token", "--out", "{0}/out"]], ids=lambda words: words[0]
)
def test_all_commands_say_the_same_of_a_device(place, device, words):
    outcome = trial.run(*(word.format(place) for word in words), "--device", device)
    assert outcome.status == 2 and f"device '{device}' cannot be used here: expected one of cpu" in outcome.err
    assert not (place / "out").exists()


def test_a_refused_call_leaves_no_folder(place):
    rules = [["trace", "{0}/model", "--prompt", "Q: Tom\nA:", "--hide", "top:1@layers=9"], ["fold", "lab-diffusion"]]
    rules += [
        ["figures", "{0}/trace", "--excess", "nan"],
        ["evaluate", "{0}/model", "--limit", "1", "--hide", "top:1@layers=9"],
    ]
    for words in rules:
        outcome = trial.run(*(word.format(place) for word in words), "--out", str(place / "out"))
        assert outcome.status == 2 and not (place / "out").exists(), outcome


def test_the_judge_finds_what_is_bad(place):
    """A case counts as bad where the message is another library's, where nothing was refused, and where something was left."""
    good = trial.run("sinks", str(place / "nowhere"))
    assert trial.faults(good) == []
    assert trial.faults(good, out=place / "trace") == ["leftover"]
    assert trial.faults(trial.run("sinks", str(place / "trace"))) == ["accepted"]
    changed = trial.Outcome((), 1, "", "sinkscope: error: unexpected KeyError: 'x'\n", 0.1, 1)
    assert trial.faults(changed) == ["unexpected"]
    assert "slow: 9.0 s" in trial.faults(trial.Outcome((), 1, "", "sinkscope: error: x\n", 9.0, 1))
    assert trial.faults(trial.Outcome((), None, "", "", 9.0, 1)) == ["hang"]
    assert trial.faults(trial.Outcome((), 1, "", "x\n", 0.1, 1)) == ["0 messages"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("explore {0}/trace --serve --no-browser --device meta", "--device 'meta' cannot be used here"),
        ("explore {0}/trace --serve --no-browser --model nosuch", "no model 'nosuch'"),
        ("explore {0}/trace --serve --no-browser --port 99999", "port"),
        (
            "evaluate {0}/model --out {0}/out --limit 1 --shots 0 --length 4 --hide top:1 --cache fast-dllm-dual",
            "hide without a cache",
        ),
        (
            "evaluate {0}/model --out {0}/out --limit 1 --shots 0 --length 4 --hide top:1@steps=" + "1+" * 200 + "1",
            "at most 200 bytes",
        ),
        ("roles {0}/model --out {0}/out --problems 10 --length 0", "length: expected at least 1, found 0"),
        ("evaluate {0}/model --out {0}/out --jobs 1 --cluster local --job-options nosuch=1", "found nosuch=1"),
    ],
)
def test_what_can_be_checked_is_checked_first(place, words, says):
    before = sorted(place.iterdir())
    outcome = trial.run(*words.format(place).split())
    assert trial.faults(outcome) == [] and says in outcome.err, outcome
    assert sorted(place.iterdir()) == before


def test_roles_take_a_seed_of_the_sampler_and_one_of_the_control(place):
    words = f"roles {place}/model --out {place}/out --problems 10 --canvases 1 --length 4 --steps 4 --block 4 --seed 1 --control-seed 2"
    assert trial.run(*words.split()).status == 0


def test_figures_of_a_small_network_print_nothing_of_their_library(place):
    outcome = trial.run("figures", str(place / "statistics"), "--out", str(place / "out"))
    assert outcome.status == 0 and "Warning" not in outcome.err, outcome.err


@pytest.mark.parametrize("seed", [(1 << 62) - 1, 99999999999999])
def test_any_seed_trains(place, seed):
    outcome = trial.run("train", "lab-sink-token", "--seed", str(seed), "--out", str(place / "out"))
    assert outcome.status == 0, outcome.err




def _sealed_corpus(folder, change):
    """Change the tokens of a corpus, and its manifest as if they had been written so."""
    from sinkscope.checksums import sha256_of, with_checksum

    manifest = json.loads((folder / "corpus.json").read_text())
    tokens = np.fromfile(folder / "train.bin", "<u2")
    change(tokens).tofile(folder / "train.bin")
    manifest["files"]["train.bin"] = sha256_of(folder / "train.bin")
    (folder / "corpus.json").write_text(json.dumps(with_checksum(manifest)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tokens: tokens * 0 + 65535, "as corpus.json says, found 65535"),
        (lambda tokens: tokens[:100], "expected more than 256 tokens (one canvas) in each file, found 100"),
        (lambda tokens: tokens[:0], "expected tokens of 2 bytes, found 0 bytes"),
    ],
    ids=["beyond the vocabulary", "short", "empty"],
)
def test_a_corpus_that_cannot_be_drawn_from(place, change, says):
    _sealed_corpus(place / "corpus", change)
    for more in ([], ["--watch", "1"]):
        outcome = trial.run(
            "train", "lab-text-diffusion", "--data", str(place / "corpus"), "--out", str(place / "out"), *more
        )
        assert trial.faults(outcome, out=place / "out") == [] and says in outcome.err, outcome


def test_a_corpus_that_changed_since_the_run_began(place):
    words = ["train", "lab-text-diffusion", "--data", str(place / "corpus"), "--out", str(place / "textrun")]
    assert trial.run(*words).status == 0
    _sealed_corpus(place / "corpus", lambda tokens: tokens[::-1])
    outcome = trial.run(*words)
    assert trial.faults(outcome) == [] and "holds a run of another recipe (data 'corpus sha256:" in outcome.err, outcome


def test_prompts_that_fill_every_canvas(place):
    (place / "text.jsonl").write_text(json.dumps({"prompt": "a b " * 3000, "answer": "c"}))
    outcome = trial.run("train", "lab-sink-token", "--data", str(place / "text.jsonl"), "--out", str(place / "out"))
    assert (
        trial.faults(outcome, out=place / "out") == []
        and "expected prompts that leave room for an answer" in outcome.err
    ), outcome
    short = json.dumps({"prompt": "a", "answer": "b"})
    (place / "text.jsonl").write_text("\n".join([json.dumps({"prompt": "a b " * 3000, "answer": "c"})] * 18 + [short]))
    assert (
        trial.run("train", "lab-sink-token", "--data", str(place / "text.jsonl"), "--out", str(place / "out")).status
        == 0
    )


def test_the_moments_of_another_training_are_refused(place):
    """Two runs of one name would share a folder, and the second one's measurements would be the first one's."""
    shutil.copytree(place / "textrun", place / "a/textrun")
    words = ["watch-training", "--data", str(place / "corpus"), "--canvases", "2", "--out", str(place / "out")]
    outcome = trial.run(*words, str(place / "textrun"), str(place / "a/textrun"))
    assert trial.faults(outcome, out=place / "out") == [] and "found 'textrun' twice" in outcome.err, outcome
    assert trial.run(*words, str(place / "textrun")).status == 0
    weights = load_file(place / "textrun/snapshots/update-000000.safetensors")
    weights["lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"][0] += 1
    save_file(weights, place / "a/textrun/snapshots/update-000000.safetensors")
    outcome = trial.run(*words, str(place / "a/textrun"))
    assert (
        trial.faults(outcome) == [] and "expected the moment of these weights, found that of others" in outcome.err
    ), outcome


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_snapshot_that_says_nothing_finite(place, value):
    path = place / "textrun/snapshots/update-000000.safetensors"
    weights = load_file(path)
    for weight in weights.values():
        weight.fill_(0 if value is None else value)
    save_file(weights, path)
    outcome = trial.run(
        "watch-training",
        str(place / "textrun"),
        "--data",
        str(place / "corpus"),
        "--canvases",
        "2",
        "--out",
        str(place / "out"),
    )
    if value is None:  # weights of 0 are allowed; they have no norms to compare
        assert outcome.status == 0 and "Warning" not in outcome.err, outcome
    else:
        assert trial.faults(outcome, out=place / "out") == [] and "expected finite log-probabilities" in outcome.err, (
            outcome
        )


def test_names_of_snapshots_that_are_none(place):
    path = place / "textrun/snapshots/update-000000.safetensors"
    for name in ("update-x", "update-", "update-1.5", "update-99999999999999999999", "update-000000 (copy)"):
        shutil.copy(path, path.with_name(f"{name}.safetensors"))
    words = [
        "watch-training",
        str(place / "textrun"),
        "--data",
        str(place / "corpus"),
        "--canvases",
        "2",
        "--out",
        str(place / "out"),
    ]
    assert trial.run(*words).status == 0


@pytest.mark.parametrize("rank", ["²", "9" * 5000, "x", "-1"])
def test_numbers_of_processes_that_are_none(place, rank):
    words = [
        "evaluate",
        str(place / "model"),
        "--limit",
        "1",
        "--shots",
        "0",
        "--length",
        "4",
        "--out",
        str(place / "out"),
    ]
    outcome = trial.run(*words, environment={"RANK": rank, "WORLD_SIZE": "2"})
    assert trial.faults(outcome, out=place / "out") == [] and "RANK below WORLD_SIZE" in outcome.err, outcome


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda parts: [], "expected the 0 parts that its manifest lists, found steps-000000.safetensors as well"),
        (lambda parts: parts * 2, "expected each part once in manifest.json"),
    ],
    ids=["none", "twice"],
)
def test_a_bundle_of_a_trace_that_lists_other_parts(place, parts, message):
    from sinkscope.checksums import with_checksum

    path = place / "trace/manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(with_checksum({**manifest, "parts": parts(manifest["parts"])})))
    outcome = trial.run("bundle", str(place / "trace"), "--out", str(place / "out"))
    assert trial.faults(outcome, out=place / "out") == [] and message in outcome.err, outcome


def test_a_prompt_given_twice_in_a_line(place):
    (place / "twice.jsonl").write_text('{"prompt": "Q:", "prompt": "A:"}\n')
    outcome = trial.run(
        "trace", str(place / "model"), "--prompts", str(place / "twice.jsonl"), "--out", str(place / "out")
    )
    assert trial.faults(outcome, out=place / "out") == [], outcome
    assert "line 1: expected each name once in an object, found 'prompt' twice" in outcome.err, outcome


MESSAGES = {
    "a head that the model does not have": (
        "roles {0}/model --out {0}/out --problems 10 --length 4 --steps 4 --block 4 --head 99.99",
        "--head 99.99: expected a layer and a head of",
    ),
    "a bundle where something is": (
        "bundle {0}/trace --out {0}/bundle",
        "expected a new or empty folder for the bundle, found something there (README.md); choose another\n",
    ),
    "a demo in a watched training": ("demo --out {0}/watch", "already holds files (manifest.json …)"),
    "a trace in a watched training": (
        "trace {0}/model --prompt Q: --out {0}/watch --overwrite --length 4 --steps 4 --block 4",
        "already holds files (manifest.json …)",
    ),
    "a name of three parts": ("check a{1}b/c", "no name of a repository, which has letters"),
    "no models": (
        "reproduce paper1 --dry-run --models=",
        "--models: expected published, lab, or names separated by commas, found ''",
    ),
    "no models of paper 2": ("reproduce paper2 --dry-run --models=", "--models: expected published, or NAME=FOLDER"),
    "two values of an option": (
        "trace {0}/model --prompt Q: --out {0}/out --hide top:1@current,previous",
        "observe is given twice: current and previous are both values of it; give one",
    ),
    "much guidance": (
        "trace {0}/model --prompt Q: --out {0}/out --guidance 1e308",
        "guidance: expected a number from 0 to 1000, found 1e+308",
    ),
    "a port without a server": (
        "explore {0}/trace --out {0}/out.html --port 5",
        "--port is not used without --serve; leave it out",
    ),
    "a device without a server": (
        "explore {0}/trace --out {0}/out.html --device cuda",
        "--device is not used without --serve; leave it out",
    ),
    "a port below 0": (
        "explore {0}/trace --serve --no-browser --port=-5",
        "--port: expected a number from 0 to 65535, found -5",
    ),
    "a million canvases": (
        "watch-training {0}/textrun --data {0}/corpus --canvases 1000000 --out {0}/out",
        "--canvases: expected a number up to 10,000, found 1,000,000",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_what_a_message_says(place, case):
    words, says = MESSAGES[case]
    before = sorted(place.rglob("*"))
    outcome = trial.run(*(word.format(place, " ") for word in words.split()))
    assert trial.faults(outcome) == [] and says in outcome.err, outcome
    assert sorted(place.rglob("*")) == before


def test_a_model_that_is_named_twice_counts_once():
    once, twice = (
        trial.run("reproduce", "paper1", "--dry-run", "--json", "--models", name)
        for name in ("lab-diffusion", "lab-diffusion," * 2)
    )
    assert once.status == 0 and once.out == twice.out
    ks = [
        trial.run("reproduce", "paper1", "--dry-run", "--json", "--models", "lab", "--ks", ks)
        for ks in ("1,5", "1,5,1")
    ]
    assert ks[0].status == 0 and ks[0].out == ks[1].out


@pytest.mark.parametrize("letter", ["\x1b[31m", "\x9b31m", "\x07", "\r", "\u202e"], ids=ascii)
def test_a_name_cannot_command_the_terminal(place, letter):
    path = place / "trace/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": {"name": "x", f"a{letter}b": float("nan")}}))
    outcome = trial.run("sinks", str(place / "trace"))
    assert trial.faults(outcome) == [] and letter not in outcome.err and "a\\" in outcome.err, outcome


def test_a_map_of_a_trace_without_a_sampler(place):
    """As of a network that was called without one; its manifest says null."""
    from sinkscope.checksums import with_checksum

    path = place / "trace/manifest.json"
    path.write_text(json.dumps(with_checksum({**json.loads(path.read_text()), "sampler": None})))
    outcome = trial.run("map", str(place / "trace"), "--step", "2", "--layer", "0", "--head", "0")
    assert outcome.status == 0, outcome
