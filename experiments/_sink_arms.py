"""Shared by the experiments on the sink token: the trained arms of a comparison, the sums they are asked, and how a
result is written.

An arm is a folder that `sinkscope train lab-sink-VARIANT --seed N` (or lab-shifted, lab-shifted-token) has finished.
Arms are compared on the same held-out sums of the kinds they were trained on, without shots. The unit of evidence is
the sum: a value of a sum is the mean over the seeds that both arms have, so intervals hold for these seeds. The means
of the seeds stand beside.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import Arguments, commit, made_by

import sinkscope
from sinkscope.errors import CallError
from sinkscope.lab.problems import Problem, question_text
from sinkscope.lab.prompts import held_out
from sinkscope.statistics.intervals import interval_of_means

LENGTH = 32
"""Tokens of an answer; prompt and answer stay below the 96 tokens of the canvases the arms were trained on."""


@dataclass(frozen=True)
class Arm:
    """One finished training run: its recipe's name, its seed, where it lies, and its recipe."""

    name: str
    seed: int
    folder: Path
    recipe: dict[str, Any]

    def load(self) -> Any:
        return sinkscope.load(str(self.folder), dtype="float32")  # as bundled models are run

    @property
    def validation_losses(self) -> dict[int, float]:
        """By update."""
        rows = [json.loads(line) for line in (self.folder / "training.jsonl").read_text().splitlines()]
        return {row["update"]: row["validation_loss"] for row in rows if "validation_loss" in row}


def find_arms(folder: Path, names: Sequence[str] = ()) -> list[Arm]:
    """Return the finished arms below a folder, by name and seed."""
    found = []
    for path in sorted(folder.glob("*/recipe.json")):
        recipe = json.loads(path.read_text())
        if (path.parent / "model.safetensors").exists() and (not names or recipe["name"] in names):
            found.append(Arm(recipe["name"], recipe["seed"], path.parent, recipe))
    if not found:
        raise CallError(
            f"{folder}: expected folders of finished arms {', '.join(names)}, found none; see docs/sink-token.md for the commands"
        )
    return sorted(found, key=lambda arm: (arm.name, arm.seed))


def sums(arm: Arm, count: int) -> list[Problem]:
    """Return the first held-out sums of the kinds on which an arm was trained."""
    kinds = arm.recipe["canvases"].get("templates") or None
    return [problem for problem in held_out("lab-arith") if kinds is None or problem.template in kinds][:count]


def prompts(arm: Arm, count: int) -> list[str]:
    return [question_text(problem) for problem in sums(arm, count)]


def settings(model: Any, steps: int = LENGTH) -> dict[str, Any]:
    """Return settings with one block, so that every step may write anywhere in the answer, as Dream's sampler does."""
    return {"length": LENGTH, "steps": steps} | ({"block": LENGTH} if model.family.sampler == "llada" else {})


def arguments_of(description: str | None, measures: Iterable[str], problems: int) -> argparse.Namespace:
    """Return the arguments of a script: what is measured, the folder of the arms, and where the result goes."""
    parser = Arguments(description)
    parser.add_argument("what", choices=list(measures))
    parser.add_argument("arms", type=Path)
    parser.add_argument("--problems", type=int, default=problems)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=None, help="keeps what is done here, and goes on from there")
    return parser.parse_args()


def partner(name: str) -> str:
    """Return the name of the arm without a sink that was trained in the same way."""
    return "lab-shifted" if name.startswith("lab-shifted") else "lab-sink-none"


def in_batches(items: Sequence[Any], size: int = 25) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


