"""Readers whose layers compute different positions: those of a `policy.LayeredPolicy`, and of an `ElasticCache`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import Hider, LayerCall, Prefix, mask_for
from sinkscope.attention.call import Call
from sinkscope.decoding.caches.elastic_cache import ElasticCache
from sinkscope.decoding.caches.keeping import attention_weights
from sinkscope.decoding.caches.policy import CachePolicy, LayeredPolicy
from sinkscope.decoding.caches.store import KeyValueStore
from sinkscope.decoding.canvas import Layout, WorkMeter
from sinkscope.decoding.projection import WholeReader, at_places, replaced_layers, rows_of
from sinkscope.models import Model


class _ByLayer(WholeReader):
    """Runs the layers of some rows with a forward of its subclass, behind stored keys and values."""

    def __init__(self, model: Model, layout: Layout, meter: WorkMeter, policy: CachePolicy, real: Tensor) -> None:
        super().__init__(model, layout, meter)
        self.double, self._real = policy.double, real
        self._layers: Any = model.network.model.layers
        self._store = KeyValueStore()

    def _through(self, tokens: Tensor, rows: list[int], forward_of: Callable[[int, Any], Any]) -> Tensor:
        layout = rows_of(self.layout, rows)
        with replaced_layers(self._layers, forward_of):
            return self._stored_call(tokens, layout.positions, layout.seen, self._store)

    def _attend(
        self,
        layer: Any,
        entering: Tensor,
        rows: Tensor,
        places: Tensor,
        angles: tuple[Tensor, Tensor],
        mask: Tensor | None,
        given: dict[str, Any],
    ) -> Tensor:
        """Return the attention of a layer at some places; ``angles`` and ``mask`` are of the whole canvas."""
        at_them = tuple(at_places(places, one.expand(len(rows), -1, -1)) for one in angles)
        real = self._real[rows][:, None, None].expand(-1, 1, places.shape[1], -1)
        mask = mask_for(self.model.network, None if mask is None else real)
        return layer.self_attn(hidden_states=entering, position_embeddings=at_them, attention_mask=mask, **given)[0]


class LayeredReader(_ByLayer):
    """Computes in each layer the positions that a layered policy names.

    A row counts the steps in which it is being written, and so does not depend on its neighbours.
    """

    def __init__(
        self, model: Model, layout: Layout, meter: WorkMeter, policy: LayeredPolicy, real: Tensor, width: int
    ) -> None:
        super().__init__(model, layout, meter, policy, real)
        self.policy, self._prompt = policy, width
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
        number = self._steps[rows[0]]
        if not self._mlp:
            self._store.refresh(rows)
        for row in rows:
            self._charge(row, number)
        mine = torch.tensor(rows, device=self._real.device)
        return self._through(tokens, rows, lambda index, layer: self._forward_of(index, layer, mine, number))

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
            if self._mlp.get(index) is not None:
                self._store.compute(places, None, rows)
            some = at_places(places, entering)
            attended = hidden.new_zeros(some.shape)
            if places.shape[1]:
                with _giving(layer.self_attn.v_proj, values):
                    attended = self._attend(layer, some, rows, places, position_embeddings, attention_mask, given)
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


class Nothing(Hider):
    """Hides nothing; subscribed so that layers run sinkscope's attention."""

    def hide(self, call: LayerCall) -> None:
        return None


class LayerKeeper(Call):
    """Takes the place of the stack's running call, and keeps the newest layer; nobody else watches."""

    def __init__(self) -> None:
        self.kept: LayerCall | None = None

    def instead_of(self, running: Call) -> "LayerKeeper":
        running.reported = True
        return self

    def layer(self, module: Any, query: Tensor, key: Tensor, value: Tensor, own: Prefix | None, *others: Any) -> None:
        self.kept = LayerCall(type(module).__name__, module.layer_idx, query, key, value, None, own=own)


@dataclass(eq=False)
class Pass:
    """One pass of some rows through the layers.

    Attributes:
        rows: int64 [row], their numbers in the batch.
        places: int64 [row, position], the positions that the next layer is given.
        tracked: int64 [token], the tracked tokens of the only row; None in the first step.
        whole: whether the next layer computes all positions.
        turned: whether the layer before it was the first to say so.
        computed: how many positions each layer has computed so far.
    """

    rows: Tensor
    places: Tensor
    tracked: Tensor | None = None
    whole: bool = True
    turned: bool = False
    computed: list[int] = field(default_factory=list)


