"""`evaluate` scores a model on tasks and writes the results into a folder; after a kill the same command resumes.

Neighbouring prompts form left-padded batches. Which problems form a batch depends on their numbers, never on the number
of processes. An unfinished batch is computed again as a whole, so that padding and rounding are those of an
uninterrupted run, and only its missing items are kept. A run with a larger limit continues in the same folder; a last
batch that becomes larger is computed again.
"""

import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from sinkscope.counts import counted
from sinkscope.decoding import Generation, generate
from sinkscope.decoding.caches.policy import parse_cache
from sinkscope.decoding.caches.reader import check_model
from sinkscope.errors import EvaluationError
from sinkscope.evaluation.answers import answer_until, reseeded, rule_in_force
from sinkscope.evaluation.choices import LikelihoodSettings, ask
from sinkscope.evaluation.protocols import AUTO
from sinkscope.evaluation.results import Result, collect
from sinkscope.evaluation.results_folder import RUN, TASK, ResultItems, claim, locked, state_of
from sinkscope.evaluation.sandbox import run_program
from sinkscope.evaluation.task_plans import Request, TaskPlan, make_plans
from sinkscope.models import Model, expect_model
from sinkscope.models.fingerprints import fingerprints, weight_hash_of
from sinkscope.progress import show_progress
from sinkscope.runs.share import Share, share_of_process

STARTING_S = 1800.0  # seconds that another process may take to load its model
POLL_S = 0.5
PASS_SEEDS = 1 << 30  # between the seeds of one pass and the next; torch on a CPU uses the lower 32 bits of a seed
ITEMS = 2  # format of the items in a folder; format 1 had the limit among the settings
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """A unit of work: some neighbouring problems of a task, written in one way (a rule, or an arm of a comparison)."""

    plan: TaskPlan
    way: Any
    items: ResultItems
    indices: range

    def missing(self) -> list[int]:
        """Return the problems that are not committed."""
        return [index for index in self.indices if self.items.read(index, len(self.indices)) is None]


Write = Callable[[Model, Batch, Sequence[int]], Iterator[tuple[int, dict[str, Any]]]]
"""Writes a batch, and yields number and item of each of its missing problems."""


