"""The subject of a figure: one recorded generation, or the statistics of many.

A subject computes no statistics; it reads the summaries of `sinkscope.statistics`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int

from sinkscope.counts import counted
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.figures.highlights import Highlights, Place
from sinkscope.figures.incoming_attention import check_head, commits_of, last_canvas_of
from sinkscope.figures.style import model_label
from sinkscope.roles.head_roles import Roles, roles_for
from sinkscope.sinks.finding import check_reach
from sinkscope.sinks.followed_columns import Followed, columns_add_up
from sinkscope.statistics import PromptSummary, Summary, Threshold, summarise
from sinkscope.statistics.thresholds import least_column_sum
from sinkscope.traces import Trace, read_statistics
from sinkscope.traces.reading import expect_steps

Maps = Callable[[Trace, int, int, int], np.ndarray]
"""Function from a trace, step, layer and head to the attention map, float32 [query, key]; raises without one."""


class FigureError(SinkscopeError):
    """A figure cannot be drawn for a subject; the message says what is missing."""


@final
@dataclass(frozen=True)
class OpenedStatistics:
    """A folder of statistics that has been read: its manifest, and the summary of all its prompts."""

    manifest: dict[str, Any] = field(repr=False)
    summary: Summary = field(repr=False)


def open_statistics(folder: str | Path) -> OpenedStatistics:
    """Read a folder of statistics; raise TraceError where it is missing or damaged, or holds no complete prompt."""
    manifest, arrays, _ = read_statistics(folder)
    return OpenedStatistics(manifest, Summary.from_arrays(arrays))


@final
@dataclass(frozen=True)
class Subject:
    """One model in a figure.

    Attributes:
        label: name of the model in titles, legends and CSV files.
        manifest: of the trace or of the statistics.
        summary: the numbers, over all steps of all prompts.
        recorded: the trace, and recorded_prompt: its numbers step by step; None for statistics, which keep no single
            steps.
        maps: computes attention maps; None without a model.
        roles: roles of the sinks of the model, where known.
        place: the layer and the head that were asked for; None where figures choose.
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
            return f"{self.label}{cut}, prompt of {counted(self.prompt_length, 'token')}"
        return f"{self.label}{cut}, {counted(self.manifest['prompts'], 'prompt')}"

    @property
    def positions(self) -> int:
        """Number of tokens of the longest canvas of a trace; for statistics, of the mean canvas."""
        if self.recorded_prompt is None:
            return self.summary.positions
        return int(self.recorded_prompt.canvas.lengths.max())

    @property
    def positions_text(self) -> str:
        """The number of tokens of a canvas as text: a number, a range, or a mean."""
        if self.recorded_prompt is None:
            return f"{self.positions} on average"
        low = int(self.recorded_prompt.canvas.lengths.min())
        return str(low) if low == self.positions else f"{low}…{self.positions}"

    @property
    def followed(self) -> Followed:
        """The columns in which sinks are followed."""
        if self.recorded is not None:
            return Followed.of(self.recorded)
        return Followed(self.manifest.get("followed") or ("last_query" if self.summary.causal else "column_sums"))

    @property
    def threshold(self) -> Threshold:
        return Threshold(self.summary.excess)

    @property
    def threshold_column_sum(self) -> float | None:
        """The column sum above which Eq. 3 holds on `positions` tokens; None where steps and heads differ in it."""
        if not columns_add_up(self.manifest, self.recorded):
            return None
        return least_column_sum(self.summary.excess, self.positions)

    @property
    def quarters(self) -> Int[np.ndarray, "layer quarter"]:
        """Counts of column sums in bins of a quarter of a query's worth; statistics spread wider bins above 64 evenly.

        Raises:
            FigureError: the trace keeps only the largest columns.
        """
        if self.recorded_prompt is None:
            return self.summary.quarters
        kept = self.recorded_prompt.canvas.settings.kept
        if kept is not None and kept < self.positions:
            largest = counted(kept, "largest column")
            raise FigureError(f"the trace keeps only the {largest} of each head (it was recorded with --keep top)")
        return self.recorded_prompt.quarters

    def head_name(self, layer: int, head: int) -> str:
        """Return the name of a head, with the role of its sink where known."""
        known = None if self.roles is None else self.roles.of_head(layer, head)
        return f"layer {layer} head {head}" + (f" ({known.role})" if known is not None else "")

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

    @cached_property
    def highlights(self) -> Highlights:
        """The heads and steps that figures pick out."""
        return Highlights(self.trace, self.prompt, self.threshold, self.place)

    @property
    def where(self) -> str:
        """The layer or head that was asked for, as the end of a clause."""
        layer, head = self.place
        return "" if layer is None else f" of layer {layer}" if head is None else f" of layer {layer} head {head}"

    @property
    def main(self) -> Int[np.ndarray, "step layer head"]:
        """Position of the main sink of each head, −1 where Eq. 3 does not hold."""
        return self.highlights.main

    def map(self, step: int, layer: int, head: int) -> Float[np.ndarray, "query key"]:
        """Return one attention map; raises FigureError where it cannot be had."""
        trace = self.trace
        if self.maps is None:
            raise FigureError("it needs attention maps; `sinkscope figures` recomputes them")
        try:
            return self.maps(trace, step, layer, head)
        except SinkscopeError as error:  # the model may be gone; other figures can be drawn without it
            raise FigureError(str(error)) from error

    @property
    def prompt_length(self) -> int:
        """Number of tokens of the prompt; 0 where the trace does not say."""
        return self.prompt.canvas.settings.prompt_length

    @cached_property
    def written(self) -> Int[np.ndarray, "commit 3"]:
        """(step, position, token) of every recorded commit."""
        return commits_of(self.prompt.canvas.written, self.prompt.canvas.settings.mask_id)

    @cached_property
    def last_canvas(self) -> Int[np.ndarray, " position"]:
        """The tokens after the last step, with all commits."""
        return last_canvas_of(self.prompt.canvas.tokens, self.written)


def subject_of(
    source: Trace | OpenedStatistics,
    excess: float = 3.0,
    label: str | None = None,
    maps: Maps | None = None,
    roles: Roles | None = None,
    place: Place = (None, None),
) -> Subject:
    """Return the subject of figures and of the page for a trace or statistics, at a threshold.

    Raises:
        CallError: a threshold that no column can exceed, statistics counted at another one, roles of other weights, or
            a layer or head that the trace does not have.
        TraceError: no complete step, or not every column was kept.
    """
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
    """Return a caption's sentence about the models whose sinks are followed in the newest queries only, if any; its
    text has ``{queries}`` where these are named.
    """
    newest = [one.followed for one in subjects if one.followed.newest]
    kinds = dict.fromkeys(one.kind for one in newest)
    queries = dict.fromkeys(one.queries_text for one in newest)
    return f" For the {' and the '.join(kinds)} model {text.format(queries=' or '.join(queries))}" if kinds else ""


RUNNING_SUMS = "these are running sums over all queries so far, which favour tokens that more queries see"
OF_LINE = (
    "Right of the dashed line a column is a sink by Eq. 3; there is none where columns do not add up to as many "
    "queries as there are tokens."
)
