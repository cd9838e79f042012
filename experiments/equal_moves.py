"""Moves of main sinks at an equal share of attention, by how many queries are averaged, of causal and diffusion models.

Each model writes the same problems and is traced; beside it stands the network whose weights are redrawn
(`_lab_runs.load`). A step of a diffusion model is its whole canvas, 322 to 432 tokens with the solved problems in front;
a causal model is averaged over at most 80 of its newest queries, so the two are not averaged alike: the canvas hides
more moves.

Command   python experiments/equal_moves.py [--prompts 12]
Cost      about 50 minutes of one core.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from _lab_runs import load

import sinkscope
from sinkscope.lab.prompts import problem_prompt
from sinkscope.sinks import averaged_moves
from sinkscope.sinks.tracking import AveragedMoves
from sinkscope.statistics.intervals import interval_of_means, known

MODELS = {
    "lab-autoregressive": {"length": 160},
    "lab-diffusion": {"length": 64, "steps": 64, "block": 64},
    "smollm2": {"length": 160},
    "smollm2-diffusion": {"length": 64, "steps": 64},
}
WINDOWS = (1, 2, 4, 8, 16, 32, 64, 80)
OUT = Path(__file__).parent.parent / "results" / "claims" / "equal-moves.json"


def measure(name: str, redrawn: bool, prompts: int) -> list[dict[str, object]]:
    """Return a row for each number of queries that every trace reaches: moves a head, and heads with a sink."""
    model, found = load(name, redrawn), dict[object, list[AveragedMoves]]()
    for number in range(prompts):
        with TemporaryDirectory() as folder:
            with sinkscope.recording(model, out=f"{folder}/trace"):
                sinkscope.generate(model, problem_prompt("lab-arith", number)["prompt"], **MODELS[name])
            for one in averaged_moves(f"{folder}/trace", WINDOWS):
                found.setdefault(one.queries if model.family.causal else "canvas", []).append(one)
    rows = []
    for queries, moves in found.items():
        if len(moves) < prompts:
            continue
        counted = np.array([[np.nan if one.moves_per_head is None else one.moves_per_head] for one in moves])
        means = interval_of_means(counted)
        numbers = {part: known(round(float(getattr(means, part)[0]), 4)) for part in ("mean", "low", "high")}
        averages = {
            part: round(float(np.mean([getattr(one, part) for one in moves])), 1) for part in ("heads", "steps")
        }
        rows.append({"model": name, "redrawn": redrawn, "queries": queries, "moves": numbers, **averages})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12)
    given = parser.parse_args()
    rows = [row for name in MODELS for redrawn in (False, True) for row in measure(name, redrawn, given.prompts)]
    OUT.write_text(json.dumps({"prompts": given.prompts, "rows": rows}, indent=1) + "\n")