def evaluate(
    model: Model,
    *,
    tasks: Sequence[str],
    out: Path | str,
    hide: Sequence[str] = ("none",),
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

    A folder is refused where the weights in memory are not those that began it. The weight hash of a result is that of
    the model's files, or of memory where the weights were changed after they were loaded.

    Args:
        tasks: of the lab or published, see `find_task`.
        out: folder for the items and ``results.json``; new, empty, or of the same run.
        hide: rules; ``none`` hides nothing.
        limit: number of problems of each task, from the first.
        shots: solved problems in a prompt; the protocol's or the task's own number when None.
        chat: applies the chat template, with each shot as a pair of turns; a protocol may decide this itself.
        protocol: published settings for published tasks: ``auto``, ``none`` or a name, see `find_protocol`.
        data: local files of published tasks; the hub for the rest.
        settings: of the family's sampler; they override the protocol's. Without either, length 64 (256 or 512 for
            published tasks), and for diffusion as many steps, in blocks of 16 (32).
        allow_code_execution: needed for tasks that run programs a model wrote.
        share: the part of the work to do, without collecting results; torchrun's share, or all of the work, when None.

    Returns:
        Results by task and rule; none from a process that does only a share.

    Raises:
        CallError: an argument that does not fit, another run in the folder, or another process at work in it.
        EvaluationError: the folder cannot be written, or another process of the same run died.
    """
    expect_model(model, unhidden=True)
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
        _announce(plans)
    out = Path(out)
    with locked(out, mine):
        others = [Share(index, mine.count) for index in range(mine.count) if index != mine.index]
        before = {other: state_of(out, other) for other in others}
        batches = open_batches(out, model, plans, rules, describe_run(model, batch, limit))
        work_through(
            model, batches[mine.index :: mine.count], _work, progress and (mine.index == 0 or share is not None)
        )
        if share is not None or mine.index > 0:
            return []
        _wait_for_others(out, before, batches)
        return collect(out, [(plan.task.name, text) for plan in plans for text in rules])


def open_batches(
    out: Path, model: Model, plans: Sequence[TaskPlan], ways: Mapping[str, Any], described: Mapping[str, Any]
) -> list[Batch]:
    """Claim a folder for a run, and return its batches by task, way (by the text that names its folder) and problems.

    Raises:
        CallError: another run is there.
    """
    asked = {f"{plan.task.name}/{TASK}": plan.describe() for plan in plans}
    run, *of_tasks = claim(out, {RUN: {**described, **fingerprints(model)}, **asked}).values()
    batches, size = [], described["batch"]
    for plan, of_task in zip(plans, of_tasks, strict=True):
        count = len(plan.problems)
        for text, way in ways.items():
            items = ResultItems(out, plan.task.name, text, run, of_task)
            starts = range(0, count, size)
            batches += [Batch(plan, way, items, range(start, min(start + size, count))) for start in starts]
    return batches


def _announce(plans: Sequence[TaskPlan]) -> None:
    for plan in plans:
        if plan.protocol is not None:
            _log.warning("%s", plan.protocol)
    if any(plan.task.runs_programs for plan in plans):
        for line in run_program("").not_enforced:
            _log.warning("the sandbox cannot enforce everything on this system. %s", line)


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


def work_through(model: Model, batches: Sequence[Batch], write: Write, shown: bool) -> None:
    """Write the missing items of batches."""
    missing = [batch.missing() for batch in batches]
    total = sum(len(batch.indices) for batch in batches)
    done = total - sum(map(len, missing))
    with show_progress(total, model.card.name, "problems", done=done, shown=shown) as bar:
        for batch, indices in zip(batches, missing, strict=True):
            for index, item in write(model, batch, indices) if indices else ():
                batch.items.commit(index, item)
                bar.advance()


def _work(model: Model, batch: Batch, missing: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    plan, start = batch.plan, batch.indices.start
    if isinstance(plan.sampler, LikelihoodSettings):
        yield from _compare(model, batch, missing, plan.sampler)
        return
    began = time.monotonic()
    # Row i draws from seed + i: the seed of a problem depends on its number, not on the batch.
    own = reseeded(plan.sampler, start)
    with rule_in_force(batch.way, model) as effect:
        generations = generate(model, list(plan.encoded[start : batch.indices.stop]), **asdict(own))
        for _ in range(plan.task.passes - 1):
            thoughts = [_read_so_far(model, one) for one in generations]
            own = reseeded(own, PASS_SEEDS)  # so that the noise differs from the previous pass
            generations = generate(model, [model.encode(text) for text in thoughts], **asdict(own))
        effects = [effect(row, plan.task.passes) for row in range(len(generations))]
    share = (time.monotonic() - began) / len(generations)
    for index in missing:
        generation, problem = generations[index - start], plan.problems[index]
        began = time.monotonic()
        text = written_text(model, plan, generation) if plan.task.passes == 1 else _read_so_far(model, generation)
        score = plan.task.score(problem, text)
        yield (
            index,
            {
                "beside": len(batch.indices),
                "prompt": plan.prompts[index],
                "gold": plan.task.gold(problem),
                "text": text,
                "tokens": generation.tokens[generation.prompt_length :].tolist(),
                "steps": generation.steps,
                **asdict(score),
                "effect": effects[index - start],
                "seconds": round(share + time.monotonic() - began, 3),
            },
        )


def written_text(model: Model, plan: TaskPlan, generation: Generation) -> str:
    """Return the text of an answer, up to a stop string of the task."""
    if plan.task.stops is None:
        return generation.text
    return answer_until(model, generation.tokens[generation.prompt_length :], plan.task.stops)


def _read_so_far(model: Model, generation: Generation) -> str:
    """Return prompt and answer up to its end, as the prompt of the next pass."""
    tokens, length = generation.tokens.tolist(), generation.prompt_length
    ends = (place for place in range(length, len(tokens)) if tokens[place] in model.card.ends)
    return model.decode(tokens[: next(ends, None)])


def _compare(
    model: Model, batch: Batch, missing: Sequence[int], settings: LikelihoodSettings
) -> Iterator[tuple[int, dict[str, Any]]]:
    plan = batch.plan
    for index in missing:
        began, question = time.monotonic(), plan.problems[index]
        with rule_in_force(batch.way, model) as effect:
            asked = ask(model, question, settings, index, len(batch.indices))
            found = effect(None)
        score = plan.task.score(question, asked)
        yield (
            index,
            {
                "prompt": plan.prompts[index],
                "gold": plan.task.gold(question),
                "text": score.read or "",
                "tokens": [],
                "likelihoods": [asdict(one) for one in asked.likelihoods],
                **asdict(score),
                "effect": found,
                "seconds": round(time.monotonic() - began, 3),
            },
        )


def _wait_for_others(out: Path, before: Mapping[Share, tuple[bool, int]], batches: Sequence[Batch]) -> None:
    """Wait until the other shares are done; ``before`` is the state of each at the start of this process.

    Raises:
        EvaluationError: a process ended with items missing.
    """
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
