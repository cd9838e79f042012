"""The stored keys and values of a canvas; it takes the place of transformers' own cache in a call of a network."""

from collections.abc import Sequence

import torch
from torch import Tensor

Positions = slice | Tensor
"""Fresh positions: a slice of columns, the same for all rows, or int64 [row, query]."""


class KeyValueStore:
    """Keys and values of every layer over the whole canvas, [row, kv_head, position, dim], as they were last computed.

    A call computes the keys and values of the fresh positions. `update`, which the attention of each layer calls,
    stores them and returns those that are to be read. It speaks the protocol of transformers' ``Cache`` as far as a
    bidirectional Llama or Qwen2 asks.

    Attributes:
        rows: numbers of the rows of the batch that are held.
    """

    is_compileable = False

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._fresh: Positions | None = None
        self._mine: Tensor | None = None
        self._kept: Tensor | None = None

    def refresh(self, rows: Sequence[int]) -> None:
        """Prepare for a call that computes all positions of some rows; nothing else is held from then on."""
        self.rows, self._fresh, self._mine, self._kept = list(rows), None, None, None

    def compute(self, fresh: Positions, kept: Tensor | None, rows: Tensor | None = None) -> None:
        """Prepare for a call that computes some positions.

        Args:
            fresh: which ones.
            kept: int64 [row, 1 or layer, 1 or kv_head, key], the positions that are read; all when None.
            rows: int64 [row], which of the held rows; all when None.
        """
        self._fresh, self._mine, self._kept = fresh, rows, kept

    def hold(self, rows: Sequence[int]) -> None:
        """Drop all rows but some of those that are held."""
        if list(rows) == self.rows:
            return
        chosen = [self.rows.index(row) for row in rows]
        for held in (self._keys, self._values):
            for layer, tensor in held.items():
                held[layer] = tensor[chosen]
        self.rows = list(rows)

    def renew_values(self, layer: int, rows: Tensor, places: slice, values: Tensor) -> Tensor:
        """Store values of a layer, [row, position, kv_head · dim], and return those that were there."""
        held = self._values[layer]
        before = held[rows, :, places].transpose(1, 2).flatten(2)
        held[rows, :, places] = values.unflatten(-1, (held.shape[1], -1)).transpose(1, 2)
        return before

    def keys(self, layer: int, rows: Tensor) -> Tensor:
        """Return a copy of the stored keys of a layer, [row, kv_head, position, dim]."""
        return self._keys[layer][rows]

    def value_norms(self) -> list[Tensor]:
        """Return the norms of the stored values of each layer, float32 [row, kv_head, position]."""
        return [torch.linalg.vector_norm(self._values[layer].float(), dim=-1) for layer in sorted(self._values)]

    # What transformers asks

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *others: object, **more: object
    ) -> tuple[Tensor, Tensor]:
        """Store the fresh keys and values of a layer, [row, kv_head, query, dim], and return those that are read."""
        if self._fresh is None:
            self._keys[layer_idx], self._values[layer_idx] = key, value
            return key, value
        read = self._write(self._keys[layer_idx], key, layer_idx)
        return read, self._write(self._values[layer_idx], value, layer_idx)

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

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions are always given, and no mask is derived from a number of tokens seen."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return 0; see `get_seq_length`."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return sizes with which no mask is made; where a canvas is padded, a whole mask is given."""
        return query_length, 0
