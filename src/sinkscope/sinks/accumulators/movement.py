"""How main sinks move, and whether masked and unmasked queries share them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sinkscope.sinks.accumulators.accumulator import Accumulator, Arrays, SeenStep, ratio
from sinkscope.sinks.groups import LEAST_QUERIES, sizes_of_groups


class Moves(Accumulator):
    """Moves of the main sink of every head, between steps in a row that have one, and the drift of whole prompts."""

    name = "moves"

    def __init__(self, layers: int, heads: int) -> None:
        super().__init__(layers, heads)
        self._before: np.ndarray | None = None
        self._step = 0
        self._line = np.zeros((5, layers, heads))  # n, Σt, Σp, Σtp, Σt² of this prompt

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        whole = {name: np.zeros((layers, heads), np.int64) for name in ("pairs", "moves", "distance", "absolute_distance", "drifts")}
        return {**whole, "drift": np.zeros((layers, heads))}

    def update(self, step: SeenStep) -> None:
        main, before = step.main.astype(np.int64), self._before
        if before is not None:
            both = (main >= 0) & (before >= 0)
            distance = np.where(both, main - before, 0)
            self.arrays["pairs"] += both
            self.arrays["moves"] += distance != 0
            self.arrays["distance"] += distance
            self.arrays["absolute_distance"] += np.abs(distance)
        present, time = main >= 0, float(self._step)
        place = np.where(present, main, 0).astype(np.float64)
        self._line += np.stack([present, present * time, place, place * time, present * time * time])
        self._before, self._step = main, self._step + 1

    def finish(self, texts: Mapping[int, str]) -> None:
        count, time, place, product, square = self._line
        spread = square * count - time * time
        drifting = (count >= 2) & (spread > 0)
        slope = np.divide(product * count - time * place, spread, out=np.zeros_like(spread), where=drifting)
        self.arrays["drift"] += slope
        self.arrays["drifts"] += drifting
        self._before, self._step, self._line = None, 0, np.zeros_like(self._line)

    def result(self) -> dict[str, Any]:
        arrays = self.arrays
        return {
            "moves_per_step": ratio(arrays["moves"], arrays["pairs"]),
            "distance_per_move": ratio(arrays["absolute_distance"], arrays["moves"]),
            "drift_per_step": ratio(arrays["drift"], arrays["drifts"]),
        }


class QueryGroups(Accumulator):
    """Whether masked queries have the same strongest key as unmasked, prompt and written ones; groups of at least 8 queries."""

    name = "groups"
    others = ("", "_prompt", "_written")

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        return {name + other: np.zeros((layers, heads), np.int64) for name in ("compared", "split") for other in QueryGroups.others}

    def update(self, step: SeenStep) -> None:
        by_group = step.layers.group_sums
        if "masked" not in by_group:
            return
        sizes = sizes_of_groups(step.masked[None], np.array([len(step.masked)]), step.prompt_length)[:, 0]
        masked, unmasked, prompt, written = sizes.tolist()
        rest = step.columns - by_group["masked"]
        against = [("", unmasked, rest)]
        if "prompt" in by_group:
            against += [("_prompt", prompt, by_group["prompt"]), ("_written", written, rest - by_group["prompt"])]
        strongest = by_group["masked"].argmax(axis=-1)
        for name, queries, columns in against:
            if min(masked, queries) >= LEAST_QUERIES:
                self.arrays[f"compared{name}"] += 1
                self.arrays[f"split{name}"] += strongest != columns.argmax(axis=-1)

    def result(self) -> dict[str, Any]:
        return {f"split{name}": ratio(self.arrays[f"split{name}"], self.arrays[f"compared{name}"]) for name in self.others}
