"""Paper 1, "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731): its models, tables, figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sinkscope.errors import CallError
from sinkscope.evaluation.comparisons import takes_seed
from sinkscope.evaluation.papers.paper import PROBLEMS, Narrowing, Paper, Part, Shape
from sinkscope.evaluation.papers.published import KS
from sinkscope.evaluation.protocols import find_protocol
from sinkscope.evaluation.results import Result
from sinkscope.evaluation.tables import Format, write_table


@dataclass(frozen=True)
class Checkpoint:
    """A model of the paper, or a lab model in its place.

    Attributes:
        family: of the model.
        shape: of its network.
        tasks: of Table 1.
        traced: the task whose answers are recorded for the figures and Table 2.
        recorded: settings of the sampler for these.
        shots: examples in a prompt, by task, where the model has no published protocol.
        settings: of the sampler in Table 1, where the model has no published protocol.
    """

    family: str
    shape: Shape
    tasks: tuple[str, str]
    traced: str
    recorded: Mapping[str, Any] = field(hash=False)
    shots: Mapping[str, int] = field(default_factory=dict, hash=False)
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


_BLOCKS = {"length": 128, "steps": 128, "block": 32}
_LAB_SHAPE = Shape(6, 6, 6, 192, 512, 456, 2_831_808, positions=1024)
_LAB_TASKS = ("lab-arith", "lab-code")
_LAB_SHOTS = {"lab-arith": 5, "lab-code": 7}
_LAB_BLOCKS = {"length": 64, "steps": 64, "block": 16}
CHECKPOINTS: dict[str, Checkpoint] = {
    "Dream-org/Dream-v0-Instruct-7B": Checkpoint(
        "dream",
        Shape(28, 28, 4, 3584, 18944, 152064, 7_615_616_512),
        ("gsm8k_cot", "humaneval_instruct"),
        "gsm8k",
        {"length": 128, "steps": 128},
    ),
    "GSAI-ML/LLaDA-8B-Instruct": Checkpoint(
        "llada", Shape(32, 32, 32, 4096, 12288, 126464, 8_015_581_184), ("gsm8k", "humaneval"), "gsm8k", _BLOCKS
    ),
    "Gen-Verse/MMaDA-8B-MixCoT": Checkpoint(
        "mmada", Shape(32, 32, 32, 4096, 12288, 134656, 8_082_690_048), ("gsm8k", "humaneval"), "gsm8k", _BLOCKS
    ),
    "meta-llama/Llama-3.1-8B-Instruct": Checkpoint(
        "llama",
        Shape(32, 32, 8, 4096, 14336, 128256, 8_030_261_248, causal=True),
        ("gsm8k_cot", "humaneval_instruct"),
        "gsm8k",
        {"length": 128},
    ),
    "lab-diffusion": Checkpoint("llada", _LAB_SHAPE, _LAB_TASKS, "lab-arith", _LAB_BLOCKS, _LAB_SHOTS, _LAB_BLOCKS),
    "lab-autoregressive": Checkpoint(
        "llama", replace(_LAB_SHAPE, causal=True), _LAB_TASKS, "lab-arith", {"length": 64}, _LAB_SHOTS, {"length": 64}
    ),
}
LAB = tuple(name for name in CHECKPOINTS if name.startswith("lab-"))
PUBLISHED = tuple(name for name in CHECKPOINTS if name not in LAB)
CONTROLS = ("random", "ranks")
"""The default controls of a run. The paper has none."""


def paper1(
    models: Sequence[str] = PUBLISHED,
    *,
    ks: Sequence[int] = KS[1:],
    seeds: int = 3,
    controls: Sequence[str] = CONTROLS,
    limit: int | None = None,
    traces: int = 30,
) -> tuple[Part, ...]:
    """Return the work behind every table and figure of the paper.

    Args:
        models: names of `CHECKPOINTS`.
        ks: how many sinks are hidden.
        seeds: of each control that draws at random.
        controls: some of `interventions.known_controls`.
        limit: problems of each task; all when None.
        traces: recorded generations a model (the paper's Table 2: 30).

    Raises:
        CallError: a model or a control that is not one of these.
    """
    parts = []
    for name in models:
        if name not in CHECKPOINTS:
            raise CallError(f"paper1: no checkpoint {name!r}; expected some of {', '.join(CHECKPOINTS)}")
        model = CHECKPOINTS[name]
        for task in model.tasks:
            protocol = find_protocol(model.family, name, task)
            shots, settings = (protocol.shots, protocol.settings) if protocol else (model.shots[task], model.settings)
            prompts = min(limit or PROBLEMS[task], PROBLEMS[task])
            rules = rules_for(name, ks, seeds, controls)
            parts.append(Part("paper1", "Table 1", name, task, rules, prompts, shots, settings, model.shape))
        written = (model.traced, ("none",), traces, model.shots.get(model.traced, 0), model.recorded, model.shape)
        parts.append(Part("paper1", "Figures, Table 2", name, *written, recorded=True))
    return tuple(parts)


def rules_for(model: str, ks: Sequence[int], seeds: int, controls: Sequence[str] = CONTROLS) -> tuple[str, ...]:
    """Return the paper's rules for a model, and the same with controls in place of the top sinks, seeded if they are
    random.

    Raises:
        CallError: an unknown control.
    """
    seeded = {control: takes_seed(control) for control in controls}
    for control in (control for control, found in seeded.items() if found is None):
        from sinkscope.interventions import known_controls  # here, as it loads torch

        raise CallError(f"controls: expected some of {', '.join(known_controls())}, found {control!r}")
    decide = "@last_row" if CHECKPOINTS[model].shape.causal else ""
    rules = ["none"]
    for k in ks:
        rules.append(f"top:{k}{decide}")
        for control in controls:
            drawn = [f"{control}:{k}{decide}{',' if decide else '@'}seed={seed}" for seed in range(seeds)]
            rules += drawn if seeded[control] else [f"{control}:{k}{decide}"]
    return tuple(rules)


_SUFFIXES: dict[Format, str] = {"markdown": "md", "latex": "tex", "csv": "csv", "json": "json"}


def _plan(asked: Narrowing) -> tuple[Part, ...]:
    named = [name.strip() for name in asked.models.split(",") if name.strip()]
    groups = {"published": PUBLISHED, "lab": LAB}
    if len(named) > 1 and (group := next((name for name in named if name in groups), None)):
        raise CallError(
            f"--models: expected {group!r} alone, as it stands for {', '.join(groups[group])}, found "
            f"{asked.models[:60]!r}"
        )
    models = groups.get(asked.models) or tuple(dict.fromkeys(named))
    if not models:
        raise CallError(f"--models: expected published, lab, or names separated by commas, found {asked.models[:60]!r}")
    return paper1(
        models, ks=asked.ks, seeds=asked.seeds, controls=asked.controls, limit=asked.limit, traces=asked.traces
    )


def _tables(results: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    everything = [result for found in results.values() for result in found]
    return {f"table1.{suffix}": write_table(everything, form) for form, suffix in _SUFFIXES.items()}


PAPER = Paper(_plan, _tables)
