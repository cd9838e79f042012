"""`reproduce paper2`: the list of work, its cost, and a run on tiny models with local files."""

import dataclasses
import json
import re

import pytest
import torch
from test_choices import ROWS, model, write_rows  # noqa: F401 - a fixture

import sinkscope
from sinkscope.commands.reproduction import Options, reproduce
from sinkscope.decoding.blocks import quotas
from sinkscope.decoding.likelihood import expected_masks, mask_patterns
from sinkscope.errors import CallError
from sinkscope.evaluation.cost import CHOICE_TOKENS, card_of, estimate
from sinkscope.evaluation.papers.paper import PROBLEMS
from sinkscope.evaluation.papers.paper2 import ACCURACY, CHECKPOINTS, SHAPES, TASKS, paper2, read_folders
from sinkscope.models.folding import fold
from sinkscope.models.smdm import convert


def lit_gpt_weights(kind, vocabulary, width=24, inner=40):
    """Of a random network with 2 layers and 4 heads, under the names of paper 2's code."""
    drawn = torch.Generator().manual_seed(3)
    rows = vocabulary + (2 if kind == "+sink" else 1)
    shapes = {"lm_head": (vocabulary, width), "transformer.wte": (rows, width), "transformer.ln_f": (width,)}
    for layer in range(2):
        block = {"norm_1": (width,), "norm_2": (width,), "attn.attn": (3 * width, width), "attn.proj": (width, width)}
        block |= {"mlp.swiglu.w1": (inner, width), "mlp.swiglu.w2": (inner, width), "mlp.swiglu.w3": (width, inner)}
        block |= {"attn.gate": (width, width)} if kind == "+gate" else {}
        shapes |= {f"transformer.h.{layer}.{name}": shape for name, shape in block.items()}
    return {f"{name}.weight": torch.randn(shape, generator=drawn) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def folders(model, tmp_path_factory):  # noqa: F811
    """Tiny models of every kind that its tables name, by the end of a name of `CHECKPOINTS`."""
    home = tmp_path_factory.mktemp("paper2")
    tokenizer = model.tokenizer
    settings = {name: text for name, text in tokenizer.special_tokens_map.items() if name != "mask_token"}
    type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, **settings).save_pretrained(home / "tokenizer")
    found = {}
    for kind in ("", "+sink", "+gate"):
        torch.save(lit_gpt_weights(kind, len(tokenizer)), home / f"model{kind}.pth")
        folder = convert(home / f"model{kind}.pth", home / f"scratch{kind}", tokenizer=home / "tokenizer", heads=4)
        found[f"scratch-472m{kind}"] = str(folder)
    shifted = sinkscope.load(model.card.name).network
    shifted.config.sinkscope_family = "dream"
    for kind in ("none", "token"):
        sinkscope.add_sink_token(shifted, kind).save_pretrained(home / f"qwen-{kind}")
        tokenizer.save_pretrained(home / f"qwen-{kind}")
    return found | {"qwen2.5-0.5b": str(home / "qwen-none"), "qwen2.5-0.5b+sink": str(home / "qwen-token")}


def test_all_of_the_tables_is_there():
    parts = paper2(read_folders("published"))
    assert {(part.model, part.task) for part in parts} == {(name, task) for name in CHECKPOINTS for task in TASKS}
    assert set(ACCURACY) == set(CHECKPOINTS) and all(len(row) == len(TASKS) for row in ACCURACY.values())
    guidance = {part.task: part.settings.get("guidance") for part in parts}
    assert guidance["piqa"] == 0.6 and guidance["lambada"] == 1.1 and guidance["hellaswag"] == 0.7
    assert all(
        "block" in part.settings for part in parts if part.task == "gsm8k_two_pass" and part.model.startswith("scratch")
    )


def test_parameters_are_those_of_the_shape():
    shape = SHAPES["scratch-472m"]
    layer = 4 * shape.hidden**2 + 3 * shape.hidden * shape.ffn + 2 * shape.hidden
    assert shape.parameters == (2 * shape.vocabulary - 1) * shape.hidden + shape.layers * layer + shape.hidden


