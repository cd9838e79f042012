"""`compare_caches` writes the answers to the same problems under several cache policies; after a kill the same call
resumes.

The policies take turns at each batch, in one process, so that the machine's other work falls on all of them alike. The
folder is one of `results_folder`, with a folder of items for each policy, and ``caches.json`` with what came of them.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sinkscope.decoding import generate, make_batch, parse_cache, resolve_settings, settings_of
from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.answers import answer_until, reseeded
from sinkscope.evaluation.cache_arms import PARALLEL, PLAIN, Arm
from sinkscope.evaluation.cache_tables import comparison_of
from sinkscope.evaluation.choices import LikelihoodSettings
from sinkscope.evaluation.memory_peak import peak_memory
from sinkscope.evaluation.protocols import AUTO
from sinkscope.evaluation.results_folder import locked, write_json
from sinkscope.evaluation.running import Batch, describe_run, open_batches, work_through
from sinkscope.evaluation.task_plans import Request, TaskPlan, check_request, make_plans
from sinkscope.evaluation.tasks import find_task
from sinkscope.models import FAMILIES, Family, Model, expect_model
from sinkscope.runs.files import CHECKSUM, checksum_of, read_object, with_checksum
from sinkscope.runs.folder import COMPARISON as OF_CACHES
from sinkscope.runs.share import share_of_process

COMPARISON = "caches.json"
_log = logging.getLogger(__name__)
WORK = ("forwards", "rows", "projections", "attention", "mlp", "vocabulary", "total")


def compare_caches(
    model: Model,
    *,
    tasks: Sequence[str],
    arms: Sequence[Arm],
    out: Path | str,
    limit: int | None = None,
    shots: int | None = None,
    chat: bool = False,
    protocol: str = AUTO,
    data: Mapping[str, str | Path] = MappingProxyType({}),
    batch: int = 16,
    settings: Mapping[str, Any] = MappingProxyType({}),
    allow_code_execution: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Compare cache policies on tasks, and return the document that is written to ``caches.json``.

    Args:
        model: from `load`.
        tasks, limit, shots, chat, protocol, data, batch, allow_code_execution, progress: as for `evaluate`.
        arms: from `read_arms`; plain sampling is among them, and everything is compared with it.
        out: folder for the items; new, empty, or of the same comparison. More arms or a larger limit go on in it.
        settings: of the family's sampler, without those that an arm decides.

    Raises:
        CallError: an argument that does not fit, another run in the folder, or another process at work in it.
        EvaluationError: the folder cannot be written.
    """
    expect_model(model, unhidden=True)
    if batch < 1:
        raise CallError(f"batch: expected at least 1, found {batch}")
    if share_of_process().count > 1:
        raise CallError("caches are compared in one process, so that the policies are timed alike; leave torchrun out")
    plans = plan_comparison(
        model, Request(tasks, ("none",), limit, shots, chat, protocol, data, settings, allow_code_execution), arms
    )
    out = Path(out)
    ways = {arm.text: arm for arm in arms}
    with locked(out, kind=OF_CACHES):
        batches = open_batches(out, model, plans, ways, batch, limit, more={"compares": "caches"})
        order = [plan.task.name for plan in plans]
        batches.sort(key=lambda one: (order.index(one.plan.task.name), one.indices.start))  # the arms take turns
        work_through(model, batches, _work, progress)
        found: dict[tuple[str, Arm], list[Any]] = {}
        for one in batches:
            read = [one.items.read(index, len(one.indices)) for index in one.indices]
            found.setdefault((one.plan.task.name, one.way), []).extend(read)
        _check_lengths(found)
        described = {plan.task.name: plan.describe() for plan in plans}
        document = with_checksum({**describe_run(model, batch, limit), "tasks": described, **comparison_of(found)})
        _tell_what_is_left_out(out / COMPARISON, document)
        write_json(out / COMPARISON, document)
    return document


