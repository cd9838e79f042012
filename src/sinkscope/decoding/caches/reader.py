"""Readers compute the hidden states of a canvas for a sampler: all positions in every step, or those that a cache policy names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import CallPart, Watcher, current_session, subscribed
from sinkscope.decoding.caches.measurer import Measurer
from sinkscope.decoding.caches.memory import does_not_fit, free_bytes, is_out_of_memory
from sinkscope.decoding.caches.parsing import parse_cache
from sinkscope.decoding.caches.policy import CachePolicy, Moment, Places, Plan
from sinkscope.decoding.caches.store import KeyValueStore
from sinkscope.decoding.canvas import Batch, Layout
from sinkscope.decoding.projection import hidden_states
from sinkscope.decoding.settings import Settings
from sinkscope.decoding.work import WorkMeter
from sinkscope.errors import CallError
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
        assert self._hidden is not None and copies == 1
        self._hidden[rows] = hidden_states(self.model, inputs[rows], rows_of(self.layout, rows))
        return self._hidden

    def committed(self, written: Tensor, confidence: Tensor) -> None:
        """Note what a step has committed, int64 [batch, position], −1 elsewhere, and how probable the candidates were, NaN elsewhere."""


class CachedReader(WholeReader):
    """Computes the positions that a policy names, and reads the stored keys and values of the others."""

    def __init__(
        self, model: Model, layout: Layout, meter: WorkMeter, policy: CachePolicy, real: Tensor, settings: Any = None, width: int = 0
    ) -> None:
        super().__init__(model, layout, meter)
        self.policy, self.double, self._real = policy, policy.double, real
        self._told = {"heads": (model.card.layers, model.card.kv_heads), "shift": model.family.shift, "settings": settings, "width": width}
        self.measurer = Measurer()
        self._store, self._free = KeyValueStore(), free_bytes(model.device)
        self._moment: Moment | None = None
        self._plan = Plan()
        self._kept: Tensor | None = None
        self._block = (0, real.shape[1])
        self._number = 0
        self._commits: list[Tensor] = []
        self._confidence: Tensor | None = None
        self._watched: dict[str, Tensor | None] = {"now": None, "before": None, "at_refresh": None}
        self._charged: Sequence[int] = ()

    def begin_block(self, start: int, stop: int) -> None:
        self._block, self._number, self._commits = (start, stop), 0, []

    def open_places(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        start, stop = self._block
        made = {**self._told, "confidence": self._confidence, **self._watched}
        self._moment = Moment(self._number, start, stop, tokens, masked, self._real, tuple(self._commits), **made)
        self._plan = self.policy.plan(self._moment) if self._number else self.policy.first(self._moment)
        return self._marked(self._plan.fresh if self._plan.open is None else self._plan.open)

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        self._charged = range(len(inputs)) if rows is None else rows
        rows = list(range(len(inputs))) if rows is None or together else list(rows)
        fresh = self._plan.fresh
        self._watched["before"] = None if self._watched["now"] is None else self._watched["now"].clone()
        if fresh is None:
            self._refresh(inputs, rows)
        else:
            self._store.hold(rows)
            if isinstance(fresh, slice):
                self._compute(inputs, rows, fresh)
            else:
                self._compute_marked(inputs, rows, fresh)
        self._number += 1
        assert self._hidden is not None
        return self._hidden

    def committed(self, written: Tensor, confidence: Tensor) -> None:
        self._commits.append(written >= 0)
        self._confidence = confidence

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
        part = None if whole else self._part(rows, slice(None))
        with self.measurer.measuring(self.policy, moment) if measures else nullcontext():
            found = self._forward(inputs if whole else inputs[rows], layout.positions, layout.seen, part, rows, refresh=True)
        self._put(found, rows, slice(None))
        if measures:
            moment = replace(moment, scores=self.measurer.found, values=self._store.value_norms())
        kept = self.policy.kept(moment)
        if kept is None or whole or self._kept is None:
            self._kept = kept
        else:
            self._kept[rows] = kept

    def _compute(self, inputs: Tensor, rows: list[int], fresh: slice) -> None:
        """Compute the same positions of some rows."""
        whole = len(rows) == len(self._real)
        self._store.compute(fresh, self._read_keys(rows))
        tokens, positions = inputs[:, fresh], self.layout.positions[:, fresh]
        if not whole:
            tokens, positions = tokens[rows], positions[rows]
        real, keys = self._real[:, fresh].sum(-1).tolist(), self._key_counts()
        for row in self._charged:
            self.meter.add(row, real[row], keys[row])
        self._put(self._forward(tokens, positions, self._seen(rows, tokens.shape[1]), self._part(rows, fresh), rows), rows, fresh)

    def _compute_marked(self, inputs: Tensor, rows: list[int], fresh: Tensor) -> None:
        """Compute marked positions, of which each row may have another number; rows with all of them in a call of their own."""
        fresh = fresh & self._real
        counts = fresh.sum(-1).tolist()
        whole = [row for row in rows if counts[row] == self._lengths[row]]
        for refresh, group in ((True, whole), (False, [row for row in rows if row not in whole])):
            if any(counts[row] for row in group):
                self._compute_group(inputs, rows, group, fresh, counts, refresh)

    def _compute_group(self, inputs: Tensor, held: list[int], rows: list[int], fresh: Tensor, counts: list[int], refresh: bool) -> None:
        """Compute the marked positions of some of the rows that are held."""
        most = max(counts[row] for row in rows)
        # A row with fewer positions computes its first ones again, to the same result; a row with none computes its last position.
        order = torch.where(fresh, torch.arange(fresh.shape[1], device=fresh.device), fresh.shape[1]).sort(dim=-1).values[:, :most]
        first = torch.where(order[:, :1] < fresh.shape[1], order[:, :1], fresh.shape[1] - 1)
        places = torch.where(order < fresh.shape[1], order, first)[rows]
        mine = None if rows == held else torch.tensor([held.index(row) for row in rows], device=inputs.device)
        self._store.compute(places, self._read_keys(rows), mine)
        keys = self._key_counts()
        for row in self._charged:
            if counts[row] and row in rows:
                self.meter.add(row, counts[row], keys[row])
        tokens, positions = inputs[rows].gather(1, places), self.layout.positions[rows].gather(1, places)
        part = self._part(rows, torch.where(order[rows] < fresh.shape[1], order[rows], -1))
        self._put(self._forward(tokens, positions, self._seen(rows, most), part, rows, refresh), rows, places)

    def _read_keys(self, rows: list[int]) -> Tensor | None:
        """Return which keys some rows read, int64 [row, 1 or layer, 1 or kv_head, key]; None for all."""
        return None if self._kept is None else self._kept[rows].clamp(min=0)

    def _key_counts(self) -> list[int]:
        """Return how many keys a query of each row reads."""
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

    def _part(self, rows: list[int], queries: slice | Tensor) -> CallPart | None:
        """Return the part of the canvas that a call computes, for what watches the model; None where nothing does."""
        if current_session(self.model.network) is None:
            return None
        if isinstance(queries, slice):
            queries = torch.arange(self._real.shape[1], device=self._real.device)[queries].expand(len(rows), -1)
        return CallPart(torch.tensor(rows, device=queries.device), queries)

    def _forward(
        self, tokens: Tensor, positions: Tensor, seen: Tensor | None, part: CallPart | None, rows: list[int], refresh: bool = False
    ) -> Tensor:
        session, watches = current_session(self.model.network), self.policy.watches(refresh)
        assert self._moment is not None
        moment = self._moment if len(rows) == len(self._real) else self._moment.of_rows(rows)
        with (
            nullcontext() if session is None else session.computing(part),
            self.measurer.watching(self.policy, moment) if watches else nullcontext(),
        ):
            try:
                output = self.model.network.model(
                    input_ids=tokens, attention_mask=seen, position_ids=positions, past_key_values=self._store, use_cache=True
                )
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):
                    raise does_not_fit(self.model, self.policy.text, len(rows), self._real.shape[1], self._free) from error
                raise
        if watches:
            self._note(torch.stack(self.measurer.watched, dim=1), rows, refresh)
        return output.last_hidden_state.to(tokens.device)

    def _note(self, found: Tensor, rows: list[int], refresh: bool) -> None:
        """Keep what was watched in some rows, [row, layer, …]."""
        for name in ("now", "at_refresh") if refresh else ("now",):
            kept = self._watched[name]
            kept = found.new_zeros(len(self._real), *found.shape[1:]) if kept is None else kept.clone()
            kept[rows] = found
            self._watched[name] = kept

    def _put(self, found: Tensor, rows: list[int], fresh: slice | Tensor) -> None:
        """Put the hidden states of the fresh positions of some rows into those of the batch."""
        whole = len(rows) == len(self._real)
        if isinstance(fresh, slice) and fresh == slice(None) and whole:
            self._hidden = found
            return
        assert self._hidden is not None
        if isinstance(fresh, slice):
            if whole:
                self._hidden[:, fresh] = found
            else:
                self._hidden[rows, fresh] = found
        else:
            self._hidden[torch.tensor(rows, device=found.device)[:, None], fresh] = found


def rows_of(layout: Layout, rows: Sequence[int]) -> Layout:
    """Return the layout of some rows of a batch."""
    chosen = list(rows)
    return Layout(
        seen=None if layout.seen is None else layout.seen[chosen],
        positions=layout.positions[chosen],
        lengths=layout.lengths[chosen],
        starts=tuple(layout.starts[row] for row in chosen),
    )


@contextmanager
def reading(model: Model, batch: Batch, layout: Layout, meter: WorkMeter, settings: Settings) -> Iterator[WholeReader]:
    """Make the reader that the settings name.

    Raises:
        CallError: a cache that does not go with the model, the settings, the canvas, or with what watches the model.
    """
    policy = parse_cache(getattr(settings, "cache", "none"))
    if policy is None:
        yield WholeReader(model, layout, meter)
        return
    policy.check_canvas(batch, settings)
    check_model(model, policy)
    length = layout.positions.shape[1]
    real = torch.nn.functional.pad(batch.real, (0, length - batch.real.shape[1]), value=True)
    reader = CachedReader(model, layout, meter, policy, real, settings, batch.real.shape[1])
    if not (policy.measures or policy.watches(refresh=True)):
        yield reader
        return
    with subscribed(model.network, reader.measurer):
        yield reader


def check_model(model: Model, policy: CachePolicy) -> None:
    """Raise an error where a model, or what watches it, does not go with any cache.

    Raises:
        CallError: it does not.
    """
    session = current_session(model.network)
    for one in [] if session is None else session.subscribers:
        if not isinstance(one, Watcher):
            raise CallError(
                f"cache {policy.text}: expected a model in which nothing is hidden or put in front, because a step computes only some "
                f"queries, found {type(one).__name__}; hide without a cache (--cache none)"
            )
        if policy.selects:
            raise CallError(
                f"cache {policy.text}: expected a model that nothing watches, because its queries read only some keys, found "
                f"{type(one).__name__}; watch with a policy that reads all keys, such as --cache block"
            )
    sink = getattr(model.network.model, "sink_token", None)
    if sink is not None and sink.variant.kind == "token" and sink.variant.position == "end":
        raise CallError(
            f"cache {policy.text}: {model.card.name} has a sink token at the end, whose place follows from the whole canvas, of which a "
            "step computes only a part; use --cache none"
        )
