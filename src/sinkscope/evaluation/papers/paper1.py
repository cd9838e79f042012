"""Paper 1, "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731): what its tables and figures take, and its Table 1."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sinkscope.errors import CallError
from sinkscope.evaluation.papers.cost import PROBLEMS, Part, Shape
from sinkscope.evaluation.protocols import find_protocol


@dataclass(frozen=True)
class Checkpoint:
    """A model of the paper, or one of the lab's in its place.

    Attributes:
        family: of the model.
        shape: of its network.
        tasks: of Table 1.
        traced: the task whose prompts are written and recorded for the figures and Table 2.
        recorded: settings of the sampler for that.
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
_LAB_SHAPE = Shape(6, 6, 6, 192, 512, 456, 2_831_808)
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
"""The controls of a run, unless others are asked for. The paper has none."""

KS = (0, 1, 5, 10)
TABLE_1 = {
    ("gsm8k", "dream"): ((0.82, 0.01), (0.79, 0.01), (0.78, 0.01), (0.75, 0.01)),
    ("gsm8k", "llada"): ((0.76, 0.01), (0.75, 0.01), (0.73, 0.01), (0.55, 0.01)),
    ("gsm8k", "mmada"): ((0.54, 0.01), (0.53, 0.01), (0.54, 0.01), (0.37, 0.01)),
    ("gsm8k", "llama"): ((0.85, 0.01), (0.02, 0.00), (0.02, 0.00), (0.01, 0.03)),
    ("humaneval", "dream"): ((0.60, 0.03), (0.64, 0.03), (0.61, 0.03), (0.57, 0.03)),
    ("humaneval", "llada"): ((0.37, 0.03), (0.37, 0.03), (0.39, 0.03), (0.35, 0.03)),
    ("humaneval", "mmada"): ((0.16, 0.02), (0.16, 0.03), (0.18, 0.03), (0.09, 0.02)),
    ("humaneval", "llama"): ((0.66, 0.04), (0.00, 0.00), (0.00, 0.00), (0.00, 0.00)),
}
"""Version 2, Table 1: accuracy and standard error with that many (`KS`) of the top sinks hidden."""
_MODELS = {
    "dream": re.compile(r"dream-?(v0)?.*7b", re.I),
    "llada": re.compile(r"llada-8b", re.I),
    "mmada": re.compile(r"mmada-8b", re.I),
    "llama": re.compile(r"llama-3\.1-8b-instruct", re.I),
}
_TASKS = {"gsm8k": "gsm8k", "gsm8k_cot": "gsm8k", "humaneval": "humaneval", "humaneval_instruct": "humaneval"}
_BASES = re.compile(r"base|dream-?coder|moe", re.I)


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
    """Return the paper's rules for a model, and the same with controls in place of the top sinks; with seeds where they draw at random.

    Raises:
        CallError: an unknown control.
    """
    from sinkscope.interventions import known_controls  # here, as it loads torch

    known = known_controls()
    unknown = [control for control in controls if control not in known]
    if unknown:
        raise CallError(f"controls: expected some of {', '.join(known)}, found {unknown[0]!r}")
    decide = "@last_row" if CHECKPOINTS[model].shape.causal else ""
    rules = ["none"]
    for k in ks:
        rules.append(f"top:{k}{decide}")
        for control in controls:
            seeded = [f"{control}:{k}{decide}{',' if decide else '@'}seed={seed}" for seed in range(seeds)]
            rules += seeded if known[control] else [f"{control}:{k}{decide}"]
    return tuple(rules)


def published_accuracy(model: str, task: str, hide: str) -> tuple[float, float] | None:
    """Return accuracy and standard error of Table 1 for a model's name, a task and a rule; None where the paper has none.

    The paper's own rule is ``top:K``, by the columns of the step before for diffusion models and by the last row for Llama;
    another ``observe``, ``decide`` or control is another experiment. Its tables do not name variants. Base models are left out,
    and so is a Llama that is not called ``Instruct``.
    """
    name = model.rstrip("/").split("/")[-1]
    kind = next((kind for kind, pattern in _MODELS.items() if pattern.search(name)), None)
    rows = TABLE_1.get((_TASKS.get(task, ""), kind or ""))
    if rows is None or _BASES.search(name):
        return None
    rule = re.fullmatch(r"none|top:(\d+)(@last_row)?", hide)
    if rule is None or (rule[1] is not None and (rule[2] is not None) != (kind == "llama")):
        return None
    k = int(rule[1] or 0)
    return rows[KS.index(k)] if k in KS else None
