"""Measures one canvas: heads with a sink, and the change of predictions where keys are hidden in single heads.

Many removals share a forward call, one to a row, which begins at the lowest of their layers.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention import Columns, Hidden, Hider, LayerCall, OutputProjections, Subscriber, Watcher, subscribed
from sinkscope.models import Model
from sinkscope.models.devices import is_out_of_memory
from sinkscope.roles.head_roles import Rules
from sinkscope.roles.probes import Probe, as_written, beginning_at, blocks_of, divergence, first_reader, predictions
from sinkscope.sinks import is_sink

BLOCK = 512


@dataclass(frozen=True, eq=False)
class Sight:
    """One canvas, all heads, nothing removed.

    Attributes:
        columns: column sums of all queries, in queries' worth; uniform: those of uniform attention in a causal model
            (see `sinks.rule_of`), else nothing.
        reader_rows: mean attention of the readers; committed_rows: of those whose token is committed.
        evenness: (mean a_qj)² / mean a_qj² over the readers, for the key j with the largest column: 1 where all alike.
        output_norms: ‖W_O v_j‖; value_norms: ‖v_j‖.
        moved: shares of the readers' attention on that key that would go to each other key without it; itself: to a
            reader's own key; sink_token: to the network's own sink token, with ``moved`` 1.
        outputs: of each layer [1, position, width]; none where a call that begins at a layer says something else.
        stored: keys and values of each layer at positions in front of the first reader of a causal model, [1, kv_head,
            position, dim], which removals leave as they are; none where a call behind them says something else.
    """

    columns: Float[np.ndarray, "layer head key"]
    uniform: Float[np.ndarray, "layer one key"]
    reader_rows: Float[np.ndarray, "layer head key"]
    committed_rows: Float[np.ndarray, "layer head key"]
    evenness: Float[np.ndarray, "layer head"]
    output_norms: Float[np.ndarray, "layer head key"]
    value_norms: Float[np.ndarray, "layer head key"]
    moved: Float[np.ndarray, "layer head key"]
    itself: Float[np.ndarray, "layer head key"]
    sink_token: Float[np.ndarray, "layer head"]
    log_probabilities: Float[Tensor, "reader vocabulary"]
    outputs: Sequence[Tensor] = ()
    stored: Sequence[tuple[Tensor, Tensor]] = ()

    @property
    def order(self) -> Int[np.ndarray, "layer head key"]:
        """Keys by falling column sum, over that of uniform attention; ties to the lower position."""
        return np.argsort(self.uniform - self.columns, axis=-1, kind="stable")

    def sinks(self, excess: float) -> Bool[np.ndarray, "layer head key"]:
        return is_sink(self.columns - self.uniform, excess)


class _Watch(Watcher):
    def __init__(self, model: Model, probe: Probe) -> None:
        self.causal = model.family.causal
        self.readers, self.committed = torch.from_numpy(probe.readers), torch.from_numpy(probe.committed)
        self.layers: list[dict[str, Tensor]] = []
        self.stored: list[tuple[Tensor, Tensor]] = []
        self.first = first_reader(model, probe)
        self.projections = OutputProjections(model.network)

    def watch(self, call: LayerCall, columns: Columns) -> None:
        sums = columns.sums[0, :, call.groups.index("all")]
        norms: Any = self.projections.key_norms(call).outputs
        values = call.value[0].float().norm(dim=-1).repeat_interleave(len(sums) // call.value.shape[1], dim=0)
        self.stored.append((call.key[:, :, : self.first], call.value[:, :, : self.first]))
        seen = call.seen()[0]  # type: ignore[misc]  # the layer has run
        uniform = (seen / seen.sum(-1, keepdim=True)).sum(-2) if self.causal else torch.zeros_like(sums[:1])
        found = {"columns": sums, "uniform": uniform, "output_norms": norms[0], "value_norms": values}
        self.layers.append(found | self._rows(call, seen, (sums - uniform).argmax(-1)))

    def _rows(self, call: LayerCall, seen: Tensor, top: Tensor) -> dict[str, Tensor]:
        """Return the attention of the readers, a block of them at a time; ``top``: the main sink of each head."""
        query, heads = call.query[0].float(), call.query.shape[1]
        shared = heads // call.key.shape[1]
        key = call.key[0].float().repeat_interleave(shared, dim=0)
        device, scale = query.device, call.scale
        assert scale is not None  # the layer has run
        places = self.readers.nonzero()[:, 0].to(device)
        committed = self.committed.to(device)[places]
        total = query.new_zeros(heads, key.shape[1])
        of_committed, moved, itself = (total.clone() for _ in range(3))
        first, second, sink_token = (query.new_zeros(heads) for _ in range(3))
        for block in torch.arange(len(places), device=device).split(BLOCK):
            own = places[block]
            scores = query[:, own] @ key.mT * scale
            front = scores.new_zeros(heads, len(own), 0)  # scores of the network's own constant keys
            if (constant := call.own) is not None and constant.logits is not None:
                front = constant.logits[:, None].to(query).expand(-1, len(own), -1)
            elif constant is not None and constant.keys is not None:
                keys = constant.keys if constant.keys.ndim == 3 else constant.keys[0]
                front = query[:, own] @ keys.to(query).repeat_interleave(shared, dim=0).mT * scale
            scores = scores.masked_fill(~seen[:, own], -torch.inf)
            weights = torch.softmax(torch.cat([front, scores], dim=-1), dim=-1)
            to_front, weights = weights.tensor_split([front.shape[-1]], dim=-1)
            taken = weights.gather(-1, top[:, None, None].expand(-1, len(own), 1))[..., 0]
            total += weights.sum(1)
            of_committed += weights[:, committed[block]].sum(1)
            first += taken.sum(1)
            second += (taken**2).sum(1)
            given = taken / (1 - taken).clamp(min=1e-6)
            moved += torch.einsum("hq,hqk->hk", given, weights)  # softmax without a key is that with it, scaled up
            on_itself = weights.gather(-1, own.expand(heads, -1)[..., None])[..., 0]
            itself[:, own] += given * on_itself * (own != top[:, None])
            sink_token += (given * to_front.sum(-1)).sum(1)
        moved.scatter_(-1, top[:, None], 0.0)
        count, there = len(places), max(1, int(committed.sum()))
        whole_moved = (moved.sum(-1) + sink_token).clamp(min=1e-12)
        return {
            "reader_rows": total / count,
            "committed_rows": of_committed / there,
            "evenness": (first / count) ** 2 / (second / count).clamp(min=1e-30),
            "moved": moved / whole_moved[:, None],
            "itself": itself / whole_moved[:, None],
            "sink_token": sink_token / whole_moved,
        }


@torch.no_grad()
def look(model: Model, probe: Probe) -> Sight:
    """Return what every head does on one canvas."""
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    readers = torch.from_numpy(probe.readers)
    outputs: list[Any] = []
    with as_written(model, probe):
        with subscribed(model.network, watcher := _Watch(model, probe)) as session, ExitStack() as hooks:
            for block in blocks_of(session):
                handle = block.register_forward_hook(lambda block, given, output: outputs.append(output))
                hooks.callback(handle.remove)
            said = predictions(model, tokens, readers)[0]
        plain = all(isinstance(one, Tensor) and one.shape[:2] == tokens.shape for one in outputs)
        if not plain or len(session.stacks) > 1 or len(outputs) != len(watcher.layers):
            outputs = []
        with beginning_at(session, len(outputs) - 1, outputs, 1):  # some networks pass more from layer to layer
            again = divergence(said, predictions(model, tokens, readers))
        near = 1e-5 if model.card.dtype == "float32" else 1e-2
        if again.item() > near:
            outputs = []
        stored = watcher.stored if watcher.first and outputs else []
        try:
            if stored and divergence(said, predictions(model, tokens, readers, stored)).item() > near:
                stored = []
        except Exception:  # hybrid networks store more than keys and values
            stored = []
    arrays = {name: torch.stack([layer[name].cpu() for layer in watcher.layers]).numpy() for name in watcher.layers[0]}
    return Sight(**arrays, log_probabilities=said, outputs=tuple(outputs), stored=tuple(stored))


class Sights:
    """Looks at each canvas once, as long as what is kept of them fits into ``most`` bytes."""

    def __init__(self, model: Model, most: int = 2**30) -> None:
        self.model, self.room = model, most
        self.kept: dict[Probe, Sight] = {}

    def __call__(self, probe: Probe) -> Sight:
        if (known := self.kept.get(probe)) is not None:
            return known
        sight = look(self.model, probe)
        tensors = (sight.log_probabilities, *sight.outputs, *(one for pair in sight.stored for one in pair))
        size = sum(one.nbytes for one in tensors) + 8 * sight.columns.nbytes
        if size <= self.room:
            self.room -= size
            self.kept[probe] = sight
        return sight


REMOVALS = ("sink", "sink.zero", "rowmass", "rowmass.zero")
TOKENS = 512
"""Tokens of one forward call on a CPU, where more at once are no faster."""
MOST_HIDDEN = (2, 3, 4, 6, 8)
"""How many of a head's largest columns are hidden together, besides one."""
Heads = Sequence[tuple[int, int]]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Removal:
    """Keys taken from one head by a rule; ``zeroed``: their attention is lost with the values, not shared by others."""

    name: str
    layer: int
    head: int
    keys: Bool[np.ndarray, " key"]
    zeroed: bool = False


