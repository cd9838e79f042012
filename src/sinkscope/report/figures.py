"""`draw_figures`: the papers' figures from your own traces, each as PNG, PDF and CSV."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from sinkscope.errors import CallError, TraceError
from sinkscope.report.digest import Digest, digest
from sinkscope.report.histogram import column_sum_histogram
from sinkscope.report.incoming import incoming_attention
from sinkscope.report.labels import model_labels
from sinkscope.report.plate import Plate, plate_style
from sinkscope.report.positions import main_sink_positions
from sinkscope.report.strengths import sink_strengths
from sinkscope.traces import Trace

FIGURES: tuple[Callable[[Sequence[Digest]], Plate], ...] = (incoming_attention, column_sum_histogram, sink_strengths, main_sink_positions)


def draw_figures(traces: Sequence[Trace], out: Path, *, excess: float = 3.0, compare: bool = False) -> list[Path]:
    """Draws paper 1's Figures 1, 3, 5 and 7.

    Args:
        traces: one or more; without ``compare`` each gets its own figures, named after its model.
        out: a folder, made if need be.
        excess: ε of Eq. 3, in queries' worth.
        compare: one figure for all traces, panels side by side on a common scale.

    Returns:
        The files written: PNG, PDF and CSV of each figure, in order.

    Raises:
        CallError: no traces, or a threshold that cannot hold.
        TraceError: a trace without a whole step, or a file that cannot be written.
    """
    if not traces:
        raise CallError("expected at least one trace to draw, found none")
    out = make_folder(Path(out))
    digests = [digest(trace, excess, label) for trace, label in zip(traces, model_labels(list(traces)), strict=True)]
    groups = [digests] if compare else [[one] for one in digests]
    paths: list[Path] = []
    for group in groups:
        suffix = f"-{_file_name(group[0].label)}" if len(groups) > 1 else ""
        with plate_style(wide=len(group) > 1):
            for draw in FIGURES:
                paths += draw(group).save(out, suffix)
    return paths


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
