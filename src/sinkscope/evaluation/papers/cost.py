"""The cost of the parts of a paper's plan, estimated from shapes alone, without loading a model.

`ASSUMPTIONS` lists the assumptions. Forward calls are counted as a run makes them (the mean where masks are random); the lengths of
prompts and choices are typical values.
"""

import math
from dataclasses import dataclass, replace

from sinkscope.errors import CallError
from sinkscope.evaluation.papers.paper import Part, Shape

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
"""Typical tokens of a question, and of a shot."""
CHOICE_TOKENS = {
    "arc_easy": (30, 4, 5),
    "arc_challenge": (35, 4, 7),
    "hellaswag": (75, 4, 25),
    "piqa": (25, 2, 20),
    "race": (450, 4, 8),
    "social_iqa": (35, 3, 6),
    "lambada": (80, 1, 2),
}
"""Typical tokens of a context, the number of choices, and typical tokens of a choice."""
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
class Cost:
    """The cost of a part.

    Attributes:
        forwards: forward calls, counted for each prompt.
        gpu_hours: by `ASSUMPTIONS`.
        memory_gib: with one prompt a batch.
        batch_on_card: largest batch on a card of 24 GB; 0 where one prompt does not fit.
        disk_gib: for results or traces.
    """

    forwards: int
    gpu_hours: float
    memory_gib: float
    batch_on_card: int
    disk_gib: float


def estimate(part: Part, tflops: float = TFLOPS) -> Cost:
    """Return forward calls, time, memory and disk of a part.

    Raises:
        CallError: a speed that is not above 0.
    """
    if not 0 < tflops < float("inf"):
        raise CallError(f"tflops: expected a number above 0, found {tflops}")
    shape = part.shape
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
    a_step = 4 * canvas * (5 * shape.layers * shape.heads + 2 * shape.layers * shape.kv_heads)
    disk = part.prompts * steps * a_step if part.recorded else runs * 12_000
    memory = _memory(shape, canvas, part, 1)
    return Cost(runs * steps, seconds / 3600, memory / GIB, _largest_batch(shape, canvas, part), disk / GIB)


def _estimate_likelihoods(part: Part, shape: Shape, tflops: float) -> Cost:
    """Return the cost of likelihoods: a forward call for each different masked canvas, two with guidance, 16 canvases side by side."""
    from sinkscope.decoding.likelihood import GROUP, expected_masks

    context, choices, length = CHOICE_TOKENS[part.task]
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
    """Return how many positions' logits a step needs: the block's, or all of the answer's."""
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
