"""The subject of a figure: one recorded generation, whose clearest effects it finds, or the statistics of many."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.counts import counted
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.figures.style import model_label, tick_label
from sinkscope.roles.head_roles import Roles, roles_for
from sinkscope.sinks import HeadMovement
from sinkscope.sinks.drift import slopes
from sinkscope.sinks.finding import check_reach
from sinkscope.sinks.followed_columns import Followed, columns_add_up, followed_queries
from sinkscope.sinks.tracking import head_movement
from sinkscope.statistics import PromptSummary, Summary, Threshold, summarise
from sinkscope.statistics.groups import GroupSinks
from sinkscope.statistics.thresholds import least_column_sum
from sinkscope.traces import Trace, read_statistics
from sinkscope.traces.reading import expect_steps
from sinkscope.traces.stored_maps import check_place

MANY_MOVE = 0.1  # of the heads: from there on figures show one that moves
SHUFFLES, LEVEL = 999, 0.05
Place = tuple[int | None, int | None]
Maps = Callable[[Trace, int, int, int], np.ndarray]


class FigureError(SinkscopeError):
    """A figure cannot be drawn for a subject; the message names the missing part."""


@dataclass(frozen=True)
class Jump:
    """A main sink elsewhere one step later (swap: both are sinks in both); held, stayed: of the lesser stay."""

    step: int
    layer: int
    head: int
    before: int
    after: int
    swap: bool
    held: float = field(compare=False)
    stayed: int = field(compare=False)


@final
@dataclass(frozen=True)
class OpenedStatistics:
    """A folder of statistics: its manifest, and the summary of all its prompts."""

    manifest: dict[str, Any] = field(repr=False)
    summary: Summary = field(repr=False)


def open_statistics(folder: str | Path) -> OpenedStatistics:
    """Read a folder of statistics; raise TraceError where it is missing or damaged, or holds no complete prompt."""
    manifest, arrays, _ = read_statistics(folder)
    return OpenedStatistics(manifest, Summary.from_arrays(arrays))


@final
@dataclass(frozen=True)
class Subject:
    """One model in a figure: its label, ε, the trace or ``statistics`` of many, ``maps`` (None without a model),
    ``place``: layer and head, None if not asked for. All numbers are computed when they are first used.
    """

    label: str
    manifest: dict[str, Any] = field(repr=False)
    excess: float
    recorded: Trace | None = None
    statistics: Summary | None = field(default=None, repr=False)
    maps: Maps | None = field(default=None, repr=False)
    roles: Roles | None = field(default=None, repr=False)
    place: Place = (None, None)

    @cached_property
    def summary(self) -> Summary:
        return Summary.of(self.prompt, self.excess) if self.statistics is None else self.statistics

    @property
    def heading(self) -> str:
        cut = "" if self.manifest["complete"] else " (incomplete)"
        if self.recorded is not None:
            return f"{self.label}{cut}" + (f", prompt of {counted(n, 'token')}" if (n := self.prompt_length) else "")
        return f"{self.label}{cut}, {counted(self.manifest['prompts'], 'prompt')}"

    @property
    def positions(self) -> int:
        """Number of tokens of the longest canvas of a trace; for statistics, of the mean canvas."""
        return self.summary.positions if self.recorded is None else int(self.prompt.canvas.lengths.max())

    @property
    def positions_text(self) -> str:
        if self.recorded is None:
            return f"{self.positions} on average"
        low = int(self.prompt.canvas.lengths.min())
        return str(low) if low == self.positions else f"{low}…{self.positions}"

    @property
    def followed(self) -> Followed:
        if self.recorded is not None:
            return Followed.of(self.recorded)
        return Followed(self.manifest.get("followed") or ("last_query" if self.summary.causal else "column_sums"))

    @property
    def threshold(self) -> Threshold:
        return Threshold(self.excess)

    @property
    def by_rule(self) -> str:
        return "by Eq. 3" if self.summary.rule == "eq3" else f"by the rule {self.summary.rule}"

    @property
    def threshold_column_sum(self) -> float | None:
        """The column sum above which Eq. 3 holds; None where steps, heads or keys differ in it, or by another rule."""
        if self.summary.rule == "uniform" or not columns_add_up(self.manifest, self.recorded):
            return None
        return least_column_sum(self.summary.excess, self.positions)

    @property
    def quarters(self) -> Int[np.ndarray, "layer quarter"]:
        """Counts of column sums in bins of a quarter of a query's worth; statistics spread wider ones evenly."""
        if self.recorded is None:
            return self.summary.quarters
        kept = self.prompt.canvas.settings.kept
        if kept is not None and kept < self.positions:
            largest = counted(kept, "largest column")
            raise FigureError(f"the trace keeps only the {largest} of each head (it was recorded with --keep top)")
        return self.prompt.quarters

    def head_name(self, layer: int, head: int) -> str:
        known = None if self.roles is None else self.roles.of_head(layer, head)
        return f"layer {layer} head {head}" + (f" ({known.verdict})" if known is not None else "")

    @property
    def trace(self) -> Trace:
        """The trace; raises FigureError for statistics, as do all below."""
        if self.recorded is None:
            raise FigureError("it needs traces of single prompts; statistics keep no single steps")
        return self.recorded

    @cached_property
    def prompt(self) -> PromptSummary:
        """The numbers of each step; raises CallError for a threshold that cannot hold."""
        percent = [Threshold(self.excess, "percent")] if self.excess < 100 else []  # above 100 nothing is a sink
        thresholds = tuple(dict.fromkeys((*Summary.thresholds(self.excess), *percent)))
        prompt = summarise(self.trace, thresholds)  # type: ignore[arg-type]  # steps may be a cached property
        check_reach(self.excess, "queries", prompt.by_step.total, int(prompt.canvas.lengths.max()))
        return prompt

    @property
    def where(self) -> str:
        """The layer or head that was asked for, as the end of a clause."""
        layer, head = self.place
        return "" if layer is None else f" of layer {layer}" if head is None else f" of layer {layer} head {head}"

    def map(self, step: int, layer: int, head: int) -> Float[np.ndarray, "query key"]:
        trace = self.trace
        if self.maps is None:
            raise FigureError("it needs attention maps; `sinkscope figures` recomputes them")
        try:
            return self.maps(trace, step, layer, head)
        except SinkscopeError as error:  # the model may be gone; other figures can be drawn without it
            raise FigureError(str(error)) from error

    @property
    def prompt_length(self) -> int:
        return int(self.trace.manifest.get("prompt_length") or 0)

    @cached_property
    def written(self) -> Int[np.ndarray, "commit 3"]:
        """(step, position, token) of every commit, by the canvases where none are recorded; remasking is none."""
        tokens, mask = self.trace.tokens[:], self.trace.manifest.get("mask_id")
        written = np.where(tokens[1:] != tokens[:-1], tokens[1:], -1)
        if "written" in self.trace.tensors:
            written = self.trace.written[:]
        step, position = np.nonzero((written >= 0) & (written != (-1 if mask is None else mask)))
        return np.stack([step, position, written[step, position]], axis=-1)

    @cached_property
    def last_canvas(self) -> Int[np.ndarray, " position"]:
        tokens = self.trace.tokens[:]
        canvas = np.full(max(tokens.shape[1], int(self.written[:, 1].max(initial=-1)) + 1), -1)
        canvas[: tokens.shape[1]] = tokens[-1]
        last = self.written[self.written[:, 0] == len(tokens) - 1]  # earlier ones stand there, unless masked again
        canvas[last[:, 1]] = last[:, 2]
        return canvas

    # The heads and steps in which each effect is clearest; ties go to the lower layer, then the lower head

    @cached_property
    def main(self) -> Int[np.ndarray, "step layer head"]:
        """Position of the main sink of each head, −1 where it has none."""
        return self.prompt.main_at(self.threshold)

    @cached_property
    def asked(self) -> Bool[np.ndarray, "layer head"]:
        asked = np.zeros((self.prompt.layers, self.prompt.heads), bool)
        asked[tuple(slice(None) if at is None else at for at in self.place)] = True
        return asked

    @cached_property
    def heads(self) -> list[HeadMovement]:
        heads = head_movement(self.main, self.prompt.is_sink_at(self.threshold))
        return [one for one in heads if self.asked[one.layer, one.head]]

    @property
    def only(self) -> HeadMovement | None:
        """The head that was asked for; None where figures choose."""
        return None if None in self.place else self.heads[0]

    @cached_property
    def largest(self) -> Float[np.ndarray, "layer head"]:
        """Largest column followed, sink or not, mean over steps; −1 in heads that were not asked for."""
        return np.where(self.asked, self.prompt.by_step.main_column.mean(axis=0), -1)

    def of_head(self, head: HeadMovement) -> Int[np.ndarray, " step"]:
        return self.main[:, head.layer, head.head]

    @cached_property
    def moving(self) -> list[HeadMovement]:
        """The heads whose main sink stays around a move for longer than in shuffled steps, or drifts beyond chance."""
        stayed = {(one.layer, one.head): one.stayed for one in sorted(self.moves, key=lambda move: move.stayed)}
        heads = [one for one in self.heads if one.moves]
        stays = [p_of_move(self.of_head(one), stayed[one.layer, one.head]) for one in heads]
        drifts = [p_of_drift(stays_of(self.of_head(one))) for one in heads]
        return beyond_chance(heads, np.minimum(1, 2 * np.minimum(stays, drifts)))

    @cached_property
    def drifting(self) -> list[HeadMovement]:
        """The heads whose main sink drifts more than with its stays in random order; to the left and fastest first."""
        heads = [one for one in self.heads if one.moves and 2 * one.steps_with_sink >= len(self.main)]
        found = beyond_chance(heads, [p_of_drift(stays_of(self.of_head(one))) for one in heads])
        return sorted(found, key=lambda head: (head.drift_per_step > 0, -abs(head.drift_per_step)))  # type: ignore

    @cached_property
    def headline(self) -> str:
        """The token that is the main sink of most heads, and in how many heads the main sink moves beyond chance."""
        with_sink = [main[main >= 0] for one in self.heads if ((main := self.of_head(one)) >= 0).any()]
        if not with_sink:
            return f"no head{self.where} has a sink {self.by_rule}"
        (at, most), *_ = Counter(int(np.bincount(main).argmax()) for main in with_sink).most_common(1)
        there = self.prompt.canvas.tokens[((self.main == at) & self.asked).any(axis=(1, 2)), at]
        name = f"“{tick_label(self.trace, int(there[-1]), 20)}” ({at}) is the main sink in"
        if self.only is not None:
            beyond = "" if self.moving else "no more than with the steps shuffled, "
            moves = f"{counted(self.only.moves, 'move')}, {beyond}and {counted(self.only.swaps, 'swap')} of rank"
            return f"{name} {len(there)} of {counted(len(self.main), 'step')}; {moves}"
        moving = f"main sinks move beyond chance in {len(self.moving) or 'none'}"
        return f"{name} {most} of {len(self.heads)} heads{self.where}; {moving}"

    @cached_property
    def clearest(self) -> HeadMovement | None:
        """The head with the clearest move (largest `Jump.held`) if a tenth move beyond chance, else strongest sink."""
        if len(self.moving) < MANY_MOVE * len(self.heads):
            return self._best(lambda head: self.largest[head.layer, head.head])
        held = {(one.layer, one.head): one.held for one in sorted(self.moves, key=lambda move: move.held)}
        return max(self.moving, key=lambda head: held[head.layer, head.head])

    @cached_property
    def jumps(self) -> list[Jump]:
        """Every change of place of a main sink from one step to the next, by layer, head and step."""
        shares = self.prompt.by_step.main_column / followed_queries(self.trace)[:, None, None]
        rows, held = [], []
        for one in self.heads:
            share = shares[:, one.layer, one.head]
            for (old, first, last), (new, begin, end) in pairwise(stays_of(self.main[:, one.layer, one.head])):
                if begin == last + 1:
                    rows.append((last, one.layer, one.head, old, new))
                    least = min(float(share[first:begin].sum()), float(share[begin : end + 1].sum()))
                    held.append((least, min(last - first, end - begin) + 1))
        step, layer, head, old, new = np.array(rows, int).reshape(-1, 5).T
        is_sink = self.prompt.is_sink_at(self.threshold)
        both = is_sink(step + 1, layer, head, old) & is_sink(step, layer, head, new)
        return [Jump(*row, swap, *much) for row, swap, much in zip(rows, both.tolist(), held, strict=True)]  # type: ignore

    @cached_property
    def moves(self) -> list[Jump]:
        return [one for one in self.jumps if not one.swap]

    @cached_property
    def most_static(self) -> HeadMovement | None:
        """The head whose main sink is at one position for the most steps; ties to the larger column."""
        return self._best(lambda one: (np.bincount(self.of_head(one) + 1)[1:].max(), self.largest[one.layer, one.head]))

    def _best(self, merit: Callable[[HeadMovement], Any]) -> HeadMovement | None:
        return max((head for head in self.heads if head.steps_with_sink), key=merit, default=None)

    @cached_property
    def jump(self) -> Jump | None:
        """The longest jump beyond chance, or of the head asked for: swaps last; ties to lower layer, earlier step."""
        heads = {(one.layer, one.head) for one in self.moving} if self.only is None else {self.place}
        jumps = [one for one in self.jumps if (one.layer, one.head) in heads]
        merits = ((not one.swap, abs(one.after - one.before), -one.layer, -one.step) for one in jumps)
        return max(zip(merits, jumps, strict=True), key=lambda pair: pair[0], default=(None, None))[1]

    @cached_property
    def flash(self) -> tuple[int, int, int, int, float] | None:
        """(step, layer, head, key, column) of the strongest sink of one step; ties to lower layer, earlier step."""
        found = []
        for layer in np.flatnonzero(self.asked.any(axis=1)).tolist():
            sinks = self.prompt.followed.of_layer(layer).at(self.threshold)
            step, head, key = sinks.step, sinks.head, sinks.key
            alone = ~sinks.contains(step - 1, head, key) & ~sinks.contains(step + 1, head, key)
            alone &= self.asked[layer, head] & (step > 0) & (step < self.prompt.steps - 1)
            rows = zip(*(one[alone].tolist() for one in (sinks.column, -step, -head, -key)), strict=True)
            found += [(column, -layer, *place) for column, *place in rows]
        if not found:
            return None
        column, layer, step, head, key = max(found)
        return -step, -layer, -head, -key, column

    @cached_property
    def split(self) -> tuple[int, int, int, int, int, float] | None:
        """(step, layer, head, key of masked queries, key of the others, clarity) where these attend most to different
        keys, each group more to its own; None without, or where the trace has no sums of masked queries.
        """
        if "column_sums_masked" not in self.trace.tensors or "masked" not in self.trace.tensors:
            return None
        groups = self.prompt.kept(GroupSinks)
        clarity = np.where(self.asked, np.nan_to_num(groups.clarity, nan=-np.inf), -np.inf)
        step, layer, head = (int(one) for one in np.unravel_index(int(clarity.argmax()), clarity.shape))
        if clarity[step, layer, head] <= 0:
            return None
        masked, unmasked = (int(one) for one in groups.position[step, :2, layer, head])
        return step, layer, head, masked, unmasked, float(clarity[step, layer, head])


