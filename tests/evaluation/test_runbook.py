"""What paper 1's runbook holds and costs, beside counts from real networks."""

import dataclasses
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import sinkscope
from sinkscope.errors import CallError
from sinkscope.evaluation import runbook
from sinkscope.evaluation.protocols import PROTOCOLS, find_protocol, variant_of
from sinkscope.evaluation.runbook import GIB, LAB, MODELS, PUBLISHED, Shape, estimate, paper1, rules_for


def shape_of(model):
    config = model.network.config
    sizes = (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads)
    wide = (config.hidden_size, config.intermediate_size, config.vocab_size)
    return Shape(*sizes, *wide, model.card.parameters, model.family.causal)


@pytest.mark.parametrize("name", LAB)
def test_the_labs_shapes_are_those_of_its_checkpoints(name):
    assert MODELS[name] == (sinkscope.load(name).family.name, shape_of(sinkscope.load(name)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_add_up_to_their_number_of_parameters(name):
    shape = MODELS[name][1]
    head = shape.hidden // shape.heads
    attention = 2 * shape.hidden**2 + 2 * shape.hidden * shape.kv_heads * head
    biases = shape.hidden + 2 * shape.kv_heads * head if name.startswith("Dream") else 0
    layer = attention + biases + 3 * shape.hidden * shape.ffn + 2 * shape.hidden
    assert shape.layers * layer + 2 * shape.vocabulary * shape.hidden + shape.hidden == shape.parameters


@pytest.mark.parametrize("tokens", [17, 96])
def test_the_arithmetic_of_a_forward_call_is_torchs_count(diffusion_folder, tokens):
    model = sinkscope.load(str(diffusion_folder))
    network = model.network
    network.set_attn_implementation("eager")  # torch does not count sdpa on a CPU
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        network(torch.arange(3, 3 + tokens)[None])
    assert runbook._flops(shape_of(model), tokens, tokens) == pytest.approx(counted.get_total_flops(), rel=0.02)


def test_forwards_memory_and_disk():
    parts = paper1(limit=7, traces=2)
    assert [(part.name, part.task) for part in parts if part.model == "GSAI-ML/LLaDA-8B-Instruct"] == [
        ("Table 1", "gsm8k"),
        ("Table 1", "humaneval"),
        ("Figures, Table 2", "gsm8k"),
    ]
    part = next(part for part in parts if part.model == "GSAI-ML/LLaDA-8B-Instruct")
    cost = estimate(part)
    assert cost.forwards == 7 * 16 * 256
    weights = 2 * 8_015_581_184 / GIB
    assert weights < cost.memory_gib < weights + 1
    assert cost.batch_on_card >= 1
    assert estimate(part, tflops=250.0).gpu_hours == pytest.approx(cost.gpu_hours / 2)
    assert cost.gpu_hours == pytest.approx(
        7 * (1 + 15 * 1.1) * 256 * runbook._flops(MODELS[part.model][1], 80 + 5 * 155 + 256, 32) / 125e12 / 3600
    )
    recorded = parts[5]
    canvas = 80 + 128
    assert estimate(recorded).disk_gib * GIB == pytest.approx(2 * 128 * 4 * canvas * (3 * 32 * 32 + 4 * 32 * 32))
    big = dataclasses.replace(part, model="too big")
    MODELS["too big"] = ("llada", dataclasses.replace(MODELS[part.model][1], parameters=14_000_000_000))
    try:
        assert estimate(big).batch_on_card == 0
    finally:
        del MODELS["too big"]
    with pytest.raises(CallError, match="tflops: expected a number above 0, found 0"):
        estimate(part, 0)


def test_rules_have_controls_and_llamas_decide_by_the_last_row():
    assert rules_for("GSAI-ML/LLaDA-8B-Instruct", [1, 5], 2) == (
        "none",
        *("top:1", "random:1@seed=0", "random:1@seed=1", "ranks:1"),
        *("top:5", "random:5@seed=0", "random:5@seed=1", "ranks:5"),
    )
    assert rules_for("lab-diffusion", [2], 1, ["mass", "class"]) == ("none", "top:2", "mass:2@seed=0", "class:2@seed=0")
    with pytest.raises(CallError, match="controls: expected some of random, ranks, mass, persistent, class, found 'magic'"):
        paper1(controls=["magic"])
    assert rules_for("lab-autoregressive", [1], 0) == ("none", "top:1@last_row", "ranks:1@last_row")
    assert rules_for("meta-llama/Llama-3.1-8B-Instruct", [5], 2, ["random", "mass"]) == (
        *("none", "top:5@last_row", "random:5@last_row,seed=0", "random:5@last_row,seed=1"),
        *("mass:5@last_row,seed=0", "mass:5@last_row,seed=1"),
    )
    with pytest.raises(CallError, match="paper1: no checkpoint 'gpt2'; expected some of Dream-org/Dream-v0-Instruct-7B, "):
        paper1(["gpt2"])


def test_settings_are_the_protocols():
    for part in paper1():
        if part.name == "Table 1":
            protocol = find_protocol(MODELS[part.model][0], part.model, part.task)
            assert protocol is not None
            assert (part.shots, part.settings) == (protocol.shots, protocol.settings)
            assert part.prompts == (164 if "humaneval" in part.task else 1319)


# Protocols


@pytest.mark.parametrize(
    ("family", "model", "task", "wanted", "expected"),
    [
        ("llada", "GSAI-ML/LLaDA-8B-Base", "gsm8k", "auto", ("authors", 5, False, 1024, 0.703)),
        ("llada", "/data/LLaDA-8B-Instruct/", "gsm8k", "auto", ("paper1", 5, True, 256, 0.76)),
        ("llada", "GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "semi-autoregressive", ("semi-autoregressive", 5, True, 256, 0.786)),
        ("llada", "GSAI-ML/LLaDA-1.5", "gsm8k", "auto", ("authors", 5, True, 256, 0.838)),
        ("dream", "Dream-org/Dream-v0-Instruct-7B", "humaneval_instruct", "auto", ("authors", 0, True, 768, 0.555)),
        ("llada", "GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "none", None),
        ("llada", "lab-diffusion", "lab-arith", "auto", None),
        ("llada", "lab-diffusion", "lab-arith", "authors", None),
        ("llada", "my-own", "gsm8k", "auto", None),
    ],
)
def test_which_protocol(family, model, task, wanted, expected):
    found = find_protocol(family, model, task, wanted)
    values = None if found is None else (found.name, found.shots, found.chat, found.settings["length"], found.published)
    assert values == expected


def test_a_name_that_no_protocol_has_is_refused_for_the_labs_tasks_too():
    assert find_protocol("llama", "lab-autoregressive", "lab-arith", "paper1") is None
    with pytest.raises(CallError, match="lab-autoregressive has no protocol 'papr1' for lab-arith; expected one of auto, none"):
        find_protocol("llama", "lab-autoregressive", "lab-arith", "papr1")


def test_an_unknown_protocol_is_refused_by_the_names_there_are():
    with pytest.raises(CallError) as error:
        find_protocol("llada", "GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "magic")
    assert str(error.value) == (
        "protocol: GSAI-ML/LLaDA-8B-Instruct has no protocol 'magic' for gsm8k; "
        "expected one of auto, none, paper1, authors, semi-autoregressive"
    )


def test_every_protocol_has_a_source_and_a_name_of_its_own():
    assert all(one.source for one in PROTOCOLS)
    assert len({(one.family, one.variant, one.task, one.name) for one in PROTOCOLS}) == len(PROTOCOLS)
    line = PROTOCOLS[2].line()
    assert line.startswith(
        "gsm8k: paper1 (5 shots, chat template, length 256, steps 256, block 32, temperature 0.0; published 76.0 %); source: "
    )
    assert variant_of("llada", "x/LLaDA-8B-Base") == "base"
    assert variant_of("llada", "x/other") == ""


# The run itself, small


@pytest.fixture
def lab(monkeypatch, diffusion, autoregressive):
    """The lab's checkpoints are replaced by tiny random networks."""
    loaded = []

    def load(name, dtype=None, device="cpu"):
        loaded.append(name)
        return {"lab-diffusion": diffusion, "lab-autoregressive": autoregressive}[name]

    monkeypatch.setattr("sinkscope.models.load", load)
    return loaded


def small(parts):
    """The same parts with fewer shots and tokens, for networks of 256 positions."""
    found = []
    for part in parts:
        settings = {"length": 8} if "block" not in part.settings else {"length": 8, "steps": 8, "block": 4}
        found.append(dataclasses.replace(part, shots=0, settings=settings, rules=("none",)))
    return found


def test_every_table_and_figure_and_nothing_is_done_twice(lab, tmp_path, monkeypatch):
    from sinkscope.commands.reproduction import Options, reproduce

    parts = small(paper1(LAB, limit=3, traces=2))
    said = []
    options = Options(tmp_path, {}, batch=2, excess=0.2, allow_code_execution=False)
    written = reproduce(parts, options, said.append)
    names = {str(path.relative_to(tmp_path)) for path in written}
    assert {"table1.md", "table1.tex", "table1.csv", "table1.json", "table2.json", "table2.md"} < names
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".pdf", ".csv"}
    assert all(path.stat().st_size for path in written)
    assert "lab-diffusion, lab-code: left out; --allow-code-execution lets the programs run that the model writes" in said
    rows = json.loads((tmp_path / "table1.json").read_text())["rows"]
    assert [(row["task"], row["hide"], row["n"]) for row in rows] == [("lab-arith", "none", 3)] * 2
    tokens = json.loads((tmp_path / "table2.json").read_text())
    assert sum(tokens["lab-diffusion"].values()) == pytest.approx(1)
    assert (tmp_path / "table2.md").read_text().startswith("| model | generations | 1. | 2. |")
    figures = [path for path in written if path.parent.name == "figures"]
    monkeypatch.setattr("sinkscope.figures.draw_figures", lambda *_, **__: figures)  # drawn above; what follows is about the runs
    said.clear()
    assert reproduce(parts, options, said.append) == written
    assert not any("recorded" in line for line in said)
    # a generation that was cut short is recorded again
    (tmp_path / "traces" / "lab-diffusion" / "000001.json").unlink()
    assert reproduce(parts, options, said.append) == written
    assert [line for line in said if "recorded" in line] == ["lab-diffusion: generation 2 of 2 recorded"]


def test_the_runbook_on_the_labs_models_with_hiding_controls_and_programs(tmp_path):
    """The bundled checkpoints, every prompt in full, and the rules as they are; two problems, and answers of half the length."""
    from sinkscope.commands.reproduction import Options, reproduce

    parts = []
    for part in paper1(LAB, limit=2, ks=(1,), seeds=1, traces=1):
        steps = {"steps": 32} if "steps" in part.settings else {}
        parts.append(dataclasses.replace(part, settings={**part.settings, "length": 32, **steps}))
    written = reproduce(parts, Options(tmp_path, {}, batch=2, allow_code_execution=True), lambda line: None)
    rules = {
        "lab-diffusion": ("none", "top:1", "random:1@seed=0", "ranks:1"),
        "lab-autoregressive": ("none", "top:1@last_row", "random:1@last_row,seed=0", "ranks:1@last_row"),
    }
    rows = json.loads((tmp_path / "table1.json").read_text())["rows"]
    found = [(row["model"], row["task"], row["hide"], row["n"]) for row in rows]
    assert sorted(found) == sorted((model, task, rule, 2) for model in LAB for task in ("lab-arith", "lab-code") for rule in rules[model])
    for row in rows:
        hides = row["hide"] != "none"
        assert (row["removed_share"] or 0) > 0 if hides else row["removed_share"] is None
        assert hides == (row["hit_rate"] is not None)
        if row["hide"].startswith("top:1"):
            assert [one["control"].split("@")[0].split(":")[0] for one in row["controls"]] == ["random", "ranks"]
    taken = {(row["model"], row["task"], row["hide"].split(":")[0]): row["removed_share"] for row in rows}
    assert all(taken[model, task, "top"] > taken[model, task, "random"] for model in LAB for task in ("lab-arith", "lab-code"))
    assert sum(row["accuracy"] for row in rows if row["task"] == "lab-code") > 0  # programs were run, and some were right
    assert {path.parent.name for path in written} == {tmp_path.name, "figures"}


def test_other_processes_of_torchrun_only_share_in_the_evaluations(lab, tmp_path, monkeypatch):
    from sinkscope.commands.reproduction import Options, reproduce

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert reproduce(small(paper1(LAB[:1], limit=3, traces=1)), Options(tmp_path, {}, batch=2), lambda line: None) == []
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json") if path.name != "task.json")
    assert found == [f"evaluations/lab-diffusion/lab-arith/{name}" for name in ("lab-arith/none/000002.json", "run.json")]


def test_table_2_counts_tokens(diffusion, tmp_path):
    from sinkscope.commands.reproduction import sink_tokens

    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:", length=8)
    trace = sinkscope.open_trace(tmp_path / "t")
    found = sink_tokens([trace, trace], 0.2)
    columns, tokens = trace.column_sums[:], trace.tokens[:]
    excess = columns - (columns.sum(-1, keepdims=True) - columns) / (columns.shape[-1] - 1)
    dense = {}
    for step, *_, position in zip(*(excess > 0.2).nonzero(), strict=True):
        text = trace.token_text(int(tokens[step, position]))
        dense[text] = dense.get(text, 0) + 1
    assert found == pytest.approx({text: count / sum(dense.values()) for text, count in dense.items()})
    assert list(found.values()) == sorted(found.values(), reverse=True)
