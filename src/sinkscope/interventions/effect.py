"""The effect of hiding: how much attention was removed, and how many of the hidden keys were still sinks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from sinkscope.attention import Columns, LayerCall, StepResult, Watcher, subscribed
from sinkscope.counts import counted
from sinkscope.interventions.rule_context import Scope, pool, rank_of, spread
from sinkscope.notebook_card import MOST_ROWS, card


class Moved(NamedTuple):
    """The position that gains most by hiding, and its shares of all attention without the hiding and with it."""

    position: int
    without: float
    hidden: float


@dataclass(frozen=True, eq=False, repr=False)
class Effect:
    """Sums over the steps in which a rule was in force, float64 [prompt, layer, head].

    Attributes:
        removed: attention that the hidden keys would have received, in queries' worth, measured without the hiding.
        hidden: number of hidden keys, a key once a step.
        hits: hidden keys that were in the current top K, where K keys were hidden in that head.
        ranked: hidden keys for which that is defined; not for keys that each query loses for itself (`KeepWindow`).
        removed_committed, committed: ``removed`` and ``queries`` of those committed in the step, 0 in a likelihood.
        received: attention that each position receives without the hiding and with it, [prompt, 2, position]; none of
            a network with several stacks. A sink that lower layers have rebuilt counts in both.
        without_effect: for each rule that hid nothing, itself and why.
    """

    removed: np.ndarray
    queries: np.ndarray
    hidden: np.ndarray
    hits: np.ndarray
    ranked: np.ndarray
    steps: np.ndarray
    removed_committed: np.ndarray
    committed: np.ndarray
    received: np.ndarray
    without_effect: tuple[str, ...] = ()

    @property
    def removed_share(self) -> float:
        """Share of the attention of the heads in which a rule was in force that was removed; 0 where none was."""
        return _share(self.removed.sum(), self.queries.sum())

    @property
    def removed_share_committed(self) -> float | None:
        """The same share of the queries whose tokens were committed; None where nothing was committed."""
        return _share(self.removed_committed.sum(), self.committed.sum()) if self.committed.sum() else None

    @property
    def hit_rate(self) -> float | None:
        """Share of the hidden keys that were in the current top K; None where none is ranked."""
        return _share(self.hits.sum(), self.ranked.sum()) if self.ranked.sum() else None

    @property
    def keys_per_head(self) -> float:
        """Hidden keys in a step, mean over the heads in which a rule was in force."""
        return _share(self.hidden.sum(), self.steps.sum())

    @property
    def moved(self) -> Moved | None:
        """Where the removed attention went, mean over prompts; None where nothing was removed or it is not known."""
        if not self.received.size or not self.removed.sum():
            return None
        without, hidden = self.received.sum(0) / self.queries.sum()
        place = int((hidden - without).argmax())
        return Moved(place, float(without[place]), float(hidden[place]))

    @property
    def removed_share_by_head(self) -> np.ndarray:
        """The removed share of each head, [layer, head]; NaN for heads in which no rule was in force."""
        return _ratio(self.removed.sum(0), self.queries.sum(0))

    @property
    def hit_rate_by_head(self) -> np.ndarray:
        """The hit rate of each head, [layer, head]; NaN where no key was hidden."""
        return _ratio(self.hits.sum(0), self.ranked.sum(0))

    def _repr_html_(self) -> str:
        steps, share, hits = self.steps.sum(0), self.removed_share_by_head, self.hit_rate_by_head
        heads = sorted(zip(*steps.nonzero(), strict=True), key=lambda place: -share[place])
        rows = [
            (*map(int, place), f"{share[place]:.1%}", None if np.isnan(hits[place]) else f"{hits[place]:.1%}")
            for place in heads[:MOST_ROWS]
        ]
        facts = {"attention removed": f"{self.removed_share:.1%} in {counted(len(heads), 'head')}", "effect": str(self)}
        columns = ("layer", "head", "attention removed", "still largest")
        return card("Effect of hiding", facts, columns, rows, len(heads) - len(rows))

    def of(self, prompt: int | slice) -> "Effect":
        """Return the effect on one prompt; prompts are counted from the first that was written inside the context."""
        rows = [prompt] if isinstance(prompt, int) else prompt
        kept = {name: values[rows] for name, values in vars(self).items() if isinstance(values, np.ndarray)}
        return replace(self, **kept)

    def __repr__(self) -> str:
        return f"Effect on {counted(len(self.steps), 'prompt')}: {self.sentence('the rule')}"

    def sentence(self, rule: str) -> str:
        rows, rate, moved = self.removed_share_committed, self.hit_rate, self.moved
        text = f"{rule} took away {self.removed_share:.1%} of the attention"
        text += "" if rows is None else f" ({rows:.1%} at the positions being committed)"
        text += f", {self.keys_per_head:.3g} keys per head and step"
        text += "" if rate is None else f"; {rate:.0%} of the hidden keys were still in the current top K"
        if moved is not None:
            text += f"; position {moved.position} gained most: {moved.hidden:.1%}"
            text += f", with the hidden keys back {moved.without:.1%}"
        return "; ".join([text, *self.without_effect])

    def as_dict(self) -> dict[str, Any]:
        names = ("removed_share", "removed_share_committed", "hit_rate", "keys_per_head")
        moved = None if self.moved is None else self.moved._asdict()
        more = {"moved": moved, "without_effect": list(self.without_effect)}
        return {name: getattr(self, name) for name in names} | more


COUNTS = tuple(field.name for field in fields(Effect))[:-2]
"""What is counted of every head."""


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


class LayerCounts(NamedTuple):
    """What a layer leaves to be counted at the end of a step, when all layers are `stacked`: a layer axis in front."""

    heads: int
    kv_heads: int
    limits: tuple[Tensor, ...]  # for each rule its heads, bool [head]; none where any rule is in force in all
    rules: tuple[int, ...]  # their numbers
    ranked: tuple[bool, ...]  # for each rule whether all queries lose the same keys
    keys: tuple[Tensor, ...]  # for each rule the keys that any query loses, bool [batch, 1 or head, key]
    losing: tuple[Tensor | None, ...]  # for each rule the queries that lose them, bool [batch, query]; None for all
    queries: Tensor  # float32 [batch, query], those that count
    held: Tensor  # bool [batch, key], the keys that there are
    each: tuple[Tensor, Tensor] | None  # `losses`, where queries lose different keys
    removed: Tensor | None = None  # as in `Columns`; None, with all that follows, where nothing was hidden
    received: tuple[Tensor, ...] = ()  # column sums without the hiding and with it, [batch, head, key], if wanted
    values: tuple[
        tuple[Tensor, Scope], ...
    ] = ()  # what ranks the keys of each ranked rule, see `Intervention.criterion`

    def counts(self, most: int | None, readers: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what stacked layers add to an `Effect`: [batch, layer, head, number], numbers as in `COUNTS`, and what
        keys receive, [batch, 2, key]. Rules hide up to ``most`` keys a head; ``readers`` [batch, position] commit.
        """
        shape = (*self.queries.shape[:2], self.heads)
        in_force = torch.stack(self.limits).any(0)[:, None] if self.limits else self.queries.new_ones(1, 1, self.heads)
        in_force = in_force.float()
        found = {"queries": self.queries.sum(-1, keepdim=True) * in_force, "steps": in_force}
        if readers is not None:
            found["committed"] = readers.sum(-1, keepdim=True) * in_force
        if self.removed is not None:
            lost = self.removed * (self.queries[:, :, None] * in_force[..., None])
            found["removed"] = lost.sum(-1)
            if readers is not None:
                found["removed_committed"] = (lost * readers[:, None, -lost.shape[-1] :]).sum(-1)
            number, gone = self.each or losses([keys[..., None, :] for keys in self.keys], self.held)
            nothing = lost == 0  # of a query with constant keys in front, that may lose all others
            spared = gone & (nothing if self.each else nothing.all(-1, keepdim=True))  # they keep all, not to lose all
            hidden = number * ~spared
            if self.each:
                limited = [own for own in self.losing if own is not None]
                losing = reduce(torch.bitwise_or, limited) if len(limited) == len(self.losing) else 1
                weight = (self.queries * losing)[:, :, None]
                found["hidden"] = (hidden * weight).sum(-1) / weight.sum(-1).clamp(min=1)
            else:
                found["hidden"] = hidden.sum(-1)
            if ranked := [keys for keys, has_rank in zip(self.keys, self.ranked, strict=True) if has_rank]:
                together, kept = reduce(torch.bitwise_or, ranked), ~spared.all(-1, keepdim=True)
                taken, top = together.sum(-1, keepdim=True), torch.zeros_like(together)
                for keys, (values, scope) in zip(ranked, self.values, strict=True):
                    ranks = rank_of(pool(values, scope, self.kv_heads), self.held[:, :, None], most)
                    top = top | (keys & (spread(ranks, self.heads) < taken))
                found["hits"], found["ranked"] = ((one & kept).sum(-1, dtype=torch.float32) for one in (top, together))
        zero, received = in_force.new_zeros(()), [(one * in_force[..., None]).sum((0, 2)) for one in self.received]
        counts = torch.stack([found.get(name, zero).expand(shape) for name in COUNTS], -1).transpose(0, 1)
        return counts, torch.stack(received, 1) if received else None


