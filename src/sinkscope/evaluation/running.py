"""`evaluate` scores a model on tasks and writes the results into a folder; after a kill the same command resumes.

Neighbours form left-padded batches, computed again as a whole, so padding and rounding are as if uninterrupted.
"""

import json
import logging
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from sinkscope.counts import counted
from sinkscope.decoding import Generation, Settings, generate
from sinkscope.decoding.caches.policy import parse_cache
from sinkscope.decoding.caches.reader import check_model
from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.choices import LikelihoodSettings, ask
from sinkscope.evaluation.protocols import AUTO
from sinkscope.evaluation.results import RUN, TASK, Result, claim, collect, items_of, locked, state_of
from sinkscope.evaluation.sandbox import run_program
from sinkscope.evaluation.task_plans import Request, Rule, TaskPlan, make_plans
from sinkscope.models import Model, expect_model, load
from sinkscope.models.devices import own_device
from sinkscope.models.fingerprints import fingerprints, weight_hash_of
from sinkscope.models.loading import outline
from sinkscope.progress import show_progress
from sinkscope.runs.files import json_text
from sinkscope.runs.folder import Items, Share, share_of_process

STARTING_S = 1800.0  # seconds that another process may take to load its model
POLL_S = 0.5
PASS_SEEDS = 1 << 30  # between the seeds of one pass and the next; torch on a CPU uses the lower 32 bits of a seed
ITEMS = 2  # format of the items in a folder; format 1 had the limit among the settings
LOGS = "lock.jobs"  # named like a lock, so that the folder still counts as an evaluation
MINUTES = {"slurm": 24 * 60, "local": 365 * 24 * 60}
"""How long a job may take where no option says it; submitit's own 5 and 2 minutes end it within its work."""
_log = logging.getLogger(__name__)

Written = Iterator[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class Batch:
    """A unit of work: some neighbouring problems of a task, written in one way (a rule, or an arm of a comparison)."""

    plan: TaskPlan
    way: Any
    items: Items
    indices: range

    def missing(self) -> list[int]:
        return [index for index in self.indices if self.items.read(index, len(self.indices)) is None]


def evaluate(
    model: Model,
    *,
    tasks: Sequence[str],
    out: Path | str,
    hide: Sequence[str | Rule] = ("none",),
    limit: int | None = None,
    shots: int | None = None,
    chat: bool = False,
    protocol: str = AUTO,
    data: Mapping[str, str | Path] = MappingProxyType({}),
    batch: int = 16,
    settings: Mapping[str, Any] = MappingProxyType({}),
    allow_code_execution: bool = False,
    progress: bool = True,
    share: Share | None = None,
) -> list[Result]:
    """Score a model on tasks, with one item for each problem and rule; the same call resumes.

    Args:
        tasks: of the lab or published, see `find_task`.
        out: folder for the items and ``results.json``; new, empty, or of the same run.
        hide: rules, as text or objects; ``none`` hides nothing, ``@queries=answer`` as a cache does.
        limit: number of problems of each task, from the first.
        shots: solved problems in a prompt; the protocol's or the task's own number when None.
        chat: applies the chat template, with each shot as a pair of turns; a protocol may decide this itself.
        protocol: published settings for published tasks: ``auto``, ``none`` or a name, see `find_protocol`.
        data: local files of published tasks; the hub for the rest.
        settings: of the family's sampler; they override the protocol's.
        allow_code_execution: needed for tasks that run programs a model wrote.
        share: the part of the work to do, without collecting results; torchrun's share, or all of the work, when None.

    Returns:
        Results by task and rule; none from a process that does only a share.
    """
    expect_model(model)
    mine = share_of_process() if share is None else share
    request = Request(tasks, hide, limit, shots, chat, protocol, data, settings, allow_code_execution)
    plans, rules = make_plans(model, request)
    for rule in rules.values():
        with rule(model):  # refuses what this model cannot do, or a cache beside it, before anything is made
            for plan in plans:
                policy = parse_cache(getattr(plan.sampler, "cache", "none"))
                if policy is not None:
                    check_model(model, policy)
    if mine.index == 0:
        warnings = [plan.protocol for plan in plans if plan.protocol is not None]
        if any(plan.task.runs_programs for plan in plans):
            lacks = "the sandbox cannot enforce everything on this system. "
            warnings += [lacks + line for line in run_program("").not_enforced]
        for line in warnings:
            _log.warning("%s", line)
    out, shown = Path(out), progress and (mine.index == 0 or share is not None)
    with locked(out, mine):
        others = [Share(index, mine.count) for index in range(mine.count) if index != mine.index]
        before = {other: state_of(out, other) for other in others}
        batches = open_batches(out, model, plans, rules, describe_run(model, batch, limit))
        work_through(model, batches[mine.index :: mine.count], _work, shown)
        if share is not None or mine.index > 0:
            return []
        _wait_for_others(out, before, batches)
        return collect(out, [(plan.task.name, text) for plan in plans for text in rules])


def open_batches(
    out: Path, model: Model, plans: Sequence[TaskPlan], ways: Mapping[str, Any], described: Mapping[str, Any]
) -> list[Batch]:
    """Claim a folder for a run; return its batches by task, way (by the text that names its folder) and problems."""
    asked = {f"{plan.task.name}/{TASK}": plan.describe() for plan in plans}
    run, *of_tasks = claim(out, {RUN: {**described, **fingerprints(model)}, **asked}).values()
    batches, size = [], described["batch"]
    for plan, of_task in zip(plans, of_tasks, strict=True):
        count = len(plan.problems)
        for text, way in ways.items():
            items = items_of(out, plan.task.name, text, run, of_task)
            starts = range(0, count, size)
            batches += [Batch(plan, way, items, range(start, min(start + size, count))) for start in starts]
    return batches


def describe_run(model: Model, batch: int, limit: int | None) -> dict[str, Any]:
    """Return the contents of run.json: the model, the device, the versions of the libraries, and the amounts."""
    return {
        "format": ITEMS,
        "model": {**model.card.as_dict(), "weight_hash": weight_hash_of(model)},
        "device": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else model.device.type,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("sinkscope", "torch", "transformers")},
        "batch": batch,
        "limit": limit,
    }


