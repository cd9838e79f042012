"""Does a sink token steady the sinks, and how much of their attention does it take?

Claim     With the token sinks stop moving: attention goes to it instead of to tokens of the text (arXiv 2601.19657,
          §4.3).
Command   python experiments/sink_token_movement.py ARMS [--problems 24] --out results/sink-token/movement
Cost      about 1 minute an arm on one core.
Expected  Fewer moves and less variance of the main sink's position; the token has most of the attention that sinks of
          the text had.
Found     results/sink-token/movement.md once the arms are trained.

Moves are those of each arm's own generations. Attention is compared on the same text: every arm reads the canvases that
the arm without a sink and with the same seed has written, every fourth step of them.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import Arguments, run_script
from _sink_arms import Arm, find_arms, measure_arms, partner, prompts, ratio_interval, settings, show, write

import sinkscope
from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.sinks import find_sinks, is_sink, movement_test, track

EVERY = 4
OWN = "attention on the token, or on the learned score"


def record(arm: Arm, model: Any, count: int, folder: Path) -> list[Any]:
    if not folder.exists():
        with sinkscope.recording(model, out=folder, numbered=True):
            for prompt in prompts(arm, count):
                sinkscope.generate(model, prompt, **settings(model))
    return sinkscope.open_traces(folder)


def moves(trace: Any) -> dict[str, float]:
    """Return moves per head and spread of the main sink's position, over heads that have one in two steps or more."""
    tracks = track(find_sinks(trace))
    main = tracks.main
    test = movement_test(main, tracks.is_sink)
    there = main >= 0
    heads = there.sum(axis=0) >= 2
    position = np.where(there, main, np.nan)[:, heads]
    return {
        "moves of the main sink per head": test.moves_per_head if test.heads else np.nan,
        "moves, steps shuffled": test.null_moves[0] if test.heads else np.nan,
        "variance of the main sink's position": float(np.nanvar(position, axis=0).mean()) if heads.any() else np.nan,
        "heads with a main sink": float(heads.sum()),
        "sinks per head and step": float(find_sinks(trace).moving.sum() / there.size),
    }


class Shares(Watcher):
    """Shares of all attention: of the sink token, of sinks of the text by Eq. 3 with ε = 3, of the largest column of
    each head.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self.main: list[torch.Tensor] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        text = columns.sums[0, :, call.groups.index("all")]
        total = text.shape[0] * text.shape[1]  # every query has 1 to give
        own = 0.0 if columns.prefix is None else float(columns.prefix[0, :, 0].sum())
        sinks = is_sink(text[None].numpy())[0]
        self.rows.append(
            (own / total, float(text[torch.from_numpy(sinks)].sum()) / total, float(text.amax(-1).sum()) / total)
        )
        self.main.append(text.sum(0) / total)


def shares(model: Any, trace: Any, of_others: list[torch.Tensor] | None) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Return means over every fourth canvas of a trace, and every layer's mean column; ``of_others`` are those without
    a sink.
    """
    rows, columns = [], []
    for step in range(0, trace.steps, EVERY):
        tokens = torch.from_numpy(trace.tokens[step].astype(np.int64))[None]
        watcher = Shares()
        with subscribed(model.network, watcher):
            model.network.model(input_ids=tokens, use_cache=False)
        rows.append(np.mean(watcher.rows, axis=0))
        columns += watcher.main
    own, sinks, largest = np.mean(rows, axis=0)
    found = {
        OWN: own,
        "attention on sinks of the text": sinks,
        "attention on the largest column": largest,
    }
    if of_others is not None:  # the five keys of a layer that most attention went to in the arm without
        were = [float(mine[theirs.topk(5).indices].sum()) for mine, theirs in zip(columns, of_others, strict=True)]
        found["attention on the keys that were sinks"] = float(np.mean(were))
    return found, columns


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("arms", type=Path)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=None, help="keeps the traces here")
    arguments = parser.parse_args()
    started, arms = time.time(), find_arms(arguments.arms)
    arms.sort(key=lambda arm: arm.name != partner(arm.name))
    read: dict[tuple[str, int], list[Any]] = {}
    without: dict[tuple[str, int, int], list[torch.Tensor]] = {}
    with tempfile.TemporaryDirectory() as scratch:

        def measure(arm: Arm, model: Any) -> dict[str, np.ndarray]:
            traces = record(arm, model, arguments.problems, (arguments.work or Path(scratch)) / arm.folder.name)
            rows = [moves(trace) for trace in traces]
            pair = partner(arm.name), arm.seed
            if arm.name == pair[0]:
                read[pair] = traces
            for number, trace in enumerate(read.get(pair, [])):
                found, columns = shares(model, trace, without.get((*pair, number)))
                if arm.name == pair[0]:
                    without[*pair, number] = columns
                    found, _ = shares(model, trace, columns)
                rows[number] |= found
            return {key: np.array([row.get(key, np.nan) for row in rows]) for key in rows[0]}

        table = measure_arms(arms, measure)
    rows, less, received, without_sinks = table.rows(), {}, {}, []
    column = "attention on sinks of the text"
    for name in table.values:
        other = partner(name)
        seeds = sorted(set(table.values[name]) & set(table.values.get(other, {})))
        if name != other and seeds and column in table.columns:
            before, after = table.of(other, column, seeds), table.of(name, column, seeds)
            if not before.mean() > 0:
                without_sinks.append(name)
                continue
            less[name] = ratio_interval(before - after, before)
            if table.of(name, OWN, seeds).any():
                received[name] = ratio_interval(table.of(name, OWN, seeds), before)
    lines = [
        f"* {name}: sinks of the text have {told(value)} of it less"
        + (
            f"; the token or score has as much as {told(received[name])} of it"
            if name in received
            else "; no place of its own"
        )
        for name, value in less.items()
    ] + [f"* {name}: none to compare with, as the arm without has no sinks" for name in without_sinks]
    text = show(rows) + "\n\nOf the attention that sinks of the text have in the arm without:\n\n" + "\n".join(lines)
    document = {"rows": rows, "less_on_text_sinks": less, "received_over_text_sinks": received}
    write(arguments.out, "A sink token and the moves of the sinks", document, text, arms, started)


def told(value: dict[str, Any]) -> str:
    return f"{value['mean']:.2f} ({value['interval'][0]:.2f} to {value['interval'][1]:.2f})"


if __name__ == "__main__":
    run_script(main)
