"""`evaluate`: a model, its tasks, and a folder that the same command goes on with after a kill.

Prompts are written in left-padded batches of neighbours, fixed by the problems' numbers. An unfinished batch is written
as a whole again, so that padding and rounding are those of an uninterrupted run, and only its missing items are kept.
"""

import logging
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from sinkscope.decoding import Settings, generate, make_batch, resolve_settings
from sinkscope.errors import CallError
from sinkscope.evaluation.results import FORMAT, Result, summarise, write_results
from sinkscope.evaluation.sandbox import run_program
from sinkscope.evaluation.tasks import Task, find_task
from sinkscope.evaluation.work_folder import WorkItems, claim_run, locked
from sinkscope.models import Model

LENGTH, BLOCK = 64, 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Plan:
    """One task under one rule."""

    task: Task
    hide: str
    shots: int
    problems: tuple[Any, ...]
    prompts: tuple[str, ...]


def evaluate(
    model: Model,
    *,
    tasks: Sequence[str],
    out: Path | str,
    hide: Sequence[str] = ("none",),
    limit: int | None = None,
    shots: int | None = None,
    batch: int = 16,
    settings: Mapping[str, Any] = MappingProxyType({}),
    allow_code_execution: bool = False,
    progress: bool = True,
) -> list[Result]:
    """Scores a model on held-out tasks, one item a problem; the same call resumes.

    Args:
        model: from `load`.
        tasks: names from `TASKS`.
        out: folder for the items and ``results.json``; new, empty, or of the same run.
        hide: rules; ``none`` is the only one so far.
        limit: the first problems of each task only.
        shots: solved problems in a prompt; each task's own number when None.
        batch: prompts written side by side.
        settings: of the family's sampler; without any, length 64 and, for diffusion, 64 steps in blocks of 16.
        allow_code_execution: needed for tasks that run programs a model wrote.
        progress: a bar with the remaining time on a terminal's standard error.

    Raises:
        CallError: an argument that does not fit, another run in the folder, another process at work in it.
        EvaluationError: the folder cannot be written, or the sandbox does not work.
    """
    from tqdm import tqdm

    if batch < 1:
        raise CallError(f"batch: expected at least 1, found {batch}")
    sampler = _resolve(model, settings)
    plans = _make_plans(tasks, hide, limit, shots, allow_code_execution)
    if any(plan.task.runs_programs for plan in plans):
        for line in run_program("").not_enforced:
            _log.warning("the sandbox cannot enforce everything on this system. %s", line)
    encoded = {plan.prompts: [model.encode(prompt) for prompt in plan.prompts] for plan in plans}
    make_batch(model, [max((ids for every in encoded.values() for ids in every), key=len)], [None], sampler.length)
    run = _describe(model, sampler, batch, limit, shots)
    out = Path(out)
    results = []
    with locked(out):
        folders = [WorkItems(out, plan.task.name, plan.hide, claim_run(out, run)) for plan in plans]
        found = [[items.read(index) for index in range(len(plan.problems))] for plan, items in zip(plans, folders, strict=True)]
        done = sum(item is not None for items in found for item in items)
        with tqdm(
            total=sum(map(len, found)), initial=done, desc=model.card.name, unit="problem", disable=None if progress else True
        ) as bar:
            for plan, folder, items in zip(plans, folders, found, strict=True):
                for start in range(0, len(items), batch):
                    missing = [index for index in range(start, min(start + batch, len(items))) if items[index] is None]
                    if missing:
                        for index, item in _work(model, plan, encoded[plan.prompts], sampler, start, batch, missing):
                            items[index] = folder.commit(index, item)
                            bar.update()
                results.append(_summarise(plan, items, run))
        write_results(out, results)
    return results


def _resolve(model: Model, settings: Mapping[str, Any]) -> Settings:
    given = {"length": LENGTH, **settings}
    if model.family.sampler != "autoregressive" and "block" not in given and isinstance(given["length"], int):
        given["block"] = min(BLOCK, given["length"])
    return resolve_settings(model.family, **given)


def _make_plans(tasks: Sequence[str], hide: Sequence[str], limit: int | None, shots: int | None, allow_code_execution: bool) -> list[_Plan]:
    if not tasks or isinstance(tasks, str):
        raise CallError(f"tasks: expected a list of names, found {tasks!r}")
    if not hide or isinstance(hide, str):
        raise CallError(f'hide: expected a list of rules such as ["none"], found {hide!r}')
    if limit is not None and limit < 1:
        raise CallError(f"limit: expected at least 1 problem, found {limit}")
    for rule in hide:
        if rule != "none":
            raise CallError(f"hide: {rule!r} cannot be evaluated yet; the only rule so far is none, which hides nothing")
    plans = []
    for task in map(find_task, dict.fromkeys(tasks)):
        if task.runs_programs and not allow_code_execution:
            raise CallError(
                f"{task.name} runs programs that the model wrote; they run in a sandbox without network or your files, "
                f"as far as the system allows. Pass allow_code_execution=True (--allow-code-execution) to do so"
            )
        problems = tuple(task.problems()[:limit])
        count = task.shots if shots is None else shots
        prompts = tuple(task.prompt(problem, index, count) for index, problem in enumerate(problems))
        plans += [_Plan(task, rule, count, problems, prompts) for rule in dict.fromkeys(hide)]
    return plans


def _describe(model: Model, sampler: Settings, batch: int, limit: int | None, shots: int | None) -> dict[str, Any]:
    """What decides the numbers, kept in the folder; a resumed run must agree in all of it."""
    return {
        "format": FORMAT,
        "model": model.card.as_dict(),
        "device": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else model.device.type,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in ("sinkscope", "torch", "transformers")},
        "sampler": asdict(sampler),
        "batch": batch,
        "limit": limit,
        "shots": shots,
    }


def _work(
    model: Model, plan: _Plan, encoded: Sequence[Sequence[int]], sampler: Settings, start: int, batch: int, missing: Sequence[int]
) -> Any:
    """Writes a batch and scores its missing problems, one (number, item) after the other."""
    began = time.monotonic()
    # Row i draws from seed + i: the seed of a problem depends on its number, not on the batch.
    own = replace(sampler, seed=sampler.seed + start)
    generations = generate(model, list(encoded[start : start + batch]), **asdict(own))
    share = (time.monotonic() - began) / len(generations)
    for index in missing:
        generation, problem = generations[index - start], plan.problems[index]
        began = time.monotonic()
        score = plan.task.score(problem, generation.text)
        yield (
            index,
            {
                "prompt": plan.prompts[index],
                "gold": plan.task.gold(problem),
                "text": generation.text,
                "tokens": generation.tokens[generation.prompt_length :].tolist(),
                "steps": generation.steps,
                **asdict(score),
                "seconds": round(share + time.monotonic() - began, 3),
            },
        )


def _summarise(plan: _Plan, items: Sequence[Any], run: Mapping[str, Any]) -> Result:
    return summarise(
        items,
        model=run["model"]["name"],
        task=plan.task.name,
        hide=plan.hide,
        settings={**run["sampler"], "shots": plan.shots, "batch": run["batch"]},
        weight_hash=run["model"]["weight_hash"],
        versions=run["versions"],
        device=run["device"],
        dtype=run["model"]["dtype"],
    )
