"""Paper 1's tables and figures as a list of work, and what it costs, worked out from shapes alone: no model is loaded.

What the estimate assumes is in `ASSUMPTIONS`; it counts forward calls as a run makes them (their mean where masks are drawn), and
guesses how long prompts and choices are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sinkscope.errors import CallError
from sinkscope.evaluation.protocols import find_protocol

GIB = 2**30
CARD_GIB = 24
USABLE = 0.95
TFLOPS = 125.0
BYTES_PER_S = 1.5e12
RECORDED = 1.1
TEXT_TOKENS = {
    "gsm8k": (80, 155),
    "gsm8k_cot": (75, 75),
    "gsm8k_two_pass": (140, 0),
    "humaneval": (150, 0),
    "humaneval_instruct": (320, 0),
    "lab-arith": (45, 44),
    "lab-code": (35, 34),
}
PROBLEMS = {"gsm8k": 1319, "gsm8k_cot": 1319, "humaneval": 164, "humaneval_instruct": 164, "lab-arith": 1319, "lab-code": 164}
ASSUMPTIONS = (
    f"{TFLOPS:g} TFLOP/s reached in bf16 (40 % of an A100), weights read at {BYTES_PER_S / 1e12:g} TB/s at most; --tflops says otherwise.",
    "A forward call of S tokens: 2 S (parameters − embeddings) + 4 S² × layers × width, and the vocabulary where a token can be committed.",
    "A diffusion model makes one call a step on the whole canvas; an autoregressive one reads the prompt once, then writes to the end.",
    "As many prompts side by side as a card of 24 GB takes (--batch): where reading the weights takes longest, fewer take longer.",
    "A likelihood: one call for each different masked canvas, two with guidance, 16 canvases side by side; an only choice is written too, "
    "token by token; contexts and choices of typical lengths.",
    f"Watching or hiding costs {RECORDED - 1:.0%}. Prompts: GSM8K 80 tokens and 155 a shot (75 of gsm8k_cot), HumanEval 150 or 320.",
    "Memory: weights in 2 bytes, one layer's activations, 512 queries' attention in 4 bytes, three copies of the logits, the cache of an "
    f"autoregressive model; {1 - USABLE:.0%} kept free. Disk: three sums a key and four norms a token in 4 bytes; 12 kB an answer.",
)


@dataclass(frozen=True)
class Shape:
    """What a forward call's cost depends on.

    Attributes:
        layers, heads, kv_heads, hidden, ffn, vocabulary, parameters: of the network.
        causal: writes one token a step, with a cache.
    """

    layers: int
    heads: int
    kv_heads: int
    hidden: int
    ffn: int
    vocabulary: int
    parameters: int
    causal: bool = False


_LAB = Shape(6, 6, 6, 192, 512, 456, 2_831_808)
MODELS: dict[str, tuple[str, Shape]] = {
    "Dream-org/Dream-v0-Instruct-7B": ("dream", Shape(28, 28, 4, 3584, 18944, 152064, 7_615_616_512)),
    "GSAI-ML/LLaDA-8B-Instruct": ("llada", Shape(32, 32, 32, 4096, 12288, 126464, 8_015_581_184)),
    "Gen-Verse/MMaDA-8B-MixCoT": ("mmada", Shape(32, 32, 32, 4096, 12288, 134656, 8_082_690_048)),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", Shape(32, 32, 8, 4096, 14336, 128256, 8_030_261_248, causal=True)),
    "lab-diffusion": ("llada", _LAB),
    "lab-autoregressive": ("llama", replace(_LAB, causal=True)),
}
"""Family and shape of the checkpoints of a runbook, by name."""
CONTROLS = ("random", "ranks")
"""The controls of a run, unless others are asked for."""
PUBLISHED = tuple(name for name in MODELS if "/" in name)
LAB = tuple(name for name in MODELS if "/" not in name)


@dataclass(frozen=True)
class Part:
    """One piece of work: a task of Table 1 for one model, or the recorded generations behind the figures and Table 2.

    Attributes:
        name: what of the paper it is.
        model: name of the checkpoint.
        task: whose prompts.
        rules: of hiding, ``none`` among them; recorded generations have only that.
        prompts: how many.
        shots: examples in each prompt.
        settings: of the sampler.
        recorded: whether attention is written to disk.
        folder: where the checkpoint lies, when not where its name says.
        shape: of the checkpoint, where `MODELS` does not have it.
    """

    name: str
    model: str
    task: str
    rules: tuple[str, ...]
    prompts: int
    shots: int
    settings: Mapping[str, Any] = field(hash=False)
    recorded: bool = False
    folder: str = ""
    shape: Shape | None = None

    @property
    def known_shape(self) -> Shape:
        """Its own, else that of the checkpoint of its name."""
        return self.shape or MODELS[self.model][1]


@dataclass(frozen=True)
class Cost:
    """What a part takes.

    Attributes:
        forwards: calls of the network, a prompt each.
        gpu_hours: by `ASSUMPTIONS`.
        memory_gib: with one prompt a batch.
        batch_on_card: most prompts side by side on a card of 24 GB; 0 where it does not suffice.
        disk_gib: results or traces.
    """

    forwards: int
    gpu_hours: float
    memory_gib: float
    batch_on_card: int
    disk_gib: float


def rules_for(model: str, ks: Sequence[int], seeds: int, controls: Sequence[str] = CONTROLS) -> tuple[str, ...]:
    """Paper 1's rules and the controls it lacks, with several seeds where they draw at random; controls stand in for the keys of the rule.

    Raises:
        CallError: an unknown control.
    """
    from sinkscope.interventions import known_controls  # here, as it loads torch

    known = known_controls()
    unknown = [control for control in controls if control not in known]
    if unknown:
        raise CallError(f"controls: expected some of {', '.join(known)}, found {unknown[0]!r}")
    decide = "@last_row" if MODELS[model][1].causal else ""
    rules = ["none"]
    for k in ks:
        rules.append(f"top:{k}{decide}")
        for control in controls:
            seeded = [f"{control}:{k}{decide}{',' if decide else '@'}seed={seed}" for seed in range(seeds)]
            rules += seeded if known[control] else [f"{control}:{k}{decide}"]
    return tuple(rules)


def paper1(
    models: Sequence[str] = PUBLISHED,
    *,
    ks: Sequence[int] = (1, 5, 10),
    seeds: int = 3,
    controls: Sequence[str] = CONTROLS,
    limit: int | None = None,
    traces: int = 30,
) -> tuple[Part, ...]:
    """Every table and figure of arXiv 2510.15731.

    Args:
        models: names of `MODELS`.
        ks: how many sinks are hidden.
        seeds: of each control that draws at random.
        controls: some of `known_controls`.
        limit: problems of each task; all when None.
        traces: recorded generations a model (the paper's Table 2: 30).

    Raises:
        CallError: a model or a control that is not one of these.
    """
    parts = []
    for model in models:
        if model not in MODELS:
            raise CallError(f"paper1: no checkpoint {model!r}; expected some of {', '.join(MODELS)}")
        family, shape = MODELS[model]
        lab = model in LAB
        for task in _tasks(family, model):
            protocol = find_protocol(family, model, task)
            length = {"length": 64, "steps": 64, "block": 16}
            settings = protocol.settings if protocol else {"length": 64} if shape.causal else length
            shots = protocol.shots if protocol else {"lab-arith": 5, "lab-code": 7}[task]
            prompts = min(limit or PROBLEMS[task], PROBLEMS[task])
            parts.append(Part("Table 1", model, task, rules_for(model, ks, seeds, controls), prompts, shots, settings))
        length = 64 if lab else 128
        settings = {"length": length} if shape.causal else {"length": length, "steps": length}
        if not shape.causal and family != "dream":
            settings["block"] = 16 if lab else 32
        task = "lab-arith" if lab else "gsm8k"
        parts.append(Part("Figures, Table 2", model, task, ("none",), traces, 5 if lab else 0, settings, recorded=True))
    return tuple(parts)


def _tasks(family: str, model: str) -> tuple[str, str]:
    """The tasks for which the model has a protocol, GSM8K's first; the lab's for the lab's."""
    if model in LAB:
        return "lab-arith", "lab-code"
    first = next(task for task in ("gsm8k", "gsm8k_cot") if find_protocol(family, model, task))
    second = next(task for task in ("humaneval", "humaneval_instruct") if find_protocol(family, model, task))
    return first, second


def estimate(part: Part, tflops: float = TFLOPS) -> Cost:
    """Forwards, time, memory and disk of a part.

    Raises:
        CallError: a speed that is none.
    """
    if not 0 < tflops < float("inf"):
        raise CallError(f"tflops: expected a number above 0, found {tflops}")
    shape = part.known_shape
    if "method" in part.settings:
        return _estimate_likelihoods(part, shape, tflops)
    question, shot = TEXT_TOKENS[part.task]
    prompt, length = question + part.shots * shot, part.settings["length"]
    canvas = prompt + length
    steps = length if shape.causal else part.settings["steps"]
    passes = 2 if part.task == "gsm8k_two_pass" else 1
    runs = part.prompts * len(part.rules) * passes
    batch = max(1, _largest_batch(shape, canvas, part))
    if shape.causal:
        flops = _flops(shape, prompt, 1) + sum(_flops(shape, 1, 1, at) for at in range(prompt, canvas))
    else:
        flops = steps * _flops(shape, canvas, _committable(part))
    reading = steps * 2 * shape.parameters / BYTES_PER_S / batch
    watched = RECORDED * (len(part.rules) - 1) + (RECORDED if part.recorded else 1)
    seconds = passes * part.prompts * watched * max(flops / (tflops * 1e12), reading)
    a_step = 4 * canvas * (3 * shape.layers * shape.heads + 4 * shape.layers * shape.kv_heads)
    disk = part.prompts * steps * a_step if part.recorded else runs * 12_000
    memory = _memory(shape, canvas, part, 1)
    return Cost(runs * steps, seconds / 3600, memory / GIB, _largest_batch(shape, canvas, part), disk / GIB)


def _estimate_likelihoods(part: Part, shape: Shape, tflops: float) -> Cost:
    """One forward call for each different masked canvas, two with guidance; memory with 16 canvases side by side."""
    from sinkscope.decoding.likelihood import GROUP, expected_masks
    from sinkscope.evaluation.paper2 import LIKELIHOODS

    context, choices, length = LIKELIHOODS[part.task]
    canvases = length if part.settings["method"] == "chain_rule" else expected_masks(length, part.settings["samples"])
    written = length if choices == 1 else 0
    questions = part.prompts * len(part.rules)
    forwards = round(questions * (choices * canvases + written) * (2 if part.settings["guidance"] else 1))
    batches = questions * (choices * math.ceil(canvases / GROUP) + written)
    seconds = max(forwards * _flops(shape, context + length, length) / (tflops * 1e12), batches * 2 * shape.parameters / BYTES_PER_S)
    block = replace(part, settings={"length": length})
    memory = _memory(shape, context + length, block, GROUP)
    batch = _largest_batch(shape, context + length, block)
    return Cost(forwards, seconds / 3600, memory / GIB, batch, part.prompts * len(part.rules) * 12_000 / GIB)


def _flops(shape: Shape, tokens: int, projected: int, before: int = 0) -> float:
    body = shape.parameters - 2 * shape.vocabulary * shape.hidden
    attention = 4 * shape.layers * shape.hidden * tokens * (before + tokens)
    return 2 * body * tokens + attention + 2 * shape.hidden * shape.vocabulary * projected


def _committable(part: Part) -> int:
    """Positions whose logits a step needs: the block's, or all of the answer's."""
    return part.settings.get("block", part.settings["length"])


def _memory(shape: Shape, canvas: int, part: Part, batch: int) -> float:
    activations = canvas * (6 * shape.hidden + 3 * shape.ffn) * 2
    scores = 2 * 4 * shape.heads * min(512, canvas) * canvas
    logits = 3 * 4 * shape.vocabulary * (1 if shape.causal else _committable(part))
    columns = 3 * 4 * shape.layers * shape.heads * canvas
    cache = 2 * 2 * shape.layers * shape.kv_heads * (shape.hidden // shape.heads) * canvas if shape.causal else 0
    return 2 * shape.parameters + batch * (activations + scores + logits + columns + cache)


def _largest_batch(shape: Shape, canvas: int, part: Part) -> int:
    fixed = _memory(shape, canvas, part, 0)
    each = _memory(shape, canvas, part, 1) - fixed
    return max(0, math.floor((CARD_GIB * GIB * USABLE - fixed) / each))
