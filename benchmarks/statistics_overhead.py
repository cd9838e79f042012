"""The same generation plain, and with mergeable statistics kept: time as a ratio, in one run; and the size of what is kept.

The model and the sampler are those of recording_overhead: about 100 M parameters with random weights, fp32, eight steps of LLaDA's
sampler on a canvas of S tokens.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _measuring import flags, interleaved, ratio, show
from recording_overhead import STEPS, plain, random_model

LENGTHS = (256, 512)
REPEATS = 7


def counted(model: Any, length: int, sizes: list[int]) -> Callable[[], None]:
    """Eight steps into accumulators, folded into a folder of statistics."""
    import sinkscope

    run = plain(model, length)

    def count() -> None:
        with tempfile.TemporaryDirectory() as folder:
            with sinkscope.recording(model, out=Path(folder) / "statistics", keep="statistics"):
                run()
            sizes.append(sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()))

    return count


def main() -> None:
    given = flags(lengths=LENGTHS, repeats=REPEATS)
    torch.set_num_threads(2)
    model = random_model()
    rows = []
    for length in given.lengths:
        sizes: list[int] = []
        seconds = interleaved(
            {"plain": plain(model, length), "statistics": counted(model, length, sizes)}, given.repeats
        )
        rows.append(
            {
                "length": length,
                "steps": STEPS,
                "parameters": model.card.parameters,
                "statistics_over_plain_time": ratio(seconds, "statistics", "plain"),
                "plain_seconds": round(min(seconds["plain"]), 3),
                "statistics_kilobytes": round(max(sizes) / 1000, 1),
            }
        )
    show(rows, given.json)


if __name__ == "__main__":
    main()
