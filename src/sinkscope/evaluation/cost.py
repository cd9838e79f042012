"""The cost of evaluations, estimated from the shapes of networks alone; `assumptions` lists what that assumes."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

GIB = 2**30
USABLE = 0.95
REACHED = 0.4
"""Share of a card's peak that forward calls reach."""
RECORDED = 1.1
ITEM_BYTES = 12_000
AT_MOST = (
    "Every policy is counted as plain sampling, parallel decoding as a call for each token. "
    "A cache computes fewer positions."
)
PROBLEMS = dict.fromkeys(("gsm8k", "gsm8k_cot", "gsm8k_two_pass", "lab-arith"), 1319)
PROBLEMS |= dict.fromkeys(("humaneval", "humaneval_instruct", "lab-code"), 164)
PROBLEMS |= {"arc_easy": 2376, "arc_challenge": 1172, "hellaswag": 10042, "piqa": 1838, "race": 1045}
PROBLEMS |= {"social_iqa": 1954, "lambada": 5153, "lambada_openai": 5153, "lab-sums": 303}
TEXT_TOKENS = {"gsm8k": (80, 155), "gsm8k_cot": (75, 75), "gsm8k_two_pass": (140, 0)}
TEXT_TOKENS |= {"humaneval": (150, 0), "humaneval_instruct": (320, 0)}
TEXT_TOKENS |= {"lab-arith": (45, 44), "lab-code": (35, 34), "lab-sums": (24, 44)}
CHOICE_TOKENS = {"arc_easy": (30, 4, 5), "arc_challenge": (35, 4, 7), "hellaswag": (75, 4, 25), "piqa": (25, 2, 20)}
CHOICE_TOKENS |= {"race": (450, 4, 8), "social_iqa": (35, 3, 6), "lambada": (80, 1, 2), "lambada_openai": (80, 1, 2)}
"""Typical tokens of a context, the number of choices, and typical tokens of a choice."""


