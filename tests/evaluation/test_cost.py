"""The cost of a run, compared with counts from real networks; dry runs as a person types them."""

import dataclasses
import json

import pytest
import torch
from test_choices import ROWS, write_rows
from torch.utils.flop_counter import FlopCounterMode

import sinkscope
from sinkscope.decoding.blocks import quotas
from sinkscope.decoding.likelihood import expected_masks, mask_patterns
from sinkscope.evaluation import cost as costs
from sinkscope.evaluation import evaluate, task_plans
from sinkscope.evaluation.choices import Task
from sinkscope.evaluation.cost import CHOICE_TOKENS, GIB, PROBLEMS, card_of, estimate
from sinkscope.evaluation.protocols import CHECKPOINTS, LAB, PUBLISHED, SHAPES, Protocol, paper1, paper2
from sinkscope.evaluation.task_plans import Request, family_and_shape, make_plans, resolve_task
from sinkscope.evaluation.tasks import TASKS, find_task


@pytest.mark.parametrize("name", LAB)
def test_the_labs_shapes_are_those_of_its_checkpoints(name, monkeypatch):
    known = CHECKPOINTS[name]
    monkeypatch.delitem(CHECKPOINTS, name)
    family, shape = family_and_shape(name)
    assert (family.name, dataclasses.replace(shape, head_dim=None)) == (known.family, known.shape)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_add_up_to_their_number_of_parameters(name):
    shape = CHECKPOINTS[name].shape
    head = shape.hidden // shape.heads
    attention = 2 * shape.hidden**2 + 2 * shape.hidden * shape.kv_heads * head
    biases = shape.hidden + 2 * shape.kv_heads * head if name.startswith("Dream") else 0
    layer = attention + biases + 3 * shape.hidden * shape.ffn + 2 * shape.hidden
    assert shape.layers * layer + 2 * shape.vocabulary * shape.hidden + shape.hidden == shape.parameters
    scratch = SHAPES["scratch-472m"]
    layer = 4 * scratch.hidden**2 + 3 * scratch.hidden * scratch.ffn + 2 * scratch.hidden
    assert scratch.parameters == (2 * scratch.vocabulary - 1) * scratch.hidden + 18 * layer + scratch.hidden


def test_the_arithmetic_of_a_forward_call_is_torchs_count(diffusion_folder):
    model = sinkscope.load(str(diffusion_folder))
    model.network.set_attn_implementation("eager")  # torch does not count sdpa on a CPU
    _, shape = family_and_shape(str(diffusion_folder))
    for tokens in (17, 96):
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            model.network(torch.arange(3, 3 + tokens)[None])
        assert costs._flops(shape, tokens, tokens) == pytest.approx(counted.get_total_flops(), rel=0.02)


def test_forwards_memory_and_disk():
    parts = paper1(limit=7, traces=2)
    part = next(part for part in parts if part.model == "GSAI-ML/LLaDA-8B-Instruct")
    cost = estimate(part)
    assert cost.forwards == 7 * 16 * 256
    weights = 2 * 8_015_581_184 / GIB
    assert weights < cost.memory_gib < weights + 1
    assert cost.batch_on_card >= 1
    assert estimate(part, card_of(tflops=250.0)).gpu_hours == pytest.approx(cost.gpu_hours / 2)
    plain = 7 * 256 * costs._flops(part.shape, 80 + 5 * 155 + 256, 32) / 125e12 / 3600
    assert cost.gpu_hours == pytest.approx((1 + 15 * 1.1) * plain)
    guided = estimate(dataclasses.replace(part, settings={**part.settings, "guidance": 1.0}))
    assert guided.gpu_hours == pytest.approx(2 * cost.gpu_hours) and guided.batch_on_card == cost.batch_on_card // 2
    for rules, times in {("none",): 1, ("top:1",): 1.1, ("top:1", "top:2"): 2.2, ("none", "top:1@clean"): 3.1}.items():
        assert estimate(dataclasses.replace(part, rules=rules)).gpu_hours == pytest.approx(times * plain)
    clean = estimate(dataclasses.replace(part, rules=("none", "top:1@clean")))
    assert clean.forwards == 7 * 256 * (1 + 2)  # a call without the hiding beside each with it
    tied = dataclasses.replace(part.shape, tied=True, parameters=part.shape.parameters - 126464 * 4096)
    assert estimate(dataclasses.replace(part, shape=tied)).gpu_hours == pytest.approx(cost.gpu_hours)
    canvas = 80 + 128
    assert estimate(parts[5]).disk_gib * GIB == pytest.approx(2 * 128 * 4 * canvas * (5 * 32 * 32 + 2 * 32 * 32))
    big = dataclasses.replace(part, shape=dataclasses.replace(part.shape, parameters=14_000_000_000))
    assert estimate(big).batch_on_card == 0


def test_likelihoods_count_canvases():
    parts = {part.task: part for part in paper2("scratch-472m=x")}
    forwards = {task: estimate(part).forwards for task, part in parts.items()}
    assert forwards["arc_easy"] == PROBLEMS["arc_easy"] * 4 * 31 * 2  # choices, ways to mask five tokens, guidance
    assert forwards["piqa"] == PROBLEMS["piqa"] * 2 * 20 * 2  # a token at a time
    assert forwards["lambada"] == PROBLEMS["lambada"] * (2 + 2) * 2  # its word's likelihood, and the writing of it
    assert forwards["gsm8k_two_pass"] == 1319 * 256 * 2
    one = estimate(parts["arc_easy"])
    three = estimate(dataclasses.replace(parts["arc_easy"], rules=("none", "top:1@current", "top:1@current,clean")))
    assert three.forwards == (1 + 1 + 2) * one.forwards
    assert three.gpu_hours == pytest.approx((1 + 1.1 + 2.1) * one.gpu_hours)
    causal = dataclasses.replace(parts["piqa"].shape, causal=True)
    settings = {"method": "monte_carlo", "samples": 128, "guidance": 0.0}
    alone = dataclasses.replace(parts["piqa"], shape=causal, settings=settings, prompts=10)
    assert estimate(alone).forwards == 10 * CHOICE_TOKENS["piqa"][1]


