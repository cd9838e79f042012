"""What the benchmarks share: interleaved timing, peak memory of a process of its own, the machine, printing."""

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def interleaved(
    runs: dict[str, Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each run, A B C A B C …, after one uncounted round: the machine's drift hits all alike. On a busy
    machine ``time.process_time`` is the better clock.
    """
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            started = clock()
            run()
            seconds[name].append(clock() - started)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, base: str) -> float:
    """Median of the ratios, round by round."""
    return round(statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True)), 3)


def spread(seconds: dict[str, list[float]], name: str, base: str) -> str:
    """The least and the largest of these ratios, and the least time over the least, which others disturb least."""
    ratios = [a / b for a, b in zip(seconds[name], seconds[base], strict=True)]
    return f"{min(ratios):.3f}–{max(ratios):.3f}, {min(seconds[name]) / min(seconds[base]):.3f}"


def _peak(connection: Any, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    run = target(*arguments)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far, of loading, is forgotten
    before = _status("VmRSS")
    run()
    connection.send(_status("VmHWM") - before)


def _status(name: str) -> float:
    """A figure of this process in KiB; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def extra_memory(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> float:
    """MiB by which the peak memory during a run exceeds what a fresh process with everything loaded holds. Linux only.

    Its allocator gives freed memory back at once; otherwise the peak says more about fragments than about the run.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_peak, args=(there, prepare, arguments))
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 17), "MALLOC_TRIM_THRESHOLD_": "0"}
    process.start()
    grown = here.recv()
    process.join()
    return grown / 1024


def random_model(
    width: int, inner: int, layers: int, heads: int, positions: int, vocabulary: int = 0, dtype: str = "float32",
    kv_heads: int | None = None,
) -> Any:  # fmt: skip
    """A bidirectional Llama with random weights and the lab's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sinkscope.lab.prompts import build_tokenizer
    from sinkscope.models import FAMILIES, Model, ModelCard

    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    vocabulary = vocabulary or len(tokenizer)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=positions,
        pad_token_id=None,
    )
    config.is_causal = False
    network = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
    network.set_attn_implementation("sdpa")
    parameters = sum(parameter.numel() for parameter in network.parameters())
    shape = (
        layers,
        heads,
        kv_heads or heads,
        width,
        vocabulary,
        dtype,
        dtype,
        tokenizer.mask_token_id,
        None,
        positions,
    )
    card = ModelCard("random", "llada", "random", parameters, *shape)
    return Model(network, tokenizer, FAMILIES["llada"], card)


def flags(**defaults: Any) -> argparse.Namespace:
    """The command line: --json, and a flag for each default; lists are written with commas."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    for name, default in defaults.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
            continue
        kind = type(default[0]) if isinstance(default, tuple) else type(default)
        many = isinstance(default, tuple)
        parser.add_argument(
            f"--{name}",
            type=(lambda text, kind=kind: tuple(kind(part) for part in text.split(",") if part)) if many else kind,
            default=default,
            help=f"default: {','.join(map(str, default)) if many else default}",
        )
    given = parser.parse_args()
    if getattr(given, "dtype", "float32") not in ("float32", "bfloat16", "float16"):
        parser.error(f"argument --dtype: expected float32, bfloat16 or float16, found {given.dtype}")
    for name, value in vars(given).items():
        numbers = [one for one in (value if isinstance(value, tuple) else [value]) if isinstance(one, int | float)]
        if value == () or not all(isinstance(one, bool) or 0 < one < 1 << 31 for one in numbers):
            parser.error(f"argument --{name}: expected numbers above 0, found {value}")
    return given


def machine() -> dict[str, str]:
    """The model of the processor, and which instructions torch's kernels take of it: figures mean little without
    them.
    """
    import torch

    return {"processor": processor(), "kernels": torch.backends.cpu.get_cpu_capability()}


def processor() -> str:
    """As Linux names it; elsewhere as Python does."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def show(rows: list[dict[str, Any]], as_json: bool | None = None) -> None:
    """Prints the machine and the rows as a table, or as JSON with the machine in every row when --json was given."""
    if flags().json if as_json is None else as_json:
        print(json.dumps([{**row, **machine()} for row in rows]))
        return
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    names = list(rows[0])
    print("  ".join(names))
    for row in rows:
        print("  ".join(str(row[name]).rjust(len(name)) for name in names))
