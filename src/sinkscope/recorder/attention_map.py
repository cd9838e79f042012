"""Recomputes the attention map of one head: the stored canvas of a step goes through the model again, without a cache.

A map of an autoregressive trace shows all queries on the canvas of its step; their column sums are the running sums.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.errors import CallError, TraceError
from sinkscope.models import Model, block_length
from sinkscope.models.fingerprints import weight_hash_of
from sinkscope.traces import Trace
from sinkscope.traces.stored_maps import TOLERANCE, check_place, column_difference
from sinkscope.traces.trace_array import kept_columns


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """One recomputed map, whose rows add up to 1 minus the share of the network's own sink token, and the largest
    difference between its columns and the recorded ones, in queries' worth of attention.
    """

    attention: Float[np.ndarray, "query key"]
    largest_difference: float


class _OneHead(Watcher):
    """Keeps the map of one head of one layer."""

    def __init__(self, layer: str, head: int) -> None:
        self.layer, self.head = layer, head
        self.attention: Tensor | None = None

    def watch(self, call: LayerCall, columns: Columns) -> None:
        if call.name != self.layer:
            return
        assert call.seen is not None and call.scale is not None
        kv_head = self.head // (call.query.shape[1] // call.key.shape[1])
        query, key = call.query[0, self.head].float(), call.key[0, kv_head].float()
        seen = call.seen()[0]
        scores = (query @ key.T * call.scale).masked_fill(~seen[self.head % len(seen)], -torch.inf)
        front = scores[:, :0]
        if call.own is not None and call.own.logits is not None:
            front = call.own.logits[self.head].to(query).expand(len(query), -1)
        elif call.own is not None and call.own.keys is not None:
            keys = call.own.keys if call.own.keys.ndim == 3 else call.own.keys[0]
            front = query @ keys[kv_head].to(query).T * call.scale
        self.attention = torch.softmax(torch.cat([front, scores], dim=-1), dim=-1)[:, front.shape[-1] :]


def recompute_map(model: Model | nn.Module, trace: Trace, step: int, layer: int, head: int) -> AttentionMap:
    """Return one attention map of a recorded step, computed again by the model that wrote the trace, or by a network
    that is called with token ids alone; negative numbers count from the end.

    Raises:
        CallError: no such step, layer or head, a model with other weights, or a trace that was written with a cache.
        TraceError: columns that differ from the map's, as where keys were hidden while the trace was written.
    """
    step, layer, head = check_place(trace, step, layer, head)
    network: Any = model.network if isinstance(model, Model) else model
    expect_writer(model, trace)
    length = int(trace.lengths[step])
    tokens = torch.from_numpy(trace.tokens[step, :length].astype(np.int64)).to(next(network.parameters()).device)[None]
    block, watcher = block_length(network), _OneHead(trace.layers[layer], head)
    if block is not None:
        block = (trace.manifest.get("sampler") or {}).get("block") or block
    blocks: Any = nullcontext() if block is None else network.model.blocks_of(block)
    with torch.no_grad(), blocks, subscribed(network, watcher):
        model.logits(tokens, 1, use_cache=False) if isinstance(model, Model) else network(tokens)
    assert watcher.attention is not None
    attention = watcher.attention.cpu().numpy()
    recorded = kept_columns(trace)[step, layer, head, :length]
    dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
    hidden = bool(trace.manifest.get("hidden"))
    tolerance = 1e-3 if hidden else TOLERANCE[dtype]  # coarse rounding must not excuse hidden keys
    difference, worst = column_difference(attention, recorded, tolerance)
    if worst is not None:
        differs = f"key {worst} has {attention[:, worst].sum():.3f} in the map and {recorded[worst]:.3f} in the trace"
        why = f"Was it written in another dtype than {dtype}?"
        if hidden:
            why = "It was written while keys were hidden, and maps are recomputed without hiding"
        raise TraceError(f"{trace.folder}: expected the map's columns to be those recorded; {differs}. {why}")
    return AttentionMap(attention, difference)


def expect_writer(model: Model | nn.Module, trace: Trace) -> None:
    """Raise CallError for a trace that was written with a cache or by another model, whose canvases cannot be
    computed again; a network alone is taken for the one that wrote it.
    """
    card = trace.manifest["model"]
    if cache := (trace.manifest.get("sampler") or {}).get("cache"):
        raise CallError(f"{trace.folder} was written with the cache {cache}; record without a cache for this")
    if not isinstance(model, Model):
        return
    found = {"weight_hash": weight_hash_of(model), "config_hash": model.card.config_hash}
    for name, what in (("weight_hash", "weights"), ("config_hash", "these weights under the config.json")):
        theirs, mine = card.get(name) or "", found[name] or ""
        if theirs != mine and (name == "weight_hash" or (theirs and mine)):
            other = f"{theirs[:12] or 'without a hash'}…, {model.card.name} has {mine[:12]}…"
            advice = "pass the model that wrote it, as sinkscope.load returned it"
            raise CallError(f"{trace.folder} was written by {what} {other}; {advice}")
