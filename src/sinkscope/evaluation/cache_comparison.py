"""`compare_caches` answers the same problems under several cache policies; after a kill the same call resumes.

The policies take turns at each batch, in one process, so that the machine's other work falls on all of them alike. The
folder is one of `results_folder`, with a folder of items for each policy, and ``caches.json``.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sinkscope.decoding import generate, known_caches, make_batch, parse_cache, resolve_settings, settings_of
from sinkscope.errors import CallError
from sinkscope.evaluation.cache_tables import comparison_of
from sinkscope.evaluation.choices import LikelihoodSettings
from sinkscope.evaluation.cost import AT_MOST, CARD, Card, cost_document
from sinkscope.evaluation.results_folder import locked, write_json
from sinkscope.evaluation.running import Batch, describe_run, open_batches, reseeded, work_through, written_text
from sinkscope.evaluation.task_plans import Request, TaskPlan, family_and_shape, make_plans, parts_of
from sinkscope.models import FAMILIES, Family, Model, expect_model
from sinkscope.runs.files import with_checksum
from sinkscope.runs.folder import COMPARISON as A_COMPARISON
from sinkscope.runs.share import expect_one_process

COMPARISON = "caches.json"
WORK = ("forwards", "rows", "projections", "attention", "mlp", "vocabulary", "total")
PARALLEL = ("threshold", "factor")
"""Settings of a sampler that decode in parallel, which is no cache."""


@dataclass(frozen=True)
class Arm:
    """One way to write the answers: a policy as `parse_cache` reads it, and parallel decoding (0 is off)."""

    cache: str = "none"
    threshold: float = 0.0
    factor: float = 0.0

    @property
    def text(self) -> str:
        """The arm as `read_arms` reads it."""
        options = [f"{name}={getattr(self, name)}".removesuffix(".0") for name in PARALLEL if getattr(self, name)]
        return f"{self.cache}@{','.join(options)}" if options else self.cache

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a sampler in which it differs from plain sampling."""
        return {name: value for name, value in vars(self).items() if value != getattr(Arm, name)}

    @property
    def budget(self) -> int | None:
        """How many keys outside of the block it reads; None where the policy has no such number."""
        return getattr(parse_cache(self.cache), "budget", None)


def read_arms(text: str, budgets: Sequence[int] = ()) -> list[Arm]:
    """Return the arms of a text such as ``fast-dllm-dual,none@threshold=0.9``, each once, plain sampling first.

    A piece belongs to the options of the arm before it unless it begins with the name of a policy. ``budgets`` are
    numbers of keys for policies whose text leaves this open, an arm each.
    """
    known, pieces = ("none", *known_caches()), list[str]()
    for piece in filter(None, map(str.strip, text.split(","))):
        if pieces and piece.partition(":")[0].partition("@")[0] not in known and "=" in piece:
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    arms = [Arm()]
    for piece in pieces:
        cache, _, options = piece.partition("@")
        given = dict(one.strip().partition("=")[::2] for one in options.split(",") if one.strip())
        if strange := set(given) - set(PARALLEL):
            raise CallError(f"policy {piece!r}: expected threshold=… or factor=… behind the @, found {min(strange)!r}")
        opened = "keep=" in cache and "keep=all" not in cache and "budget=" not in cache
        if opened and not budgets:
            raise CallError(f"policy {piece!r}: expected a budget of keys; give --budget 16,64, or {cache},budget=64")
        for end in [f",budget={budget}" for budget in budgets] if opened else [""]:
            policy = parse_cache(cache + end)
            parallel = {name: float(value) for name, value in given.items()}
            arms.append(Arm("none" if policy is None else policy.text, **parallel))
    return list(dict.fromkeys(arms))


def compare_caches(
    model: Model, *, arms: Sequence[Arm], out: Path | str, batch: int = 16, progress: bool = True, **asked: Any
) -> dict[str, Any]:
    """Compare cache policies on tasks, and return the document that is written to ``caches.json``.

    Args:
        arms: from `read_arms`; plain sampling is among them, and everything is compared with it.
        out: folder for the items; new, empty, or of the same comparison. More arms or a larger limit go on in it.
        asked: fields of `Request` but rules; settings without those that an arm decides.
    """
    expect_model(model, unhidden=True)
    expect_one_process("compare-caches")
    request = Request(**asked)
    check_comparison(model.family, request.settings)
    plans, _ = make_plans(model, request)
    for plan in plans:
        if isinstance(plan.sampler, LikelihoodSettings) or plan.task.passes > 1:
            raise CallError(
                f"{plan.task.name}: expected a task that is written in one pass, such as lab-arith or gsm8k"
            )
        shortest = make_batch(model, [min(plan.encoded, key=len)], [None], plan.sampler.length)
        for arm in arms:
            sampler, policy = settings_of_arm(model, plan, arm), parse_cache(arm.cache)
            if policy is not None:
                policy.check_canvas(shortest, sampler)
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


def check_comparison(family: Family, settings: Mapping[str, Any]) -> None:
    """Raise CallError for settings that belong to an arm, or a family whose sampler takes no cache."""
    if beside := [name for name in ("cache", *PARALLEL) if name in settings]:
        raise CallError(
            f"{beside[0]}: a comparison has it in its policies; write --policies, such as none@threshold=0.9"
        )
    able = [one for one in FAMILIES.values() if "cache" in settings_of(one.sampler).__dataclass_fields__]
    if family not in able:
        names = ", ".join(one.name for one in able)
        raise CallError(f"{family.name} has no setting 'cache': expected a model whose sampler takes one ({names})")


def settings_of_arm(model: Model, plan: TaskPlan, arm: Arm) -> Any:
    """Return the settings with which an arm writes the answers of a task; CallError where they do not fit together."""
    return resolve_settings(model.family, **{**asdict(plan.sampler), **arm.settings})  # type: ignore[call-overload]


def cost_of_comparison(name: str, request: Request, arms: Sequence[Arm], card: Card = CARD) -> dict[str, Any]:
    """Return the costs of each task under each arm, as `cost_document` has them, from a checkpoint's config.json."""
    family, _ = family_and_shape(name)
    check_comparison(family, request.settings)
    parts = []
    for part in parts_of(name, request):
        for arm in arms:
            settings = {**part.settings, **arm.settings}
            resolve_settings(family, **settings)  # refuses a policy that the family cannot have
            parts.append(replace(part, name=arm.text, settings=settings))
    costs = cost_document(parts, card)
    return {**costs, "assumptions": list(dict.fromkeys([*costs["assumptions"], AT_MOST]))}


def _work(model: Model, batch: Batch, missing: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    plan, indices = batch.plan, batch.indices
    own = reseeded(settings_of_arm(model, plan, batch.way), indices.start)
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(model.device)
    began, processor = time.monotonic(), time.process_time()
    generations: Any = generate(model, list(plan.encoded[indices.start : indices.stop]), **asdict(own))
    seconds, processor = time.monotonic() - began, time.process_time() - processor
    memory = torch.cuda.max_memory_allocated(model.device) if on_gpu else None
    for index in missing:
        generation = generations[index - indices.start]
        text = written_text(model, plan, generation)
        score = plan.task.score(plan.problems[index], text)
        item = {
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
            "peak_memory": memory,
        }
        yield index, item