def removals_of(sight: Sight, sinks: Bool[np.ndarray, " key"], layer: int, head: int, seed: int) -> list[Removal]:
    """Return the removals from one head on one canvas, whose ``sinks`` these are.

    ``sink``: the key with the largest column (causal: over uniform attention). ``rowmass``: random keys that are no
    sinks (these may be substitutes), until they hold as much of the readers' attention. ``top.K``: the K largest
    columns.
    """
    keys = sight.columns.shape[-1]
    order = sight.order[layer, head]
    top = order[0]
    rng = np.random.default_rng([seed, layer, head, keys])
    others = rng.permutation(np.delete(np.arange(keys), top))
    held = sight.reader_rows[layer, head]
    plain = others[~sinks[others]]
    before = np.cumsum(held[plain]) - held[plain] / 2
    matched = plain[before < held[top]][: keys - 2]  # so that the head keeps a second key

    def of(name: str, positions: Any, zeroed: bool = False) -> Removal:
        return Removal(name, layer, head, np.isin(np.arange(keys), positions), zeroed)

    return [
        of("sink", top),
        of("sink.zero", top, zeroed=True),
        of("rowmass", matched),
        of("rowmass.zero", matched, zeroed=True),
        *(of(f"top.{many}", order[:many]) for many in MOST_HIDDEN if many < keys),
    ]


