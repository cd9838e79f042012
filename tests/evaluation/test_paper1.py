"""Paper 1's plan and its cost, compared with counts from real networks; protocols."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import sinkscope
from sinkscope.errors import CallError
from sinkscope.evaluation import cost as costs
from sinkscope.evaluation.cost import GIB, card_of, estimate
from sinkscope.evaluation.papers.paper import PROBLEMS, Shape
from sinkscope.evaluation.papers.paper1 import CHECKPOINTS, LAB, PUBLISHED, paper1, rules_for
from sinkscope.evaluation.protocols import PROTOCOLS, find_protocol, variant_of


def shape_of(model):
    config = model.network.config
    sizes = (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads)
    wide = (config.hidden_size, config.intermediate_size, config.vocab_size)
    return Shape(*sizes, *wide, model.card.parameters, model.family.causal, positions=config.max_position_embeddings)


@pytest.mark.parametrize("name", LAB)
def test_the_labs_shapes_are_those_of_its_checkpoints(name):
    model = sinkscope.load(name)
    assert (CHECKPOINTS[name].family, CHECKPOINTS[name].shape) == (model.family.name, shape_of(model))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_add_up_to_their_number_of_parameters(name):
    shape = CHECKPOINTS[name].shape
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
    assert costs._flops(shape_of(model), tokens, tokens) == pytest.approx(counted.get_total_flops(), rel=0.02)


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
    assert estimate(part, card_of(tflops=250.0)).gpu_hours == pytest.approx(cost.gpu_hours / 2)
    assert cost.gpu_hours == pytest.approx(
        7 * (1 + 15 * 1.1) * 256 * costs._flops(part.shape, 80 + 5 * 155 + 256, 32) / 125e12 / 3600
    )
    guided = estimate(dataclasses.replace(part, settings={**part.settings, "guidance": 1.0}))
    assert guided.gpu_hours == pytest.approx(2 * cost.gpu_hours) and guided.batch_on_card == cost.batch_on_card // 2
    for rules, times in {("none",): 1, ("top:1",): 1.1, ("top:1", "top:2"): 2.2, ("none", "top:1@clean"): 3.1}.items():
        assert estimate(dataclasses.replace(part, rules=rules)).gpu_hours == pytest.approx(
            times * cost.gpu_hours / (1 + 15 * 1.1)
        )
    clean = estimate(dataclasses.replace(part, rules=("none", "top:1@clean")))
    assert clean.forwards == 7 * 256 * (1 + 2)  # a call without the hiding beside each with it
    tied = dataclasses.replace(part.shape, tied=True, parameters=part.shape.parameters - 126464 * 4096)
    assert estimate(dataclasses.replace(part, shape=tied)).gpu_hours == pytest.approx(cost.gpu_hours)
    recorded = parts[5]
    canvas = 80 + 128
    assert estimate(recorded).disk_gib * GIB == pytest.approx(2 * 128 * 4 * canvas * (5 * 32 * 32 + 2 * 32 * 32))
    big = dataclasses.replace(part, shape=dataclasses.replace(part.shape, parameters=14_000_000_000))
    assert estimate(big).batch_on_card == 0
    with pytest.raises(CallError, match="tflops: expected a number above 0, found 0"):
        card_of(tflops=0)


def test_rules_have_controls_and_llamas_decide_by_the_last_row():
    assert rules_for("GSAI-ML/LLaDA-8B-Instruct", [1, 5], 2) == (
        "none",
        *("top:1", "random:1@seed=0", "random:1@seed=1", "ranks:1"),
        *("top:5", "random:5@seed=0", "random:5@seed=1", "ranks:5"),
    )
    assert rules_for("lab-diffusion", [2], 1, ["mass", "class"]) == ("none", "top:2", "mass:2@seed=0", "class:2@seed=0")
    with pytest.raises(
        CallError, match="controls: expected some of class, mass, persistent, random, ranks, rowmass, found 'magic'"
    ):
        paper1(controls=["magic"])
    assert rules_for("lab-autoregressive", [1], 0) == ("none", "top:1@last_row", "ranks:1@last_row")
    assert rules_for("meta-llama/Llama-3.1-8B-Instruct", [5], 2, ["random", "mass"]) == (
        *("none", "top:5@last_row", "random:5@last_row,seed=0", "random:5@last_row,seed=1"),
        *("mass:5@last_row,seed=0", "mass:5@last_row,seed=1"),
    )
    with pytest.raises(
        CallError, match="paper1: no checkpoint 'gpt2'; expected some of Dream-org/Dream-v0-Instruct-7B, "
    ):
        paper1(["gpt2"])


def test_settings_are_the_protocols():
    for part in paper1():
        if part.name == "Table 1":
            protocol = find_protocol(CHECKPOINTS[part.model].family, part.model, part.task)
            assert protocol is not None
            assert (part.shots, part.settings) == (protocol.shots, protocol.settings)
            assert part.prompts == (164 if "humaneval" in part.task else 1319)


def test_the_labs_models_stand_in_for_the_papers():
    found = {(part.model, part.name, part.task): part for part in paper1(LAB, traces=2)}
    assert len(found) == 6
    assert all(part.prompts == (2 if part.recorded else PROBLEMS[part.task]) for part in found.values())
    arith, code = (found["lab-diffusion", "Table 1", task] for task in ("lab-arith", "lab-code"))
    assert (arith.shots, code.shots, arith.settings) == (5, 7, {"length": 64, "steps": 64, "block": 16})
    recorded = found["lab-autoregressive", "Figures, Table 2", "lab-arith"]
    assert (recorded.shots, recorded.settings, recorded.rules) == (5, {"length": 64}, ("none",))


# Protocols


@pytest.mark.parametrize(
    ("family", "model", "task", "wanted", "expected"),
    [
        ("llada", "GSAI-ML/LLaDA-8B-Base", "gsm8k", "auto", ("authors", 5, False, 1024, 0.703)),
        ("llada", "/data/LLaDA-8B-Instruct/", "gsm8k", "auto", ("paper1", 5, True, 256, 0.76)),
        (
            "llada",
            "GSAI-ML/LLaDA-8B-Instruct",
            "gsm8k",
            "semi-autoregressive",
            ("semi-autoregressive", 5, True, 256, 0.786),
        ),
        ("llada", "GSAI-ML/LLaDA-1.5", "gsm8k", "auto", ("authors", 5, True, 256, 0.838)),
        ("dream", "Dream-org/Dream-v0-Instruct-7B", "humaneval_instruct", "auto", ("authors", 0, True, 768, 0.555)),
        ("dream", "Dream-org/Dream-Coder-v0-Base-7B", "humaneval", "auto", ("authors", 0, False, 512, None)),
        (
            "dream",
            "Dream-org/Dream-Coder-v0-Instruct-7B",
            "humaneval_instruct",
            "auto",
            ("authors", 0, True, 768, None),
        ),
        ("dream", "Dream-org/Dream-Coder-v0-Instruct-7B", "gsm8k_cot", "auto", None),
        ("dream", "apple/DiffuCoder-7B-cpGRPO", "humaneval_instruct", "auto", ("authors", 0, True, 256, None)),
        ("dream", "apple/DiffuCoder-7B-Base", "humaneval", "auto", ("authors", 0, False, 256, None)),
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
    with pytest.raises(
        CallError, match="lab-autoregressive has no protocol 'papr1' for lab-arith; expected one of auto, none"
    ):
        find_protocol("llama", "lab-autoregressive", "lab-arith", "papr1")


def test_an_unknown_protocol_is_refused_by_the_names_there_are():
    with pytest.raises(CallError) as error:
        find_protocol("llada", "GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "magic")
    assert str(error.value) == (
        "protocol: GSAI-ML/LLaDA-8B-Instruct has no protocol 'magic' for gsm8k; "
        "expected one of auto, none, paper1, authors, semi-autoregressive, fast-dllm, fast-dllm-512"
    )


def test_every_protocol_has_a_source_and_a_name_of_its_own():
    assert all(one.source for one in PROTOCOLS)
    assert len({(one.family, one.variant, one.task, one.name) for one in PROTOCOLS}) == len(PROTOCOLS)
    line = PROTOCOLS[2].line()
    assert line.startswith(
        "gsm8k: paper1 (5 shots, chat template, length 256, steps 256, block 32, temperature 0.0; published 76.0 %); "
        "source: "
    )
    assert variant_of("llada", "x/LLaDA-8B-Base") == "base"
    assert variant_of("llada", "x/other") == ""