def test_the_cost_counts_canvases():
    parts = {part.task: part for part in paper2({"scratch-472m": ""})}
    forwards = {task: estimate(part).forwards for task, part in parts.items()}
    assert forwards["arc_easy"] == PROBLEMS["arc_easy"] * 4 * 31 * 2  # choices, ways to mask five tokens, guidance
    assert forwards["piqa"] == PROBLEMS["piqa"] * 2 * 20 * 2  # a token at a time
    assert forwards["lambada"] == PROBLEMS["lambada"] * (2 + 2) * 2  # its word's likelihood, and the writing of it
    assert forwards["gsm8k_two_pass"] == 1319 * 256 * 2
    fewer = paper2({"scratch-472m": ""}, tasks=["piqa"], limit=10)
    assert estimate(fewer[0]).forwards * 1838 == forwards["piqa"] * 10
    one = estimate(parts["arc_easy"])
    three = estimate(dataclasses.replace(parts["arc_easy"], rules=("none", "top:1@current", "top:1@current,clean")))
    assert three.forwards == (1 + 1 + 2) * one.forwards and three.gpu_hours == pytest.approx(
        (1 + 1.1 + 2.1) * one.gpu_hours
    )
    slow, fast = (estimate(parts["arc_easy"], card_of(tflops=tflops)).gpu_hours for tflops in (1, 2))
    assert slow == pytest.approx(2 * fast) and slow > 0


def counted(part, data, out, monkeypatch):
    """Count the canvases that go through the network in a run of a part, and the tokens of its choices."""
    rows, real = [], sinkscope.models.load

    def load(*arguments, **options):
        loaded = real(*arguments, **options)
        loaded.network.model.embed_tokens.register_forward_hook(lambda module, given, found: rows.append(len(given[0])))
        return loaded

    monkeypatch.setattr("sinkscope.models.load", load)
    reproduce([part], Options(out, {part.task: data}, batch=16), lambda line: None)
    items = [json.loads(path.read_text()) for path in out.rglob("none/0*.json")]
    return sum(rows), {one["tokens"] for item in items for one in item.get("likelihoods", [])}


@pytest.mark.parametrize(
    ("name", "task", "settings"),
    [
        ("scratch-472m", "lambada", {}),
        ("scratch-472m+sink", "lambada", {"method": "monte_carlo", "samples": 400, "guidance": 0.0}),
        ("qwen2.5-0.5b", "lambada", {}),
        ("scratch-472m", "piqa", {}),
        ("scratch-472m", "arc_easy", {"samples": 400}),
        ("scratch-472m", "arc_easy", {"samples": 60, "guidance": 0.0}),
        ("qwen2.5-0.5b", "arc_easy", {"samples": 37}),
        ("scratch-472m", "gsm8k_two_pass", {"length": 8, "steps": 4, "block": 8}),
        ("qwen2.5-0.5b", "gsm8k_two_pass", {"length": 8, "steps": 4}),
    ],
)
def test_the_plan_counts_what_a_run_does(name, task, settings, folders, tmp_path, monkeypatch):
    word = "sun" if settings.get("samples") == 400 else "yellow sun"  # all masks are drawn, or some of them
    rows = {
        "lambada": [{"text": "it is a sun"}] * 2,
        "piqa": [{"goal": "What is hot?", "sol1": "the sun", "sol2": "the sun", "label": 0}] * 2,
        "arc_easy": [{"question": "Hot?", "choices": {"text": [word] * 3, "label": ["A", "B", "C"]}, "answerKey": "A"}]
        * 12,
        "gsm8k_two_pass": [{"question": "How many?", "answer": "#### 3"}] * 3,
    }[task]
    (part,) = paper2({name: folders[name]}, tasks=[task], limit=len(rows))
    part = dataclasses.replace(part, settings={**part.settings, **settings})
    found, lengths = counted(part, write_rows(tmp_path, task, rows), tmp_path / "out", monkeypatch)
    if lengths:
        (length,) = lengths
        monkeypatch.setitem(CHOICE_TOKENS, task, (9, 3 if task == "arc_easy" else 2 if task == "piqa" else 1, length))
        assert length > 1
    draws = task == "arc_easy" and part.settings["samples"] < 400
    assert estimate(part).forwards == (pytest.approx(found, rel=0.03) if draws else found)


