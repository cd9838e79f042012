"""Grafts: the stored keys and values of a canvas and its residual stream, and what sinks get of another's."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention import Columns, LayerCall, Replacer, Watcher, subscribed
from sinkscope.attention.stacks import find_stacks
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.roles.head_roles import Rules
from sinkscope.roles.probes import Probe, as_written, predictions
from sinkscope.roles.removal import TOKENS, Sight, look, removals_of


@dataclass(frozen=True, eq=False)
class Graft:
    """Keys of one head at some positions, and what they get: values, and keys that are already rotated, if any.

    Of no head (−1): the residual stream at the input of the layer, in ``value``.
    """

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
        streams: what enters each layer, [position, width]; none where it is not one residual stream.
        masked: whether a mask stands there.
        chosen: positions that are replaced, in heads that have a sink and plain keys.
        free: keys that are no sinks.
        taken: share of the readers' attention on the chosen keys.
    """

    probe: Probe
    keys: list[Tensor]
    values: list[Tensor]
    streams: list[Tensor]
    masked: Bool[np.ndarray, " key"]
    chosen: dict[At, Int[np.ndarray, " key"]]
    free: Bool[np.ndarray, "layer head key"]
    taken: dict[At, float]

    def content(self, layer: int, head: int, positions: Any) -> tuple[Tensor, Tensor]:
        """Return keys and values, [key, dim]; of no head (−1) the stream twice."""
        if head < 0:
            return self.streams[layer][positions], self.streams[layer][positions]
        shared = self.free.shape[1] // len(self.keys[layer])
        return self.keys[layer][head // shared][positions], self.values[layer][head // shared][positions]

    def has(self, at: At, masked: Bool[np.ndarray, " key"]) -> bool:
        """Return whether it has chosen keys there, on all these kinds of places."""
        return at in self.chosen and {*masked.tolist()} <= {*self.masked[self.chosen[at]].tolist()}

    def chosen_on(self, at: At, masked: bool) -> Int[np.ndarray, " key"]:
        """Return the chosen keys on one kind of place."""
        return self.chosen[at][self.masked[self.chosen[at]] == masked]

    def beside(self, layer: int, position: int) -> int | None:
        """Return the nearest position on the same kind of place that is a sink in no head of a layer."""
        found = np.flatnonzero(self.free[layer].all(0) & (self.masked == self.masked[position]))
        return int(found[np.abs(found - position).argmin()]) if len(found) else None


def rotates(model: Model) -> bool:
    """Return whether keys can be turned."""
    return getattr(model.network.model, "rotary_emb", None) is not None


def canvas_of(model: Model, probe: Probe, rules: Rules, seed: int) -> Canvas:
    """Look at one canvas."""
    sight = look(model, probe)
    if model.family.causal and probe.readers.argmax() and not sight.stored:
        raise CallError(f"{model.card.name}: expected layers that store nothing but keys and values, found others")
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    streams, stack = list[Any](), find_stacks(model.network)[0]
    with as_written(model, probe), subscribed(model.network, keeper := Keeper()), ExitStack() as hooks:
        for block in dict.fromkeys(stack.blocks.values()):
            handle = block.register_forward_pre_hook(lambda block, given: streams.extend(given[:1]))
            hooks.callback(handle.remove)
        predictions(model, tokens, torch.from_numpy(probe.readers))
    plain = len(streams) == len(sight.columns) and all(one.shape[:2] == tokens.shape for one in streams)
    streams = [one[0].float().cpu() for one in streams] if plain else []
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
    masked = np.isin(probe.tokens, [] if model.card.mask_id is None else [model.card.mask_id])
    return Canvas(probe, keys, keeper.values, streams, masked, chosen, free, taken)


def grafts_of(
    model: Model, mine: Canvas, donor: str, with_key: bool, others: Sequence[Canvas], rng: np.random.Generator
) -> dict[At, Graft]:
    """Return a graft for all chosen keys that have the donor among ``others``, canvases by falling priority; a mask
    gets what a mask has, a token that is written what a written one has.
    """
    found = {}
    for at, positions in mine.chosen.items():
        (layer, head, kind), masked = at, mine.masked[positions]
        having = [one for one in others if one.has(at, masked)]
        key, value = mine.content(layer, head, positions)
        if donor == "zero":
            value = torch.zeros_like(value)
        elif donor != "text" and not having:
            continue
        for place in np.unique(masked).tolist() if donor != "zero" else ():
            there = torch.from_numpy(np.flatnonzero(masked == place))
            if donor == "mean":
                many = [one.content(layer, head, one.chosen_on(at, place)) for one in having]
                given = [torch.stack([content.mean(0) for content in one]).mean(0) for one in zip(*many, strict=True)]
            else:
                from_text = np.flatnonzero(mine.free[layer, head] & (mine.masked == place))
                theirs = from_text if donor == "text" else having[0].chosen_on(at, place)
                if not len(theirs):
                    break
                if donor == "text" or kind == "plain":
                    theirs = rng.choice(theirs, len(there))
                given = (mine if donor == "text" else having[0]).content(layer, head, theirs)
            key[there], value[there] = given
        else:
            moved = turned(model, key.to(model.device), torch.from_numpy(positions)) if with_key else None
            found[at] = Graft(layer, head, positions, value, moved)
    return found


def stream_grafts_of(mine: Canvas, donor: str, others: Sequence[Canvas]) -> dict[At, Graft]:
    """Return the residual streams that the sinks of each layer get at its input, of the sink of the first head that has
    it; plain: the nearest positions that are no sinks, from those nearest to the donor's sink. ``text``: from there.
    """
    found = dict[At, Graft]()
    for at in (one for one in mine.chosen if one[2] == "sink"):
        layer, sink = at[0], int(mine.chosen[at][0])
        having = [one for one in others if one.has(at, mine.masked[[sink]])]
        pairs = [(one, int(one.chosen[at][0])) for one in (having if donor == "mean" else having[:1])]
        for kind, to in (("sink", sink), ("plain", mine.beside(layer, sink))):
            given = [(one, place if kind == "sink" else one.beside(layer, place)) for one, place in pairs]
            if donor == "text":
                given = [(mine, mine.beside(layer, sink))] if kind == "sink" else []
            if to is None or not given or any(place is None for _, place in given):
                continue
            stream = torch.stack([one.streams[layer][place] for one, place in given]).mean(0)
            found.setdefault((layer, to, kind), Graft(layer, -1, np.array([to]), stream[None]))
    return found


@torch.no_grad()
def stream_divergences(
    model: Model, probe: Probe, sight: Sight, sets: Sequence[Sequence[Graft]], rows: int = 32
) -> tuple[list[float], list[float]]:
    """Return what `divergences` does of sets of streams, which all later layers and positions see; a reader whose own
    stream is replaced does not count, NaN where none is left.
    """
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    readers, said, kl, kept = torch.from_numpy(probe.readers), sight.log_probabilities, list[float](), list[float]()
    blocks = dict.fromkeys(find_stacks(model.network)[0].blocks.values())
    rows = min(rows, max(1, TOKENS // len(probe.tokens))) if model.device.type == "cpu" else rows
    for start in range(0, len(sets), rows):
        part = list(enumerate(sets[start : start + rows]))
        counted = torch.ones(len(part), len(probe.tokens), dtype=torch.bool)
        for row, grafts in part:
            counted[row, [int(at) for one in grafts for at in one.positions]] = False
        with as_written(model, probe), ExitStack() as hooks:
            for layer, block in enumerate(blocks):

                def replace(block: Any, given: Any, layer: int = layer, part: Any = part) -> Any:
                    stream = given[0].clone()
                    for row, one in ((row, one) for row, grafts in part for one in grafts if one.layer == layer):
                        stream[row, one.positions] = one.value.to(stream)
                    return stream, *given[1:]

                hooks.callback(block.register_forward_pre_hook(replace).remove)
            changed = predictions(model, tokens.expand(len(part), -1), readers)
        weight = counted[:, readers].to(said)
        weight /= weight.sum(-1, keepdim=True)
        same = (changed.argmax(-1) == said.argmax(-1)).float()
        nats = torch.sub(said, changed, out=changed).mul_(said.exp()).sum(-1)
        kl += (nats * weight).sum(-1).clamp(min=0).tolist()
        kept += (same * weight).sum(-1).tolist()
    return kl, kept
