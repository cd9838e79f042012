"""One attention map, recomputed: the stored canvas of a step goes through the model once more, one head's map is held.

The forward call has no cache and no padding, so a map of an autoregressive trace shows all queries of the canvas of that
step, and its columns add up to the running sums that were recorded.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.errors import CallError, TraceError
from sinkscope.models import Model
from sinkscope.traces import Trace
from sinkscope.traces.top_columns import kept_columns

TOLERANCE = {"float32": 0.02, "bfloat16": 0.25, "float16": 0.1}
"""How far a column of the map may stand from the recorded one, per unit of 1 + the column, by what the model computes in."""


@dataclass(frozen=True)
class AttentionMap:
    """One map.

    Attributes:
        attention: float32 [query, key], rows add up to 1; in a network with a sink of its own, to what that leaves.
        largest_difference: between its columns and those recorded, in queries' worth of attention.
    """

    step: int
    layer: int
    head: int
    attention: Float[np.ndarray, "query key"]
    largest_difference: float


class _OneHead(Watcher):
    """Holds the map of one head of one layer."""

    def __init__(self, model: Model, layer: str, head: int, causal: bool) -> None:
        self.model, self.layer, self.head, self.causal = model, layer, head, causal
        self.attention: Tensor | None = None

    def watch(self, call: LayerCall, columns: Columns) -> None:
        if call.name != self.layer:
            return
        query, key = call.query[0, self.head].float(), call.key[0, self.head // (call.query.shape[1] // call.key.shape[1])].float()
        scale = getattr(self.model.network.get_submodule(call.name), "scaling", None) or query.shape[-1] ** -0.5
        scores = query @ key.T * scale
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        front = _own_scores(call, self.head, query, scale)
        self.attention = torch.softmax(torch.cat([front, scores], dim=-1), dim=-1)[:, front.shape[-1] :]


def _own_scores(call: LayerCall, head: int, query: Tensor, scale: float) -> Tensor:
    """[query, sink], the scores of constant keys that the network itself brings."""
    if call.own is None:
        return query.new_zeros(len(query), 0)
    if call.own.logits is not None:
        return call.own.logits[head].to(query).expand(len(query), -1)
    assert call.own.keys is not None
    keys = call.own.keys if call.own.keys.ndim == 3 else call.own.keys[0]
    return query @ keys[head // (call.query.shape[1] // call.key.shape[1])].to(query).T * scale


def recompute_map(model: Model, trace: Trace, step: int, layer: int, head: int) -> AttentionMap:
    """Computes one attention map of a recorded step.

    Args:
        model: the one that wrote the trace; its weights are compared.
        step, layer, head: which; negative numbers count from the end.

    Raises:
        CallError: no such step, layer or head, or a model with other weights.
        TraceError: a trace that does not say its weights, or whose columns are not those of the map, as when keys
            were hidden while it was written.
    """
    step, layer, head = check_place(trace, step, layer, head)
    _check_weights(model, trace)
    length = int(trace.lengths[step])
    tokens = torch.from_numpy(trace.tokens[step, :length].astype(np.int64)).to(model.device)[None]
    watcher = _OneHead(model, trace.layers[layer], head, trace.causal)
    with torch.no_grad(), subscribed(model.network, watcher):
        model.network.model(input_ids=tokens, use_cache=False)
    if watcher.attention is None:
        raise TraceError(f"{trace.folder}: its layer {trace.layers[layer]} is none of {model.card.name}; the trace is of another model")
    attention = watcher.attention.cpu().numpy()
    recorded = kept_columns(trace)[step, layer, head, :length]
    difference = np.nan_to_num(np.abs(attention.sum(axis=0) - recorded))  # columns that were not kept cannot be compared
    if (difference > TOLERANCE[model.card.dtype] * (1 + np.nan_to_num(recorded))).any():
        worst = int(difference.argmax())
        raise TraceError(
            f"{trace.folder}: expected the map's columns to be those recorded; key {worst} has {attention[:, worst].sum():.3f} in the map "
            f"and {recorded[worst]:.3f} in the trace. Was it written while keys were hidden, or in another dtype than {model.card.dtype}?"
        )
    return AttentionMap(step, layer, head, attention, float(difference.max()))


def check_place(trace: Trace, step: int, layer: int, head: int) -> tuple[int, int, int]:
    """A step, layer and head of a trace, counted from the start.

    Raises:
        CallError: out of range.
    """
    place = []
    for name, value, size in (("step", step, trace.steps), ("layer", layer, len(trace.layers)), ("head", head, trace.heads)):
        if not -size <= value < size:
            raise CallError(f"{name}: expected 0 to {size - 1}, found {value}; {trace.folder} has {size}")
        place.append(value % size)
    return place[0], place[1], place[2]


def _check_weights(model: Model, trace: Trace) -> None:
    expected = trace.manifest.get("model", {}).get("weight_hash")
    if not expected:
        raise TraceError(
            f"{trace.folder}: it does not say which weights wrote it, so a map cannot be proven to be theirs; "
            "record a model that sinkscope.load gives"
        )
    if expected != model.card.weight_hash:
        raise CallError(
            f"{trace.folder} was written by weights {expected[:12]}…, {model.card.name} has {model.card.weight_hash[:12]}…; "
            "pass the model that wrote the trace"
        )
