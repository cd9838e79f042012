"""Computes other positions in every layer, with stored outputs for the rest; see `policy.LayeredPolicy`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import mask_for
from sinkscope.decoding.caches.policy import LayeredPolicy
from sinkscope.decoding.caches.store import KeyValueStore
from sinkscope.decoding.canvas import Layout, WorkMeter
from sinkscope.decoding.projection import WholeReader, at_places, replaced_layers, rows_of
from sinkscope.models import Model


class LayeredReader(WholeReader):
    """Computes in each layer the positions that a layered policy names.

    A row counts the steps in which it is being written, and so does not depend on its neighbours.
    """

    def __init__(
        self, model: Model, layout: Layout, meter: WorkMeter, policy: LayeredPolicy, real: Tensor, width: int
    ) -> None:
        super().__init__(model, layout, meter)
        self.policy, self.double, self._real, self._prompt = policy, policy.double, real, width
        self._layers: Any = model.network.model.layers
        self._store = KeyValueStore()
        self._attention: dict[int, Tensor] = {}
        self._mlp: dict[int, Tensor] = {}
        self._steps = [0] * len(real)

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        rows = list(range(len(inputs))) if rows is None else list(rows)
        groups: dict[tuple[bool, bool], list[int]] = {}
        for row in rows:
            groups.setdefault(self.policy.whole_parts(len(self._layers), self._steps[row]), []).append(row)
        for group in groups.values():
            found = self._call(inputs[group], group)
            if self._hidden is None:
                self._hidden = found
            else:
                self._hidden[group] = found
        for row in rows:
            self._steps[row] += 1
        assert self._hidden is not None
        return self._hidden

    def _call(self, tokens: Tensor, rows: list[int]) -> Tensor:
        """Return the hidden states of some rows, all of which are at steps that compute the same parts."""
        number, layout = self._steps[rows[0]], rows_of(self.layout, rows)
        if not self._mlp:
            self._store.refresh(rows)
        for row in rows:
            self._charge(row, number)
        mine = torch.tensor(rows, device=self._real.device)
        with replaced_layers(self._layers, lambda index, layer: self._forward_of(index, layer, mine, number)):
            return self._stored_call(tokens, layout.positions, layout.seen, self._store)

    def _charge(self, row: int, number: int) -> None:
        prompt, answer = self._lengths[row] - self._answer, self._answer
        computed, values = [], 0
        for layer in range(len(self._layers)):
            whole_prompt, whole_answer = self.policy.whole_parts(layer, number)
            some = 0 if whole_answer else self.policy.share(answer)
            computed.append(prompt * whole_prompt + (answer if whole_answer else some))
            values += answer - some if some else 0
        self.meter.add_layers(row, computed, self._lengths[row], values)

    @property
    def _answer(self) -> int:
        return self._real.shape[1] - self._prompt

    def _forward_of(self, index: int, layer: Any, rows: Tensor, number: int) -> Any:
        def forward(
            hidden: Tensor, *, position_embeddings: tuple[Tensor, Tensor], attention_mask: Tensor | None, **given: Any
        ) -> Tensor:
            entering = layer.input_layernorm(hidden)
            places, values = self._places(index, layer, entering, rows, number)
            angles = tuple(at_places(places, one.expand(len(rows), -1, -1)) for one in position_embeddings)
            real = self._real[rows][:, None, None].expand(-1, 1, places.shape[1], -1)
            mask = mask_for(self.model.network, None if attention_mask is None else real)
            if self._mlp.get(index) is not None:
                self._store.compute(places, None, rows)
            some = at_places(places, entering)
            attended = hidden.new_zeros(some.shape)
            if places.shape[1]:
                with _giving(layer.self_attn.v_proj, values):
                    attended, _ = layer.self_attn(
                        hidden_states=some, position_embeddings=angles, attention_mask=mask, **given
                    )
            hidden = hidden + _renewed(self._attention, index, rows, places, attended)
            some = layer.post_attention_layernorm(at_places(places, hidden))
            return hidden + _renewed(self._mlp, index, rows, places, layer.mlp(some) if places.shape[1] else some)

        return forward

    def _places(
        self, index: int, layer: Any, entering: Tensor, rows: Tensor, number: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return the positions that a layer computes, int64 [row, chosen], left padding included, and their values.

        The values are None where all positions of the answer or none of them are computed.
        """
        prompt, answer = self.policy.whole_parts(index, number)
        place = torch.arange(entering.shape[1], device=entering.device).expand(len(rows), -1)
        front = place[:, : self._prompt if prompt else 0]
        if answer:
            return torch.cat([front, place[:, self._prompt :]], dim=1), None
        if not self.policy.share(self._answer):
            return front, None
        values = layer.self_attn.v_proj(entering[:, self._prompt :])
        chosen = self.policy.choose(values, self._store.renew_values(index, rows, slice(self._prompt, None), values))
        values = at_places(chosen, values)
        if prompt:
            values = torch.cat([layer.self_attn.v_proj(entering[:, : self._prompt]), values], dim=1)
        return torch.cat([front, self._prompt + chosen], dim=1), values


@contextmanager
def _giving(projection: Any, values: Tensor | None) -> Iterator[None]:
    """Let a projection return values that are known already, while the body runs."""
    if values is None:
        yield
        return
    projection.forward = lambda entering: values
    try:
        yield
    finally:
        del projection.forward


def _renewed(held: dict[int, Tensor], index: int, rows: Tensor, places: Tensor, found: Tensor) -> Tensor:
    """Store a layer's outputs at the places that were computed, and return those of all places of the rows."""
    if index not in held:
        held[index] = found
        return found
    held[index][rows[:, None], places] = found
    return held[index][rows]
