"""Figure 99: how many sinks there are in each step."""

from collections.abc import Sequence
from typing import final

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.style import WIDE, new_sheet
from sinkscope.figures.subject import Subject


@final
class SinksByStep(Figure):
    """The sinks of all layers and heads, counted in each step."""

    name = "99"
    file = "figure99-sinks-by-step"
    title = "Figure 99: sinks in each step"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw a line for each subject."""
        sheet = new_sheet(WIDE, 3)  # inches
        axes = sheet.subplots()
        rows = []
        for one, marker in zip(subjects, "osv^", strict=False):
            counts = one.prompt.counts(one.threshold).sum(axis=(1, 2))  # of [step, layer, head]
            axes.plot(counts, marker=marker, label=one.label)
            rows += [(one.label, step, int(count)) for step, count in enumerate(counts)]
        axes.set(xlabel="step", ylabel="sinks in all heads")
        axes.legend()
        return self.drawn(
            subjects,
            sheet,
            "Sinks in each step. What it does not show: where they stand.",
            ("model", "step", "sinks"),
            rows,
        )