def beyond_chance(heads: Sequence[Any], p: Any) -> list[Any]:
    """Return the heads whose p-values hold at `LEVEL` by Benjamini and Hochberg's rule over all of them."""
    from scipy.stats import false_discovery_control

    return [head for head, q in zip(heads, false_discovery_control(p) if heads else (), strict=True) if q <= LEVEL]


def p_of_move(main: Int[np.ndarray, " step"], stayed: int) -> float:
    """Return the share of orders of the steps in which a main sink (−1: none) stays ``stayed`` steps before and after a
    change of place. Changes of rank count in shuffled steps only: conservative.
    """
    orders = np.random.default_rng(0).permuted(np.tile(main, (SHUFFLES, 1)), axis=1)
    both = np.stack([orders, orders[:, ::-1]])
    held = np.ones(both.shape, int)  # for how many steps each place has been held, this one included
    for step in range(1, orders.shape[1]):
        held[..., step] += np.where(both[..., step] == both[..., step - 1], held[..., step - 1], 0)
    before, after = held[0], held[1, :, ::-1]
    changed = (orders[:, 1:] != orders[:, :-1]) & (orders[:, 1:] >= 0) & (orders[:, :-1] >= 0)
    as_long = (changed & (np.minimum(before[:, :-1], after[:, 1:]) >= stayed)).any(axis=1)
    return float((1 + as_long.sum()) / (1 + SHUFFLES))


