"""`compare_caches` answers the same problems under several cache policies, in turns; after a kill the call resumes.

Rules fixed beforehand: a policy is *within a point* where the lower end of the 95 % interval of its accuracy minus
plain sampling's, paired by problem, lies above −1 point. Whether sinks are to be read is decided by ``keep=top`` minus
``keep=no-sinks`` (the largest columns with and without sinks, at an equal budget):

keep        the interval lies above 0
filter      it lies below 0
discount    neither, and it lies within ±2 points: that a key is a sink says nothing
undecided   otherwise
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sinkscope.counts import counted
from sinkscope.decoding import generate, known_caches, make_batch, parse_cache, resolve_settings
from sinkscope.errors import CallError
from sinkscope.evaluation.choices import LikelihoodSettings
from sinkscope.evaluation.cost import AT_MOST, CARD, Card, cost_document
from sinkscope.evaluation.paired_tests import MARGIN, holm, p_text, paired_difference, points, wilson_interval
from sinkscope.evaluation.results import locked
from sinkscope.evaluation.running import Batch, describe_run, open_batches, reseeded, work_through, written_text
from sinkscope.evaluation.task_plans import Request, TaskPlan, family_and_shape, make_plans, parts_of
from sinkscope.models import Model, expect_model
from sinkscope.runs.files import printable, with_checksum
from sinkscope.runs.folder import COMPARISON, expect_one_process, write_json

WORK = ("forwards", "rows", "projections", "attention", "mlp", "vocabulary", "total")
PARALLEL = ("threshold", "factor")
"""Settings of a sampler that decode in parallel, which is no cache."""
POINT = 0.01
PLAIN = "none"
Items = Sequence[Mapping[str, Any]]
NOTES = (
    "Accuracy with Wilson's 95 % interval; difference: minus plain sampling in points, paired by problem, Tango's 95 % "
    "interval; p: McNemar's exact, after Holm. Ratios are of plain sampling over the policy, on the same problems; "
    "parallel decoding is behind an @.",
    "Seconds are those of the processor on a CPU, of the clock on a GPU. Memory: the largest of any batch on a GPU.",
)


@dataclass(frozen=True)
class Arm:
    """One way to write the answers: a policy as `parse_cache` reads it, and parallel decoding (0 is off)."""

    cache: str = "none"
    threshold: float = 0.0
    factor: float = 0.0

    @property
    def text(self) -> str:
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
    """Return the arms of a text such as ``fast-dllm-dual,none@threshold=0.9``, plain first, and an arm a budget."""
    known, pieces = ("none", *known_caches()), list[str]()
    for piece in filter(None, map(str.strip, text.split(","))):
        if pieces and piece.partition(":")[0].partition("@")[0] not in known and "=" in piece:
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    arms = [Arm()]
    for piece in pieces:
        cache, _, options = piece.partition("@")
        pairs = [one.strip().partition("=") for one in options.split(",") if one.strip()]
        given = {name: value for name, _, value in pairs}
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
    """Compare cache policies on tasks: ``arms`` of `read_arms`, ``asked`` of `Request`; return ``caches.json``."""
    expect_model(model)
    expect_one_process("compare-caches")
    request = Request(**asked)
    check_comparison(request.settings)
    plans, _ = make_plans(model, request)
    for plan in plans:
        if isinstance(plan.sampler, LikelihoodSettings) or plan.task.passes > 1:
            expected = "a task that is written in one pass, such as lab-arith or gsm8k"
            raise CallError(f"{plan.task.name}: expected {expected}")
        shortest = make_batch(model, [min(plan.encoded, key=len)], [None], plan.sampler.length)
        for arm in arms:
            sampler, policy = settings_of_arm(model, plan, arm), parse_cache(arm.cache)
            if policy is not None:
                policy.check_canvas(shortest, sampler)
    out, ways = Path(out), {arm.text: arm for arm in arms}
    with locked(out, kind=COMPARISON):
        described = describe_run(model, batch, request.limit)
        batches = open_batches(out, model, plans, ways, {"compares": "caches", **described})
        order = [plan.task.name for plan in plans]
        batches.sort(key=lambda one: (order.index(one.plan.task.name), one.indices.start))  # the arms take turns
        work_through(model, batches, _write, progress)
        found: dict[tuple[str, Arm], list[Any]] = {}
        for one in batches:
            read = [one.items.read(index, len(one.indices)) for index in one.indices]
            found.setdefault((one.plan.task.name, one.way), []).extend(read)
        of_tasks = {plan.task.name: plan.describe() for plan in plans}
        document = with_checksum({**described, "tasks": of_tasks, **comparison_of(found)})
        write_json(out / "caches.json", document)
    return document


def check_comparison(settings: Mapping[str, Any]) -> None:
    """Raise CallError for settings that a comparison of caches sets itself."""
    if beside := [name for name in ("cache", *PARALLEL) if name in settings]:
        advice = "write --policies, such as none@threshold=0.9"
        raise CallError(f"{beside[0]}: a comparison has it in its policies; {advice}")


def settings_of_arm(model: Model, plan: TaskPlan, arm: Arm) -> Any:
    """Return the sampler's settings of an arm."""
    return resolve_settings(model.family, **{**asdict(plan.sampler), **arm.settings})  # type: ignore[call-overload]


