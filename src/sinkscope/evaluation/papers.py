"""Two papers for `sinkscope reproduce`: the work behind their tables and figures, and published numbers.

Paper 1 is "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731, Table 1 of version 2), paper 2 "One Token
Is Enough" (arXiv 2601.19657, Tables 1 and 2), whose checkpoints a run needs as folders.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sinkscope.errors import CallError
from sinkscope.evaluation.cost import PROBLEMS, Part, Shape
from sinkscope.evaluation.protocols import PROTOCOLS, find_protocol
from sinkscope.evaluation.results import Result, takes_seed

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
"""Paper 1: accuracy and standard error with that many (`KS`) of the top sinks hidden."""
_NAMES = {"dream": r"dream-?(v0)?.*7b", "llada": "llada-8b", "mmada": "mmada-8b", "llama": r"llama-3\.1-8b-instruct"}


def published_accuracy(model: str, task: str, hide: str) -> tuple[float, float] | None:
    """Return accuracy and standard error of paper 1 for a model's name, a task and its rule ``top:K``, or None."""
    name = model.rstrip("/").split("/")[-1].lower()
    kind = next((kind for kind, pattern in _NAMES.items() if re.search(pattern, name)), "")
    task = {"gsm8k_cot": "gsm8k", "humaneval_instruct": "humaneval"}.get(task, task)
    rule = re.fullmatch(r"none|top:(\d+)(@last_row)?", hide)
    if (task, kind) not in TABLE_1 or re.search("base|dream-?coder|moe", name) or rule is None:
        return None
    k = int(rule[1] or 0)
    if k not in KS or (k and (rule[2] is not None) != (kind == "llama")):
        return None
    return TABLE_1[task, kind][KS.index(k)]


class Checkpoint(NamedTuple):
    """A model of paper 1, or a lab model in its place; ``shots`` and ``settings`` are for models without a protocol."""

    family: str
    shape: Shape
    tasks: tuple[str, str]
    traced: str
    recorded: Mapping[str, Any]
    shots: Mapping[str, int] = {}
    settings: Mapping[str, Any] = {}


_BLOCKS, _LAB_BLOCKS = {"length": 128, "steps": 128, "block": 32}, {"length": 64, "steps": 64, "block": 16}
_PLAIN, _CHAT = ("gsm8k", "humaneval"), ("gsm8k_cot", "humaneval_instruct")
_LAB = ("lab-arith", "lab-code"), "lab-arith"
_LAB_SHOTS = {"lab-arith": 5, "lab-code": 7}
_DREAM = Shape(28, 28, 4, 3584, 18944, 152064, 7_615_616_512)
_LLADA = Shape(32, 32, 32, 4096, 12288, 126464, 8_015_581_184)
_MMADA = Shape(32, 32, 32, 4096, 12288, 134656, 8_082_690_048)
_LLAMA = Shape(32, 32, 8, 4096, 14336, 128256, 8_030_261_248, causal=True)
_SMALL = Shape(6, 6, 6, 192, 512, 456, 2_831_808)
CHECKPOINTS = {
    "Dream-org/Dream-v0-Instruct-7B": Checkpoint("dream", _DREAM, _CHAT, "gsm8k", {"length": 128, "steps": 128}),
    "GSAI-ML/LLaDA-8B-Instruct": Checkpoint("llada", _LLADA, _PLAIN, "gsm8k", _BLOCKS),
    "Gen-Verse/MMaDA-8B-MixCoT": Checkpoint("mmada", _MMADA, _PLAIN, "gsm8k", _BLOCKS),
    "meta-llama/Llama-3.1-8B-Instruct": Checkpoint("llama", _LLAMA, _CHAT, "gsm8k", {"length": 128}),
    "lab-diffusion": Checkpoint("llada", _SMALL, *_LAB, _LAB_BLOCKS, _LAB_SHOTS, _LAB_BLOCKS),
    "lab-autoregressive": Checkpoint(
        "llama", replace(_SMALL, causal=True), *_LAB, {"length": 64}, _LAB_SHOTS, {"length": 64}
    ),
}
LAB = tuple(name for name in CHECKPOINTS if name.startswith("lab-"))
PUBLISHED = tuple(name for name in CHECKPOINTS if name not in LAB)


def paper1(
    models: Sequence[str] = PUBLISHED,
    *,
    ks: Sequence[int] = KS[1:],
    seeds: int = 3,
    controls: Sequence[str] = ("random", "ranks"),
    limit: int | None = None,
    traces: int = 30,
) -> tuple[Part, ...]:
    """Return the work behind every table and figure of paper 1 on some of `CHECKPOINTS`; the paper has no controls."""
    parts = []
    for name in models:
        if name not in CHECKPOINTS:
            raise CallError(f"paper1: no checkpoint {name!r}; expected some of {', '.join(CHECKPOINTS)}")
        model = CHECKPOINTS[name]
        rules = rules_for(model.shape.causal, ks, seeds, controls)
        for task in model.tasks:
            protocol = find_protocol(model.family, name, task)
            shots, settings = (protocol.shots, protocol.settings) if protocol else (model.shots[task], model.settings)
            prompts = min(limit or PROBLEMS[task], PROBLEMS[task])
            parts.append(Part("Table 1", name, task, rules, prompts, shots, settings, model.shape))
        shots = model.shots.get(model.traced, 0)
        written = (model.traced, ("none",), traces, shots, model.recorded, model.shape)
        parts.append(Part("Figures, Table 2", name, *written, recorded=True))
    return tuple(parts)


