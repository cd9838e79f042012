"""Attention without what a claim speaks of: the null of every part, beside the network whose weights are redrawn.

    keys    each column goes to another key of its step, layer and head; a causal model's rows each for itself
    steps   each head's columns of whole steps change places: how sinks move, and what goes with their strength
    rows    each query's attention goes to other keys, query by query, at three steps: how far queries agree at all, as
            the other two leave the number and the strength of sinks as they are

Of a causal model only the rows of the newest queries are shuffled, over the keys that they see, whatever the kind; its
columns, to which early keys get more, have no null.
"""

from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from sinkscope.attention import Columns, LayerCall, Watcher, subscribed

Kind = Literal["keys", "steps", "rows"]
STEPS = [8, 32, 56]


def scores_of(call: LayerCall) -> torch.Tensor:
    """Return the scores [head, query, key] of the first row of a call, before the softmax."""
    keys = call.key[0].repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=0)
    return call.query[0] @ keys.mT / call.query.shape[-1] ** 0.5


class _Rows(Watcher):
    """The columns of every layer of a call, had each query's attention gone to other keys."""

    def __init__(self) -> None:
        self.columns: list[np.ndarray] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        maps = torch.softmax(scores_of(call), dim=-1)
        self.columns.append(maps.float().gather(-1, torch.rand(maps.shape).argsort(-1)).sum(dim=-2).numpy())


class Shuffled:
    """A trace with shuffled attention, whose tokens and norms stay as they are; ``model`` is the one that wrote it."""

    def __init__(self, trace: Any, kind: Kind, seed: int, model: Any) -> None:
        self._trace, self._seed, self._model = trace, seed, model
        self._kind: Kind = "keys" if trace.causal else kind
        self._steps = [step * trace.steps // 64 for step in STEPS]  # most runs have 64
        self.steps = len(STEPS) if self._kind == "rows" else trace.steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._trace, name)
        if self._kind == "rows" and name == "column_sums":
            return self._rows
        if self._kind == "rows" and getattr(found, "shape", (0,))[0] == self._trace.steps:
            return np.asarray(found[:])[self._steps]
        if not name.startswith("last_query" if self._trace.causal else "column_sums"):
            return found
        columns = np.array(found[:], np.float32)
        if self._kind == "steps":  # the same order for the columns of all groups
            order = np.random.default_rng(self._seed).random(columns.shape[:3]).argsort(axis=0)
            return np.take_along_axis(columns, order[..., None], axis=0)
        noise = np.random.default_rng([self._seed, *name.encode()]).random(columns.shape)
        order = np.where(np.isnan(columns), np.inf, noise).argsort(axis=-1)
        return np.take_along_axis(columns, order, axis=-1)

    @cached_property
    @torch.no_grad()
    def _rows(self) -> np.ndarray:
        torch.manual_seed(self._seed)
        found = []
        for step in self._steps:
            tokens = torch.from_numpy(self._trace.tokens[step].astype(np.int64))
            with subscribed(self._model.network, rows := _Rows()):
                self._model.network.model(input_ids=tokens[None], use_cache=False)
            found.append(np.stack(rows.columns))
        return np.stack(found)
