"""One canvas with nothing hidden: the sinks of each head, their attention and norms, and where attention would go."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention import Columns, LayerCall, OutputProjections, Watcher, subscribed
from sinkscope.errors import AttentionError
from sinkscope.models import Model
from sinkscope.roles.probes import Probe, as_written, beginning_at, blocks_of, divergence, predictions
from sinkscope.sinks import is_sink

BLOCK = 512
"""Queries of which one layer's attention is held at a time."""


@dataclass(frozen=True, eq=False)
class Sight:
    """One canvas, all heads, nothing removed.

    Attributes:
        columns: column sums of all queries, in queries' worth.
        reader_rows: mean attention of the readers; committed_rows: of those whose token is committed.
        evenness: (mean a_qj)² / mean a_qj² over the readers, for the key j with the largest column: 1 where all alike.
        output_norms: ‖W_O v_j‖; value_norms: ‖v_j‖.
        moved: shares of the readers' attention on that key that would go to each other key without it; itself: to a
            reader's own key; sink_token: to the network's own sink token, with ``moved`` 1.
        outputs: of each layer [1, position, width]; none where a call that begins at a layer says something else.
    """

    columns: Float[np.ndarray, "layer head key"]
    reader_rows: Float[np.ndarray, "layer head key"]
    committed_rows: Float[np.ndarray, "layer head key"]
    evenness: Float[np.ndarray, "layer head"]
    output_norms: Float[np.ndarray, "layer head key"]
    value_norms: Float[np.ndarray, "layer head key"]
    moved: Float[np.ndarray, "layer head key"]
    itself: Float[np.ndarray, "layer head key"]
    sink_token: Float[np.ndarray, "layer head"]
    log_probabilities: Float[Tensor, "reader vocabulary"]
    outputs: Sequence[Tensor] = ()

    @property
    def order(self) -> Int[np.ndarray, "layer head key"]:
        """Keys by falling column sum, ties to the lower position."""
        return np.argsort(-self.columns, axis=-1, kind="stable")

    def sinks(self, excess: float) -> Bool[np.ndarray, "layer head key"]:
        return is_sink(self.columns, excess)


class _Watch(Watcher):
    def __init__(self, model: Model, probe: Probe) -> None:
        self.model, self.causal = model, model.family.causal
        self.readers, self.committed = torch.from_numpy(probe.readers), torch.from_numpy(probe.committed)
        self.layers: list[dict[str, Tensor]] = []
        self.projections = OutputProjections(model.network)

    def watch(self, call: LayerCall, columns: Columns) -> None:
        sums = columns.sums[0, :, call.groups.index("all")]
        norms = self.projections.norms(call)
        if norms is None:
            raise AttentionError(f"expected an output projection of the values of {call.name}, found none that fits")
        values = call.value[0].float().norm(dim=-1).repeat_interleave(len(sums) // call.value.shape[1], dim=0)
        found = self._rows(call, sums.argmax(-1))
        self.layers.append({"columns": sums, "output_norms": norms[0], "value_norms": values, **found})

    def _rows(self, call: LayerCall, top: Tensor) -> dict[str, Tensor]:
        """Return the attention of the readers, a block of them at a time; ``top``: the key with the largest column."""
        module = self.model.network.get_submodule(call.name)
        scale = getattr(module, "scaling", None) or call.query.shape[-1] ** -0.5
        query, heads = call.query[0].float(), call.query.shape[1]
        shared = heads // call.key.shape[1]
        key = call.key[0].float().repeat_interleave(shared, dim=0)
        device = query.device
        places = self.readers.nonzero()[:, 0].to(device)
        committed = self.committed.to(device)[places]
        total = query.new_zeros(heads, key.shape[1])
        of_committed, moved, itself = (total.clone() for _ in range(3))
        first, second, sink_token = (query.new_zeros(heads) for _ in range(3))
        for block in torch.arange(len(places), device=device).split(BLOCK):
            own = places[block]
            scores = query[:, own] @ key.mT * scale
            front = scores.new_zeros(heads, len(own), 0)  # scores of the network's own constant keys
            if (constant := call.own) is not None and constant.logits is not None:
                front = constant.logits[:, None].to(query).expand(-1, len(own), -1)
            elif constant is not None:
                keys = constant.keys if constant.keys.ndim == 3 else constant.keys[0]
                front = query[:, own] @ keys.to(query).repeat_interleave(shared, dim=0).mT * scale
            size = 1 if self.causal else getattr(self.model.network.model, "block_length", None)
            if size:  # a query sees no later block
                later = own[:, None] // size < torch.arange(key.shape[1], device=device) // size
                scores = scores.masked_fill(later, -torch.inf)
            weights = torch.softmax(torch.cat([front, scores], dim=-1), dim=-1)
            to_front, weights = weights.tensor_split([front.shape[-1]], dim=-1)
            taken = weights.gather(-1, top[:, None, None].expand(-1, len(own), 1))[..., 0]
            total += weights.sum(1)
            of_committed += weights[:, committed[block]].sum(1)
            first += taken.sum(1)
            second += (taken**2).sum(1)
            given = taken / (1 - taken).clamp(min=1e-6)
            moved += torch.einsum("hq,hqk->hk", given, weights)  # softmax without a key is that with it, scaled up
            on_itself = weights.gather(-1, own.expand(heads, -1)[..., None])[..., 0]
            itself[:, own] += given * on_itself * (own != top[:, None])
            sink_token += (given * to_front.sum(-1)).sum(1)
        moved.scatter_(-1, top[:, None], 0.0)
        count, there = len(places), max(1, int(committed.sum()))
        whole_moved = (moved.sum(-1) + sink_token).clamp(min=1e-12)
        return {
            "reader_rows": total / count,
            "committed_rows": of_committed / there,
            "evenness": (first / count) ** 2 / (second / count).clamp(min=1e-30),
            "moved": moved / whole_moved[:, None],
            "itself": itself / whole_moved[:, None],
            "sink_token": sink_token / whole_moved,
        }


@torch.no_grad()
def look(model: Model, probe: Probe) -> Sight:
    """Return what every head does on one canvas."""
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    readers = torch.from_numpy(probe.readers)
    outputs: list[Any] = []
    outputs: list[Any] = []
    with as_written(model, probe):
        with subscribed(model.network, watcher := _Watch(model, probe)) as session, ExitStack() as hooks:
            for block in blocks_of(session):
                handle = block.register_forward_hook(lambda block, given, output: outputs.append(output))
                hooks.callback(handle.remove)
            said = predictions(model, tokens, readers)[0]
        plain = all(isinstance(one, Tensor) and one.shape[:2] == tokens.shape for one in outputs)
        if not plain or len(session.stacks) > 1 or len(outputs) != len(watcher.layers):
            outputs = []
        with beginning_at(session, len(outputs) - 1, outputs, 1):  # some networks pass more from layer to layer
            again = divergence(said, predictions(model, tokens, readers))
        if again.item() > (1e-5 if model.card.dtype == "float32" else 1e-2):
            outputs = []
    arrays = {name: torch.stack([layer[name].cpu() for layer in watcher.layers]).numpy() for name in watcher.layers[0]}
    return Sight(**arrays, log_probabilities=said, outputs=tuple(outputs))