def cost_of_comparison(name: str, request: Request, arms: Sequence[Arm], card: Card = CARD) -> dict[str, Any]:
    """Return the costs of each task under each arm, as `cost_document` has them, from a checkpoint's config.json."""
    family, _ = family_and_shape(name)
    check_comparison(request.settings)
    parts = []
    for part in parts_of(name, request):
        for arm in arms:
            settings = {**part.settings, **arm.settings}
            resolve_settings(family, **settings)  # refuses a policy that the family cannot have
            parts.append(replace(part, name=arm.text, settings=settings))
    costs = cost_document(parts, card)
    return {**costs, "assumptions": list(dict.fromkeys([*costs["assumptions"], AT_MOST]))}


def _write(model: Model, batch: Batch, missing: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
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


# Rows and tables


def comparison_of(found: Mapping[tuple[str, Arm], Items]) -> dict[str, Any]:
    """Return rows and verdicts from the items of every task and arm, in order, plain sampling among them.

    A verdict on sinks is of a task and budget that has both policies. P-values are adjusted together within a task, and
    over the verdicts.
    """
    rows, sinks, families = [], [], []
    for task in dict.fromkeys(task for task, _ in found):
        mine = {arm: items for (name, arm), items in found.items() if name == task}
        plain = next(items for arm, items in mine.items() if arm.text == PLAIN)
        compared = [_row(task, arm, items, plain) for arm, items in mine.items()]
        families.append([row["difference"] for row in compared if row["difference"] is not None])
        rows += compared
    for (task, arm), items in found.items():
        other = replace(arm, cache=arm.cache.replace("keep=top", "keep=no-sinks"))
        if arm.budget is not None and other != arm and (task, other) in found:
            change = paired_difference(_right(items), _right(found[task, other]))
            arms = {"task": task, "with": arm.text, "without": other.text, "budget": arm.budget}
            sinks.append({**arms, **asdict(change), "verdict": on_sinks(change)})
    for tests in (*families, sinks):
        for one, adjusted in zip(tests, holm([one["p_value"] for one in tests]), strict=True):
            one["p_holm"] = adjusted
    return {"rows": rows, "sinks": sinks}


def _row(task: str, arm: Arm, items: Items, plain: Items) -> dict[str, Any]:
    right = _right(items)
    change = None if arm.text == PLAIN else paired_difference(right, _right(plain))
    pairs = [(item["tokens"], other["tokens"]) for item, other in zip(items, plain, strict=True)]
    totals = [{name: sum(item["work"][name] for item in each) for name in each[0]["work"]} for each in (items, plain)]
    # on a CPU seconds of the processor, which other programs do not lengthen
    clock = "processor_seconds" if plain[0].get("on_cpu", True) else "seconds"
    seconds, of_plain = (sum(item[clock] for item in each) for each in (items, plain))
    (work, before), written = totals, sum(len(one) for one, _ in pairs)
    difference = change and {**asdict(change), "verdict": change.verdict, "needed": change.needed}
    return {
        "task": task,
        "policy": arm.text,
        "cache": arm.cache,
        "budget": arm.budget,
        "threshold": arm.threshold,
        "factor": arm.factor,
        "n": len(items),
        "accuracy": sum(right) / len(items),
        "interval": list(wilson_interval(sum(right), len(items))),
        "difference": difference,
        "within_a_point": change and change.low > -POINT,
        "same_tokens": sum(a == b for pair in pairs for a, b in zip(*pair, strict=True)) / written,
        "same_answers": sum(one == other for one, other in pairs) / len(pairs),
        "canvas": [min(item["canvas"] for item in items), max(item["canvas"] for item in items)],
        "work": {name: value / len(items) for name, value in work.items()},
        "work_ratio": before["total"] / work["total"],
        "rows_ratio": before["rows"] / work["rows"],
        "speed_ratio": of_plain / seconds if seconds else None,
        "tokens_per_second": written / seconds if seconds else None,
        "peak_memory": max((item["peak_memory"] for item in items if item["peak_memory"] is not None), default=None),
        "outcomes": "".join(map(str, right)),
    }


def _right(items: Items) -> list[int]:
    return [int(item["correct"]) for item in items]


def on_sinks(change: Any) -> str:
    """Return the verdict of the module on the accuracy with sinks read minus that without."""
    if change.low > 0:
        return "keep"
    if change.high < 0:
        return "filter"
    return "discount" if change.low > -MARGIN and change.high < MARGIN else "undecided"


HEAD = "policy,accuracy,difference,p,within a point,same tokens,same answers,multiply-adds".split(",")
HEAD += ["attention", "projections", "MLP", "positions", "forwards", "tokens a second", "memory, MiB"]


def comparison_table(document: Mapping[str, Any]) -> str:
    """Return the rows of a comparison as Markdown, a table for each task, and the verdicts on sinks."""
    lines: list[str] = []
    for task in dict.fromkeys(row["task"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["task"] == task]
        low, high = min(row["canvas"][0] for row in rows), max(row["canvas"][1] for row in rows)
        canvases = f"{'' if low == high else f'{low} to '}{counted(high, 'token')}"
        lines += [f"{task}: {counted(rows[0]['n'], 'problem')}, canvases of {canvases}", ""]
        lines += ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
        lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows] + [""]
    for one in document["sinks"]:
        said = f"sinks read minus left out {points(one)}, p {p_text(one['p_holm'])}: {one['verdict']}"
        lines.append(f"{one['task']}, budget {one['budget']}: {said}")
    return "\n".join([*lines, *([""] if document["sinks"] else []), *NOTES])


def _cells(row: Mapping[str, Any]) -> list[str]:
    low, high = row["interval"]
    change, work = row["difference"], row["work"]
    compared = ["–"] * 3
    if change is not None:
        compared = [points(change), p_text(change["p_holm"]), "yes" if row["within_a_point"] else "not shown"]
    return [
        "plain sampling" if row["policy"] == PLAIN else f"`{printable(row['policy'])}`",
        f"{row['accuracy']:.3f} ({low:.3f}–{high:.3f})",
        *compared,
        f"{row['same_tokens']:.3f}",
        f"{row['same_answers']:.3f}",
        f"{work['total'] / 1e6:.4g} M (1 / {row['work_ratio']:.1f})",
        *(f"{work[name] / 1e6:.4g} M" for name in ("attention", "projections", "mlp")),
        f"{work['rows']:.0f}",
        f"{work['forwards']:.1f}",
        "–" if row["tokens_per_second"] is None else f"{row['tokens_per_second']:.0f} (× {row['speed_ratio']:.1f})",
        "–" if row["peak_memory"] is None else f"{row['peak_memory'] / 2**20:.0f}",
    ]
