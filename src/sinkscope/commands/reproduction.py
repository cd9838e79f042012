"""Runs the parts of a paper's plan, keeps finished results, and writes the tables and figures; `reproduce` calls it.

table1.md, .tex, .csv, .json     paper 1: accuracy with sinks hidden, intervals, tests, controls, published numbers
table2.md, .json                 paper 1: the tokens that are sinks most often
figures/                         paper 1: from the recorded generations
paper2.md                        paper 2: measured accuracies beside the published ones
evaluations/, traces/            the results behind the tables and figures; a later run continues from them
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.runs.files import read_object
from sinkscope.runs.folder import claimed_folder

TOP = 5
"""Tokens in a row of Table 2."""
Part = Any  # evaluation.papers.paper.Part; it is imported in functions only, so that the command starts quickly
Paper = Any  # evaluation.papers.paper.Paper
Trace = Any  # sinkscope.Trace


@dataclass(frozen=True)
class Options:
    """How the parts are run.

    Attributes:
        out: folder for all results.
        data: local files of the tasks, by task.
        batch: number of prompts in a batch.
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
    """Run the unfinished parts, model by model, then write all tables and figures.

    Args:
        parts: of a paper's plan.
        options: how they are run.
        say: gets a line for each finished piece of work.

    Returns:
        The files written; under torchrun only the first process writes them.

    Raises:
        CallError, EvaluationError, TraceError: see `evaluate` and `recording`.
    """
    from sinkscope.evaluation.papers.paper import find_paper
    from sinkscope.runs.share import share_of_process

    if not parts:
        raise CallError("expected at least one part to reproduce, found none")
    papers = {part.paper: find_paper(part.paper) for part in parts}
    for paper, name, folder in dict.fromkeys((part.paper, part.model, part.folder) for part in parts):
        papers[paper].check_folder(name, folder)  # before any is loaded
    first = share_of_process().index == 0  # under torchrun, the other processes only evaluate
    with claimed_folder(options.out, EvaluationError) if first else nullcontext():
        return _run(parts, papers, options, first, say)


def _run(
    parts: Sequence[Part], papers: Mapping[str, Paper], options: Options, first: bool, say: Callable[[str], None]
) -> list[Path]:
    from sinkscope.models import load
    from sinkscope.models.devices import own_device

    traces: dict[str, list[Trace]] = {}
    evaluated: list[Part] = []
    for name in dict.fromkeys(part.model for part in parts):
        folder = next((part.folder for part in parts if part.model == name and part.folder), name)
        model = load(folder, dtype=options.dtype, device=own_device(options.device))
        shape = next(part.shape for part in parts if part.model == name)
        if (model.card.layers, model.card.hidden_size) != (shape.layers, shape.hidden):
            say(
                f"{name}: {folder} has {model.card.layers} layers of width {model.card.hidden_size}, the paper's has "
                f"{shape.layers} of {shape.hidden}; it is run, but it is not the paper's checkpoint"
            )
        for part in (part for part in parts if part.model == name):
            if part.recorded:
                if first:
                    traces[name] = _record(model, part, options, say)
            elif _evaluate(model, part, options, say):
                evaluated.append(part)
        del model
    if not first:
        return []
    written = [path for name, paper in papers.items() for path in _write_tables(name, paper, evaluated, options)]
    if traces:
        written += _write_traces(traces, options)
    return written


def _folder(options: Options, kind: str, model: str) -> Path:
    return options.out / kind / model.replace("/", "--")


def _evaluate(model: Any, part: Part, options: Options, say: Callable[[str], None]) -> bool:
    """Evaluate a part; return False where it is left out because programs may not run."""
    from sinkscope.evaluation import evaluate
    from sinkscope.evaluation.task_plans import data_of
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
        data=data_of(part.task, options.data),
        batch=options.batch,
        settings=part.settings,
        allow_code_execution=options.allow_code_execution,
    )
    for result in results:
        say(f"{part.model}, {part.task}, {result.hide}: {result.accuracy:.3f} of {result.n}")
    return True


def _record(model: Any, part: Part, options: Options, say: Callable[[str], None]) -> list[Trace]:
    """Record a part, one folder a prompt, and return its traces; those of an equal run are kept."""
    from sinkscope.decoding import described, generate, resolve_settings
    from sinkscope.evaluation.tasks import find_task
    from sinkscope.recorder import recording
    from sinkscope.traces import open_trace

    task = find_task(part.task, options.data)
    problems = task.problems()[: part.prompts]
    settings = described(resolve_settings(model.family, **part.settings))
    traces = []
    for index, problem in enumerate(problems):
        folder = _folder(options, "traces", part.model) / f"{index:06d}"
        card = model.card
        of_model = {"weight_hash": card.weight_hash, "config_hash": card.config_hash, "dtype": card.dtype}
        wanted = {**of_model, "prompt": task.prompt(problem, index, part.shots), "settings": settings}
        stamp = folder.with_suffix(".json")
        if read_object(stamp) != wanted:
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


def _write_tables(name: str, paper: Paper, evaluated: Sequence[Part], options: Options) -> list[Path]:
    """Write the tables of a paper from what was evaluated for it, if anything was."""
    from sinkscope.evaluation.results import read_results

    found: dict[str, list[Any]] = {}
    for part in (part for part in evaluated if part.paper == name):
        found.setdefault(part.model, []).extend(read_results(_folder(options, "evaluations", part.model) / part.task))
    texts = paper.tables(found) if found else {}
    for file, text in texts.items():
        _write(options.out / file, f"{text}\n")
    return [options.out / file for file in texts]


def _write_traces(traces: Mapping[str, list[Trace]], options: Options) -> list[Path]:
    from sinkscope.figures import draw_figures

    written = draw_figures(
        [one[0] for one in traces.values()], options.out / "figures", excess=options.excess, compare=True
    )
    tallies = {name: sink_tokens(found, options.excess) for name, found in traces.items()}
    path = options.out / "table2.json"
    _write(path, f"{json.dumps(tallies, ensure_ascii=False)}\n")
    lines = [
        f"| model | generations | {' | '.join(f'{rank + 1}.' for rank in range(TOP))} |",
        "|---|---|" + "---|" * TOP,
    ]
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