def p_of_drift(stays: Sequence[tuple[int, int, int]]) -> float:
    """Return the share of orders of the stays whose slope is as steep: only several moves one way make a drift."""
    position, length = np.array([at for at, *_ in stays], float), [end - first + 1 for _, first, end in stays]
    rng, every = np.random.default_rng(0), np.arange(len(stays))
    orders = [every, *(rng.permutation(every) for _ in range(SHUFFLES))]
    slope = np.abs(slopes(np.stack([np.repeat(position[order], np.take(length, order)) for order in orders], axis=-1)))
    return float((slope >= slope[0]).mean())


def stays_of(main: Int[np.ndarray, " step"]) -> list[tuple[int, int, int]]:
    """Return (position, first step, last step) of a head's main sink, for each time that it stays in one place."""
    edges = (np.flatnonzero(np.diff(main)) + 1).tolist()
    bounds = zip([0, *edges], [*edges, len(main)], strict=True)
    return [(int(main[first]), first, end - 1) for first, end in bounds if main[first] >= 0]


def subject_of(
    source: Trace | OpenedStatistics,
    excess: float = 3.0,
    label: str | None = None,
    maps: Maps | None = None,
    roles: Roles | None = None,
    place: Place = (None, None),
) -> Subject:
    """Return the subject of figures and of the page for a trace or statistics, at a threshold that can hold."""
    label = model_label(source.manifest) if label is None else label
    model = source.manifest["model"]
    roles = roles_for(model.get("weight_hash"), roles, model.get("config_hash"))
    if isinstance(source, OpenedStatistics):
        if (counted_at := source.summary.excess) != excess:
            found = f"the statistics of {label} were counted at ε = {counted_at:g}, found {excess:g}"
            raise CallError(f"excess: {found}; draw traces instead")
        return Subject(label, source.manifest, excess, statistics=source.summary, roles=roles)
    expect_steps(source, "draw or to sum up")
    layer, head = place
    if layer is not None:
        _, layer, first = check_place(source, 0, layer, head or 0)
        place = layer, None if head is None else first
    elif head is not None:
        raise CallError(f"head: expected a layer with it, found head {head} alone")
    return Subject(label, source.manifest, excess, source, None, maps, roles, place)
