"""`draw_figures`: the papers' figures from your own traces, each as PNG, PDF and CSV."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from sinkscope.errors import CallError, SinkscopeError, TraceError
from sinkscope.figures.counts import Counted, Counts
from sinkscope.figures.decoding import decoding_order
from sinkscope.figures.depths import column_sums_by_layer
from sinkscope.figures.digest import Digest, digest
from sinkscope.figures.figure import DrawnFigure, figure_style
from sinkscope.figures.first_and_last import first_and_last_maps
from sinkscope.figures.histogram import column_sum_histogram
from sinkscope.figures.incoming import incoming_attention
from sinkscope.figures.jumps import sink_jump
from sinkscope.figures.labels import model_labels
from sinkscope.figures.maps import Maps
from sinkscope.figures.norms import sink_norms
from sinkscope.figures.positions import main_sink_positions
from sinkscope.figures.query_groups import query_groups
from sinkscope.figures.strengths import sink_strengths
from sinkscope.figures.thresholds import share_not_sinks
from sinkscope.traces import Trace

FIGURES: dict[str, Callable[[Sequence[Digest]], DrawnFigure | str]] = {
    "1": incoming_attention,
    "2": decoding_order,
    "7": main_sink_positions,
}
"""Figures that a trace alone draws; a function that cannot says why."""

COUNT_FIGURES: dict[str, Callable[[Sequence[Counted]], DrawnFigure | str]] = {
    "3": column_sum_histogram,
    "5": sink_strengths,
    "9": column_sums_by_layer,
    "10": share_not_sinks,
    "norms": sink_norms,
}
"""Figures that statistics draw too."""

MAP_FIGURES: dict[str, Callable[[Sequence[Digest], Maps], DrawnFigure | str]] = {
    "4": sink_jump,
    "6": query_groups,
    "8": first_and_last_maps,
}
"""Figures that need attention maps, and so the model or maps that were stored."""

BESIDE = 4
"""More panels than these side by side leave no room for what is written on them."""
ORDER = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "norms")


def draw_figures(
    traces: Sequence[Trace | Counts],
    out: Path,
    *,
    excess: float = 3.0,
    compare: bool = False,
    only: Collection[str] | None = None,
    maps: Maps | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draws paper 1's Figures 1 to 10 and paper 2's figure of norms.

    Args:
        traces: one or more, statistics among them (`open_counts`); without ``compare`` each gets its own figures, named after its model.
        out: a folder, made if need be.
        excess: ε of Eq. 3, in queries' worth.
        compare: one figure for all traces, panels side by side on a common scale.
        only: names of figures, such as ``"3"`` or ``"norms"``; all when not given.
        maps: gives single attention maps; without it Figures 4, 6 and 8 are not drawn.
        say: gets one line for each figure that a trace cannot draw, with the reason.

    Returns:
        The files written: PNG, PDF and CSV of each figure, in order.

    Raises:
        CallError: no traces, too many to compare, an unknown figure, a threshold that cannot hold, or statistics counted at another one.
        TraceError: a trace without a whole step, or a file that cannot be written.
    """
    if not traces:
        raise CallError("expected at least one trace to draw, found none")
    wanted = [name for name in ORDER if only is None or name in only]
    if unknown := [name for name in only or () if name not in ORDER]:
        raise CallError(f"no figure {unknown[0]!r}; expected one of {', '.join(ORDER)}")
    if compare and len(traces) > BESIDE:
        raise CallError(
            f"compare: expected at most {BESIDE} traces side by side, found {len(traces)}; name single ones, such as FOLDER/000000, "
            "or compare many prompts by their statistics (`sinkscope trace --keep statistics`)"
        )
    out = make_folder(Path(out))
    labels = model_labels([trace.manifest for trace in traces])
    digests = [_read(trace, excess, label) for trace, label in zip(traces, labels, strict=True)]
    groups = [digests] if compare else [[one] for one in digests]
    paths: list[Path] = []
    for group in groups:
        suffix = f"-{_file_name(group[0].label)}" if len(groups) > 1 else ""
        with figure_style(wide=len(group) > 1):
            for name in wanted:
                drawn = _draw(name, group, maps)
                if isinstance(drawn, DrawnFigure):
                    paths += drawn.save(out, suffix)
                elif maps is not None or name not in MAP_FIGURES or only is not None:
                    say(f"not drawn for {', '.join(one.label for one in group)}: {drawn}")
    return paths


def _read(trace: Trace | Counts, excess: float, label: str) -> Digest | Counts:
    if isinstance(trace, Trace):
        return digest(trace, excess, label)
    if trace.excess != excess:
        raise CallError(f"excess: the statistics of {label} were counted at ε = {trace.excess:g}, found {excess:g}; draw traces instead")
    return replace(trace, label=label)


def _draw(name: str, group: Sequence[Digest | Counts], maps: Maps | None) -> DrawnFigure | str:
    """A figure, or why there is none."""
    if name in COUNT_FIGURES:
        return COUNT_FIGURES[name](group)
    digests = [one for one in group if isinstance(one, Digest)]
    if len(digests) < len(group):
        return f"Figure {name} needs traces of single prompts; statistics keep no columns"
    if name in FIGURES:
        return FIGURES[name](digests)
    if maps is None:
        return f"Figure {name} needs attention maps; `sinkscope figures` recomputes them"
    try:
        return MAP_FIGURES[name](digests, maps)
    except SinkscopeError as error:  # the model may be gone; all other figures stand without it
        return f"Figure {name}: {error}"


def make_folder(folder: Path) -> Path:
    """The folder figures and pages go to.

    Raises:
        TraceError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error
    return folder


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-")
