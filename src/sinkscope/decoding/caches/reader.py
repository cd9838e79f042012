"""Reads the positions of a step that a sampler's cache policy names; all others keep their stored keys and values."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import CallPart, Columns, Hider, LayerCall, Watcher, current_session, subscribed
from sinkscope.decoding.caches.dllm_cache import DLLMCache, DLLMReader
from sinkscope.decoding.caches.elastic_cache import ElasticCache, ElasticReader
from sinkscope.decoding.caches.policy import CachePolicy, Moment, Plan, marked, parse_cache
from sinkscope.decoding.caches.store import KeyValueStore
from sinkscope.decoding.canvas import Batch, Layout, WorkMeter
from sinkscope.decoding.projection import WholeReader, rows_of, stored_call
from sinkscope.decoding.settings import Settings
from sinkscope.models import Model


@contextmanager
def reading(model: Model, batch: Batch, layout: Layout, meter: WorkMeter, settings: Settings) -> Iterator[WholeReader]:
    """Make the reader that the settings name; `CallError` where its cache does not go with model or canvas."""
    policy = parse_cache(getattr(settings, "cache", "none"))
    if policy is None:
        yield WholeReader(model, layout, meter)
        return
    policy.check_canvas(batch, settings)
    check_model(model, policy)
    if isinstance(policy, DLLMCache):
        yield DLLMReader(model, layout, meter, policy, settings.length)
        return
    if isinstance(policy, ElasticCache):
        reader, measured = ElasticReader(model, layout, meter, policy), True
    else:
        reader = CachedReader(model, layout, meter, policy, settings)
        measured = policy.measures or policy.watches(refresh=True)
    with subscribed(model.network, reader) if measured else nullcontext():
        yield reader


def check_model(model: Model, policy: CachePolicy) -> None:
    """Raise `CallError` where a model, or what watches it, does not go with a cache."""
    session = current_session(model.network)
    for one in [] if session is None else session.subscribers:
        if not isinstance(one, Watcher):
            found = "hiding" if isinstance(one, Hider) else "keys put in front"
            raise policy.refuse(
                f"expected a model in which nothing is hidden or put in front, as a step computes only some queries, "
                f"found {found}; hide without a cache (--cache none)"
            )
        if policy.by_layer or policy.selects:
            what = "layers computes other positions" if policy.by_layer else "queries reads only some keys"
            raise policy.refuse(
                f"expected a model that nothing watches, because each of its {what}, found one that is recorded; use a "
                "policy that computes whole positions and reads all keys, such as --cache block"
            )
    sink = getattr(getattr(model.network.model, "sink_token", None), "variant", None)
    if sink is not None and (sink.kind, sink.position) == ("token", "end"):
        raise policy.refuse(
            f"{model.card.name} has a sink token at the end of the whole canvas, of which a step computes a part; use "
            "--cache none"
        )


class CachedReader(WholeReader, Hider):
    """Computes the positions that a policy names, and reads the stored keys and values of the others."""

    def __init__(self, model: Model, layout: Layout, meter: WorkMeter, policy: CachePolicy, settings: Any) -> None:
        super().__init__(model, layout, meter)
        self.policy, self.double, self._real = policy, policy.double, layout.real
        self._measures = self._watches = False  # in the running call
        self._measured: list[Tensor] = []  # results of `CachePolicy.measure` for each layer
        self._watched: Tensor | None = None  # result of `CachePolicy.follow` in the last layer
        self._store = KeyValueStore()
        heads, width = (model.card.layers, model.card.kv_heads), layout.real.shape[1] - settings.length
        # Fields of every `Moment`; measurements are added as they come.
        self._known: dict[str, Any] = dict(heads=heads, shift=model.family.shift, settings=settings, width=width)
        self._moment: Moment | None = None  # before the step, and its part for the rows of the running call
        self._asked: Any = None
        self._plan = Plan()
        self._kept: Tensor | None = None
        self._block = (0, layout.real.shape[1])
        self._number = 0
        # How many tokens of each row the block has yet to commit; a model may commit the mask token.
        self._due: Tensor | None = None
        self._commits: list[Tensor] = []
        self._ahead: Tensor | None = None
        self._charged: Sequence[int] = ()

    def hide(self, call: LayerCall) -> None:
        if self._watches:
            self._watched = self.policy.follow(self._watched, call, self._asked)

    def observes(self, call: LayerCall) -> bool:
        return self._measures

    def observe(self, call: LayerCall, columns: Columns) -> None:
        if self._measures:
            self._measured.append(self.policy.measure(call, columns, self._asked))

    def begin_block(self, start: int, stop: int) -> None:
        self._due = None
        self._block, self._number, self._commits = (start, stop), 0, []

    def end_block(self) -> None:
        if self._due is not None and (left := int(self._due.clamp(min=0).sum())):
            raise self.policy.refuse(
                f"expected a block to be committed whole in its {self._number} steps, found {left} tokens left; let "
                "`Plan.open` name masks in each step"
            )

    def open_places(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        if self._due is None:
            self._due = masked[:, slice(*self._block)].sum(-1)
        self._moment = self._now(tokens, masked)
        if self.policy.lasting:
            self._plan = Plan(self._ahead)
        else:
            self._plan = self.policy.plan(self._moment) if self._number else self.policy.first(self._moment)
        places = self._plan.fresh if self._plan.open is None else self._plan.open
        return None if places is None else marked(places, self._real)

    def _now(self, tokens: Tensor, masked: Tensor) -> Moment:
        return Moment(self._number, *self._block, tokens, masked, self._real, tuple(self._commits), **self._known)

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        self._charged = range(len(inputs)) if rows is None else rows
        rows = list(range(len(inputs))) if rows is None or (together and not self.policy.lasting) else list(rows)
        fresh = self._plan.fresh
        self._known["before"] = self._known.get("now")
        if fresh is not None and not self.policy.lasting:
            self._store.hold(rows)
        if fresh is None:
            self._refresh(inputs, rows)
        elif isinstance(fresh, slice):
            self._compute(inputs, rows, fresh)
        else:
            self._compute_marked(inputs, rows, fresh & self._real)
        self._number += 1
        assert self._hidden is not None
        return self._hidden

    def surveys(self) -> bool:
        return self.policy.surveys and "surveyed" not in self._known

    def survey(self, logits: Tensor, masked: Tensor) -> None:
        self._known["surveyed"] = _placed(torch.softmax(logits, dim=-1).amax(-1).float(), masked)

    def judge(self, logits: Tensor, candidates: Tensor) -> None:
        if self.policy.judges:
            found = logits.new_empty(0, dtype=torch.float32)
            if len(logits):  # a step of Dream's origin may draw no place
                found = torch.distributions.Categorical(logits=logits.float()).entropy()
            self._known["entropy"] = _placed(found, candidates)

    def committed(self, written: Tensor, confidence: Tensor) -> None:
        self._commits.append(written >= 0)
        if self._due is not None:
            self._due -= ((written >= 0) & ~confidence.isnan()).sum(-1)
        self._known["confidence"] = confidence
        if not self.policy.lasting:
            return
        assert self._moment is not None
        tokens = torch.where(written >= 0, written, self._moment.tokens)
        masked = self._moment.masked & ((written < 0) | (written == self.model.card.mask_id))
        fresh = self.policy.plan(self._now(tokens, masked)).fresh
        assert fresh is not None
        fresh = marked(fresh, self._real)
        if self._ahead is None:
            self._ahead = fresh
        else:
            self._ahead[list(self._charged)] = fresh[list(self._charged)]

    def _refresh(self, inputs: Tensor, rows: list[int]) -> None:
        """Compute all positions of some rows, and ask the policy which keys they read from now on."""
        for row in self._charged:
            self.meter.add(row, self._lengths[row], self._lengths[row])
        moment, whole, measures = self._moment, len(rows) == len(self._real), self.policy.measures
        assert moment is not None
        moment = moment if whole else moment.of_rows(rows)
        self._store.refresh(rows)
        layout, tokens = (self.layout, inputs) if whole else (rows_of(self.layout, rows), inputs[rows])
        self._measures = measures
        found = self._forward(tokens, layout.positions, layout.seen, rows, None if whole else slice(None), True)
        self._measures = False
        if whole:
            self._hidden = found
        else:
            self._put(found, rows, slice(None))
        if measures:
            norms = [torch.linalg.vector_norm(value.float(), dim=-1) for _, value in sorted(self._store.values.items())]
            moment = replace(moment, scores=self._measured, values=norms)
        kept = self.policy.kept(moment)
        if kept is None or whole or self._kept is None:
            self._kept = kept
        else:
            self._kept[rows] = kept

    def _compute(self, inputs: Tensor, rows: list[int], fresh: slice) -> None:
        tokens, positions = inputs[:, fresh], self.layout.positions[:, fresh]
        if len(rows) < len(self._real):
            tokens, positions = tokens[rows], positions[rows]
        kept, seen, keys = self._keys(rows, tokens.shape[1])
        self._store.compute(fresh, kept)
        real = self._real[:, fresh].sum(-1).tolist()
        for row in self._charged:
            self.meter.add(row, real[row], keys[row])
        self._put(self._forward(tokens, positions, seen, rows, fresh, False), rows, fresh)

    def _compute_marked(self, inputs: Tensor, rows: list[int], fresh: Tensor) -> None:
        """Compute marked positions, a number of each row; rows with all of them in a separate call."""
        held, width = self._store.rows, fresh.shape[1]
        counts = fresh.sum(-1).tolist()
        all_places = torch.where(fresh, torch.arange(width, device=fresh.device), width)
        whole = [row for row in rows if counts[row] == self._lengths[row]]
        for refresh, group in ((True, whole), (False, [row for row in rows if row not in whole])):
            most = max((counts[row] for row in group), default=0)
            if not most:
                continue
            # A row with fewer positions computes its first ones again, to the same result; a row with none its last
            # one. Whole rows stand at the right end of the batch, as in a refresh of all rows.
            order = (all_places[:, -most:] if refresh else all_places.sort(dim=-1).values[:, :most])[group]
            first = torch.where(order[:, :1] < width, order[:, :1], width - 1)
            places = torch.where(order < width, order, first)
            mine = None if group == held else torch.tensor([held.index(row) for row in group], device=inputs.device)
            kept, seen, keys = self._keys(group, most)
            self._store.compute(places, kept, mine)
            for row in self._charged:
                if counts[row] and row in group:
                    self.meter.add(row, counts[row], keys[row])
            tokens, positions = inputs[group].gather(1, places), self.layout.positions[group].gather(1, places)
            queries = torch.where(order < width, order, -1)
            found = self._forward(tokens, positions, seen, group, queries, refresh)
            self._put(found, group, places)

    def _keys(self, rows: list[int], queries: int) -> tuple[Tensor | None, Tensor | None, list[int]]:
        """Return which stored keys some rows read, int64 [row, 1 or layer, 1 or kv_head, key], and which of them count,
        bool [row, 1, query, key], each None for all; and how many every row of the batch reads.
        """
        if self._kept is None:
            seen = None if self.layout.seen is None else self._real[rows][:, None, None].expand(-1, 1, queries, -1)
            return None, seen, self._lengths
        real = self._kept[:, 0, 0] >= 0
        seen = None if bool(real[rows].all()) else real[rows][:, None, None].expand(-1, 1, queries, -1)
        return self._kept[rows].clamp(min=0), seen, real.sum(-1).tolist()

    def _forward(
        self, tokens: Tensor, positions: Tensor, seen: Tensor | None, rows: list[int], queries: Any, refresh: bool
    ) -> Tensor:
        """Call the network; ``queries`` are the places, a slice or int64 [row, query], None for the whole batch."""
        session, count, part = current_session(self.model.network), len(self._real), None
        if isinstance(queries, slice):
            queries = torch.arange(self._real.shape[1], device=self._real.device)[queries].expand(len(rows), -1)
        if session is not None and queries is not None:
            part = CallPart(torch.tensor(rows, device=queries.device), queries, refresh)
        assert self._moment is not None
        self._asked = self._moment if len(rows) == count else self._moment.of_rows(rows)
        self._watches = self.policy.watches(refresh)
        self._measured = []
        with nullcontext() if session is None else session.computing(part):
            hidden = stored_call(self.model, tokens, positions, seen, self._store)
        if self._watches:
            found, self._watches, self._watched = self._watched, False, None
            assert found is not None
            for name in ("now", "at_refresh") if refresh else ("now",):
                kept = self._known.get(name)
                self._known[name] = found.new_zeros(count, *found.shape[1:]) if kept is None else kept.clone()
                self._known[name][rows] = found
        return hidden

    def _put(self, found: Tensor, rows: list[int], fresh: slice | Tensor) -> None:
        assert self._hidden is not None
        if isinstance(fresh, slice):
            self._hidden[slice(None) if len(rows) == len(self._real) else rows, fresh] = found
        else:
            self._hidden[torch.tensor(rows, device=found.device)[:, None], fresh] = found


def _placed(found: Tensor, places: Tensor) -> Tensor:
    """Return numbers at the marked places, float32 [batch, position], NaN elsewhere."""
    return torch.full(places.shape, torch.nan, device=places.device, dtype=torch.float32).masked_scatter_(places, found)
