"""Grafts: the stored keys and values of a canvas, and what sinks get of another's."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention import Columns, LayerCall, Replacer, Watcher, subscribed
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.roles.head_roles import Rules
from sinkscope.roles.probes import Probe, as_written, predictions
from sinkscope.roles.removal import look, removals_of


@dataclass(frozen=True, eq=False)
class Graft:
    """Keys of one head at some positions, and what they get: values, and keys that are already rotated, if any."""

    layer: int
    head: int
    positions: Int[np.ndarray, " key"]
    value: Float[Tensor, "key dim"]
    key: Float[Tensor, "key dim"] | None = None


class Keeper(Watcher):
    """Keeps queries, keys and values of every layer, [head, position, dim], as they are used."""

    def __init__(self) -> None:
        self.queries: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        for kept, one in zip((self.queries, self.keys, self.values), (call.query, call.key, call.value), strict=True):
            kept.append(one[0].float().cpu())


def turned(
    model: Model, vectors: Float[Tensor, "*axes position dim"], by: Int[Tensor, " position"]
) -> Float[Tensor, "*axes position dim"]:
    """Return queries or keys as they are so many positions further on; CallError without rotary positions."""
    rotary = getattr(model.network.model, "rotary_emb", None)
    if rotary is None:
        raise CallError(f"{model.card.name}: expected rotary positions of transformers, found none; keys cannot move")
    cos, sin = rotary(vectors, by[None].to(vectors.device))
    grows = (cos[0, :, :1] ** 2 + sin[0, :, :1] ** 2).sqrt()  # some rotations scale too
    left, right = vectors.chunk(2, dim=-1)
    return (vectors * cos[0] + torch.cat([-right, left], dim=-1) * sin[0]) / grows


class Transplanter(Replacer):
    """Replaces keys and values by the grafts of ``rows[r]`` in row r."""

    def __init__(self, rows: Sequence[Sequence[Graft]], first: int) -> None:
        self.rows = rows

    def replace(self, call: LayerCall) -> tuple[Tensor, Tensor] | None:
        mine = [(row, one) for row, grafts in enumerate(self.rows) for one in grafts if one.layer == call.index]
        if not mine:
            return None
        shared = call.query.shape[1] // call.key.shape[1]
        key, value = (one.repeat_interleave(shared, dim=1) for one in (call.key, call.value))
        for row, one in mine:
            positions = torch.from_numpy(one.positions).to(value.device)
            value[row, one.head, positions] = one.value.to(value)
            if one.key is not None:
                key[row, one.head, positions] = one.key.to(key)
        return key, value


At = tuple[int, int, str]
"""A layer, a head, and ``sink`` or ``plain``."""


@dataclass(frozen=True, eq=False)
class Canvas:
    """One canvas with its stored keys, turned back to position 0, and values, by layer [kv_head, key, dim].

    Attributes:
        chosen: positions that are replaced, in heads that have a sink and plain keys.
        free: keys that are no sinks.
        taken: share of the readers' attention on the chosen keys.
    """

    probe: Probe
    keys: list[Tensor]
    values: list[Tensor]
    chosen: dict[At, Int[np.ndarray, " key"]]
    free: Bool[np.ndarray, "layer head key"]
    taken: dict[At, float]

    def content(self, layer: int, head: int, positions: Any) -> tuple[Tensor, Tensor]:
        """Return keys and values, [key, dim]."""
        shared = self.free.shape[1] // len(self.keys[layer])
        return self.keys[layer][head // shared][positions], self.values[layer][head // shared][positions]

    @cached_property
    def means(self) -> dict[At, tuple[Tensor, Tensor]]:
        """Mean key and value of the chosen keys, [dim]."""
        found = {at: self.content(*at[:2], positions) for at, positions in self.chosen.items()}
        return {at: (key.mean(0), value.mean(0)) for at, (key, value) in found.items()}


def rotates(model: Model) -> bool:
    """Return whether keys can be turned."""
    return getattr(model.network.model, "rotary_emb", None) is not None


def canvas_of(model: Model, probe: Probe, rules: Rules, seed: int) -> Canvas:
    """Look at one canvas."""
    sight = look(model, probe)
    if model.family.causal and probe.readers.argmax() and not sight.stored:
        raise CallError(f"{model.card.name}: expected layers that store nothing but keys and values, found others")
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    with as_written(model, probe), subscribed(model.network, keeper := Keeper()):
        predictions(model, tokens, torch.from_numpy(probe.readers))
    sinks, chosen, taken = sight.sinks(rules.excess), dict[At, Any](), dict[At, float]()
    free = ~sinks
    np.put_along_axis(free, sight.order[..., :1], False, axis=-1)
    for layer, head in np.argwhere(sinks.any(-1)).tolist():
        named = {one.name: one.keys for one in removals_of(sight, sinks[layer, head], layer, head, seed)}
        if named["rowmass"].any():
            for kind, name in (("sink", "sink"), ("plain", "rowmass")):
                chosen[layer, head, kind] = np.flatnonzero(named[name])
                taken[layer, head, kind] = float(sight.reader_rows[layer, head][named[name]].sum())
    keys, back = keeper.keys, -torch.arange(tokens.shape[1])
    if rotates(model):
        keys = [turned(model, one.to(model.device), back).cpu() for one in keys]
    return Canvas(probe, keys, keeper.values, chosen, free, taken)


def grafts_of(
    model: Model, mine: Canvas, donor: str, with_key: bool, others: Sequence[Canvas], rng: np.random.Generator
) -> dict[At, Graft]:
    """Return a graft for all chosen keys that have the donor among ``others``, canvases by falling priority."""
    found = {}
    for at, positions in mine.chosen.items():
        layer, head, kind = at
        having = [one for one in others if at in one.chosen]
        if donor == "zero":
            key, value = mine.content(layer, head, positions)
            value = torch.zeros_like(value)
        elif donor == "text":
            key, value = mine.content(layer, head, rng.choice(np.flatnonzero(mine.free[layer, head]), len(positions)))
        elif not having:
            continue
        elif donor == "mean":
            key, value = (torch.stack(many).mean(0) for many in zip(*(one.means[at] for one in having), strict=True))
            key, value = (one.expand(len(positions), -1) for one in (key, value))
        else:
            theirs = having[0].chosen[at]
            key, value = having[0].content(
                layer, head, theirs if kind == "sink" else rng.choice(theirs, len(positions))
            )
        there = turned(model, key.to(model.device), torch.from_numpy(positions)) if with_key else None
        found[at] = Graft(layer, head, positions, value, there)
    return found
