"""The same generation plain, recorded, and with transformers' output_attentions: time and peak memory as ratios, in one
run.

A bidirectional Llama of about 100 M parameters with random weights, fp32 (or --dtype bfloat16), eight steps of LLaDA's
sampler on a canvas of S tokens; with --shape smollm2 one of SmolLM2-135M's shape. On a busy machine --threads 1 --cpu
takes processor time.
With --kinds recorded,without_output_norms: what the output norms of a trace cost. With --kinds top: the largest columns
alone; statistics: mergeable ones. Extra memory is how far a run raises the peak of a fresh process that has the model loaded and has run one
plain step.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _measuring import extra_memory, flags, interleaved, random_model, ratio, show, spread

LENGTHS = (256, 512, 1024)
STEPS = 8
REPEATS = 9


def model_of(dtype: str = "float32", positions: int = 1024, shape: str = "wide") -> Any:
    """About 100 M parameters: 12 layers, width 768, 12 heads, a vocabulary of 8,192; or SmolLM2-135M's."""
    if shape == "smollm2":
        return random_model(576, 1536, 30, 9, positions, 49152, dtype, kv_heads=3)
    return random_model(768, 2048, 12, 12, positions, 8192, dtype)


def plain(model: Any, length: int) -> Callable[[], None]:
    """Eight steps, nobody watching."""
    import sinkscope

    prompt = torch.arange(4, 4 + length - 64) % 400 + 4
    return lambda: sinkscope.generate(model, prompt, length=64, steps=STEPS, block=64)


def recorded(model: Any, length: int, keep: Any = "columns") -> Callable[[], None]:
    """The same, written to disk as a trace."""
    import sinkscope

    run = plain(model, length)

    def record() -> None:
        with tempfile.TemporaryDirectory() as folder, sinkscope.recording(model, out=Path(folder) / "trace", keep=keep):
            run()

    return record


def without_output_norms(model: Any, length: int) -> Callable[[], None]:
    """The same trace but for its output norms."""
    from sinkscope.attention import OutputProjections

    record, projection = recorded(model, length), OutputProjections._reduced

    def run() -> None:
        OutputProjections._reduced = lambda *given: None  # type: ignore[method-assign]
        try:
            record()
        finally:
            OutputProjections._reduced = projection  # type: ignore[method-assign]

    return run


def output_attentions(model: Any, length: int) -> Callable[[], None]:
    """The same forward calls on eager attention, maps returned; what a user would sum and keep is the columns."""
    tokens = torch.cat([torch.arange(4, 4 + length - 64) % 400 + 4, torch.full((64,), model.card.mask_id)])[None]

    @torch.no_grad()
    def run() -> None:
        model.network.set_attn_implementation("eager")
        for _ in range(STEPS):
            outputs = model.network.model(input_ids=tokens, use_cache=False, output_attentions=True)
            torch.stack([attention.sum(dim=-2) for attention in outputs.attentions])
            model.network.lm_head(outputs.last_hidden_state[:, -64:])
        model.network.set_attn_implementation("sdpa")

    return run


def statistics(model: Any, length: int) -> Callable[[], None]:
    """The same into accumulators, folded into a folder of mergeable statistics; prints once how large it is."""
    import sinkscope

    run, sizes = plain(model, length), list[int]()

    def count() -> None:
        with tempfile.TemporaryDirectory() as folder:
            with sinkscope.recording(model, out=Path(folder) / "statistics", keep="statistics"):
                run()
            if not sizes:
                sizes.append(sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()))
                print(f"statistics of {length} tokens: {sizes[0] / 1000:.1f} kB", file=sys.stderr)

    return count


KINDS = {
    "plain": plain,
    "recorded": recorded,
    "without_output_norms": without_output_norms,
    "output_attentions": output_attentions,
    "top": partial(recorded, keep="top"),
    "statistics": statistics,
}


def prepare(kind: str, length: int, dtype: str, shape: str) -> Callable[[], None]:
    """For a fresh process: the model loaded, one tiny canvas behind it."""
    torch.set_num_threads(2)
    model = model_of(dtype, shape=shape)
    plain(model, 80)()
    return KINDS[kind](model, length)


def main() -> None:
    given = flags(
        lengths=LENGTHS,
        kinds=("plain", "recorded", "output_attentions"),
        rounds=REPEATS,
        what=("time", "memory"),
        dtype="float32",
        shape="wide",
        threads=2,
        cpu=False,
    )
    torch.set_num_threads(given.threads)
    model, clock = model_of(given.dtype, shape=given.shape), time.process_time if given.cpu else time.perf_counter
    rows = []
    for length in given.lengths:
        row: dict[str, Any] = {"length": length, "dtype": given.dtype, "parameters": model.card.parameters}
        others = [name for name in given.kinds if name != "plain"]
        if "time" in given.what:
            runs = {name: KINDS[name](model, length) for name in ("plain", *others)}
            seconds = interleaved(runs, given.rounds, clock)
            row |= {f"{name}_over_plain_time": ratio(seconds, name, "plain") for name in others}
            row |= {f"{name}_spread": spread(seconds, name, "plain") for name in others}
            if {"recorded", "without_output_norms"} <= set(others):
                row["recorded_over_without_output_norms_time"] = ratio(seconds, "recorded", "without_output_norms")
        if "memory" in given.what:
            memory = {
                name: extra_memory(prepare, name, length, given.dtype, given.shape) for name in ("plain", *others)
            }
            row["plain_extra_mib"] = round(memory["plain"], 1)
            row |= {f"{name}_over_plain_memory": round(memory[name] / memory["plain"], 2) for name in others}
            row |= {f"{name}_more_mib": round(memory[name] - memory["plain"], 1) for name in others}
        rows.append(row)
    show(rows, given.json)


if __name__ == "__main__":
    main()
