"""What a figure is drawn of: one recorded generation, or the statistics of many."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import CallError, SinkscopeError
from sinkscope.figures.counts import Counts
from sinkscope.figures.digest import digest
from sinkscope.figures.highlights import Highlights
from sinkscope.figures.style import model_label
from sinkscope.sinks import last_query_window
from sinkscope.traces import Trace

Maps = Callable[[Trace, int, int, int], np.ndarray]
"""Gives the attention map of a trace's step, layer and head: float32 [query, key]. It raises what stops a map from being computed."""


class FigureError(SinkscopeError):
    """A figure cannot be drawn of a subject; the message says what is missing."""


@final
@dataclass(frozen=True)
class Subject:
    """One model in a figure: the numbers of one trace, or of a folder of statistics.

    Attributes:
        label: what the model is called in titles, legends and CSV files.
        manifest: of the trace or of the statistics.
        summary: the numbers, over all steps of all prompts.
        recorded: the trace; None for statistics, which keep no single steps.
        maps: gives attention maps; None where nobody can.
    """

    label: str
    manifest: dict[str, Any] = field(repr=False)
    summary: Any = field(repr=False)
    recorded: Trace | None = None
    maps: Maps | None = field(default=None, repr=False)

    @property
    def trace(self) -> Trace:
        """The trace.

        Raises:
            FigureError: the subject is statistics.
        """
        if self.recorded is None:
            raise FigureError("it needs traces of single prompts; statistics keep no single steps")
        return self.recorded

    @property
    def prompt(self) -> Any:
        """The numbers of the one prompt, step by step.

        Raises:
            FigureError: the subject is statistics.
        """
        return self.summary if self.trace else None

    def map(self, step: int, layer: int, head: int) -> Float[np.ndarray, "query key"]:
        """Return one attention map.

        Raises:
            FigureError: nobody gives maps, or this one cannot be computed.
        """
        if self.maps is None:
            raise FigureError("it needs attention maps; `sinkscope figures` recomputes them")
        try:
            return self.maps(self.trace, step, layer, head)
        except SinkscopeError as error:  # the model may be gone; other figures can be drawn without it
            raise FigureError(str(error)) from error

    @property
    def heading(self) -> str:
        """What a panel is called."""
        cut = "" if self.manifest["complete"] else " (incomplete)"
        if self.recorded is not None:
            return f"{self.label}{cut}, prompt of {self.prompt_length} tokens"
        prompts = self.manifest["prompts"]
        return f"{self.label}{cut}, {prompts} prompt{'s' if prompts != 1 else ''}"

    @property
    def positions_text(self) -> str:
        """How many tokens a canvas has: a number, a range, or a mean."""
        if self.recorded is None:
            return f"{self.summary.positions} on average"
        low, high = int(self.prompt.lengths.min()), int(self.prompt.lengths.max())
        return str(low) if low == high else f"{low}…{high}"

    @property
    def queries_text(self) -> str:
        """Whose attention movement is read from."""
        return "from the 16 newest queries" if self.summary.causal else "from all queries"

    @property
    def threshold(self) -> float:
        """The column sum above which Eq. 3 holds, 1 + ε(1 − 1/S), on the longest canvas of a trace or the mean one of statistics."""
        return 1 + self.summary.excess * (1 - 1 / self.summary.positions)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt; 0 where the trace does not say."""
        return int(self.trace.manifest.get("prompt_length") or 0)

    @cached_property
    def written(self) -> Int[np.ndarray, "commit 3"]:
        """(step, position, token) of every commit, as far as recorded."""
        if "written" not in self.trace.tensors:
            return np.zeros((0, 3), int)
        written = self.trace.written[:]
        step, position = np.nonzero(written >= 0)
        return np.stack([step, position, written[step, position]], axis=-1).astype(int)

    @cached_property
    def canvas(self) -> Int[np.ndarray, " position"]:
        """The last canvas, with everything that was committed."""
        tokens = self.prompt.tokens
        width = max(tokens.shape[1], int(self.written[:, 1].max(initial=-1)) + 1)
        canvas = np.full(width, -1)
        canvas[: tokens.shape[1]] = tokens[-1]
        for _, position, token in self.written:
            canvas[position] = token
        return canvas

    def head_columns(self, layer: int, head: int) -> Float[np.ndarray, "step key"]:
        """Return the columns of one head that movement is read from: sums over all queries, or over the newest ones."""
        if not self.trace.causal:
            return self.trace.column_sums[:, layer, head]
        return last_query_window(self.trace.last_query[:, layer, head][:, None, None])[:, 0, 0]

    @cached_property
    def highlights(self) -> Highlights:
        """The heads and steps that figures pick out."""
        prompt = self.prompt
        return Highlights(self.trace, prompt.excess, prompt.main, prompt.heads, prompt.largest)


def subject_of(trace: Trace | Counts, excess: float = 3.0, label: str | None = None, maps: Maps | None = None) -> Subject:
    """Return what figures and the page read of a trace, or of statistics, at a threshold.

    Raises:
        CallError: a threshold that cannot hold, or statistics counted at another one.
        TraceError: no whole step, or not every column was kept.
    """
    label = model_label(trace.manifest) if label is None else label
    if isinstance(trace, Trace):
        return Subject(label, trace.manifest, digest(trace, excess), trace, maps)
    if trace.excess != excess:
        raise CallError(f"excess: the statistics of {label} were counted at ε = {trace.excess:g}, found {excess:g}; draw traces instead")
    return Subject(label, trace.manifest, trace)