def _tell_what_is_left_out(path: Path, document: Mapping[str, Any]) -> None:
    """Warn where the table that is replaced has more policies or problems than the one that is written."""
    old, new = read_object(path), {(row["task"], row["policy"]): row["n"] for row in document["rows"]}
    if old is None or old.get(CHECKSUM) != checksum_of(old):
        return
    rows = [row for row in old["rows"] if row["n"] > new.get((row["task"], row["policy"]), 0)]
    if rows:
        said = ", ".join(f"{row['task']} {row['policy']} (of {row['n']})" for row in rows)
        _log.warning(
            "%s has fewer answers now, without some of %s; all are kept, "
            "and the call that asked for them counts them again",
            path,
            said,
        )


def _check_lengths(found: Mapping[tuple[str, Arm], Sequence[Any]]) -> None:
    """Raise an error unless every answer is there, and as long as that of plain sampling."""
    for (task, arm), mine in found.items():
        for index, (item, plain) in enumerate(zip(mine, found[task, PLAIN], strict=True)):
            if item is None or plain is None or len(item["tokens"]) != len(plain["tokens"]):
                raise EvaluationError(
                    f"{task}, {arm.text}: expected an answer to problem {index} as long as that of plain sampling; "
                    "remove the wrong file and run the same command again"
                )


def plan_comparison(model: Model, request: Request, arms: Sequence[Arm]) -> list[TaskPlan]:
    """Return the plan of each task, after every arm was checked with it.

    Raises:
        CallError: an arm that does not go with the model, a task or a canvas; a task without answers to write.
    """
    check_request(request)
    check_settings(request.settings)
    check_family(model.family)
    for task in [find_task(name, request.files) for name in request.tasks]:
        if task.asks_likelihoods or task.passes > 1:
            raise CallError(
                f"{task.name}: expected a task whose answers are written in one pass, such as lab-arith or gsm8k"
            )
    plans, _ = make_plans(model, request)
    for plan in plans:
        assert not isinstance(plan.sampler, LikelihoodSettings)
        shortest = make_batch(model, [min(plan.encoded, key=len)], [None], plan.sampler.length)
        for arm in arms:
            sampler, policy = settings_of_arm(model, plan, arm), parse_cache(arm.cache)
            if policy is not None:
                policy.check_canvas(shortest, sampler)
    return plans


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise CallError for settings that belong to an arm."""
    for name in ("cache", *PARALLEL):
        if name in settings:
            example = f"--policies {settings[name]}" if name == "cache" else f"--policies none@{name}={settings[name]}"
            raise CallError(f"{name}: a comparison has it in its policies; write {example}")


def check_family(family: Family) -> None:
    """Raise CallError for a family whose sampler takes no cache."""

    def takes_cache(one: Family) -> bool:
        return any(field.name == "cache" for field in fields(settings_of(one.sampler)))

    if not takes_cache(family):
        able = ", ".join(one.name for one in FAMILIES.values() if takes_cache(one))
        raise CallError(f"{family.name} has no setting 'cache': expected a model whose sampler takes a cache ({able})")


def settings_of_arm(model: Model, plan: TaskPlan, arm: Arm) -> Any:
    """Return the settings with which an arm writes the answers of a task.

    Raises:
        CallError: they do not fit together.
    """
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
        answer = generation.tokens[generation.prompt_length :]
        text = generation.text if plan.task.stops is None else answer_until(model, answer, plan.task.stops)
        score = plan.task.score(plan.problems[index], text)
        yield (
            index,
            {
                "beside": len(indices),
                "correct": score.correct,
                "reason": score.reason,
                "text": text,
                "tokens": answer.tolist(),
                "canvas": len(generation.tokens),
                "work": {name: getattr(generation.work, name) for name in WORK},
                "seconds": seconds / len(indices),
                "processor_seconds": processor / len(indices),
                "on_cpu": model.device.type == "cpu",
                "peak_memory": peak.bytes,
            },
        )
