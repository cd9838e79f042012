"""A drawn figure: the sheet with its caption and the numbers it draws, saved as PNG, PDF and CSV.

Colours are viridis and those of Okabe and Ito, which colour-blind readers can tell apart; every series has a marker of
its own besides. The caption travels inside the PNG, where `page` finds it.
"""

import csv
import functools
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.traces.format import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN, INK = "#0072B2", "#D55E00", "#009E73", "#3a3a3a"
ORANGE, PURPLE, SKY = "#E69F00", "#CC79A7", "#56B4E9"
HEAT = "viridis"
WIDE, WIDER = 7.2, 11.0


@dataclass(frozen=True)
class DrawnFigure:
    """One figure.

    Attributes:
        name: of its files.
        title: what it shows, in a line.
        caption: what is seen and what it does not show.
        header, rows: the numbers drawn.
    """

    name: str
    title: str
    caption: str
    figure: "Figure"
    header: tuple[str, ...]
    rows: Sequence[Sequence[Any]] = field(repr=False)

    def save(self, folder: Path, suffix: str = "") -> list[Path]:
        """Writes PNG, PDF and CSV, each whole or not at all.

        Raises:
            TraceError: a file cannot be written.
        """
        paths = []
        for kind, metadata in (
            ("png", {"Title": self.title, "Description": self.caption, "Software": "sinkscope"}),
            ("pdf", {"Title": self.title, "Subject": self.caption, "Creator": "sinkscope", "CreationDate": None}),
        ):
            content = io.BytesIO()
            self.figure.savefig(content, format=kind, metadata=metadata)
            self.figure.set_layout_engine("none")  # laid out once, the same in both files
            paths.append(folder / f"{self.name}{suffix}.{kind}")
            write_whole(paths[-1], content.getvalue())
        table = io.StringIO(newline="")
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        paths.append(folder / f"{self.name}{suffix}.csv")
        write_whole(paths[-1], table.getvalue().encode())
        return paths


@contextmanager
def figure_style(wide: bool = False) -> Iterator[None]:
    """Type, lines and resolution of every figure; larger type on a wide sheet, which is printed smaller."""
    import matplotlib

    size = 10.0 if wide else 8.0
    with matplotlib.rc_context(
        {
            "font.family": "DejaVu Sans",
            "font.size": size,
            "axes.titlesize": size,
            "axes.titlelocation": "left",
            "axes.labelsize": size,
            "figure.titlesize": size + 1.5,
            "xtick.labelsize": size - 1,
            "ytick.labelsize": size - 1,
            "legend.fontsize": size - 1,
            "legend.frameon": False,
            "axes.linewidth": 0.6,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.dpi": 100,
            "savefig.dpi": 200 if not wide else 160,
            "pdf.fonttype": 42,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
        }
    ):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that no global state knows."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def whole_numbers(*axes: Any) -> None:
    """Ticks at whole numbers only, for axes that count."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def number(value: Any) -> str:
    """A float for a CSV file: enough digits to give a float32 back."""
    return format(float(value), ".9g")


def plain(text: str) -> str:
    """Text that matplotlib draws as it is: no formulas, and no characters its font lacks."""
    known = _known_characters()
    return "".join(character if ord(character) in known else "▯" for character in text).replace("$", r"\$")


@functools.cache
def _known_characters() -> frozenset[int]:
    from matplotlib import font_manager

    return frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())


def spread_out(places: Sequence[float], least: float, most: int) -> list[float]:
    """The first ``most`` of the places, most important first, that stand ``least`` apart."""
    kept: list[float] = []
    for place in places:
        if len(kept) < most and all(abs(place - other) >= least for other in kept):
            kept.append(place)
    return kept
