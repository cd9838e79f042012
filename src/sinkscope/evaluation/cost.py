"""The cost of evaluations, estimated from the shapes of networks alone, without loading a model.

`assumptions` lists the assumptions. Forward calls are counted as a run makes them (the mean where masks are random);
the lengths of prompts and choices are typical values.
"""

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
BLOCK_DIFFUSION = {"block_steps", "small_block"}
"""Settings that only samplers of block diffusion have."""
AT_MOST = (
    "Every policy is counted as plain sampling, parallel decoding as a call for each token. "
    "A cache computes fewer positions."
)
PROBLEMS = dict.fromkeys(("gsm8k", "gsm8k_cot", "gsm8k_two_pass", "lab-arith"), 1319)
PROBLEMS |= dict.fromkeys(("humaneval", "humaneval_instruct", "lab-code"), 164)
PROBLEMS |= {"arc_easy": 2376, "arc_challenge": 1172, "hellaswag": 10042, "piqa": 1838, "race": 1045}
PROBLEMS |= {"social_iqa": 1954, "lambada": 5153, "lambada_openai": 5153, "lab-sums": 303}
"""Number of problems of each task."""
TEXT_TOKENS = {"gsm8k": (80, 155), "gsm8k_cot": (75, 75), "gsm8k_two_pass": (140, 0)}
TEXT_TOKENS |= {"humaneval": (150, 0), "humaneval_instruct": (320, 0)}
TEXT_TOKENS |= {"lab-arith": (45, 44), "lab-code": (35, 34), "lab-sums": (24, 44)}
"""Typical tokens of a question, and of a shot."""
CHOICE_TOKENS = {"arc_easy": (30, 4, 5), "arc_challenge": (35, 4, 7), "hellaswag": (75, 4, 25), "piqa": (25, 2, 20)}
CHOICE_TOKENS |= {"race": (450, 4, 8), "social_iqa": (35, 3, 6), "lambada": (80, 1, 2), "lambada_openai": (80, 1, 2)}
"""Typical tokens of a context, the number of choices, and typical tokens of a choice."""


