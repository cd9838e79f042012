"""The subject of a figure: one recorded generation, whose clearest effects it finds, or the statistics of many."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.counts import counted
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.figures.incoming_attention import Place, check_head, commits_of, last_canvas_of, stays_of
from sinkscope.figures.shuffled_steps import beyond_chance, p_of_drift, p_of_move
from sinkscope.figures.style import model_label, tick_label
from sinkscope.roles.head_roles import Roles, roles_for
from sinkscope.sinks import HeadMovement
from sinkscope.sinks.finding import check_reach
from sinkscope.sinks.followed_columns import Followed, columns_add_up, followed_queries
from sinkscope.sinks.tracking import head_movement
from sinkscope.statistics import PromptSummary, Summary, Threshold, summarise
from sinkscope.statistics.groups import GroupSinks
from sinkscope.statistics.thresholds import least_column_sum
from sinkscope.traces import Trace, read_statistics
from sinkscope.traces.reading import expect_steps

MANY_MOVE = 0.1  # of the heads: from there on figures show one that moves
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


class Split(NamedTuple):
    """A step in which masked and unmasked queries attend most to different keys, each more to its own, by clarity."""

    step: int
    layer: int
    head: int
    masked_key: int
    unmasked_key: int
    clarity: float


class Flash(NamedTuple):
    """A sink that lives for one step, neither the first nor the last."""

    step: int
    layer: int
    head: int
    position: int
    column_sum: float


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
    """One model in a figure: its label, its numbers over all prompts (``summary``), the trace and its step-by-step
    numbers (None for statistics), ``maps`` (None without a model), ``place``: layer and head, None if not asked for.
    """

    label: str
    manifest: dict[str, Any] = field(repr=False)
    summary: Summary = field(repr=False)
    recorded: Trace | None = None
    recorded_prompt: PromptSummary | None = field(default=None, repr=False)
    maps: Maps | None = field(default=None, repr=False)
    roles: Roles | None = field(default=None, repr=False)
    place: Place = (None, None)

    @property
    def heading(self) -> str:
        cut = "" if self.manifest["complete"] else " (incomplete)"
        if self.recorded is not None:
            return f"{self.label}{cut}" + (f", prompt of {counted(n, 'token')}" if (n := self.prompt_length) else "")
        return f"{self.label}{cut}, {counted(self.manifest['prompts'], 'prompt')}"

    @property
    def positions(self) -> int:
        """Number of tokens of the longest canvas of a trace; for statistics, of the mean canvas."""
        if self.recorded_prompt is None:
            return self.summary.positions
        return int(self.recorded_prompt.canvas.lengths.max())

    @property
    def positions_text(self) -> str:
        if self.recorded_prompt is None:
            return f"{self.positions} on average"
        low = int(self.recorded_prompt.canvas.lengths.min())
        return str(low) if low == self.positions else f"{low}…{self.positions}"

    @property
    def followed(self) -> Followed:
        if self.recorded is not None:
            return Followed.of(self.recorded)
        return Followed(self.manifest.get("followed") or ("last_query" if self.summary.causal else "column_sums"))

    @property
    def threshold(self) -> Threshold:
        return Threshold(self.summary.excess)

    @property
    def by_rule(self) -> str:
        """The rule that makes a column a sink, in words."""
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
        if self.recorded_prompt is None:
            return self.summary.quarters
        kept = self.recorded_prompt.canvas.settings.kept
        if kept is not None and kept < self.positions:
            largest = counted(kept, "largest column")
            raise FigureError(f"the trace keeps only the {largest} of each head (it was recorded with --keep top)")
        return self.recorded_prompt.quarters

    def head_name(self, layer: int, head: int) -> str:
        known = None if self.roles is None else self.roles.of_head(layer, head)
        return f"layer {layer} head {head}" + (f" ({known.verdict})" if known is not None else "")

    # Traces only

    @property
    def trace(self) -> Trace:
        """The trace; raises FigureError for statistics, as do all below."""
        if self.recorded is None:
            raise FigureError("it needs traces of single prompts; statistics keep no single steps")
        return self.recorded

    @property
    def prompt(self) -> PromptSummary:
        _ = self.trace
        return self.recorded_prompt  # type: ignore[return-value]  # both or none

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
        return self.prompt.canvas.settings.prompt_length

    @cached_property
    def written(self) -> Int[np.ndarray, "commit 3"]:
        """(step, position, token) of every recorded commit."""
        return commits_of(self.prompt.canvas.written, self.prompt.canvas.tokens, self.prompt.canvas.settings.mask_id)

    @cached_property
    def last_canvas(self) -> Int[np.ndarray, " position"]:
        """The tokens after the last step, with all commits."""
        return last_canvas_of(self.prompt.canvas.tokens, self.written)

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
        """Return the positions of the main sink of a head, −1 without one."""
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
        return sorted(found, key=lambda head: (head.drift_per_step > 0, -abs(head.drift_per_step)))

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
        stays, was = is_sink(step + 1, layer, head, old), is_sink(step, layer, head, new)
        return [Jump(*row, swap, *much) for row, swap, much in zip(rows, (stays & was).tolist(), held, strict=True)]

    @cached_property
    def moves(self) -> list[Jump]:
        return [one for one in self.jumps if not one.swap]

    @cached_property
    def most_static(self) -> HeadMovement | None:
        """The head whose main sink is at one position for the most steps; ties to the larger column."""
        return self._best(
            lambda head: (np.bincount(self.of_head(head) + 1)[1:].max(), self.largest[head.layer, head.head])
        )

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
    def flash(self) -> Flash | None:
        """The strongest sink that lives for one step; ties to the lower layer, then earlier step, head and position."""
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
        return Flash(-step, -layer, -head, -key, column)

    @cached_property
    def split(self) -> Split | None:
        """The clearest split of masked and unmasked queries; None where the trace has no sums of masked queries."""
        if "column_sums_masked" not in self.trace.tensors or "masked" not in self.trace.tensors:
            return None
        groups = self.prompt.kept(GroupSinks)
        clarity = np.where(self.asked, np.nan_to_num(groups.clarity, nan=-np.inf), -np.inf)
        step, layer, head = (int(one) for one in np.unravel_index(int(clarity.argmax()), clarity.shape))
        if clarity[step, layer, head] <= 0:
            return None
        masked, unmasked = (int(one) for one in groups.position[step, :2, layer, head])
        return Split(step, layer, head, masked, unmasked, float(clarity[step, layer, head]))


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
        return Subject(label, source.manifest, source.summary, roles=roles)
    expect_steps(source, "draw or to sum up")
    place = check_head(source, place)
    in_percent = [Threshold(excess, "percent")] if excess < 100 else []  # above all attention nothing is a sink
    thresholds = tuple(dict.fromkeys((*Summary.thresholds(excess), *in_percent)))
    prompt = summarise(source, thresholds)  # type: ignore[arg-type]  # steps may be a cached property
    check_reach(excess, "queries", prompt.by_step.total, int(prompt.canvas.lengths.max()))
    return Subject(label, source.manifest, Summary.of(prompt, excess), source, prompt, maps, roles, place)


def of_newest(subjects: Sequence[Subject], text: str) -> str:
    """Return a caption's sentence about the models whose sinks are followed in the newest queries, if there are any."""
    newest = [one.followed for one in subjects if one.followed.newest]
    kinds = dict.fromkeys(one.kind for one in newest)
    queries = dict.fromkeys(one.queries_text for one in newest)
    return f" For the {' and the '.join(kinds)} model {text.format(queries=' or '.join(queries))}" if kinds else ""


OF_MOVES = (
    "A head moves where its main sink stays before and after a move for longer than in 95 % of the orders of the "
    "steps, or drifts more than in 95 % of the orders of its stays, corrected for both and for the number of heads "
    "(Benjamini and Hochberg); a change of rank between two sinks is no move."
)
RUNNING_SUMS = "these are running sums over all queries so far, which favour tokens that more queries see"
OF_LINE = (
    "Right of the dashed line a column is a sink by Eq. 3; there is none where columns do not add up to as many "
    "queries as there are tokens, or where sinks exceed uniform attention (a causal model's, by the rule uniform)."
)
