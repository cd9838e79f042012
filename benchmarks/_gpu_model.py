"""What the rows of gpu.py share: the random model, and times by the device's own clock."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

SHAPES = {
    "llada-8b": {"layers": 32, "heads": 32, "width": 4096, "inner": 12288, "vocabulary": 126_464},
    "tiny": {"layers": 3, "heads": 4, "width": 128, "inner": 256, "vocabulary": 1024},
}


def random_model(shape: str, device: str, dtype: torch.dtype, max_positions: int) -> Any:
    """Random weights made on the device itself, the lab's tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from sinkscope.lab.prompts import build_tokenizer
    from sinkscope.models import FAMILIES, Model, ModelCard

    torch.manual_seed(0)
    given, tokenizer = SHAPES[shape], build_tokenizer()
    config = LlamaConfig(
        vocab_size=given["vocabulary"],
        hidden_size=given["width"],
        intermediate_size=given["inner"],
        num_hidden_layers=given["layers"],
        num_attention_heads=given["heads"],
        max_position_embeddings=max_positions,
        pad_token_id=None,
    )
    config.is_causal = False
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            network = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    name = str(dtype).removeprefix("torch.")
    card = ModelCard(
        f"random-{shape}", "llada", "random", parameters, given["layers"], given["heads"], given["heads"], given["width"],
        given["vocabulary"], name, name, tokenizer.mask_token_id, None, max_positions,
    )  # fmt: skip
    return Model(network, tokenizer, FAMILIES["llada"], card)


def half_masked(model: Any, given: Any) -> torch.Tensor:
    """Canvases [batch, length] whose second halves are masks."""
    half = given.length // 2
    tokens = torch.full((given.batch, given.length), model.card.mask_id, device=given.device)
    tokens[:, :half] = torch.arange(half, device=given.device) % 400 + 4
    return tokens


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Clock:
    """Marks in a stream of work, and the milliseconds between them: CUDA events, so that nobody waits; on a CPU the
    wall's clock.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.marks: list[Any] = []

    def mark(self) -> None:
        if self.device.startswith("cuda"):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def between(self) -> list[float]:
        """Milliseconds from each mark to the next; waits for the device."""
        wait(self.device)
        pairs = list(zip(self.marks, self.marks[1:], strict=False))
        if self.device.startswith("cuda"):
            return [before.elapsed_time(after) for before, after in pairs]
        return [1000 * (after - before) for before, after in pairs]


def queued(
    runs: dict[str, Callable[[], Any]], device: str, rounds: int, calls: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Milliseconds a call of each run, interleaved, after an uncounted round: ``calls`` in the queue at once, between
    two marks.

    Returns:
        The device's milliseconds by round, and the median of those that Python took to queue a call: where it is the
        larger part, a figure is of Python and not of the kernel.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    host: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            clock = Clock(device)
            wait(device)
            clock.mark()
            started = time.perf_counter()
            for _ in range(calls):
                run()
            queueing = time.perf_counter() - started
            clock.mark()
            if number:
                found[name].append(clock.between()[0] / calls)
                host[name].append(1000 * queueing / calls)
            else:
                wait(device)
    return found, {name: median(some) for name, some in host.items()}


def over(found: dict[str, list[float]], name: str, base: str) -> float:
    """Median of the ratios, round by round."""
    return round(median(a / b for a, b in zip(found[name], found[base], strict=True)), 3)


def peak(run: Callable[[], Any], device: str) -> int | None:
    """Bytes of GPU memory at most during a run, weights included, and what is freed but still waits for a copy; None on
    a CPU.
    """
    if not device.startswith("cuda"):
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.memory_stats()["active_bytes.all.peak"]
