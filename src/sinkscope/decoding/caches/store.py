"""The stored keys and values of a canvas, and the base of readers whose layers compute different positions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import mask_for
from sinkscope.decoding.caches.policy import CachePolicy
from sinkscope.decoding.canvas import Layout, WorkMeter
from sinkscope.decoding.projection import WholeReader, rows_of, stored_call
from sinkscope.models import Model


class KeyValueStore:
    """Keys and values of every layer over the whole canvas, as they were last computed; a ``Cache`` of transformers."""

    is_compileable = False

    def __init__(self) -> None:
        self.rows: list[int] = []  # of the batch, that are held
        self.keys: dict[int, Tensor] = {}  # of each layer, [row, kv_head, position, dim]
        self.values: dict[int, Tensor] = {}
        self._fresh: slice | Tensor | None = None
        self._mine: Tensor | None = None
        self._kept: Tensor | None = None

    def refresh(self, rows: Sequence[int]) -> None:
        """Prepare for a call that computes all positions of some rows; nothing else is held from then on."""
        self.rows, self._fresh, self._mine, self._kept = list(rows), None, None, None

    def compute(self, fresh: slice | Tensor, kept: Tensor | None, rows: Tensor | None = None) -> None:
        """Prepare for a call that computes some positions, a slice or int64 [row, query], of some held rows."""
        self._fresh, self._mine, self._kept = fresh, rows, kept

    def hold(self, rows: list[int]) -> None:
        """Drop all rows but some of those that are held."""
        if rows == self.rows:
            return
        chosen = [self.rows.index(row) for row in rows]
        for held in (self.keys, self.values):
            for layer, tensor in held.items():
                held[layer] = tensor[chosen]
        self.rows = rows

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *others: object, **more: object
    ) -> tuple[Tensor, Tensor]:
        """Store the fresh keys and values of a layer, [row, kv_head, query, dim], and return those that are read."""
        if self._fresh is None:
            self.keys[layer_idx], self.values[layer_idx] = key, value
            return key, value
        read = self._write(self.keys[layer_idx], key, layer_idx)
        return read, self._write(self.values[layer_idx], value, layer_idx)

    def _write(self, held: Tensor, new: Tensor, layer: int) -> Tensor:
        mine, fresh = self._mine, self._fresh
        if isinstance(fresh, slice):
            held[slice(None) if mine is None else mine, :, fresh] = new
        else:
            assert fresh is not None
            rows = torch.arange(len(held), device=held.device) if mine is None else mine
            held[rows[:, None], :, fresh] = new.transpose(1, 2)
        read = held if mine is None else held[mine]
        if self._kept is None:
            return read
        kept = self._kept[:, min(layer, self._kept.shape[1] - 1)].expand(-1, read.shape[1], -1)
        return read.gather(2, kept[..., None].expand(-1, -1, -1, read.shape[-1]))

    # Positions and whole masks are always given: none is derived from a number of tokens seen.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


class LayerByLayer(WholeReader):
    """Runs the layers of some rows with a forward of its subclass, behind stored keys and values."""

    def __init__(self, model: Model, layout: Layout, meter: WorkMeter, policy: CachePolicy) -> None:
        super().__init__(model, layout, meter)
        self.double, self._real = policy.double, layout.real
        self._layers: Any = model.network.model.layers
        self._store = KeyValueStore()

    def _through(self, tokens: Tensor, rows: list[int], forward_of: Callable[[int, Any], Any]) -> Tensor:
        layout = rows_of(self.layout, rows)
        with replaced_forwards(self._layers, forward_of):
            return stored_call(self.model, tokens, layout.positions, layout.seen, self._store)

    def _attend(self, layer: Any, entering: Tensor, rows: Tensor, places: Tensor, given: dict[str, Any]) -> Tensor:
        """Return the attention of a layer at some places; ``given`` are its arguments for the whole canvas."""
        angles = tuple(at_places(places, one.expand(len(rows), -1, -1)) for one in given["position_embeddings"])
        real = self._real[rows][:, None, None].expand(-1, 1, places.shape[1], -1)
        mask = mask_for(self.model.network, None if given["attention_mask"] is None else real)
        given = {**given, "position_embeddings": angles, "attention_mask": mask}
        return layer.self_attn(hidden_states=entering, **given)[0]


def at_places(places: Tensor, values: Tensor) -> Tensor:
    """Return values [row, position, width] at some positions of each row, int64 [row, chosen]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))


@contextmanager
def replaced_forwards(modules: Any, forward_of: Callable[[int, Any], Callable[..., Any]]) -> Iterator[None]:
    """Let every module run the forward that ``forward_of(index, module)`` returns, while the body runs."""
    for index, module in enumerate(modules):
        module.forward = forward_of(index, module)
    try:
        yield
    finally:
        for module in modules:
            del module.forward
