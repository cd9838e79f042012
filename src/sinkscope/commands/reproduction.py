"""What `reproduce` does: it runs the parts of a paper's plan, keeps what is done, and writes the tables and figures.

table1.md, .tex, .csv, .json     paper 1: accuracy with sinks hidden, with intervals, tests, controls, and the published numbers
table2.md, .json                 paper 1: the tokens that are sinks most often
figures/                         paper 1: from the recorded generations
paper2.md                        paper 2: measured accuracies beside the published ones
evaluations/, traces/            what the tables and figures are made of; a later run goes on from here
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
"""Tokens in a row of Table 2."""
Part = Any  # evaluation.papers.cost.Part; imported inside functions only, so that the command starts quickly
Trace = Any  # sinkscope.Trace


@dataclass(frozen=True)
class Options:
    """How the parts are run.

    Attributes:
        out: folder for everything.
        data: local files of the tasks, by task.
        batch: prompts written side by side.
        device, dtype: as `load` takes them.
        allow_code_execution: runs the programs that models write; HumanEval and lab-code are left out without it.
        excess: ε of Eq. 3 in the figures and Table 2.
    """

    out: Path
    data: Mapping[str, Path]
    batch: int = 8
    device: str = "cpu"
    dtype: str | None = None
    allow_code_execution: bool = False
    excess: float = 3.0


def reproduce(parts: Sequence[Part], options: Options, say: Callable[[str], None] = print) -> list[Path]:
    """Run what is not done yet, model by model, then write all tables and figures.

    Args:
        parts: of a paper's plan.
        options: how they are run.
        say: gets one line per thing done.

    Returns:
        The files written; under torchrun only the first process writes them.

    Raises:
        CallError, EvaluationError, TraceError: see `evaluate` and `recording`.
    """
    from sinkscope.evaluation.results import read_results
    from sinkscope.models import load
    from sinkscope.work_items import share_of_process

    if not parts:
        raise CallError("expected at least one part to reproduce, found none")
    _check_paper2({part.model: part.folder for part in parts if part.paper == "paper2"})
    first = share_of_process().index == 0  # torchrun's other processes only share in the evaluations
    traces: dict[str, list[Trace]] = {}
    evaluations = []
    for name in dict.fromkeys(part.model for part in parts):
        folder = next((part.folder for part in parts if part.model == name and part.folder), name)
        model = load(folder, dtype=options.dtype, device=options.device)
        shape = next(part.shape for part in parts if part.model == name)
        if (model.card.layers, model.card.hidden_size) != (shape.layers, shape.hidden):
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
    if all(part.paper == "paper2" for part in parts):
        return [_write_paper2(parts, options)]
    written = _write_tables(read_results(*evaluations), options.out) if evaluations else []
    if traces:
        written += _write_traces(traces, options)
    return written


def _check_paper2(folders: Mapping[str, str]) -> None:
    """Raise CallError where a checkpoint has no folder or its folder holds another model, before any is loaded."""
    from sinkscope.evaluation.papers.paper2 import check_checkpoint, where_from
    from sinkscope.models import identify

    for name, folder in folders.items():
        if not folder:
            raise CallError(f"expected a folder for {name}, found none; {where_from(name)}: pass --models {name}=FOLDER")
        family, variant = identify(folder)
        check_checkpoint(name, folder, family.name, variant and variant.name)


def _folder(options: Options, kind: str, model: str) -> Path:
    return options.out / kind / model.replace("/", "--")


def _evaluate(model: Any, part: Part, options: Options, say: Callable[[str], None]) -> bool:
    """Evaluate a part; return False where it is left out because programs may not run."""
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
    """Record a part, one folder a prompt, and return its traces; complete ones of the same weights, prompt and settings are kept."""
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
                shutil.rmtree(folder)  # an earlier run of this command wrote it, was cut short or had other settings
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
    from sinkscope.evaluation.papers.paper2 import beside_paper
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
    """Return each token's share of all sinks over steps, layers, heads and traces, the most frequent token first."""
    from sinkscope.sinks import find_sinks

    tally: Counter[str] = Counter()
    for trace in traces:
        for token, count in Counter(find_sinks(trace, excess).token.tolist()).items():
            tally[trace.token_text(token)] += count
    total = tally.total()
    return {text: count / total for text, count in tally.most_common()}