@pytest.mark.parametrize(("length", "samples"), [(1, 1), (2, 5), (4, 16), (6, 40), (7, 50), (20, 37), (60, 48)])
def test_the_number_of_masks_is_the_mean_over_seeds(length, samples):
    groups = quotas(samples, max(min(2, samples), -(-samples // 16)))
    found = [len(torch.unique(mask_patterns(length, groups, seed), dim=0)) for seed in range(150)]
    assert expected_masks(length, samples) == pytest.approx(sum(found) / len(found), rel=0.02)


def test_the_dry_run_needs_no_checkpoint(run):
    status, out, _ = run("reproduce", "paper2", "--dry-run", "--json")
    document = json.loads(out)
    assert status == 0 and len(document["parts"]) == len(CHECKPOINTS) * len(TASKS)
    assert document["total"]["forwards"] == sum(row["forwards"] for row in document["parts"])


def test_a_run_on_local_files(folders, tmp_path):
    names = ["piqa", "arc_easy"]
    data = {name: write_rows(tmp_path, name) for name in names}
    parts = paper2({name: folders[name] for name in ("scratch-472m", "scratch-472m+sink")}, tasks=names)
    said = []
    (written,) = reproduce(parts, Options(tmp_path / "out", data, batch=2), said.append)
    assert said[0] == (
        f"scratch-472m: {folders['scratch-472m']} has 2 layers of width 24, the paper's has 18 of 1280; it is run, "
        "but it is not the paper's checkpoint"
    )
    lines = written.read_text().splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == ["scratch-472m"] * 2 + [
        "scratch-472m+sink"
    ] * 2
    assert (
        f"| arc_easy | {len(ROWS['arc_easy'])} |" in lines[3]
        and lines[3].endswith("| 32.2 |")
        and lines[5].endswith("| 40.9 |")
    )
    results = json.loads((tmp_path / "out" / "evaluations" / "scratch-472m" / "piqa" / "results.json").read_text())
    assert (
        results["results"][0]["settings"]["method"] == "chain_rule"
        and results["results"][0]["settings"]["guidance"] == 0.6
    )


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "scratch-472m+sink",
            "scratch-472m",
            "expected family smdm with sink token token, .* found family smdm with sink token none",
        ),
        (
            "scratch-472m",
            "scratch-472m+sink",
            "expected family smdm with sink token none, .* found family smdm with sink token token",
        ),
        (
            "scratch-472m",
            "scratch-472m+gate",
            "expected family smdm with sink token none, .* found family smdm with sink token gate",
        ),
        (
            "scratch-472m",
            "qwen2.5-0.5b",
            "expected family smdm with sink token none, .* found family dream with sink token none",
        ),
        (
            "qwen2.5-1.5b+gate",
            "qwen2.5-0.5b+sink",
            "expected family dream with sink token gate, .* with sink token token; give the folder",
        ),
    ],
)
def test_a_folder_of_another_kind_than_its_name_is_refused(name, given, message, folders, tmp_path):
    data = {"piqa": write_rows(tmp_path, "piqa")}
    right = {"qwen2.5-0.5b": folders["qwen2.5-0.5b"]}
    with pytest.raises(CallError, match=f"--models {re.escape(f'{name}={folders[given]}')}: {message}"):
        reproduce(
            paper2(right | {name: folders[given]}, tasks=["piqa"]), Options(tmp_path / "out", data), lambda line: None
        )
    assert not (tmp_path / "out").exists(), "what the others take is hours"


def test_a_folded_token_is_the_token(folders, tmp_path):
    folder = fold(folders["scratch-472m+sink"], tmp_path / "folded")
    parts = paper2({"scratch-472m+sink": str(folder)}, tasks=["piqa"], limit=1)
    assert reproduce(parts, Options(tmp_path / "out", {"piqa": write_rows(tmp_path, "piqa")}), lambda line: None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: paper2({"scratch-1b": "x"}), "paper2: no checkpoint 'scratch-1b'; expected some of qwen2.5-0.5b,"),
        (lambda: paper2({"scratch-472m": "x"}, tasks=["gsm8k"]), "paper2: no task 'gsm8k'; expected some of arc_easy"),
        (lambda: read_folders("scratch-472m"), "--models: expected NAME=FOLDER once each, .* found 'scratch-472m'"),
        (lambda: read_folders("scratch-472m=a,scratch-472m=b"), "--models: expected NAME=FOLDER once each"),
        (
            lambda: reproduce(paper2({"scratch-472m": ""}), Options("x", {})),  # type: ignore[arg-type]
            "expected a folder for scratch-472m, found none; `sinkscope convert` makes one of its .pth: pass --models "
            "scratch-472m=FOLDER",
        ),
        (
            lambda: reproduce(paper2({"qwen2.5-0.5b": ""}), Options("x", {})),  # type: ignore[arg-type]
            "expected a folder for qwen2.5-0.5b, found none; expected one that `load` reads, such as Qwen2.5 after "
            "`add_sink_token`",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(CallError, match=message):
        make()