def losses(keys: Sequence[Tensor], held: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many ``keys``, bool [batch, head, query, key], rules take, and whether all that are ``held``."""
    union, held = reduce(torch.bitwise_or, keys), held[..., None, None, :]
    return union.sum(-1, dtype=torch.float32), (union | ~held).all(-1)


def stacked(layers: Mapping[int, LayerCounts]) -> Iterator[tuple[tuple[int, ...], LayerCounts]]:
    """Yield layers that are alike as one, with their places."""
    alike: dict[Any, dict[int, list[Any]]] = {}
    for place, one in layers.items():
        leaves = tree_leaves(one)
        kind = tuple((leaf.shape, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        alike.setdefault(kind, {})[place] = leaves
    for found in alike.values():
        leaves = list(map(_stacked, zip(*found.values(), strict=True)))
        yield tuple(found), tree_unflatten(leaves, tree_structure(layers[min(found)]))


def _stacked(leaves: tuple[Any, ...]) -> Any:
    if all(one is leaves[0] for one in leaves) or not isinstance(leaves[0], Tensor):
        return leaves[0].expand(len(leaves), *leaves[0].shape) if isinstance(leaves[0], Tensor) else leaves[0]
    return torch.stack(leaves)


class Tally:
    """Sums of an `Effect` while they grow, on the device; a step adds all layers at once, as each addition launches."""

    def __init__(self, prompts: int) -> None:
        self._prompts = prompts
        self._sums: dict[tuple[int, ...], Tensor] = {}  # places of layers → [prompt, layer, head, number]
        self._received: Tensor | None = None  # [prompt, 2, position]

    def add_received(self, prompts: Tensor, received: Tensor) -> None:
        if self._received is None:
            self._received = torch.zeros(self._prompts, 2, 0, dtype=torch.float64, device=received.device)
        self._received = pad(self._received, (0, max(0, received.shape[2] - self._received.shape[2])))
        self._received[..., : received.shape[2]].index_add_(0, prompts, received.double())

    def add(self, places: tuple[int, ...], prompts: Tensor, counts: Tensor) -> None:
        """Add counts [row, layer, head, number]; ``prompts``, int64 [row], are the numbers of the rows' prompts."""
        if places not in self._sums:
            self._sums[places] = counts.new_zeros(self._prompts, *counts.shape[1:], dtype=torch.float64)
        self._sums[places].index_add_(0, prompts, counts.double())

    @property
    def empty(self) -> bool:
        return not self._sums

    def effect(self, layers: int, heads: int) -> Effect:
        arrays: dict[str, Any] = {name: np.zeros((self._prompts, layers, heads)) for name in COUNTS}
        for places, values in self._sums.items():
            for name, found in zip(COUNTS, np.moveaxis(values.cpu().numpy(), -1, 0), strict=True):
                arrays[name][:, list(places), : found.shape[2]] += found
        received = np.zeros((self._prompts, 2, 0)) if self._received is None else self._received.cpu().numpy()
        return Effect(**arrays, received=received)


def joined(effects: Sequence[Effect], layers: int, heads: int) -> Effect:
    """Return the effects of several generations as one, with zeros for layers, heads and positions first seen later."""

    def together(name: str) -> Any:
        arrays = [getattr(one, name) for one in (Tally(0).effect(layers, heads), *effects)]
        most = np.max([one.shape[1:] for one in arrays], axis=0)
        wide = [[(0, 0), *((0, to - now) for to, now in zip(most, one.shape[1:], strict=True))] for one in arrays]
        return np.concatenate([np.pad(one, width) for one, width in zip(arrays, wide, strict=True)])

    return Effect(*(together(field.name) for field in fields(Effect)[:-1]))


class Received(Watcher):
    """The share of the attention that each position receives, mean over the queries; ``behind`` the first call."""

    def __init__(self, behind: bool) -> None:
        self._sums, self._queries, self._unread = torch.zeros(0), 0, behind

    def on(self, network: nn.Module) -> AbstractContextManager[Any]:
        return subscribed(network, self)

    def end_step(self, result: StepResult | None) -> None:
        self._unread = False

    def watch(self, call: LayerCall, columns: Columns) -> None:
        if not self._unread:
            sums = columns.sums[:, :, call.groups.index("all")].sum((0, 1))
            self._sums = sums + self._sums.to(sums) if len(self._sums) else sums
            self._queries += call.query.shape[:3].numel()

    @property
    def shares(self) -> list[float]:
        return (self._sums / self._queries).tolist()
