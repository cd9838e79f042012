"""Diffusers' LLaDA2Pipeline around a network of ours, plain and recorded: the time of eight steps, as ratios, in turns.

The network is that of recording_overhead.py (97.5 M parameters); the pipeline writes one block of 64 tokens in eight
steps behind a prompt, canvases of S tokens. ``cpu`` is the ratio of processor time, which other work on the machine
disturbs less. Needs diffusers.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _measuring import flags, show
from recording_overhead import STEPS, model_of

import sinkscope


def pipeline(model: Any, length: int) -> Callable[..., Any]:
    """One block of 64 tokens in eight steps, eight tokens each."""
    from diffusers import BlockRefinementScheduler, LLaDA2Pipeline

    made = LLaDA2Pipeline(
        model=model.network, scheduler=BlockRefinementScheduler(block_length=64), tokenizer=model.tokenizer
    )
    made.set_progress_bar_config(disable=True)
    prompt = (torch.arange(4, 4 + length - 64) % 400 + 4)[None]
    options = {
        "gen_length": 64,
        "num_inference_steps": STEPS,
        "output_type": "seq",
        "editing_threshold": None,
        "threshold": 2.0,
    }
    return lambda **more: made(
        input_ids=prompt, mask_token_id=model.card.mask_id, eos_early_stop=False, **options, **more
    )


def recorded(model: Any, run: Callable[..., Any]) -> Callable[[], None]:
    """The same, written to disk as a trace with what each step wrote."""

    def record() -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            sinkscope.recording(model, out=Path(folder) / "trace"),
            sinkscope.following(model) as steps,
        ):
            run(callback_on_step_end=steps.callback)
        assert steps.number == STEPS

    return record


def main() -> None:
    given = flags(lengths=(256, 512), rounds=9, threads=2)
    torch.set_num_threads(given.threads)
    model, rows = model_of(), []
    for length in given.lengths:
        plain = pipeline(model, length)
        runs: dict[str, Callable[[], Any]] = {"plain": plain, "recorded": recorded(model, plain)}
        wall: list[float] = []
        cpu: list[float] = []
        for number in range(given.rounds + 1):
            took = {}
            for name, run in runs.items():
                before = time.perf_counter(), time.process_time()
                run()
                took[name] = time.perf_counter() - before[0], time.process_time() - before[1]
            if number:
                wall.append(took["recorded"][0] / took["plain"][0])
                cpu.append(took["recorded"][1] / took["plain"][1])
        row = {
            "length": length,
            "recorded_over_plain_time": round(statistics.median(wall), 3),
            "cpu": round(statistics.median(cpu), 3),
        }
        rows.append(row | {"least": round(min(cpu), 3), "largest": round(max(cpu), 3)})
    show(rows, given.json)


if __name__ == "__main__":
    main()
