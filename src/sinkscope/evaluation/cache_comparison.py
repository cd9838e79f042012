"""`compare_caches` answers the same problems under several cache policies; after a kill the same call resumes.

The policies take turns at each batch, in one process, so that the machine's other work falls on all of them alike. The
folder is one of `results_folder`, with a folder of items for each policy, and ``caches.json`` with what came of them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sinkscope.decoding import generate, make_batch, parse_cache, resolve_settings, settings_of
from sinkscope.errors import CallError
from sinkscope.evaluation.answers import reseeded
from sinkscope.evaluation.cache_arms import PARALLEL, Arm
from sinkscope.evaluation.cache_tables import comparison_of
from sinkscope.evaluation.choices import LikelihoodSettings
from sinkscope.evaluation.memory_peak import peak_memory
from sinkscope.evaluation.results_folder import locked, write_json
from sinkscope.evaluation.running import Batch, describe_run, open_batches, work_through, written_text
from sinkscope.evaluation.task_plans import Request, TaskPlan, make_plans
from sinkscope.models import FAMILIES, Family, Model, expect_model
from sinkscope.runs.files import with_checksum
from sinkscope.runs.folder import COMPARISON as A_COMPARISON
from sinkscope.runs.share import expect_one_process

COMPARISON = "caches.json"
WORK = ("forwards", "rows", "projections", "attention", "mlp", "vocabulary", "total")


def compare_caches(
    model: Model, *, arms: Sequence[Arm], out: Path | str, batch: int = 16, progress: bool = True, **asked: Any
) -> dict[str, Any]:
    """Compare cache policies on tasks, and return the document that is written to ``caches.json``.

    Args:
        arms: from `read_arms`; plain sampling is among them, and everything is compared with it.
        out: folder for the items; new, empty, or of the same comparison. More arms or a larger limit go on in it.
        asked: fields of `Request` but rules, as for `evaluate`; settings without those that an arm decides.

    Raises:
        CallError: an argument that does not fit, another run in the folder, or another process at work in it.
        EvaluationError: the folder cannot be written.
    """
    expect_model(model, unhidden=True)
    expect_one_process("compare-caches")
    request = Request(**asked)
    plans = plan_comparison(model, request, arms)
    out, ways = Path(out), {arm.text: arm for arm in arms}
    with locked(out, kind=A_COMPARISON):
        described = describe_run(model, batch, request.limit)
        batches = open_batches(out, model, plans, ways, {"compares": "caches", **described})
        order = [plan.task.name for plan in plans]
        batches.sort(key=lambda one: (order.index(one.plan.task.name), one.indices.start))  # the arms take turns
        work_through(model, batches, _work, progress)
        found: dict[tuple[str, Arm], list[Any]] = {}
        for one in batches:
            read = [one.items.read(index, len(one.indices)) for index in one.indices]
            found.setdefault((one.plan.task.name, one.way), []).extend(read)
        of_tasks = {plan.task.name: plan.describe() for plan in plans}
        document = with_checksum({**described, "tasks": of_tasks, **comparison_of(found)})
        write_json(out / COMPARISON, document)
    return document


def plan_comparison(model: Model, request: Request, arms: Sequence[Arm]) -> list[TaskPlan]:
    """Return the plan of each task; CallError for an arm that does not go with the model, a task or a canvas."""
    check_settings(request.settings)
    check_family(model.family)
    plans, _ = make_plans(model, request)
    for plan in plans:
        if isinstance(plan.sampler, LikelihoodSettings) or plan.task.passes > 1:
            raise CallError(
                f"{plan.task.name}: expected a task whose answers are written in one pass, such as lab-arith or gsm8k"
            )
        shortest = make_batch(model, [min(plan.encoded, key=len)], [None], plan.sampler.length)
        for arm in arms:
            sampler, policy = settings_of_arm(model, plan, arm), parse_cache(arm.cache)
            if policy is not None:
                policy.check_canvas(shortest, sampler)
    return plans


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise CallError for settings that belong to an arm."""
    if beside := [name for name in ("cache", *PARALLEL) if name in settings]:
        raise CallError(
            f"{beside[0]}: a comparison has it in its policies; write --policies, such as none@threshold=0.9"
        )


def check_family(family: Family) -> None:
    """Raise CallError for a family whose sampler takes no cache."""
    able = [one for one in FAMILIES.values() if "cache" in settings_of(one.sampler).__dataclass_fields__]
    if family not in able:
        names = ", ".join(one.name for one in able)
        raise CallError(f"{family.name} has no setting 'cache': expected a model whose sampler takes one ({names})")


def settings_of_arm(model: Model, plan: TaskPlan, arm: Arm) -> Any:
    """Return the settings with which an arm writes the answers of a task; CallError where they do not fit together."""
    return resolve_settings(model.family, **{**asdict(plan.sampler), **arm.settings})  # type: ignore[call-overload]


def _work(model: Model, batch: Batch, missing: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    plan, indices = batch.plan, batch.indices
    own = reseeded(settings_of_arm(model, plan, batch.way), indices.start)
    with peak_memory(model.device) as peak:
        began, processor = time.monotonic(), time.process_time()
        generations: Any = generate(model, list(plan.encoded[indices.start : indices.stop]), **asdict(own))
        seconds, processor = time.monotonic() - began, time.process_time() - processor
    for index in missing:
        generation = generations[index - indices.start]
        text = written_text(model, plan, generation)
        score = plan.task.score(plan.problems[index], text)
        yield (
            index,
            {
                "beside": len(indices),
                "correct": score.correct,
                "reason": score.reason,
                "text": text,
                "tokens": generation.tokens[generation.prompt_length :].tolist(),
                "canvas": len(generation.tokens),
                "work": {name: getattr(generation.work, name) for name in WORK},
                "seconds": seconds / len(indices),
                "processor_seconds": processor / len(indices),
                "on_cpu": model.device.type == "cpu",
                "peak_memory": peak.bytes,
            },
        )
