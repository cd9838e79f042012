"""Norms of sinks beside those of other tokens, per layer; and what both contribute, c_j · ‖v_j‖ (paper 2, Fig. 1)."""

from typing import Any

import numpy as np

from sinkscope.sinks.accumulators.accumulator import Accumulator, Arrays, SeenStep, ratio

KINDS = ("value", "key", "hidden", "contribution")


class SinkNorms(Accumulator):
    """Count, sum and sum of squares over step × head × position, apart for sinks (0) and others (1)."""

    name = "norms"

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        return {
            "count": np.zeros((len(KINDS), 2, layers), np.int64),
            "sum": np.zeros((len(KINDS), 2, layers)),
            "square": np.zeros((len(KINDS), 2, layers)),
        }

    def update(self, step: SeenStep) -> None:
        value_norms = step.layers.norms["value_norms"]
        repeat = self.heads // value_norms.shape[1]
        layer, head, position = np.nonzero(step.selected)
        own = (layer, head // repeat, position)
        weights = step.columns.reshape(self.layers, -1, repeat, step.columns.shape[-1])
        at_sinks = step.columns[layer, head, position]
        for number, kind in enumerate(KINDS):
            if kind == "hidden":
                if "hidden_norms" not in step.layers.norms:
                    continue
                norms, times = step.layers.norms["hidden_norms"][:, 0], self.heads
                chosen = norms[layer, position]
                total, square = norms.sum(axis=1, dtype=np.float64), np.square(norms).sum(axis=1, dtype=np.float64)
            elif kind == "contribution":
                norms, times = value_norms, 1
                chosen = norms[own] * at_sinks
                total = np.einsum("lgrk,lgk->l", weights, norms, dtype=np.float64, casting="unsafe")
                square = np.einsum("lgrk,lgk->l", np.square(weights), np.square(norms), dtype=np.float64, casting="unsafe")
            else:
                norms = step.layers.norms[f"{kind}_norms"]
                chosen, times = norms[own], repeat
                total, square = norms.sum(axis=(1, 2), dtype=np.float64), np.square(norms).sum(axis=(1, 2), dtype=np.float64)
            self._add(number, layer, chosen.astype(np.float64), total * times, square * times, step.columns[0].size)

    def _add(self, kind: int, layer: np.ndarray, chosen: np.ndarray, total: np.ndarray, square: np.ndarray, count: int) -> None:
        sinks = np.bincount(layer, minlength=self.layers)
        sink_sum = np.bincount(layer, chosen, minlength=self.layers)
        sink_square = np.bincount(layer, chosen**2, minlength=self.layers)
        self.arrays["count"][kind] += np.stack([sinks, count - sinks])
        self.arrays["sum"][kind] += np.stack([sink_sum, total - sink_sum])
        self.arrays["square"][kind] += np.stack([sink_square, square - sink_square])

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        count, total, square = (self.arrays[name] for name in ("count", "sum", "square"))
        mean = ratio(total, count)
        variance = np.maximum(ratio(square, count) - mean**2, 0)
        for number, kind in enumerate(KINDS):
            both = count[number].sum(axis=0)
            pooled = ratio((count[number] * np.nan_to_num(variance[number])).sum(axis=0), both)
            with np.errstate(divide="ignore", invalid="ignore"):
                effect = (mean[number, 0] - mean[number, 1]) / np.sqrt(pooled)
            found[f"{kind}_sinks"], found[f"{kind}_others"] = mean[number]
            found[f"{kind}_effect_size"] = np.where(np.isfinite(effect), effect, np.nan)
        return found
