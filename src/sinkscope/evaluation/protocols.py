"""The settings under which published models were evaluated, and which of them are assumed; the call's override them.

Below them two papers for `sinkscope reproduce`: the work behind their tables and figures, and published numbers. Paper
1 is "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731, Table 1 of version 2), paper 2 "One Token Is
Enough" (arXiv 2601.19657, Tables 1 and 2), whose checkpoints a run needs as folders.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sinkscope.errors import CallError
from sinkscope.evaluation.cost import PROBLEMS, Part, Shape
from sinkscope.evaluation.results import Result, takes_seed

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Protocol:
    """The published settings of one kind of checkpoint (`variant_of`) on one task; ``published``: accuracy, 0…1."""

    family: str
    variant: str
    task: str
    name: str
    shots: int
    chat: bool
    settings: Mapping[str, Any] = field(hash=False)
    source: str
    published: float | None = None

    def line(self) -> str:
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        chat = "chat template" if self.chat else "raw text"
        published = "" if self.published is None else f"; published {100 * self.published:.1f} %"
        return f"{self.task}: {self.name} ({self.shots} shots, {chat}, {settings}{published}); source: {self.source}"


def _blocks(length: int, block: int, **more: Any) -> dict[str, Any]:
    return {"length": length, "steps": length, "block": block, "temperature": 0.0, **more}


def _dream(length: int, temperature: float, top_p: float) -> dict[str, Any]:
    return {"length": length, "steps": length, "algorithm": "entropy", "temperature": temperature, "top_p": top_p}


_EVAL = "ML-GSAI/LLaDA, EVAL.md"
_LATE_EOS = {"confidence_eos_eot_inf": True}
_DREAM = "DreamLM/Dream, eval"
_UNCUT = "; its answers are not cut at lm-eval's stop strings but cleaned by a script, ours are cut"
_DREAM_CODER = "DreamLM/Dream-Coder, base/eval_code_base.sh (which begins prompts with EOS; ours do not)"
_DREAM_CODER_DEMO = "DreamLM/Dream-Coder, README (its own evaluation cleans answers by a script)"
_DIFFUCODER = "apple/ml-diffucoder, README and inference_demo.py (settings of its examples; none are given for a task)"
_MMADA = (
    "Gen-Verse/MMaDA; others measured 40 to 54 %; temperature 0 (its own example samples at 1) "
    "and the chat template are assumed"
)
_PAPER1 = "arXiv 2510.15731, appendix; steps = length, lm-eval's shots and, for GSM8K, the chat template are assumed"
_LLAMA = "Llama 3.1 evaluation details; greedy, length assumed"
_PAPER2 = "arXiv 2601.19657 and skywalker0523/OneTokenIsEnough; without shots"
_FAST = "NVlabs/Fast-dLLM, llada/eval_{}.sh and README, without a cache; {}"
_FAST_GSM8K = _FAST.format("gsm8k", "its chat is one turn with all shots, ours a pair of turns a shot")
_FAST_HUMANEVAL = _FAST.format("humaneval", _UNCUT.removeprefix("; "))
_INSTRUCT = f"{_EVAL} (their own toolkit; OpenCompass gives nearly the same); shots and prompt assumed to be lm-eval's"
_GREEDY = {"length": 512, "temperature": 0.0}
_ASSUMED = "not published; LLaDA's of arXiv 2510.15731 is assumed"
_TWO_PASSES = _blocks(256, 256) | {"temperature": 0.1}


def _likelihood(task: str, method: str, guidance: float, said: str = "") -> tuple[Any, ...]:
    settings = {"method": method, "samples": 1024, "guidance": guidance}
    return task, "paper2", 0, False, settings, _PAPER2 + said


_PUBLISHED: dict[tuple[str, str], list[tuple[Any, ...]]] = {
    ("llada", "base"): [
        ("gsm8k", "authors", 5, False, _blocks(1024, 1024), _EVAL, 0.703),
        ("humaneval", "authors", 0, False, _blocks(1024, 1024), _EVAL, 0.354),
    ],
    ("llada", "instruct"): [
        ("gsm8k", "paper1", 5, True, _blocks(256, 32), _PAPER1, 0.76),
        ("humaneval", "paper1", 0, False, _blocks(512, 32), _PAPER1, 0.37),
        ("gsm8k", "authors", 5, True, _blocks(512, 512, **_LATE_EOS), _INSTRUCT, 0.694),
        ("humaneval_instruct", "authors", 0, True, _blocks(512, 512, logits_eos_inf=True), _INSTRUCT, 0.494),
        ("gsm8k", "semi-autoregressive", 5, True, _blocks(256, 8), _INSTRUCT, 0.786),
        ("gsm8k", "fast-dllm", 5, True, _blocks(256, 32), _FAST_GSM8K, 0.793),
        ("gsm8k", "fast-dllm-512", 5, True, _blocks(512, 32), _FAST_GSM8K, 0.775),
        ("humaneval", "fast-dllm", 0, True, _blocks(256, 32), _FAST_HUMANEVAL, 0.415),
        ("humaneval", "fast-dllm-512", 0, True, _blocks(512, 32), _FAST_HUMANEVAL, 0.439),
    ],
    ("llada", "1.5"): [
        ("gsm8k", "authors", 5, True, _blocks(256, 16, **_LATE_EOS), _INSTRUCT, 0.838),
        ("humaneval_instruct", "authors", 0, True, _blocks(512, 32, **_LATE_EOS), _INSTRUCT, 0.524),
    ],
    ("mmada", "mixcot"): [
        ("gsm8k", "authors", 5, True, _blocks(256, 64), _MMADA, 0.734),
        ("humaneval", "paper1", 0, False, _blocks(512, 32), _ASSUMED, 0.16),
    ],
    ("dream", "base"): [
        ("gsm8k_cot", "authors", 8, False, _dream(256, 0.0, 0.95), _DREAM, 0.772),
        ("humaneval", "authors", 0, False, _dream(512, 0.2, 0.95), _DREAM + _UNCUT, 0.579),
    ],
    ("dream", "instruct"): [
        ("gsm8k_cot", "authors", 0, True, _dream(256, 0.1, 0.9), _DREAM + "_instruct", 0.81),
        ("humaneval_instruct", "authors", 0, True, _dream(768, 0.1, 0.9), _DREAM + "_instruct", 0.555),
    ],
    ("dream", "coder-base"): [
        ("humaneval", "authors", 0, False, _dream(512, 0.2, 0.9), _DREAM_CODER),
        ("gsm8k_cot", "authors", 8, False, _dream(256, 0.0, 0.95), _DREAM_CODER),
    ],
    ("dream", "coder-instruct"): [
        ("humaneval_instruct", "authors", 0, True, _dream(768, 0.1, 0.95), _DREAM_CODER_DEMO)
    ],
    ("dream", "diffucoder-base"): [("humaneval", "authors", 0, False, _dream(256, 0.2, 0.95), _DIFFUCODER)],
    ("dream", "diffucoder-instruct"): [("humaneval_instruct", "authors", 0, True, _dream(256, 0.3, 0.95), _DIFFUCODER)],
    ("llama", "instruct"): [
        ("gsm8k_cot", "authors", 8, True, _GREEDY, _LLAMA, 0.845),
        ("humaneval_instruct", "authors", 0, True, _GREEDY, _LLAMA, 0.726),
    ],
    ("smdm", ""): [
        _likelihood("arc_easy", "monte_carlo", 0.6),
        _likelihood("arc_challenge", "monte_carlo", 0.6, "; not stated for ARC-c, ARC-e's are assumed"),
        _likelihood("hellaswag", "monte_carlo", 0.7),
        _likelihood("piqa", "chain_rule", 0.6),
        _likelihood("race", "monte_carlo", 0.7),
        _likelihood("social_iqa", "monte_carlo", 0.6),
        _likelihood("lambada", "chain_rule", 1.1),
        ("gsm8k_two_pass", "paper2", 0, False, _TWO_PASSES, _PAPER2),
    ],
}
PROTOCOLS = tuple(Protocol(*kind, *row) for kind, rows in _PUBLISHED.items() for row in rows)


def variant_of(family: str, model: str) -> str:
    """Return ``base``, ``instruct``, ``1.5``, ``mixcot`` or ``coder-base`` …, from a model's name, else nothing."""
    name = model.rstrip("/").split("/")[-1].lower()
    coder = "diffucoder" if "diffucoder" in name else "coder" if "dream-coder" in name else ""
    if family == "dream" and coder:
        return f"{coder}-{'base' if 'base' in name else 'instruct'}"
    if family == "llada" and "1.5" in name:
        return "1.5"
    return next((variant for variant in ("mixcot", "instruct", "base") if variant in name), "")


