"""Elastic-Cache (Nguyen-Tri et al., 2025; yxu-dev/Elastic-Cache, llada/generate.py, llada/model/modeling_llada.py).

There are no blocks: a window, the first masks of the answer, moves to the right. A step computes the window, what the
step before has committed, and the *tracked* tokens, which the window attended to most in some layer. Where their
attention has turned in a layer by more than ``gamma`` allows, the layers behind it compute all positions.

Quirk: attention has turned where the mean of cosines over heads, for each tracked token and key, is below ``gamma``.
Quirk: the first layer behind begins with the hidden states that entered it last, most of them in an earlier step.
Quirk: the published loop leaves the masks behind the first EOS unwritten; here all are written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sinkscope.attention import Hider, LayerCall, Prefix
from sinkscope.attention.call import Call
from sinkscope.decoding.caches.policy import CachePolicy, Count, Moment, Plan, Share, attention_weights
from sinkscope.decoding.caches.store import LayerByLayer, at_places
from sinkscope.decoding.canvas import Layout, WorkMeter
from sinkscope.models import Model
from sinkscope.models.family import Family


@dataclass(frozen=True)
class ElasticCache(CachePolicy):
    """Computes a window of masks and the most attended tokens; behind a layer where their attention has turned,
    everything.

    Attributes:
        window: how many masks a step computes, and may commit (published: ``window_length``).
        gamma: least cosine between the attention of the tracked tokens before and now (published: ``gamma``).
        tracked: how many tokens are tracked for each layer (published: ``track_num``).
    """

    name = "elastic-cache"
    double = True
    by_layer = True
    own_places = True
    window: Count = 16
    gamma: Share = 0.9
    tracked: Count = 1

    def plan(self, moment: Moment) -> Plan:
        return Plan()

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        yield from super().misfits(family, settings)
        if settings.block != settings.length:
            yield f"expected one block, found blocks of {settings.block}; use --block {settings.length}"
        each = -(-settings.length // settings.steps)
        if not (settings.threshold or settings.factor) and self.window < each:
            yield f"expected a window of at least {each}, which a step commits, found {self.window}; raise --steps"


class LayerKeeper(Call):
    """Takes the place of the stack's running call, and keeps the newest layer; nobody else watches."""

    def __init__(self) -> None:
        self.kept: LayerCall | None = None

    def layer(self, module: Any, query: Tensor, key: Tensor, value: Tensor, own: Prefix | None, *others: Any) -> None:
        self.kept = LayerCall(type(module).__name__, module.layer_idx, query, key, value, None, own=own)


@dataclass(eq=False)
class Pass:
    """One pass of some rows through the layers."""

    rows: Tensor  # int64 [row], their numbers in the batch
    places: Tensor  # int64 [row, position], the positions that the next layer is given
    tracked: Tensor | None = None  # int64 [token], of the only row; None where the next layer computes all positions
    first: bool = False  # nothing is stored before it
    turned: bool = False  # whether the layer before was the first to say so
    computed: list[int] = field(default_factory=list)  # how many positions each layer has computed so far


class ElasticReader(LayerByLayer, Hider):
    """Computes the positions of an `ElasticCache`; each row alone after the first step, as rows turn elsewhere."""

    def __init__(self, model: Model, layout: Layout, meter: WorkMeter, policy: ElasticCache) -> None:
        super().__init__(model, layout, meter, policy)
        self.policy, self._keeper = policy, LayerKeeper()
        self._entering: dict[int, Tensor] = {}
        self._queries: dict[int, Tensor] = {}
        nowhere = torch.zeros_like(self._real)
        self._masked, self._window, self._written, self._tracked = nowhere, nowhere, nowhere, nowhere.clone()

    def hide(self, call: LayerCall) -> None:
        return None

    def open_places(self, tokens: Tensor, masked: Tensor) -> Tensor:
        self._masked, self._window = masked, masked & (masked.cumsum(-1) <= self.policy.window)
        return self._window

    def committed(self, written: Tensor, confidence: Tensor) -> None:
        self._written = written >= 0

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        every = torch.arange(inputs.shape[1], device=inputs.device)
        if self._hidden is None:
            self._store.refresh(range(len(inputs)))
            mine = torch.arange(len(inputs), device=inputs.device)
            self._hidden = self._run(inputs, Pass(mine, every.expand(len(inputs), -1), first=True))
            return self._hidden
        for row in range(len(inputs)) if rows is None else rows:
            tracked = every[self._tracked[row]]
            places = every[self._tracked[row] | self._written[row] | self._window[row]]
            self._tracked[row] = False
            one = Pass(torch.tensor([row], device=inputs.device), places[None], tracked)
            found = self._run(inputs[[row]], one)
            self._hidden[row, one.places[0]] = found[0, one.places[0]]
        return self._hidden

    def _run(self, tokens: Tensor, state: Pass) -> Tensor:
        rows = state.rows.tolist()
        hidden = self._through(tokens, rows, lambda index, layer: partial(self._layer, index, layer, state))
        for row in rows:
            own = self._lengths[row]
            self.meter.add_layers(row, [min(count, own) for count in state.computed], own, 0)
        return hidden

    def _layer(self, index: int, layer: Any, state: Pass, hidden: Tensor, **given: Any) -> Tensor:
        rows, before = state.rows, None
        # What enters a layer is stored; a layer behind one that has turned computes all of that.
        if index not in self._entering:
            self._entering[index] = hidden.clone()
        else:
            self._entering[index][rows[:, None], state.places] = at_places(state.places, hidden)
            if state.turned:
                state.turned, state.tracked = False, None
                state.places = torch.arange(hidden.shape[1], device=hidden.device).expand(len(rows), -1)
                hidden = self._entering[index][rows]
        places = state.places
        state.computed.append(places.shape[1])
        if state.tracked is not None:
            before = self._queries[index][rows][:, :, state.tracked], self._store.keys[index][rows]
        given["sinkscope_call"].reported = True
        given["sinkscope_call"] = self._keeper
        if not state.first:
            self._store.compute(places, None, rows)
        some = at_places(places, hidden)
        attended = self._attend(layer, layer.input_layernorm(some), rows, places, given)
        self._watch(index, state, before)
        some = some + attended
        some = some + layer.mlp(layer.post_attention_layernorm(some))
        some = some.to(hidden.dtype)  # within a caller's autocast they differ
        return hidden.scatter(1, places[..., None].expand_as(some), some)

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
        weights = attention_of(call, real, call.query[:, :, column], call.key) * member[:, None, column, None]
        among = real & ~self._masked[rows]
        received = weights.sum((1, 2)).masked_fill(~among, 0)
        best = received.topk(min(self.policy.tracked, received.shape[1]), dim=-1).indices
        self._tracked[rows] |= torch.zeros_like(among).scatter(1, best, True) & among
        if before is not None:
            assert state.tracked is not None
            now = attention_of(call, real, call.query[:, :, torch.isin(places[0], state.tracked)], call.key)
            alike = cosine_similarity(attention_of(call, real, *before), now, dim=1)
            state.turned = bool(alike[:, :, real[0]].mean() < self.policy.gamma)


def attention_of(call: LayerCall, real: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Return the attention of queries [row, head, query, dim] to the real keys, float32 [row, head, query, key]."""
    weights = attention_weights(replace(call, query=queries, key=keys), real[:, None, None], slice(None))
    return weights[..., -keys.shape[2] :]