@pytest.mark.parametrize(("length", "samples"), [(1, 1), (7, 50)])
def test_the_number_of_masks_is_the_mean_over_seeds(length, samples):
    groups = quotas(samples, max(min(2, samples), -(-samples // 16)))
    found = [len(torch.unique(mask_patterns(length, groups, seed), dim=0)) for seed in range(150)]
    assert expected_masks(length, samples) == pytest.approx(sum(found) / len(found), rel=0.02)


def test_a_dry_run_of_a_paper(run):
    status, out, _ = run("reproduce", "paper1", "--dry-run", "--json")
    document = json.loads(out)
    assert status == 0 and len(document["parts"]) == 12 and document["card_suffices"] is True
    most = min(row["batch_on_card"] for row in document["parts"])
    assert most == 5, "Dream writes 768 tokens and needs the logits of all of them"
    assert document["total"]["gpu_hours"] == pytest.approx(sum(row["gpu_hours"] for row in document["parts"]))
    _, out, _ = run("reproduce", "paper1", "--dry-run", "--models", "lab", "--limit", 2, "--ks", 1, "--gpu", "h100")
    assert "| Table 1 | lab-diffusion | lab-arith | 2 | 6 | 768 |" in out
    assert "batch on 80 GB" in out and "An H100 of 80 GB suffices for every part, with --batch " in out


def test_a_dry_run_of_an_evaluation_reads_no_weights(run, monkeypatch, tmp_path, diffusion_folder):
    monkeypatch.setattr("sinkscope.models.loading._network", None)
    tasks = ("--tasks", "gsm8k,humaneval,lab-arith", "--hide", "none,top:1", "--limit", 7, "--gpu", "h100", "--json")
    status, out, err = run("evaluate", "GSAI-ML/LLaDA-8B-Instruct", *tasks, "--dry-run")
    assert status == 0, err
    rows = json.loads(out)["parts"]
    assert [(row["task"], row["prompts"], row["rules"], row["forwards"]) for row in rows] == [
        ("gsm8k", 7, 2, 7 * 2 * 256),  # by the protocol
        ("humaneval", 7, 2, 7 * 2 * 512),
        ("lab-arith", 7, 2, 7 * 2 * 64),
    ]
    data = ("--data", f"piqa={write_rows(tmp_path, 'piqa')}", "--tasks", "piqa", "--method", "chain_rule")
    status, out, err = run("evaluate", diffusion_folder, "--dry-run", *data)
    assert status == 0 and f"| piqa | {len(ROWS['piqa'])} | 1 |" in out, err


def talking(task: Task) -> Task:
    """A task of the lab that can be asked as a conversation."""

    def messages(problem, index, shots):
        return [{"role": "user", "content": problem.question}]

    return dataclasses.replace(task, messages=messages)


@pytest.fixture
def protocol(monkeypatch):
    """lab-arith as if it had been published, for every model."""
    published = Protocol(
        "llada", "", "lab-arith", "authors", 1, False, {"length": 12, "steps": 6, "block": 6}, "a paper", 0.5
    )
    monkeypatch.setattr(
        task_plans, "find_protocol", lambda family, model, task, wanted: None if wanted == "none" else published
    )
    monkeypatch.setattr(task_plans, "find_task", lambda name, data: talking(TASKS[name]))
    return published


def test_a_protocol_sets_shots_and_sampler_and_flags_override_it(diffusion, protocol, tmp_path, caplog):
    (plan,), _ = make_plans(diffusion, Request(["lab-arith"], limit=2))
    assert (plan.shots, plan.chat, plan.sampler.length, plan.sampler.steps) == (1, False, 12, 6)
    assert (
        plan.protocol
        == "lab-arith: authors (1 shots, raw text, length 12, steps 6, block 6; published 50.0 %); source: a paper"
    )
    (plan,), _ = make_plans(
        diffusion, Request(["lab-arith"], limit=2, shots=0, chat=True, settings={"steps": 4, "block": 6})
    )
    assert (plan.shots, plan.chat, plan.sampler.steps) == (0, True, 4)
    assert plan.protocol.endswith("; source: a paper; changed: steps 4, shots 0, chat")
    assert plan.encoded[0] == diffusion.chat([{"role": "user", "content": plan.problems[0].question}])
    (plan,), _ = make_plans(diffusion, Request(["lab-arith"], limit=2, shots=0, protocol="none"))
    assert (plan.sampler.length, plan.protocol) == (64, None)
    (result,) = evaluate(diffusion, tasks=["lab-arith"], out=tmp_path, limit=1, progress=False)
    assert result.protocol == caplog.messages[0] == protocol.line()


@pytest.mark.parametrize("fixture", ["diffusion", "autoregressive"])
def test_defaults_of_published_tasks(fixture, request):
    model = request.getfixturevalue(fixture)

    def defaults(name, **settings):
        return resolve_task(model.family, "mine", find_task(name), Request([name], settings=settings))[0]

    sampler = defaults("humaneval")
    assert sampler.length == 512
    if fixture == "diffusion":
        assert (sampler.steps, sampler.block) == (512, 32)
    assert defaults("gsm8k").length == 256
    assert defaults("gsm8k", length=16).length == 16
