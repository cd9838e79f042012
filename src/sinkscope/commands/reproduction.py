"""What `reproduce` runs: every table and figure of arXiv 2510.15731 (paper1), or the tables of arXiv 2601.19657 (paper2), in one
resumable run.

table1.md, .tex, .csv, .json     accuracy with sinks hidden, with intervals, tests, controls, and the paper's own numbers
table2.md, .json                 the tokens that are sinks most often
figures/                         from the recorded generations
paper2.md                        paper 2's accuracies beside its own
evaluations/, traces/            what they are made of; finished pieces are kept
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError

TOP = 5
Part = Any  # of evaluation.runbook, which is loaded inside functions so that the command starts quickly
Trace = Any


@dataclass(frozen=True)
class Options:
    """How the runbook is run.

    Attributes:
        out: folder for everything.
        data: local files of the tasks.
        batch: prompts side by side.
        device, dtype: for `load`.
        allow_code_execution: needed for HumanEval and lab-code, which are left out without it.
        excess: ε of Eq. 3 for figures and Table 2.
    """

    out: Path
    data: Mapping[str, Path]
    batch: int = 8
    device: str = "cpu"
    dtype: str | None = None
    allow_code_execution: bool = False
    excess: float = 3.0


def dry_run(parts: Sequence[Part], tflops: float) -> dict[str, Any]:
    """What the parts cost, in plain values: a row each, their sum, and what the estimate assumes."""
    from sinkscope.evaluation.runbook import ASSUMPTIONS, CARD_GIB, estimate

    costs = [estimate(part, tflops) for part in parts]
    rows = [
        {"part": part.name, "model": part.model, "task": part.task, "prompts": part.prompts, "rules": len(part.rules)} | asdict(cost)
        for part, cost in zip(parts, costs, strict=True)
    ]
    total = {
        "forwards": sum(cost.forwards for cost in costs),
        "gpu_hours": sum(cost.gpu_hours for cost in costs),
        "memory_gib": max((cost.memory_gib for cost in costs), default=0.0),
        "disk_gib": sum(cost.disk_gib for cost in costs),
    }
    suffices = all(cost.batch_on_card >= 1 for cost in costs)
    return {"parts": rows, "total": total, "card_gib": CARD_GIB, "card_suffices": suffices, "assumptions": list(ASSUMPTIONS)}


def show_dry_run(found: Mapping[str, Any]) -> str:
    """`dry_run` for people."""
    lines = [
        "| part | model | task | prompts | rules | forwards | GPU hours | memory, GiB | batch on 24 GB | disk, GiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["parts"]:
        lines.append(
            f"| {row['part']} | {row['model']} | {row['task']} | {row['prompts']} | {row['rules']} | {row['forwards']:,} "
            f"| {row['gpu_hours']:.2f} | {row['memory_gib']:.2f} | {row['batch_on_card']} | {row['disk_gib']:.2f} |"
        )
    total = found["total"]
    lines.append(
        f"| all | | | | | {total['forwards']:,} | {total['gpu_hours']:.2f} | {total['memory_gib']:.2f} | | {total['disk_gib']:.2f} |"
    )
    most = min((row["batch_on_card"] for row in found["parts"]), default=0)
    enough = f"suffices for every part, with --batch {most} or less; each part's own limit is in its row"
    answer = enough if found["card_suffices"] else "does not suffice for the parts with a batch of 0"
    return "\n".join([*lines, "", f"A card of {found['card_gib']} GB {answer}.", *(f"Assumed: {line}" for line in found["assumptions"])])


def reproduce(parts: Sequence[Part], options: Options, say: Callable[[str], None] = print) -> list[Path]:
    """Runs what is not done yet, model by model, then writes all tables and figures.

    Args:
        parts: of a runbook.
        options: see there.
        say: gets a line for each thing done.

    Returns:
        The files written; none from the processes of torchrun but the first.

    Raises:
        CallError, EvaluationError, TraceError: see `evaluate` and `recording`.
    """
    from sinkscope.evaluation.results import read_results
    from sinkscope.evaluation.work_folder import share_of_process
    from sinkscope.models import load

    if not parts:
        raise CallError("expected at least one part to reproduce, found none")
    _check_paper2({part.model: part.folder for part in parts if part.shape is not None})
    first = share_of_process().index == 0  # the others only share in the evaluations
    traces: dict[str, list[Trace]] = {}
    evaluations = []
    for name in dict.fromkeys(part.model for part in parts):
        folder = next((part.folder for part in parts if part.model == name and part.folder), name)
        model = load(folder, dtype=options.dtype, device=options.device)
        shape = next((part.shape for part in parts if part.model == name), None)
        if shape is not None and (model.card.layers, model.card.hidden_size) != (shape.layers, shape.hidden):
            found = f"{model.card.layers} layers of width {model.card.hidden_size}, the paper's has {shape.layers} of {shape.hidden}"
            say(f"{name}: {folder} has {found}; it runs as it is, and is not the paper's checkpoint")
        for part in (part for part in parts if part.model == name):
            if part.recorded:
                if first:
                    traces[name] = _record(model, part, options, say)
            elif _evaluate(model, part, options, say):
                evaluations.append(_folder(options, "evaluations", name) / part.task)
        del model
    if not first:
        return []
    if all(part.shape is not None for part in parts):
        return [_write_paper2(parts, options)]
    written = _write_tables(read_results(*evaluations), options.out) if evaluations else []
    if traces:
        written += _write_traces(traces, options)
    return written


def _check_paper2(folders: Mapping[str, str]) -> None:
    """All of them before the first is loaded: each has a folder, and it holds what its name says."""
    from sinkscope.evaluation.paper2 import check_checkpoint, where_from
    from sinkscope.models import identify

    for name, folder in folders.items():
        if not folder:
            raise CallError(f"expected a folder for {name}, found none; {where_from(name)}: pass --models {name}=FOLDER")
        family, variant = identify(folder)
        check_checkpoint(name, folder, family.name, variant and variant.name)


def _folder(options: Options, kind: str, model: str) -> Path:
    return options.out / kind / model.replace("/", "--")


def _evaluate(model: Any, part: Part, options: Options, say: Callable[[str], None]) -> bool:
    from sinkscope.evaluation import evaluate
    from sinkscope.evaluation.tasks import find_task

    if find_task(part.task).runs_programs and not options.allow_code_execution:
        say(f"{part.model}, {part.task}: left out; --allow-code-execution lets the programs run that the model writes")
        return False
    results = evaluate(
        model,
        tasks=[part.task],
        out=_folder(options, "evaluations", part.model) / part.task,
        hide=part.rules,
        limit=part.prompts,
        shots=part.shots,
        data=options.data,
        batch=options.batch,
        settings=part.settings,
        allow_code_execution=options.allow_code_execution,
    )
    for result in results:
        say(f"{part.model}, {part.task}, {result.hide}: {result.accuracy:.3f} of {result.n}")
    return True


def _record(model: Any, part: Part, options: Options, say: Callable[[str], None]) -> list[Trace]:
    """The recorded generations, one folder a prompt; whole ones of the same weights and settings are kept."""
    from sinkscope.decoding import generate, resolve_settings
    from sinkscope.evaluation.tasks import find_task
    from sinkscope.recorder import recording
    from sinkscope.traces import open_trace

    task = find_task(part.task, options.data)
    problems = task.problems()[: part.prompts]
    settings = asdict(resolve_settings(model.family, **part.settings))
    traces = []
    for index, problem in enumerate(problems):
        folder = _folder(options, "traces", part.model) / f"{index:06d}"
        wanted = {"weight_hash": model.card.weight_hash, "prompt": task.prompt(problem, index, part.shots), "settings": settings}
        stamp = folder.with_suffix(".json")
        if not (stamp.exists() and json.loads(stamp.read_text()) == wanted):
            if (folder / "manifest.json").exists():
                shutil.rmtree(folder)  # cut short, or of other settings; it is ours
            with recording(model, out=folder):
                generate(model, wanted["prompt"], **settings)
            _write(stamp, json.dumps(wanted))
            say(f"{part.model}: generation {index + 1} of {len(problems)} recorded")
        traces.append(open_trace(folder))
    return traces


def _write(path: Path, text: str) -> None:
    from sinkscope.traces.format import write_whole

    write_whole(path, text.encode())


def _write_tables(results: Any, out: Path) -> list[Path]:
    from sinkscope.evaluation.tables import Format, write_table

    written = []
    suffixes: dict[Format, str] = {"markdown": "md", "latex": "tex", "csv": "csv", "json": "json"}
    for form, suffix in suffixes.items():
        path = out / f"table1.{suffix}"
        _write(path, f"{write_table(results, form)}\n")
        written.append(path)
    return written


def _write_paper2(parts: Sequence[Part], options: Options) -> Path:
    from sinkscope.evaluation.paper2 import beside_paper
    from sinkscope.evaluation.results import read_results

    found = {name: [] for name in dict.fromkeys(part.model for part in parts)}
    for part in parts:
        found[part.model] += read_results(_folder(options, "evaluations", part.model) / part.task)
    path = options.out / "paper2.md"
    _write(path, f"{beside_paper(found)}\n")
    return path


def _write_traces(traces: Mapping[str, list[Trace]], options: Options) -> list[Path]:
    from sinkscope.figures import draw_figures

    written = draw_figures([one[0] for one in traces.values()], options.out / "figures", excess=options.excess, compare=True)
    tallies = {name: sink_tokens(found, options.excess) for name, found in traces.items()}
    path = options.out / "table2.json"
    _write(path, f"{json.dumps(tallies, ensure_ascii=False)}\n")
    lines = [f"| model | generations | {' | '.join(f'{rank + 1}.' for rank in range(TOP))} |", "|---|---|" + "---|" * TOP]
    for name, tokens in tallies.items():
        cells = [f"`{text!r}` {share:.3f}".replace("|", "\\|") for text, share in list(tokens.items())[:TOP]]
        lines.append(f"| {name} | {len(traces[name])} | {' | '.join([*cells, *['–'] * (TOP - len(cells))])} |")
    _write(options.out / "table2.md", "".join(f"{line}\n" for line in lines))
    return [*written, path, options.out / "table2.md"]


def sink_tokens(traces: Sequence[Trace], excess: float) -> dict[str, float]:
    """Share of all sinks that each token is, over steps, layers, heads and traces, the most frequent first."""
    from sinkscope.sinks import find_sinks

    tally: Counter[str] = Counter()
    for trace in traces:
        for token, count in Counter(find_sinks(trace, excess).token.tolist()).items():
            tally[trace.token_text(token)] += count
    total = tally.total()
    return {text: count / total for text, count in tally.most_common()}
