"""Computes the hidden states of a canvas for a sampler; readers with a cache are subclasses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from sinkscope.attention import mask_for
from sinkscope.decoding.caches.store import KeyValueStore
from sinkscope.decoding.canvas import Layout
from sinkscope.decoding.projection import hidden_states
from sinkscope.decoding.work import WorkMeter
from sinkscope.models import Model


class WholeReader:
    """Computes all positions in every step.

    Attributes:
        double: whether confidences are to be taken in float64.
    """

    double = False

    def __init__(self, model: Model, layout: Layout, meter: WorkMeter) -> None:
        self.model, self.layout, self.meter = model, layout, meter
        self._lengths: list[int] = layout.lengths.tolist()
        self._hidden: Tensor | None = None

    def begin_block(self, start: int, stop: int) -> None:
        """Note that a block begins."""

    def end_block(self) -> None:
        """Raise `CallError` where a policy has left places of the block that ends uncommitted."""

    def open_places(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        """Return where tokens may be committed in the next step, bool [batch, position]; None for everywhere."""
        return None

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        """Return hidden states [row of the inputs, position, width].

        Args:
            inputs: int64 [row, position], the canvases, with guidance twice.
            rows: those that are still being written; only these are computed. All when None.
            together: whether the others are computed too, because somebody watches the whole batch.
        """
        every = range(len(self._lengths))
        copies = len(inputs) // len(self._lengths)
        for row in every if rows is None else rows:
            self.meter.add(row, self._lengths[row], self._lengths[row], copies)
        if rows is None or together or len(rows) == len(self._lengths):
            self._hidden = hidden_states(self.model, inputs, self.layout)
            return self._hidden
        assert self._hidden is not None
        chosen = [copy * len(self._lengths) + row for copy in range(copies) for row in rows]
        self._hidden[chosen] = hidden_states(self.model, inputs[chosen], rows_of(self.layout, rows))
        return self._hidden

    def _stored_call(self, tokens: Tensor, positions: Tensor, seen: Tensor | None, store: KeyValueStore) -> Tensor:
        """Return the hidden states of tokens that read and write stored keys and values."""
        network = self.model.network
        output = network.model(
            input_ids=tokens,
            attention_mask=mask_for(network, seen),
            position_ids=positions,
            past_key_values=store,
            use_cache=True,
        )
        return output.last_hidden_state.to(tokens.device)

    def surveys(self) -> bool:
        """Whether the next step's confidence of every mask is wanted, see `survey`."""
        return False

    def survey(self, logits: Tensor, masked: Tensor) -> None:
        """Note the logits of all masks in the step that was read, [mask, vocabulary]."""

    def judge(self, logits: Tensor, candidates: Tensor) -> None:
        """Note the logits of the candidates of the step that was read, [candidate, vocabulary]."""

    def committed(self, written: Tensor, confidence: Tensor) -> None:
        """Note the tokens of a step, −1 elsewhere, and confidences of the candidates, NaN elsewhere."""


def rows_of(layout: Layout, rows: Sequence[int]) -> Layout:
    """Return the layout of some rows of a batch."""
    chosen = list(rows)
    return Layout(
        seen=None if layout.seen is None else layout.seen[chosen],
        positions=layout.positions[chosen],
        lengths=layout.lengths[chosen],
        starts=tuple(layout.starts[row] for row in chosen),
    )


def at_places(places: Tensor, values: Tensor) -> Tensor:
    """Return values [row, position, width] at some positions of each row, int64 [row, chosen]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))


@contextmanager
def replaced_layers(layers: Any, forward_of: Callable[[int, Any], Callable[..., Tensor]]) -> Iterator[None]:
    """Let every layer run the forward that ``forward_of(index, layer)`` returns, while the body runs."""
    for index, layer in enumerate(layers):
        layer.forward = forward_of(index, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