class _Remover(Hider):
    """Hides the keys of ``rows[r]`` in row r from the queries from ``first`` on."""

    def __init__(self, rows: Sequence[Sequence[Removal]], first: int) -> None:
        self.rows, self.first = rows, first

    def hide(self, call: LayerCall) -> list[Hidden] | None:
        found, device = [], call.key.device
        losing = torch.arange(call.keys - call.query.shape[2], call.keys, device=device)[None] >= self.first
        for zeroed in (False, True):
            keys = torch.zeros(len(self.rows), call.query.shape[1], call.keys, dtype=torch.bool)
            for row, removals in enumerate(self.rows):
                for one in removals:
                    if (one.layer, one.zeroed) == (call.index, zeroed):
                        keys[row, one.head] = torch.from_numpy(one.keys)
            if keys.any():
                found.append(Hidden(keys[:, :, None].to(device), losing if self.first else None, zeroed=zeroed))
        return found or None


@torch.no_grad()
def divergences(
    model: Model,
    probe: Probe,
    sight: Sight,
    removals: Sequence[Sequence[Any]],
    rows: int = 32,
    on_row: Callable[[int], object] = lambda layer: None,
    by: Callable[[Sequence[Sequence[Any]], int], Subscriber] = _Remover,
) -> tuple[Float[np.ndarray, " removal"], Float[np.ndarray, " removal"]]:
    """Return the mean KL divergence of the predictions, in nats, and the share whose first choice stays, of each set of
    removals; ``sight``: without any; ``rows``: in one call, at most; ``on_row`` is called with each lowest layer;
    ``by``: makes the subscriber that removes, from these sets and the first position that loses keys.
    """
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    readers, said = torch.from_numpy(probe.readers), sight.log_probabilities
    best, kl, kept = said.argmax(-1), list[float](), list[float]()
    first = first_reader(model, probe)
    if model.device.type == "cpu":
        rows = min(rows, max(1, TOKENS // (len(probe.tokens) - first * bool(sight.stored))))
    lowest = [min((one.layer for one in group), default=0) for group in removals]
    while len(kl) < len(removals):
        now = slice(len(kl), len(kl) + rows)
        if 2 * (same := lowest[now].count(lowest[len(kl)])) >= rows:  # the next begin higher
            now = slice(len(kl), len(kl) + same)
        part, layer = removals[now], min(lowest[now])
        try:
            with (
                as_written(model, probe),
                subscribed(model.network, by(part, first)) as session,
                beginning_at(session, layer, sight.outputs, len(part), first * bool(sight.stored)),
            ):
                changed = predictions(model, tokens.expand(len(part), -1), readers, sight.stored)
            stay = (changed.argmax(-1) == best).float().mean(-1)
            found = divergence(said, changed).tolist()
        except (RuntimeError, MemoryError) as error:
            if len(part) == 1 or not is_out_of_memory(error):
                raise
            rows = len(part) // 2
            continue
        kl += found
        kept += stay.tolist()
        for one in lowest[now]:
            on_row(one)
    return np.array(kl), np.array(kept)


def sinks_by_head(probes: Sequence[Probe], model: Model, rules: Rules) -> Rows:
    """Return which heads have a sink on each canvas, [layer][head]."""
    return [{"sink": look(model, probe).sinks(rules.excess).any(-1).tolist()} for probe in probes]


def measure_heads(
    probes: Sequence[Probe], heads: Heads, see: Sights, rules: Rules, kinds: Sequence[str], seed: int, **how: Any
) -> Rows:
    """Return one row for each canvas and head, with removals of some kinds; ``how`` is for `divergences`."""
    found = []
    for probe in probes:
        sight = see(probe)
        sinks = sight.sinks(rules.excess)
        of_heads = {at: {"prompt": probe.prompt, "layer": at[0], "head": at[1]} for at in heads}
        with_sink = [at for at in heads if sinks[at].any()]
        removals = [one for at in with_sink for one in removals_of(sight, sinks[at], *at, seed + probe.prompt)]
        removals = [one for one in removals if one.name in kinds]
        kl, kept = divergences(see.model, probe, sight, [[one] for one in removals], **how)
        for one, nats, share in zip(removals, kl.tolist(), kept.tolist(), strict=True):
            at = one.layer, one.head
            of_heads[at] |= {f"kl.{one.name}": nats, f"kept.{one.name}": share}
            if one.name in ("sink", "rowmass"):
                of_heads[at][f"taken.{one.name}"] = float(sight.reader_rows[at][one.keys].sum())
        for at in heads if "sink" in kinds else ():
            of_heads[at]["sink"] = at in with_sink
            of_heads[at] |= described_head(sight, probe, at, sinks[at], rules) if at in with_sink else {}
        found += of_heads.values()
    return found


def described_head(
    sight: Sight, probe: Probe, head: tuple[int, int], sinks: Bool[np.ndarray, " key"], rules: Rules
) -> dict[str, Any]:
    """Return where the sink of a head is, its share of the attention, and where that would go without it."""
    columns, norms, moved, itself = sight.columns[head], sight.output_norms[head], sight.moved[head], sight.itself[head]
    top = int(sight.order[head][0])
    median = float(np.median(norms))
    ratios = norms / median if median > 0 else np.full_like(norms, np.nan)
    substitutes = sinks & (ratios < rules.small)
    substitutes[top] = False
    return {
        "position": top,
        "token": int(probe.tokens[top]),
        "place": top / max(1, len(columns) - 1),
        "share": float(columns[top] / columns.sum()),
        "committed_share": float(sight.committed_rows[head][top]),
        "norm_ratio": float(ratios[top]),
        "evenness": float(sight.evenness[head]),
        "to_substitutes": float(moved[substitutes].sum()),
        "to_itself": float(itself[~substitutes].sum()),
        "to_text": float((moved - itself)[~substitutes].sum()),
        "to_sink_token": float(sight.sink_token[head]),
    }


def measure_together(
    probes: Sequence[Probe], classes: Mapping[str, Heads], see: Sights, rules: Rules, seed: int, **how: Any
) -> Rows:
    """Return the change of the predictions on each canvas when the sinks of all heads of a class are hidden at once;
    a row for each canvas and ``class``.
    """
    found = []
    for probe in probes:
        sight = see(probe)
        sinks, draws = sight.sinks(rules.excess), seed + probe.prompt
        for kind, heads in classes.items():
            every = [one for at in heads if sinks[at].any() for one in removals_of(sight, sinks[at], *at, draws)]
            groups = [[one for one in every if one.name == name] for name in REMOVALS]
            numbers = dict(zip(("kl", "kept"), divergences(see.model, probe, sight, groups, **how), strict=True))
            found.append(
                {"class": kind}
                | {f"{key}.{name}": float(of[at]) for key, of in numbers.items() for at, name in enumerate(REMOVALS)}
            )
    return found