@dataclass(frozen=True)
class Table:
    """Values of arms: rows by arm name, then seed, then column; each an array over sums, NaN where there is none."""

    values: dict[str, dict[int, dict[str, np.ndarray]]]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for seeds in self.values.values() for row in seeds.values() for column in row))

    def of(self, name: str, column: str, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Return the mean over seeds of every sum."""
        rows = [
            row[column] for seed, row in self.values[name].items() if column in row and (seeds is None or seed in seeds)
        ]
        return np.mean(rows, axis=0) if rows else np.array([np.nan])

    def rows(self) -> list[dict[str, Any]]:
        """Return every arm's mean with its interval over sums, each seed's mean, and the paired difference to the arm
        without a sink.
        """
        found = []
        for name in self.values:
            without = partner(name)
            for column in self.columns:
                values = self.of(name, column)
                if np.isnan(values).all():
                    continue
                row = {
                    "arm": name,
                    "what": column,
                    **_mean(values),
                    "seeds": {
                        s: _mean(r[column])["mean"]
                        for s, r in self.values[name].items()
                        if column in r and not np.isnan(r[column]).all()
                    },
                }
                others = self.values.get(without, {})
                shared = [seed for seed in sorted(set(self.values[name]) & set(others)) if column in others[seed]]
                if name != without and shared:
                    ours, theirs = self.of(name, column, shared), self.of(without, column, shared)
                    row["difference"] = _mean(ours - theirs) | {"to": without, "seeds": shared}
                found.append(row)
        return found


def _mean(values: np.ndarray) -> dict[str, Any]:
    found = interval_of_means(np.asarray(values, dtype=float)[:, None])
    ends = [None if np.isnan(end[0]) else float(end[0]) for end in (found.low, found.high)]
    return {"mean": float(found.mean[0]), "interval": ends, "n": int(found.prompts[0])}


def ratio_interval(above: np.ndarray, below: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Return a ratio of two means over the same sums, with its 95 % percentile interval."""
    draws = np.random.default_rng(seed).integers(0, len(above), (2000, len(above)))
    tops, bottoms = above[draws].mean(axis=1), below[draws].mean(axis=1)
    drawn = tops[bottoms > 0] / bottoms[bottoms > 0]
    return {
        "mean": float(above.mean() / below.mean()),
        "interval": [float(end) for end in np.percentile(drawn, [2.5, 97.5])],
        "n": len(above),
    }


def measure_arms(
    arms: Sequence[Arm],
    measure: Callable[[Arm, Any], dict[str, np.ndarray]],
    *,
    keep: Path | None = None,
    asked: Any = None,
) -> Table:
    """Measure every arm.

    Args:
        keep: folder for what is done, an arm a file; the same call goes on there after a kill, or with more arms.
        asked: what else decides the values besides the weights and the commit (a number of problems …).
    """
    values: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for arm in arms:
        print(f"{arm.name}, seed {arm.seed}", file=sys.stderr, flush=True)
        model = arm.load()
        file = None if keep is None else keep / f"{arm.name}-seed{arm.seed}.json"
        asker = {"asked": asked, "weights": model.card.weight_hash, "commit": commit()}
        kept = json.loads(file.read_text()) if file is not None and file.exists() else {}
        if kept.get("made_by") == asker:
            found = {column: np.array(one, dtype=float) for column, one in kept["values"].items()}
        else:
            with torch.no_grad():
                found = measure(arm, model)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                beside = file.with_suffix(".writing")
                beside.write_text(
                    json.dumps({"made_by": asker, "values": {column: one.tolist() for column, one in found.items()}})
                )
                beside.replace(file)
        values.setdefault(arm.name, {})[arm.seed] = found
    return Table(values)


def show(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows of `Table.rows` as Markdown."""
    lines = ["| arm | what | mean (95 % interval over sums) | seeds | minus the arm without |", "|---|---|---|---|---|"]
    for row in rows:
        seeds = ", ".join(f"{seed}: {value:.3g}" for seed, value in row.get("seeds", {}).items())
        difference = _shown(row["difference"]) if "difference" in row else "–"
        lines.append(f"| {row['arm']} | {row['what']} | {_shown(row)} | {seeds} | {difference} |")
    return "\n".join(lines)


def _shown(value: dict[str, Any]) -> str:
    low, high = value["interval"]
    return f"{value['mean']:.3g}" + (f" ({low:.3g} to {high:.3g})" if low is not None else "")


def write(out: Path, claim: str, document: dict[str, Any], table: str, arms: Sequence[Arm], started: float) -> None:
    """Write a result as JSON and as Markdown: claim, command, commit, arms and seeds, cost, numbers."""
    head = {
        "claim": claim,
        **made_by(),
        "arms": {arm.name: [one.seed for one in arms if one.name == arm.name] for arm in arms},
        "wall_seconds": round(time.time() - started),
        "torch": torch.__version__,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(head | document, indent=1) + "\n")
    about = "\n".join(
        f"* {key}: {value if not isinstance(value, dict) else json.dumps(value)}"
        for key, value in head.items()
        if key != "claim"
    )
    out.with_suffix(".md").write_text(f"# {claim}\n\n{about}\n\n{table}\n")
    print(table)
