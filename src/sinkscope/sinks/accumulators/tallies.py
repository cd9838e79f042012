"""Which tokens are sinks: counts by token, beside those of the canvas."""

from typing import Any, Self

import numpy as np

from sinkscope.sinks.accumulators.accumulator import Accumulator, Arrays, SeenStep


class TokenTallies(Accumulator):
    """Sparse counts by token id: as a sink, as the main sink, and on the canvas, over step × layer × head.

    Its arrays grow with the tokens that occur, at most with the vocabulary.
    """

    name = "tokens"

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        return {"ids": np.zeros(0, np.int32), "counts": np.zeros((0, 3), np.int64)}

    def update(self, step: SeenStep) -> None:
        ids, place = np.unique(step.tokens, return_inverse=True)
        main = step.main[step.main >= 0]
        at = np.stack(
            [
                step.selected.sum(axis=(0, 1)),
                np.bincount(main.ravel(), minlength=len(step.tokens)),
                np.full(len(step.tokens), self.layers * self.heads),
            ],
            axis=-1,
        )
        counts = np.zeros((len(ids), 3), np.int64)
        np.add.at(counts, place.ravel(), at)
        self._add(ids.astype(np.int32), counts)

    def merge(self, other: Self) -> None:
        self._add(other.arrays["ids"], other.arrays["counts"])

    def _add(self, ids: np.ndarray, counts: np.ndarray) -> None:
        union = np.union1d(self.arrays["ids"], ids).astype(np.int32)
        whole = np.zeros((len(union), 3), np.int64)
        whole[np.searchsorted(union, self.arrays["ids"])] += self.arrays["counts"]
        whole[np.searchsorted(union, ids)] += counts
        self.arrays = {"ids": union, "counts": whole}

    def result(self) -> dict[str, Any]:
        """Tokens ordered by how often they are sinks; ``sinks``, ``main_sinks`` and ``canvas`` count step × layer × head."""
        counts = self.arrays["counts"]
        order = np.lexsort((self.arrays["ids"], -counts[:, 0]))
        return {
            "token": self.arrays["ids"][order],
            **{name: counts[order, at] for at, name in enumerate(("sinks", "main_sinks", "canvas"))},
        }