@dataclass(frozen=True)
class Shape:
    """What the cost of a forward call depends on.

    A causal network writes one token a step, with a cache; tied embeddings are counted once among the parameters.
    Without ``head_dim`` the heads share the hidden width.
    """

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
        """Width of all heads together."""
        return self.heads * (self.head_dim or self.hidden // self.heads)


@dataclass(frozen=True)
class Part:
    """One piece of work: a task for one model, or the recorded generations behind the figures of a paper.

    ``name`` is the command, the policy, or the tables or figures of the paper that need it; ``settings`` are those of
    the sampler, or of the likelihoods; ``folder`` holds the checkpoint, where it is not loaded by its name.
    """

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


def assumptions(card: Card = CARD) -> list[str]:
    """Return what an estimate for a card assumes, a sentence each."""
    return [
        f"{card.name}: {card.tflops:.4g} TFLOP/s reached in bf16 ({REACHED:.0%} of the peak, an A100's without --gpu), "
        f"weights read at {card.bytes_per_s / 1e12:g} TB/s at most; --tflops says otherwise.",
        "A forward call of S tokens: 2 S (parameters − embeddings) + 4 S² × layers × width of the heads, and the "
        "vocabulary where a token can be committed.",
        "A diffusion model makes one call a step on the whole canvas; an autoregressive one reads the prompt once, "
        "then writes to the end; block diffusion reads the prompt and each block once more than it has steps; with "
        "guidance a call has two canvases of a prompt.",
        f"As many prompts side by side as {card.name} takes (--batch): where reading the weights takes longest, fewer "
        "take longer.",
        "A likelihood: one call for each different masked canvas, two with guidance, 16 canvases side by side; an only "
        "choice is written too, token by token; contexts and choices of typical lengths.",
        f"Watching or hiding costs {RECORDED - 1:.0%}, a rule that looks at clean attention a call more. Prompts: "
        "GSM8K 80 tokens and 155 a shot (75 of gsm8k_cot), HumanEval 150 or 320.",
        "Memory: weights in 2 bytes, one layer's activations, 512 queries' attention in 4 bytes, three copies of the "
        f"logits, the cache of an autoregressive model; {1 - USABLE:.0%} kept free. Disk: three sums a key and four "
        "norms a token in 4 bytes; 12 kB an answer.",
    ]


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
    if "method" in part.settings:
        return _estimate_likelihoods(part, card)
    shape, length, prompt = part.shape, part.settings["length"], text_tokens(part.task, part.shots)
    canvas = prompt + length
    steps = length if shape.causal or _parallel(part) else part.settings.get("steps", length)
    prompts = part.prompts * (2 if part.task == "gsm8k_two_pass" else 1)
    copies = 2 if part.settings.get("guidance") else 1  # canvases of one prompt in a call
    fitting = _largest_batch(shape, canvas, part, card) // copies
    if not BLOCK_DIFFUSION.isdisjoint(part.settings):
        block = part.settings["block"]
        steps, flops = _behind_cache(shape, prompt, length, block, part.settings.get("block_steps", block))
    elif shape.causal:
        flops = _flops(shape, prompt, 1) + sum(_flops(shape, 1, 1, at) for at in range(prompt, canvas))
    else:
        flops = copies * steps * _flops(shape, canvas, _committable(part))
    reading = steps * 2 * shape.parameters / card.bytes_per_s / max(1, fitting)
    seconds = prompts * _times_plain(part) * max(flops / (card.tflops * 1e12), reading)
    a_step = 4 * canvas * (5 * shape.layers * shape.heads + 2 * shape.layers * shape.kv_heads)
    disk = part.prompts * steps * a_step if part.recorded else prompts * len(part.rules) * 12_000
    memory = _memory(shape, canvas, part, copies)
    return Cost(prompts * steps * sum(map(_calls, part.rules)), seconds / 3600, memory / GIB, fitting, disk / GIB)


def _times_plain(part: Part) -> float:
    """Return how many times a plain run the answers under all rules take."""
    plain = RECORDED if part.recorded else 1
    return sum(plain if rule == "none" else RECORDED + _calls(rule) - 1 for rule in part.rules)


def _calls(rule: str) -> int:
    """Return the forward calls of a step under a rule: one more where it looks at clean attention."""
    return 1 + ("clean" in re.split("[@,]", rule))


def _behind_cache(shape: Shape, prompt: int, length: int, block: int, block_steps: int) -> tuple[int, float]:
    """Return forward calls and operations of block diffusion: it reads the prompt, then each written block."""
    starts = range(prompt, prompt + length, block)
    denoised = sum(_flops(shape, block, block, at) for at in starts) * block_steps
    read = _flops(shape, prompt, 0) + sum(_flops(shape, block, 0, at) for at in starts)
    return 1 + len(starts) * (block_steps + 1), denoised + read


def _estimate_likelihoods(part: Part, card: Card) -> Cost:
    """Return the cost of likelihoods: a call for each masked canvas, or choice of an autoregressive model."""
    from sinkscope.decoding.likelihood import GROUP, expected_masks

    shape, (context, choices, length) = part.shape, CHOICE_TOKENS[part.task]
    canvases = length if part.settings["method"] == "chain_rule" else expected_masks(length, part.settings["samples"])
    canvases = 1 if shape.causal else canvases
    written = length if choices == 1 else 0
    forwards = part.prompts * (choices * canvases + written) * (2 if part.settings["guidance"] else 1)
    batches = part.prompts * (choices * math.ceil(canvases / GROUP) + written)
    seconds = _times_plain(part) * max(
        forwards * _flops(shape, context + length, length) / (card.tflops * 1e12),
        batches * 2 * shape.parameters / card.bytes_per_s,
    )
    block = replace(part, settings={"length": length})
    return Cost(
        round(forwards * sum(map(_calls, part.rules))),
        seconds / 3600,
        _memory(shape, context + length, block, GROUP) / GIB,
        _largest_batch(shape, context + length, block, card),
        part.prompts * len(part.rules) * 12_000 / GIB,
    )


def estimate_passes(
    shape: Shape, tokens: int, projected: int, passes: int, calls: int, rows: int, card: Card = CARD
) -> Cost:
    """Return the cost of forward passes over whole canvases.

    Args:
        tokens: of a canvas; projected: those whose logits are needed.
        passes: canvases in all; calls: forward calls that they share; rows: canvases in one call at most.
    """
    computing = passes * _flops(shape, tokens, projected) / (card.tflops * 1e12)
    seconds = max(computing, calls * 2 * shape.parameters / card.bytes_per_s)
    whole = replace(shape, causal=False)  # no cache is kept
    part = Part("", "", "", (), 0, 0, {"length": projected}, shape)
    memory = _memory(whole, tokens, part, rows) / GIB
    return Cost(passes, seconds / 3600, memory, _largest_batch(whole, tokens, part, card), 0.0)


def text_tokens(task: str, shots: int) -> int:
    """Return the typical tokens of a prompt of a task."""
    question, shot = TEXT_TOKENS.get(task, (30, 0))
    return question + shots * shot


def _flops(shape: Shape, tokens: int, projected: int, before: int = 0) -> float:
    body = shape.parameters - (1 if shape.tied else 2) * shape.vocabulary * shape.hidden
    attention = 4 * shape.layers * shape.width * tokens * (before + tokens)
    return 2 * body * tokens + attention + 2 * shape.hidden * shape.vocabulary * projected


def _committable(part: Part) -> int:
    """Return how many positions' logits a step needs: the block's, or all of the answer's."""
    return part.settings.get("block", part.settings["length"])


def _memory(shape: Shape, canvas: int, part: Part, batch: int) -> float:
    activations = canvas * (6 * shape.hidden + 3 * shape.ffn) * 2
    scores = 2 * 4 * shape.heads * min(512, canvas) * canvas
    logits = 3 * 4 * shape.vocabulary * (1 if shape.causal else _committable(part))
    columns = 3 * 4 * shape.layers * shape.heads * canvas
    keeps = shape.causal or not BLOCK_DIFFUSION.isdisjoint(part.settings)
    cache = 2 * 2 * shape.layers * shape.kv_heads * (shape.width // shape.heads) * canvas if keeps else 0
    return 2 * shape.parameters + batch * (activations + scores + logits + columns + cache)


def _largest_batch(shape: Shape, canvas: int, part: Part, card: Card) -> int:
    fixed = _memory(shape, canvas, part, 0)
    each = _memory(shape, canvas, part, 1) - fixed
    return max(0, math.floor((card.memory_gib * GIB * USABLE - fixed) / each))


def cost_document(parts: Sequence[Part], card: Card = CARD) -> dict[str, Any]:
    """Return what parts cost, in plain values: a row each, their sum, and what the estimate assumes."""
    costs = [estimate(part, card) for part in parts]
    rows = [
        {"part": part.name, "model": part.model, "task": part.task, "prompts": part.prompts, "rules": len(part.rules)}
        | asdict(cost)
        for part, cost in zip(parts, costs, strict=True)
    ]
    cheaper = any(part.settings.get("cache", "none") != "none" or _parallel(part) for part in parts)
    return {
        "parts": rows,
        "total": {
            "forwards": sum(cost.forwards for cost in costs),
            "gpu_hours": sum(cost.gpu_hours for cost in costs),
            "memory_gib": max((cost.memory_gib for cost in costs), default=0.0),
            "disk_gib": sum(cost.disk_gib for cost in costs),
        },
        "card": card.name,
        "card_gib": card.memory_gib,
        "card_suffices": all(cost.batch_on_card >= 1 for cost in costs),
        "assumptions": [*assumptions(card), *([AT_MOST] if cheaper else [])],
    }


def _parallel(part: Part) -> bool:
    """Return whether a part commits by a threshold, in as many calls as it takes."""
    return bool(part.settings.get("threshold") or part.settings.get("factor"))


def cost_table(found: Mapping[str, Any]) -> str:
    """Return costs as a Markdown table with its sums."""
    head = ["part", "model", "task", "prompts", "rules", "forwards", "GPU hours", "memory, GiB"]
    head += [f"batch on {found['card_gib']} GB", "disk, GiB"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in found["parts"]:
        what = " | ".join(str(row[name]) for name in ("part", "model", "task", "prompts", "rules"))
        cost = f"{row['forwards']:,} | {row['gpu_hours']:.2f} | {row['memory_gib']:.2f}"
        lines.append(f"| {what} | {cost} | {row['batch_on_card']} | {row['disk_gib']:.2f} |")
    total = found["total"]
    cost = f"{total['forwards']:,} | {total['gpu_hours']:.2f} | {total['memory_gib']:.2f}"
    lines.append(f"| all | | | | | {cost} | | {total['disk_gib']:.2f} |")
    most = min((row["batch_on_card"] for row in found["parts"]), default=0)
    enough = f"suffices for every part, with --batch {most} or less; each part's own limit is in its row"
    answer = enough if found["card_suffices"] else "does not suffice for the parts with a batch of 0"
    card = found["card"][0].upper() + found["card"][1:]
    return "\n".join([*lines, "", f"{card} {answer}.", *(f"Assumed: {line}" for line in found["assumptions"])])