@dataclass(frozen=True)
class Shape:
    """A network's sizes; tied embeddings count once in ``parameters``; without ``head_dim`` heads share ``hidden``."""

    layers: int
    heads: int
    kv_heads: int
    hidden: int
    ffn: int
    vocabulary: int
    parameters: int
    causal: bool = False
    tied: bool = False
    head_dim: int | None = None

    @property
    def width(self) -> int:
        return self.heads * (self.head_dim or self.hidden // self.heads)


@dataclass(frozen=True)
class Part:
    """One piece of work: a task for one model, or recorded generations; ``name`` says what needs it, as a table."""

    name: str
    model: str
    task: str
    rules: tuple[str, ...]
    prompts: int
    shots: int
    settings: Mapping[str, Any] = field(hash=False)
    shape: Shape
    recorded: bool = False
    folder: str = ""

    @property
    def parallel(self) -> bool:
        """Whether it commits by a threshold, in as many calls as it takes."""
        return bool(self.settings.get("threshold") or self.settings.get("factor"))


@dataclass(frozen=True)
class Card:
    """A graphics card: 10¹² operations a second that forward calls reach in bf16, and how fast its memory is read."""

    name: str
    memory_gib: int
    tflops: float
    bytes_per_s: float


Gpu = Literal["a100", "a100-40gb", "h100", "h200", "l40s", "rtx4090"]
CARDS: dict[Gpu, Card] = {
    "a100": Card("an A100 of 80 GB", 80, REACHED * 312, 2.04e12),
    "a100-40gb": Card("an A100 of 40 GB", 40, REACHED * 312, 1.55e12),
    "h100": Card("an H100 of 80 GB", 80, REACHED * 989, 3.35e12),
    "h200": Card("an H200 of 141 GB", 140, REACHED * 989, 4.8e12),
    "l40s": Card("an L40S of 48 GB", 48, REACHED * 362, 0.86e12),
    "rtx4090": Card("an RTX 4090 of 24 GB", 24, REACHED * 165, 1.01e12),
}
"""Peaks of dense bf16 products and bandwidths as NVIDIA's data sheets give them."""
CARD = Card("a card of 24 GB", 24, 125.0, 1.5e12)
"""The card of a dry run that names none: the speed of an A100, and the memory that most people have."""


def card_of(gpu: Gpu | None = None, tflops: float | None = None) -> Card:
    """Return a card by its name, or `CARD`, at another speed where one is given."""
    card = CARD if gpu is None else CARDS[gpu]
    return card if tflops is None else replace(card, tflops=tflops)


@dataclass(frozen=True)
class Cost:
    """The cost of a part: forward calls of each prompt, memory for one prompt, the largest batch on the card."""

    forwards: int
    gpu_hours: float
    memory_gib: float
    batch_on_card: int
    disk_gib: float


def estimate(part: Part, card: Card = CARD) -> Cost:
    """Return forward calls, time, memory and disk of a part."""
    # a rule that looks at clean attention makes one call more a step
    calls = [1 + ("clean" in re.split("[@,]", rule)) for rule in part.rules]
    plain = RECORDED if part.recorded else 1
    slower = [plain if rule == "none" else RECORDED + more - 1 for rule, more in zip(part.rules, calls, strict=True)]
    if "method" in part.settings:
        return _likelihoods(part, card, sum(calls), sum(slower))
    shape, length, prompt = part.shape, part.settings["length"], text_tokens(part.task, part.shots)
    canvas, block = prompt + length, part.settings.get("block", length)
    steps = length if shape.causal or part.parallel else part.settings.get("steps", length)
    prompts = part.prompts * (2 if part.task == "gsm8k_two_pass" else 1)
    copies = 2 if part.settings.get("guidance") else 1  # canvases of one prompt in a call
    denoising = part.settings.get("block_steps", block if "small_block" in part.settings else 0)
    sizes = (shape, canvas, 1 if shape.causal else block, shape.causal or denoising > 0)
    fitting = _largest_batch(*sizes, card) // copies
    if denoising:  # it reads the prompt, then each written block
        starts = range(prompt, prompt + length, block)
        flops = denoising * sum(_flops(shape, block, block, at) for at in starts)
        flops += _flops(shape, prompt, 0) + sum(_flops(shape, block, 0, at) for at in starts)
        steps = 1 + len(starts) * (denoising + 1)
    elif shape.causal:
        flops = _flops(shape, prompt, 1) + sum(_flops(shape, 1, 1, at) for at in range(prompt, canvas))
    else:
        flops = copies * steps * _flops(shape, canvas, block)
    seconds = prompts * sum(slower) * _seconds(shape, flops, steps / max(1, fitting), card)
    a_step = 4 * canvas * (5 * shape.layers * shape.heads + 2 * shape.layers * shape.kv_heads)
    disk = part.prompts * steps * a_step if part.recorded else prompts * len(part.rules) * ITEM_BYTES
    return Cost(prompts * steps * sum(calls), seconds / 3600, _memory(*sizes, copies) / GIB, fitting, disk / GIB)


def _likelihoods(part: Part, card: Card, calls: int, slower: float) -> Cost:
    """Return the cost of likelihoods: a call for each masked canvas, or choice of an autoregressive model."""
    from sinkscope.decoding.likelihood import GROUP, expected_masks

    shape, (context, choices, length) = part.shape, CHOICE_TOKENS[part.task]
    canvases = length if part.settings["method"] == "chain_rule" else expected_masks(length, part.settings["samples"])
    canvases = 1 if shape.causal else canvases
    written = length if choices == 1 else 0
    forwards = part.prompts * (choices * canvases + written) * (2 if part.settings["guidance"] else 1)
    batches = part.prompts * (choices * math.ceil(canvases / GROUP) + written)
    seconds = slower * _seconds(shape, forwards * _flops(shape, context + length, length), batches, card)
    sizes = (shape, context + length, 1 if shape.causal else length, shape.causal)
    disk, memory = part.prompts * len(part.rules) * ITEM_BYTES / GIB, _memory(*sizes, GROUP) / GIB
    return Cost(round(forwards * calls), seconds / 3600, memory, _largest_batch(*sizes, card), disk)


def estimate_passes(shape: Shape, tokens: int, projected: int, passes: int, calls: int, rows: int, card: Card) -> Cost:
    """Return the cost of so many canvases in forward calls of up to ``rows``, with ``projected`` logits."""
    seconds = _seconds(shape, passes * _flops(shape, tokens, projected), calls, card)
    sizes = (shape, tokens, projected, False)
    return Cost(passes, seconds / 3600, _memory(*sizes, rows) / GIB, _largest_batch(*sizes, card), 0.0)


def text_tokens(task: str, shots: int) -> int:
    """Return about how many tokens a prompt of a task has."""
    question, shot = TEXT_TOKENS.get(task, (30, 0))
    return question + shots * shot


def _seconds(shape: Shape, flops: float, reads: float, card: Card) -> float:
    """Return the time of operations, or of reading the weights so many times, whichever is longer."""
    return max(flops / (card.tflops * 1e12), reads * 2 * shape.parameters / card.bytes_per_s)


def _flops(shape: Shape, tokens: int, projected: int, before: int = 0) -> float:
    body = shape.parameters - (1 if shape.tied else 2) * shape.vocabulary * shape.hidden
    attention = 4 * shape.layers * shape.width * tokens * (before + tokens)
    return 2 * body * tokens + attention + 2 * shape.hidden * shape.vocabulary * projected


def _memory(shape: Shape, canvas: int, projected: int, cached: bool, batch: int) -> float:
    activations = canvas * (6 * shape.hidden + 3 * shape.ffn) * 2
    scores = 2 * 4 * shape.heads * min(512, canvas) * canvas
    logits = 3 * 4 * shape.vocabulary * projected
    columns = 3 * 4 * shape.layers * shape.heads * canvas
    cache = 2 * 2 * shape.layers * shape.kv_heads * (shape.width // shape.heads) * canvas if cached else 0
    return 2 * shape.parameters + batch * (activations + scores + logits + columns + cache)


def _largest_batch(shape: Shape, canvas: int, projected: int, cached: bool, card: Card) -> int:
    fixed, one = (_memory(shape, canvas, projected, cached, batch) for batch in (0, 1))
    return max(0, math.floor((card.memory_gib * GIB * USABLE - fixed) / (one - fixed)))


def cost_document(parts: Sequence[Part], card: Card = CARD) -> dict[str, Any]:
    """Return what parts cost, in plain values: a row each, their sum, and what the estimate assumes."""
    costs = [asdict(estimate(part, card)) for part in parts]
    rows = [
        {"part": part.name, "model": part.model, "task": part.task, "prompts": part.prompts, "rules": len(part.rules)}
        | cost
        for part, cost in zip(parts, costs, strict=True)
    ]
    total = {name: sum(cost[name] for cost in costs) for name in ("forwards", "gpu_hours", "disk_gib")}
    assumptions = [
        f"{card.name}: {card.tflops:.4g} TFLOP/s reached in bf16 ({REACHED:.0%} of the peak, an A100's without --gpu), "
        f"weights read at {card.bytes_per_s / 1e12:g} TB/s at most; --tflops says otherwise.",
        "A forward call of S tokens: 2 S (parameters − embeddings) + 4 S² × layers × width of the heads, and the "
        "vocabulary where a token can be committed.",
        "A diffusion model makes one call a step on the whole canvas, with guidance on two; an autoregressive one "
        "reads the prompt once; block diffusion reads the prompt and each block once more than it has steps.",
        f"As many prompts side by side as {card.name} takes (--batch); fewer may take longer.",
        "A likelihood: one call for each different masked canvas, two with guidance, 16 side by side; an only choice "
        "is written too. Texts have typical lengths.",
        f"Watching or hiding costs {RECORDED - 1:.0%}, a rule that looks at clean attention a call more.",
        "Memory: weights in 2 bytes, one layer's activations, 512 queries' attention in 4 bytes, three copies of the "
        f"logits, the cache of an autoregressive model; {1 - USABLE:.0%} kept free. Disk: three sums a key and four "
        "norms a token in 4 bytes; 12 kB an answer.",
    ]
    if any(part.settings.get("cache", "none") != "none" or part.parallel for part in parts):
        assumptions.append(AT_MOST)
    return {
        "parts": rows,
        "total": {**total, "memory_gib": max((cost["memory_gib"] for cost in costs), default=0.0)},
        "card": card.name,
        "card_gib": card.memory_gib,
        "card_suffices": all(cost["batch_on_card"] >= 1 for cost in costs),
        "assumptions": assumptions,
    }


def cost_table(found: Mapping[str, Any]) -> str:
    """Return a cost as lines of text."""
    names = ("part", "model", "task", "prompts", "rules")
    head = [*names, "forwards", "GPU hours", "memory, GiB", f"batch on {found['card_gib']} GB", "disk, GiB"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    total = dict.fromkeys((*names, "batch_on_card"), "") | {"part": "all", **found["total"]}
    for row in [*found["parts"], total]:
        what = [str(row[name]) for name in names]
        what += [f"{row['forwards']:,}", f"{row['gpu_hours']:.2f}", f"{row['memory_gib']:.2f}"]
        what += [str(row["batch_on_card"]), f"{row['disk_gib']:.2f}"]
        lines.append(f"| {' | '.join(what)} |")
    most = min((row["batch_on_card"] for row in found["parts"]), default=0)
    enough = f"suffices for every part, with --batch {most} or less; each part's own limit is in its row"
    answer = enough if found["card_suffices"] else "does not suffice for the parts with a batch of 0"
    card = found["card"][0].upper() + found["card"][1:]
    return "\n".join([*lines, "", f"{card} {answer}.", *(f"Assumed: {line}" for line in found["assumptions"])])