def work_through(model: Model, batches: Sequence[Batch], write: Callable[..., Written], shown: bool) -> None:
    """Write what batches lack, and commit each item."""
    missing = [batch.missing() for batch in batches]
    total = sum(len(batch.indices) for batch in batches)
    done = total - sum(map(len, missing))
    with show_progress(total, model.card.name, "problems", done=done, shown=shown) as bar:
        for batch, indices in zip(batches, missing, strict=True):
            for index, item in write(model, batch, indices) if indices else ():
                batch.items.commit(index, json.loads(json_text(item)))  # numbers that are not finite are null
                bar.advance()


def effect_on(rule: Rule, running: Any, row: int | None = None, passes: int = 1) -> dict[str, Any] | None:
    """Return the effect of a running rule, of a row of a generation if given; None under a rule that hides nothing."""
    if rule.idle:
        return None
    found = running.effect
    # the prompts of a pass stand behind those of the pass before
    return (found if row is None else found.of(slice(row, None, max(1, len(found.steps) // passes)))).as_dict()


def reseeded(settings: Settings, by: int) -> Settings:
    """Return a sampler's settings with its seed, if it has one, raised by a number."""
    seed = getattr(settings, "seed", None)
    return settings if seed is None else replace(settings, seed=seed + by)


def _work(model: Model, batch: Batch, missing: Sequence[int]) -> Written:
    plan, start, passes = batch.plan, batch.indices.start, batch.plan.task.passes
    if isinstance(plan.sampler, LikelihoodSettings):
        yield from _compare(model, batch, missing, plan.sampler)
        return
    began = time.monotonic()
    # Row i draws from seed + i: the seed of a problem depends on its number, not on the batch.
    own = reseeded(plan.sampler, start)
    with batch.way(model) as running:
        generations = generate(model, list(plan.encoded[start : batch.indices.stop]), **asdict(own))
        for _ in range(passes - 1):
            thoughts = [_read_so_far(model, one) for one in generations]
            own = reseeded(own, PASS_SEEDS)  # so that the noise differs from the previous pass
            generations = generate(model, [model.encode(text) for text in thoughts], **asdict(own))
        effects = [effect_on(batch.way, running, row, passes) for row in range(len(generations))]
    share = (time.monotonic() - began) / len(generations)
    for index in missing:
        generation, began = generations[index - start], time.monotonic()
        text = written_text(model, plan, generation) if passes == 1 else _read_so_far(model, generation)
        item = {
            "beside": len(batch.indices),
            **_judged(plan, index, text, text),
            "tokens": generation.tokens[generation.prompt_length :].tolist(),
            "steps": generation.steps,
            "effect": effects[index - start],
        }
        yield index, {**item, "seconds": round(share + time.monotonic() - began, 3)}


def _compare(model: Model, batch: Batch, missing: Sequence[int], settings: LikelihoodSettings) -> Written:
    for index in missing:
        began = time.monotonic()
        with batch.way(model) as running:
            asked = ask(model, batch.plan.problems[index], settings, index, len(batch.indices))
            effect = effect_on(batch.way, running)
        judged = _judged(batch.plan, index, "", asked)
        item = {
            **judged,
            "text": judged["read"] or "",
            "tokens": [],
            "likelihoods": [asdict(one) for one in asked.likelihoods],
            "effect": effect,
        }
        yield index, {**item, "seconds": round(time.monotonic() - began, 3)}


def _judged(plan: TaskPlan, index: int, text: str, asked: Any) -> dict[str, Any]:
    task, problem = plan.task, plan.problems[index]
    said = {"prompt": plan.prompts[index], "gold": task.gold(problem), "text": text}
    return said | asdict(task.score(problem, asked))


def written_text(model: Model, plan: TaskPlan, generation: Generation) -> str:
    """Return the text of an answer, up to a stop string of the task."""
    if plan.task.stops is None:
        return generation.text
    return answer_until(model, generation.tokens[generation.prompt_length :], plan.task.stops)


def answer_until(model: Model, answer: torch.Tensor, stops: Sequence[str]) -> str:
    """Return an answer's text before the first EOS or stop string; one that is a special token ends it as a token."""
    known = model.tokenizer.get_added_vocab()
    ends = {known[stop] for stop in stops if stop in known} | set(model.card.ends)
    ids: list[int] = answer.tolist()
    length = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    text = model.decode([token for token in ids[:length] if token != model.card.mask_id])
    for stop in filter(None, stops):
        text = text.split(stop, 1)[0]
    return text


def _read_so_far(model: Model, generation: Generation) -> str:
    tokens, length = generation.tokens.tolist(), generation.prompt_length
    ends = (place for place in range(length, len(tokens)) if tokens[place] in model.card.ends)
    return model.decode(tokens[: next(ends, None)])


def _wait_for_others(out: Path, before: Mapping[Share, tuple[bool, int]], batches: Sequence[Batch]) -> None:
    """Wait until the other shares are done; ``before`` is the state of each at the start of this process."""
    started = time.monotonic()
    for other, state in before.items():
        while True:
            held, _ = now = state_of(out, other)  # before the items are looked at
            missing = 0 if held else sum(len(batch.missing()) for batch in batches[other.index :: other.count])
            if not held and not missing:
                break
            # one that has not come yet is abandoned as it was at the start
            if not held and (state[0] or now != state or time.monotonic() - started > STARTING_S):
                what = f"process {other.index} of {other.count} ended with {counted(missing, 'problem')} missing"
                raise EvaluationError(f"{out}: {what}; run the same command again; finished problems are kept")
            time.sleep(POLL_S)


# Jobs of a cluster, through submitit: job i of N does share i of N, with its own model


def run_share(
    model: str, device: str, dtype: str | None, arguments: Mapping[str, Any], share: Share | None = None
) -> Any:
    """Load a model and evaluate it; ``cuda`` under torchrun is the device of the process."""
    return evaluate(load(model, dtype=dtype, device=own_device(device)), **arguments, share=share)


def run_in_jobs(
    model: str, device: str, dtype: str | None, arguments: Mapping[str, Any], jobs: int, cluster: str, options: str
) -> None:
    """Submit the shares of an evaluation as jobs and wait until they end; ``options`` are for ``update_parameters``."""
    import submitit

    asked = {name: value for name, value in arguments.items() if name in Request.__dataclass_fields__}
    make_plans(outline(model), Request(**asked))  # refuses a call that no job could do, before one waits
    folder = arguments["out"].absolute() / LOGS  # submitit takes a relative ~ for a home
    parameters: dict[str, Any] = {}
    for part in filter(None, map(str.strip, options.split(","))):
        name, separator, value = part.partition("=")
        if not separator or (re.fullmatch("((slurm|local)_)?(nodes|n?tasks_per_node)", name) and value != "1"):
            raise CallError(f"--job-options: expected name=value, with one process for each job, found {part!r}")
        parameters[name] = int(value) if value.isdigit() else value
    if not any(name.endswith("timeout_min") for name in parameters):
        parameters["timeout_min"] = MINUTES[cluster]
    running: list[Any] = []
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**parameters)
        with executor.batch():
            for index in range(jobs):
                running.append(executor.submit(run_share, model, device, dtype, dict(arguments), Share(index, jobs)))
        failed = [(job.job_id, error) for job in running if (error := job.exception()) is not None]
    except (NameError, TypeError, ValueError, AssertionError, OSError, RuntimeError) as error:
        raise CallError(f"--jobs, --job-options: submitit refuses {cluster} with {parameters}: {error}") from error
    except KeyboardInterrupt:
        for job in running if cluster == "local" else ():  # those of a cluster go on
            job.cancel()
        raise
    if failed:
        job, text = failed[0][0], str(failed[0][1])
        trace = re.search(r"^-{9,}\n(.*?)^-{9,}$", text, re.DOTALL | re.MULTILINE)  # the job's own, in submitit's words
        why = re.sub(r"^sinkscope\.errors\.\w+: ", "", (trace[1] if trace else text).strip().splitlines()[-1])
        what = f"{len(failed)} of {jobs} jobs failed (job {job}: {why}; logs in {folder})"
        raise EvaluationError(f"{what}; run the same command again; finished problems are kept")