def rules_for(causal: bool, ks: Sequence[int], seeds: int, controls: Sequence[str]) -> tuple[str, ...]:
    """Return paper 1's rules, and the same with controls in place of the top sinks, seeded if they are random."""
    decide, rules = "@last_row" if causal else "", ["none"]
    for k in ks:
        rules.append(f"top:{k}{decide}")
        for control in controls:
            drawn = [f"{control}:{k}{decide}{',' if decide else '@'}seed={seed}" for seed in range(seeds)]
            rules += drawn if takes_seed(control) else [f"{control}:{k}{decide}"]
    return tuple(rules)


# Qwen2.5's tied table is counted twice, as costs are computed from a body without two tables.
SHAPES = {
    "qwen2.5-0.5b": Shape(24, 14, 2, 896, 4864, 151936, 494_032_768 + 151936 * 896),
    "qwen2.5-1.5b": Shape(28, 12, 2, 1536, 8960, 151936, 1_543_714_304 + 151936 * 1536),
    "scratch-472m": Shape(18, 10, 10, 1280, 5120, 32001, 553_827_840),
}
TASKS = ("arc_easy", "arc_challenge", "hellaswag", "piqa", "race", "social_iqa", "lambada", "gsm8k_two_pass")
ACCURACY = {
    "qwen2.5-0.5b": (44.70, 27.13, 35.21, 55.28, 31.29, 40.28, 44.09, 46.92),
    "qwen2.5-0.5b+sink": (55.47, 32.17, 48.91, 63.44, 33.79, 37.82, 45.24, 49.20),
    "qwen2.5-0.5b+gate": (47.85, 29.27, 41.95, 61.92, 34.07, 36.08, 45.10, 47.01),
    "qwen2.5-1.5b": (65.49, 41.47, 59.50, 66.49, 37.80, 36.18, 66.58, 57.77),
    "qwen2.5-1.5b+sink": (68.18, 43.43, 61.31, 68.17, 37.61, 39.97, 66.41, 58.45),
    "qwen2.5-1.5b+gate": (53.03, 32.27, 52.90, 60.33, 37.42, 38.26, 51.10, 52.35),
    "scratch-472m": (32.20, 25.09, 31.56, 54.08, 31.77, 35.98, 29.26, 34.95),
    "scratch-472m+sink": (40.91, 22.35, 40.43, 62.24, 32.73, 37.92, 47.16, 35.17),
    "scratch-472m+gate": (36.28, 23.46, 37.61, 57.07, 33.68, 34.44, 42.27, 36.39),
}
"""Paper 2: accuracies in %, in the order of `TASKS`; the paper does not say which of them are per character."""


def paper2(models: str, *, tasks: Sequence[str] = TASKS, limit: int | None = None) -> tuple[Part, ...]:
    """Return the work behind paper 2's Tables 1 and 2 of ``models``, NAME=FOLDER with commas between, or all."""
    given = [one.strip().partition("=") for one in models.split(",")]
    folders = {name: folder for name, _, folder in given}
    if models.strip() == "published":
        folders = dict.fromkeys(ACCURACY, "")
    elif len(folders) < len(given) or not all(name in ACCURACY and folder for name, folder in folders.items()):
        raise CallError(f"--models: expected NAME=FOLDER once each, NAME of {', '.join(ACCURACY)}, found {models!r}")
    settings = {protocol.task: protocol.settings for protocol in PROTOCOLS if protocol.family == "smdm"}
    parts = []
    for name, folder in folders.items():
        for task in tasks:
            dream = task == "gsm8k_two_pass" and not name.startswith("scratch")  # whose sampler has no blocks
            own = {key: value for key, value in settings[task].items() if not (dream and key == "block")}
            prompts, shape = min(limit or PROBLEMS[task], PROBLEMS[task]), SHAPES[name.split("+")[0]]
            parts.append(Part("Tables 1, 2", name, task, ("none",), prompts, 0, own, shape, folder=folder))
    return tuple(parts)


def check_folder(name: str, folder: str) -> None:
    """Raise CallError for a checkpoint of paper 2 without folder, or with one of another kind of model."""
    from sinkscope.models import describe  # here, as it loads torch

    body, _, sink = name.partition("+")
    family, variant, _ = describe(folder)
    found = (family.name, variant.name.removesuffix(" (folded)") if variant else "none")
    # those from Qwen2.5 shift their logits as Dream does; a folded token is the same model
    wanted = ("smdm" if body.startswith("scratch") else "dream", {"": "none", "sink": "token", "gate": "gate"}[sink])
    if found != wanted:
        kinds = [f"family {family} with sink token {token}" for family, token in (wanted, found)]
        raise CallError(f"--models {name}={folder}: expected {kinds[0]}, as the name says, found {kinds[1]}")


def beside_paper2(results: Mapping[str, Sequence[Result]]) -> str:
    """Return a Markdown table of the accuracies found, with intervals, beside paper 2's, by checkpoint and task."""
    lines = ["| checkpoint | task | n | measured, % | of it per character, % | paper, % |", "|---|---|---|---|---|---|"]
    for name, result in ((name, one) for name, found in results.items() for one in found):
        low, high = (100 * end for end in result.interval)
        normed = f"{100 * result.measures['acc_norm']:.1f}" if "acc_norm" in result.measures else "–"
        measured = f"{100 * result.accuracy:.1f} ({low:.1f}–{high:.1f})"
        published = ACCURACY[name][TASKS.index(result.task)]
        lines.append(f"| {name} | {result.task} | {result.n} | {measured} | {normed} | {published:.1f} |")
    return "\n".join(lines)
