"""The same generation recorded, and recorded while the top sink is hidden, by the previous-step rule and by costlier
ways of measuring.

A bidirectional Llama of about 100 M parameters with random weights, fp32, eight steps of LLaDA's sampler on a canvas of
S tokens. The previous-step rule needs no second pass: one sweep gives the columns with and without the hiding. Sweeps
per layer and step are counted.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _measuring import flags, interleaved, ratio, show
from recording_overhead import STEPS, model_of, plain

LENGTHS = (256, 512, 1024)
REPEATS = 3
RULES = {
    "previous": "top:1",
    "zero": "top:1@zero",
    "last_row": "top:1@last_row",
    "above": "above:3",
    "random": "random:1",
    "mass": "mass:1",
    "persistent": "persistent:1",
    "ranks": "ranks:1",
    "class": "class:1",
    "window": "window:4+64",
    "current": "top:1@current",
    "clean": "top:1@clean",
}


def recorded(model: Any, length: int, rule: str) -> Callable[[], None]:
    """Eight steps, written to disk as a trace, under a rule."""
    import sinkscope

    run, hide = plain(model, length), sinkscope.parse_rule(rule)

    def record() -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            sinkscope.recording(model, out=Path(folder) / "trace"),
            hide(model),
        ):
            run()

    return record


def sweeps(model: Any, rule: str) -> float:
    """Sweeps over a layer's attention in a step, counted on a short canvas."""
    from sinkscope.attention import call

    compute, count = call.compute, [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return compute(*args, **kwargs)

    call.compute = counted
    try:
        recorded(model, 80, rule)()
    finally:
        call.compute = compute
    return count[0] / (STEPS * model.card.layers)


def main() -> None:
    given = flags(lengths=LENGTHS, rules=tuple(RULES), rounds=REPEATS)
    torch.set_num_threads(2)
    model = model_of()
    rules = {name: RULES[name] for name in given.rules}
    passes = {name: sweeps(model, rule) for name, rule in rules.items()}
    rows = []
    for length in given.lengths:
        runs = {"recorded": recorded(model, length, "none")} | {
            name: recorded(model, length, rule) for name, rule in rules.items()
        }
        seconds = interleaved(runs, given.rounds)
        for name in rules:
            each = [one / base for one, base in zip(seconds[name], seconds["recorded"], strict=True)]
            row = {"length": length, "rule": name, "over_recorded_time": ratio(seconds, name, "recorded")}
            rows.append(
                row | {"least": round(min(each), 3), "largest": round(max(each), 3), "sweeps": round(passes[name], 2)}
            )
    show(rows, given.json)


if __name__ == "__main__":
    main()