def find_protocol(family: str, model: str, task: str, wanted: str = AUTO) -> Protocol | None:
    """Return the protocol of a model on a task: of that name, with ``auto`` the first one, None where there is none."""
    kind = (family, variant_of(family, model), task)
    found = {one.name: one for one in PROTOCOLS if (one.family, one.variant, one.task) == kind}
    if wanted in (AUTO, NONE):
        return next(iter(found.values()), None) if wanted == AUTO else None
    if wanted not in found:
        names = ", ".join([AUTO, NONE, *found])
        raise CallError(f"protocol: {model} has no protocol {wanted!r} for {task}; expected one of {names}")
    return found[wanted]


# Papers 1 and 2

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
_KINDS = {"dream": r"dream-?(v0)?.*7b", "llada": "llada-8b", "mmada": "mmada-8b", "llama": r"llama-3\.1-8b-instruct"}


def published_accuracy(model: str, task: str, hide: str) -> tuple[float, float] | None:
    """Return accuracy and standard error of paper 1 for a model's name, a task and its rule ``top:K``, or None."""
    name = model.rstrip("/").split("/")[-1].lower()
    kind = next((kind for kind, pattern in _KINDS.items() if re.search(pattern, name)), "")
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
_DREAM_SHAPE = Shape(28, 28, 4, 3584, 18944, 152064, 7_615_616_512)
_LLADA_SHAPE = Shape(32, 32, 32, 4096, 12288, 126464, 8_015_581_184)
_MMADA_SHAPE = Shape(32, 32, 32, 4096, 12288, 134656, 8_082_690_048)
_LLAMA_SHAPE = Shape(32, 32, 8, 4096, 14336, 128256, 8_030_261_248, causal=True)
_SMALL_SHAPE = Shape(6, 6, 6, 192, 512, 456, 2_831_808)
CHECKPOINTS = {
    "Dream-org/Dream-v0-Instruct-7B": Checkpoint("dream", _DREAM_SHAPE, _CHAT, "gsm8k", {"length": 128, "steps": 128}),
    "GSAI-ML/LLaDA-8B-Instruct": Checkpoint("llada", _LLADA_SHAPE, _PLAIN, "gsm8k", _BLOCKS),
    "Gen-Verse/MMaDA-8B-MixCoT": Checkpoint("mmada", _MMADA_SHAPE, _PLAIN, "gsm8k", _BLOCKS),
    "meta-llama/Llama-3.1-8B-Instruct": Checkpoint("llama", _LLAMA_SHAPE, _CHAT, "gsm8k", {"length": 128}),
    "lab-diffusion": Checkpoint("llada", _SMALL_SHAPE, *_LAB, _LAB_BLOCKS, _LAB_SHOTS, _LAB_BLOCKS),
    "lab-autoregressive": Checkpoint(
        "llama", replace(_SMALL_SHAPE, causal=True), *_LAB, {"length": 64}, _LAB_SHOTS, {"length": 64}
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
