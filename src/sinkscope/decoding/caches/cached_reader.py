"""Computes the positions that a cache policy names, and reads the stored keys and values of the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import CallPart, Columns, Hider, LayerCall, current_session
from sinkscope.decoding.caches.policy import CachePolicy, Moment, Places, Plan
from sinkscope.decoding.caches.store import KeyValueStore
from sinkscope.decoding.canvas import Layout, WorkMeter
from sinkscope.decoding.projection import WholeReader, rows_of
from sinkscope.models import Model


class Measurer(Hider):
    """Measures layers for a policy while the network runs; it hides nothing.

    Attributes:
        found: results of `CachePolicy.measure` for each layer of a refresh.
        watched: result of `CachePolicy.follow` in the last layer of a step.
    """

    def __init__(self) -> None:
        self._asked: tuple[CachePolicy, Moment] | None = None
        self._measures = self._watches = False
        self.found: list[Tensor] = []
        self.watched: Tensor | None = None

    @contextmanager
    def asking(self, policy: CachePolicy, moment: Moment, measures: bool, watches: bool) -> Iterator[None]:
        """Let a policy measure each layer while the body runs."""
        self._asked, self._measures, self._watches = (policy, moment), measures, watches
        self.found, self.watched = [], None
        try:
            yield
        finally:
            self._asked, self._measures, self._watches = None, False, False

    def hide(self, call: LayerCall) -> None:
        if self._watches and self._asked is not None:
            policy, moment = self._asked
            self.watched = policy.follow(self.watched, call, moment)

    def observes(self, call: LayerCall) -> bool:
        return self._measures

    def observe(self, call: LayerCall, columns: Columns) -> None:
        if self._measures and self._asked is not None:
            policy, moment = self._asked
            self.found.append(policy.measure(call, columns, moment))


class CachedReader(WholeReader):
    """Computes the positions that a policy names, and reads the stored keys and values of the others."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        meter: WorkMeter,
        policy: CachePolicy,
        real: Tensor,
        settings: Any = None,
        width: int = 0,
    ) -> None:
        super().__init__(model, layout, meter)
        self.policy, self.double, self._real = policy, policy.double, real
        heads = (model.card.layers, model.card.kv_heads)
        self._constant = {"heads": heads, "shift": model.family.shift, "settings": settings, "width": width}
        self.measurer = Measurer()
        self._store = KeyValueStore()
        self._moment: Moment | None = None
        self._plan = Plan()
        self._kept: Tensor | None = None
        self._block = (0, real.shape[1])
        self._number = 0
        # How many tokens of each row the block has yet to commit; a model may commit the mask token.
        self._due: Tensor | None = None
        self._commits: list[Tensor] = []
        self._confidence: Tensor | None = None
        self._entropy: Tensor | None = None
        self._surveyed: Tensor | None = None
        self._ahead: Tensor | None = None
        self._watched: dict[str, Tensor | None] = {"now": None, "before": None, "at_refresh": None}
        self._charged: Sequence[int] = ()

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
        return self._marked(self._plan.fresh if self._plan.open is None else self._plan.open)

    def _now(self, tokens: Tensor, masked: Tensor) -> Moment:
        made = {
            "confidence": self._confidence,
            "entropy": self._entropy,
            "surveyed": self._surveyed,
            **self._constant,
            **self._watched,
        }
        return Moment(self._number, *self._block, tokens, masked, self._real, tuple(self._commits), **made)

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        self._charged = range(len(inputs)) if rows is None else rows
        rows = list(range(len(inputs))) if rows is None or (together and not self.policy.lasting) else list(rows)
        fresh = self._plan.fresh
        self._watched["before"] = None if self._watched["now"] is None else self._watched["now"].clone()
        if fresh is None:
            self._refresh(inputs, rows)
        else:
            if not self.policy.lasting:
                self._store.hold(rows)
            if isinstance(fresh, slice):
                self._compute(inputs, rows, fresh)
            else:
                self._compute_marked(inputs, rows, fresh)
        self._number += 1
        assert self._hidden is not None
        return self._hidden

    def surveys(self) -> bool:
        return self.policy.surveys and self._surveyed is None

    def survey(self, logits: Tensor, masked: Tensor) -> None:
        sure = torch.softmax(logits, dim=-1).amax(-1).float()
        self._surveyed = _placed(sure, masked)

    def judge(self, logits: Tensor, candidates: Tensor) -> None:
        if self.policy.judges:
            found = logits.new_empty(0, dtype=torch.float32)
            if len(logits):  # a step of Dream's origin may draw no place
                found = torch.distributions.Categorical(logits=logits.float()).entropy()
            self._entropy = _placed(found, candidates)

    def committed(self, written: Tensor, confidence: Tensor) -> None:
        self._commits.append(written >= 0)
        if self._due is not None:
            self._due -= ((written >= 0) & ~confidence.isnan()).sum(-1)
        self._confidence = confidence
        if self.policy.lasting:
            self._plan_ahead(written)

    def _plan_ahead(self, written: Tensor) -> None:
        assert self._moment is not None
        tokens = torch.where(written >= 0, written, self._moment.tokens)
        masked = self._moment.masked & ((written < 0) | (written == self.model.card.mask_id))
        fresh = self._marked(self.policy.plan(self._now(tokens, masked)).fresh)
        assert fresh is not None
        if self._ahead is None:
            self._ahead = fresh
        else:
            self._ahead[list(self._charged)] = fresh[list(self._charged)]

    def _marked(self, places: Places | None) -> Tensor | None:
        if not isinstance(places, slice):
            return places
        marked = torch.zeros_like(self._real)
        marked[:, places] = True
        return marked

    def _refresh(self, inputs: Tensor, rows: list[int]) -> None:
        """Compute all positions of some rows, and ask the policy which keys they read from now on."""
        for row in self._charged:
            self.meter.add(row, self._lengths[row], self._lengths[row])
        moment, whole, measures = self._moment, len(rows) == len(self._real), self.policy.measures
        assert moment is not None
        moment = moment if whole else moment.of_rows(rows)
        self._store.refresh(rows)
        layout = self.layout if whole else rows_of(self.layout, rows)
        part = None if whole else self._part(rows, slice(None), whole=True)
        tokens = inputs if whole else inputs[rows]
        found = self._forward(tokens, layout.positions, layout.seen, part, rows, refresh=True, measures=measures)
        self._put(found, rows, slice(None))
        if measures:
            moment = replace(moment, scores=self.measurer.found, values=self._store.value_norms())
        kept = self.policy.kept(moment)
        if kept is None or whole or self._kept is None:
            self._kept = kept
        else:
            self._kept[rows] = kept

    def _compute(self, inputs: Tensor, rows: list[int], fresh: slice) -> None:
        whole = len(rows) == len(self._real)
        self._store.compute(fresh, self._read_keys(rows))
        tokens, positions = inputs[:, fresh], self.layout.positions[:, fresh]
        if not whole:
            tokens, positions = tokens[rows], positions[rows]
        real, keys = self._real[:, fresh].sum(-1).tolist(), self._key_counts()
        for row in self._charged:
            self.meter.add(row, real[row], keys[row])
        found = self._forward(tokens, positions, self._seen(rows, tokens.shape[1]), self._part(rows, fresh), rows)
        self._put(found, rows, fresh)

    def _compute_marked(self, inputs: Tensor, rows: list[int], fresh: Tensor) -> None:
        """Compute marked positions, a number of each row; rows with all of them in a separate call."""
        fresh = fresh & self._real
        held = self._store.rows
        counts = fresh.sum(-1).tolist()
        whole = [row for row in rows if counts[row] == self._lengths[row]]
        for refresh, group in ((True, whole), (False, [row for row in rows if row not in whole])):
            if any(counts[row] for row in group):
                self._compute_group(inputs, held, group, fresh, counts, refresh)

    def _compute_group(
        self, inputs: Tensor, held: list[int], rows: list[int], fresh: Tensor, counts: list[int], refresh: bool
    ) -> None:
        most = max(counts[row] for row in rows)
        # A row with fewer positions computes its first ones again, to the same result; a row with none its last one.
        # Whole rows stand at the right end of the batch, as in a refresh of all rows.
        numbers = torch.arange(fresh.shape[1], device=fresh.device)
        order = torch.where(fresh, numbers, fresh.shape[1])
        order = order[:, -most:] if refresh else order.sort(dim=-1).values[:, :most]
        first = torch.where(order[:, :1] < fresh.shape[1], order[:, :1], fresh.shape[1] - 1)
        places = torch.where(order < fresh.shape[1], order, first)[rows]
        mine = None if rows == held else torch.tensor([held.index(row) for row in rows], device=inputs.device)
        self._store.compute(places, self._read_keys(rows), mine)
        keys = self._key_counts()
        for row in self._charged:
            if counts[row] and row in rows:
                self.meter.add(row, counts[row], keys[row])
        tokens, positions = inputs[rows].gather(1, places), self.layout.positions[rows].gather(1, places)
        part = self._part(rows, torch.where(order[rows] < fresh.shape[1], order[rows], -1), refresh)
        self._put(self._forward(tokens, positions, self._seen(rows, most), part, rows, refresh), rows, places)

    def _read_keys(self, rows: list[int]) -> Tensor | None:
        """Return which keys some rows read, int64 [row, 1 or layer, 1 or kv_head, key]; None for all."""
        return None if self._kept is None else self._kept[rows].clamp(min=0)

    def _key_counts(self) -> list[int]:
        return self._lengths if self._kept is None else (self._kept[:, 0, 0] >= 0).sum(-1).tolist()

    def _seen(self, rows: list[int], queries: int) -> Tensor | None:
        """Return which of the keys count, bool [row, 1, query, key]; None where all do."""
        if self._kept is not None:
            real = self._kept[rows][:, 0, 0] >= 0
            if bool(real.all()):
                return None
        elif self.layout.seen is None:
            return None
        else:
            real = self._real[rows]
        return real[:, None, None].expand(-1, 1, queries, -1)

    def _part(self, rows: list[int], queries: slice | Tensor, whole: bool = False) -> CallPart | None:
        """Return the part of the canvas that a call computes, for watchers; None without any."""
        if current_session(self.model.network) is None:
            return None
        if isinstance(queries, slice):
            queries = torch.arange(self._real.shape[1], device=self._real.device)[queries].expand(len(rows), -1)
        return CallPart(torch.tensor(rows, device=queries.device), queries, whole)

    def _forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        seen: Tensor | None,
        part: CallPart | None,
        rows: list[int],
        refresh: bool = False,
        measures: bool = False,
    ) -> Tensor:
        session, watches = current_session(self.model.network), self.policy.watches(refresh)
        assert self._moment is not None
        moment = self._moment if len(rows) == len(self._real) else self._moment.of_rows(rows)
        with (
            nullcontext() if session is None else session.computing(part),
            self.measurer.asking(self.policy, moment, measures, watches),
        ):
            hidden = self._stored_call(tokens, positions, seen, self._store)
        if watches:
            assert self.measurer.watched is not None
            self._note(self.measurer.watched, rows, refresh)
        return hidden

    def _note(self, found: Tensor, rows: list[int], refresh: bool) -> None:
        for name in ("now", "at_refresh") if refresh else ("now",):
            kept = self._watched[name]
            kept = found.new_zeros(len(self._real), *found.shape[1:]) if kept is None else kept.clone()
            kept[rows] = found
            self._watched[name] = kept

    def _put(self, found: Tensor, rows: list[int], fresh: slice | Tensor) -> None:
        whole = len(rows) == len(self._real)
        if isinstance(fresh, slice) and fresh == slice(None) and whole:
            self._hidden = found
            return
        assert self._hidden is not None
        if isinstance(fresh, slice):
            self._hidden[slice(None) if whole else rows, fresh] = found
        else:
            self._hidden[torch.tensor(rows, device=found.device)[:, None], fresh] = found


def _placed(found: Tensor, places: Tensor) -> Tensor:
    """Return numbers at the marked places, float32 [batch, position], NaN elsewhere."""
    return torch.full(places.shape, torch.nan, device=places.device, dtype=torch.float32).masked_scatter_(places, found)