class ElasticReader(_ByLayer):
    """Computes the positions of an `ElasticCache`; each row alone after the first step, as rows turn elsewhere."""

    def __init__(self, model: Model, layout: Layout, meter: WorkMeter, policy: ElasticCache, real: Tensor) -> None:
        super().__init__(model, layout, meter, policy, real)
        self.policy, self._keeper = policy, LayerKeeper()
        self._entering: dict[int, Tensor] = {}
        self._queries: dict[int, Tensor] = {}
        nowhere = torch.zeros_like(real)
        self._masked, self._window, self._written, self._tracked = nowhere, nowhere, nowhere, nowhere.clone()

    def open_places(self, tokens: Tensor, masked: Tensor) -> Tensor:
        self._masked, self._window = masked, self.policy.window_of(masked)
        return self._window

    def committed(self, written: Tensor, confidence: Tensor) -> None:
        self._written = written >= 0

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        every = torch.arange(inputs.shape[1], device=inputs.device)
        if self._hidden is None:
            self._store.refresh(range(len(inputs)))
            everything = Pass(torch.arange(len(inputs), device=inputs.device), every.expand(len(inputs), -1))
            self._hidden = self._run(inputs, everything)
            return self._hidden
        for row in range(len(inputs)) if rows is None else rows:
            tracked = every[self._tracked[row]]
            places = every[self._tracked[row] | self._written[row] | self._window[row]][None]
            self._tracked[row] = False
            one = Pass(torch.tensor([row], device=inputs.device), places, tracked, whole=False)
            found = self._run(inputs[[row]], one)
            self._hidden[row, one.places[0]] = found[0, one.places[0]]
        return self._hidden

    def _run(self, tokens: Tensor, state: Pass) -> Tensor:
        """Return the hidden states of the rows of a pass; only those at its places at the end were computed."""
        rows = state.rows.tolist()
        hidden = self._through(tokens, rows, lambda index, layer: self._forward_of(index, layer, state))
        for row in rows:
            own = self._lengths[row]
            self.meter.add_layers(row, [min(count, own) for count in state.computed], own, 0)
        return hidden

    def _forward_of(self, index: int, layer: Any, state: Pass) -> Callable[..., Tensor]:
        def forward(
            hidden: Tensor, *, position_embeddings: tuple[Tensor, Tensor], attention_mask: Tensor | None, **given: Any
        ) -> Tensor:
            hidden = self._enter(index, hidden, state)
            places, rows = state.places, state.rows
            state.computed.append(places.shape[1])
            before = self._before(index, state)
            given["sinkscope_call"] = self._keeper.instead_of(given["sinkscope_call"])
            if state.tracked is not None:
                self._store.compute(places, None, rows)
            some = at_places(places, hidden)
            entering = layer.input_layernorm(some)
            attended = self._attend(layer, entering, rows, places, position_embeddings, attention_mask, given)
            self._watch(index, state, before)
            some = some + attended
            some = some + layer.mlp(layer.post_attention_layernorm(some))
            some = some.to(hidden.dtype)  # within a caller's autocast they differ
            return hidden.scatter(1, places[..., None].expand_as(some), some)

        return forward

    def _enter(self, index: int, hidden: Tensor, state: Pass) -> Tensor:
        """Store what enters a layer, and return it; behind a layer that has turned, for all places."""
        if index not in self._entering:
            self._entering[index] = hidden.clone()
            return hidden
        self._entering[index][state.rows[:, None], state.places] = at_places(state.places, hidden)
        if not state.turned:
            return hidden
        state.turned, state.whole = False, True
        state.places = torch.arange(hidden.shape[1], device=hidden.device).expand(len(state.rows), -1)
        return self._entering[index][state.rows]

    def _before(self, index: int, state: Pass) -> tuple[Tensor, Tensor] | None:
        """Return the old queries of the tracked tokens of a layer and its keys; None where all is computed."""
        if state.whole or state.tracked is None:
            return None
        return self._queries[index][state.rows][:, :, state.tracked], self._store.keys(index, state.rows)

    def _watch(self, index: int, state: Pass, before: tuple[Tensor, Tensor] | None) -> None:
        """Note the most attended tokens of a layer's window, and whether attention of the tracked ones turned."""
        call, rows, places = self._keeper.kept, state.rows, state.places
        assert call is not None
        if index not in self._queries:
            self._queries[index] = call.query.clone()
        else:
            self._queries[index][rows[:, None], :, places] = call.query.transpose(1, 2)
        real = self._real[rows]
        member = self._window[rows].gather(1, places)
        column = member.any(0).nonzero().flatten()
        weights = attention_of(call, real, call.query[:, :, column]) * member[:, None, column, None]
        self._tracked[rows] |= self.policy.most_attended(weights, real & ~self._masked[rows])
        if before is not None:
            assert state.tracked is not None
            now = attention_of(call, real, call.query[:, :, torch.isin(places[0], state.tracked)])
            state.turned = self.policy.has_turned(attention_of(call, real, *before), now, real)


def attention_of(call: LayerCall, real: Tensor, queries: Tensor, keys: Tensor | None = None) -> Tensor:
    """Return the attention of queries [row, head, query, dim] to the tokens, float32 [row, head, query, key].

    Args:
        real: bool [row, key], the keys that are no padding.
        keys: [row, kv_head, key, dim]; those of the call when None.
    """
    keys = call.key if keys is None else keys
    weights = attention_weights(replace(call, query=queries, key=keys), real[:, None, None], slice(None))
    return weights[..., -keys.shape[2] :]
