"""The plan of an evaluation: protocols and what overrides them, conversations, defaults."""

import dataclasses

import pytest

from sinkscope.evaluation import evaluate, task_plans
from sinkscope.evaluation.choices import Task
from sinkscope.evaluation.protocols import Protocol
from sinkscope.evaluation.task_plans import Request, make_plans, resolve_task
from sinkscope.evaluation.tasks import TASKS, find_task


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
