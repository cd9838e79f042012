"""The base class of figures, and `draw_figures`, which draws all of them as PNG, PDF and CSV.

A figure is one subclass of `Figure` in a module called ``figure<number>_<what>.py`` or ``figure_<what>.py``.
"""

import csv
import io
import pkgutil
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from string import ascii_lowercase
from typing import Any, ClassVar, Literal

from sinkscope.errors import CallError, TraceError
from sinkscope.figures.style import figure_style, model_labels
from sinkscope.figures.subject import FigureError, Maps, OpenedStatistics, Place, Subject, open_statistics, subject_of
from sinkscope.roles.head_roles import Roles
from sinkscope.runs.folder import claimed_folder, replaced_files
from sinkscope.traces import Trace, is_statistics
from sinkscope.traces.format import write_together
from sinkscope.traces.reading import as_trace

Row = tuple[Any, ...]
KINDS = ("png", "pdf", "svg", "csv")
SIDE_BY_SIDE = 4  # more panels leave no room for their labels
LONGEST = 60  # letters of a model's name in the name of a file, which may have 255 bytes


@dataclass(frozen=True)
class DrawnFigure:
    """A drawn figure: name of its files, title, caption with what it does not show, sheet, and rows of the CSV file."""

    file: str
    title: str
    caption: str
    sheet: Any
    header: Row
    rows: Sequence[Row] = field(repr=False)

    def _repr_png_(self) -> bytes:
        return self.sheet._repr_png_()

    def save(self, folder: str | Path, suffix: str = "", vector: str = "pdf") -> list[Path]:
        """Write a PNG, a PDF or SVG, and a CSV file; `page` reads the caption from the metadata of the PNG."""
        pictures = {
            "png": {"Title": self.title, "Description": self.caption, "Software": "sinkscope"},
            "pdf": {"Title": self.title, "Subject": self.caption, "Creator": "sinkscope", "CreationDate": None},
            "svg": {"Title": self.title, "Description": self.caption, "Creator": "sinkscope", "Date": None},
        }
        contents: dict[Path, bytes] = {}
        for kind in ("png", vector):
            file = io.BytesIO()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "constrained_layout not applied")  # many labels, few panels
                self.sheet.savefig(file, format=kind, metadata=pictures[kind])
            self.sheet.set_layout_engine("none")  # laid out once, the same in both files
            contents[Path(folder) / f"{self.file}{suffix}.{kind}"] = file.getvalue()
        table = io.StringIO(newline="")
        csv.writer(table, lineterminator="\n").writerows([self.header, *self.rows])
        contents[Path(folder) / f"{self.file}{suffix}.csv"] = table.getvalue().encode()
        write_together(contents)
        return [*contents]


class Figure(ABC):
    """One figure: its name for ``--only``, the name of its files without the ending, its title, and how it is drawn."""

    name: ClassVar[str]
    file: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw the subjects side by side, on common scales; raise FigureError where one lacks what the figure needs."""

    def drawn(
        self, subjects: Sequence[Subject], sheet: Any, caption: str, header: Row, rows: Sequence[Row]
    ) -> DrawnFigure:
        """Return the drawn figure, with letters on its panels and the names of the subjects in its title."""
        panels = [one for one in sheet.axes if one.get_label() != "<colorbar>" and (one.has_data() or one.texts)]
        for letter, axes in zip(ascii_lowercase, panels if len(panels) > 1 else (), strict=False):
            look: dict[str, Any] = {"fontweight": "bold", "ha": "right", "va": "bottom", "annotation_clip": False}
            axes.annotate(letter, (0, 1), (-9, 5), xycoords="axes fraction", textcoords="offset points", **look)
        title = f"{self.title} ({', '.join(one.label for one in subjects)})"
        return DrawnFigure(self.file, title, caption, sheet, header, rows)


def find_figures() -> dict[str, Figure]:
    """Return every figure of this package by name: numbers first, in order, then words."""
    package, figures = __name__.rpartition(".")[0], []
    for found in pkgutil.iter_modules(sys.modules[package].__path__):
        if re.fullmatch(r"figure(\d+)?_\w+", found.name):
            module = import_module(f"{package}.{found.name}")
            kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Figure)]
            figures += [kind() for kind in kinds if kind.__module__ == module.__name__]
    figures.sort(key=lambda figure: (not figure.name.isdigit(), len(figure.name) * figure.name.isdigit(), figure.name))
    return {figure.name: figure for figure in figures}


def draw_figures(
    traces: Sequence[Trace | OpenedStatistics],
    out: str | Path,
    *,
    excess: float = 3.0,
    compare: bool = False,
    only: Collection[str] | None = None,
    maps: Maps | None = None,
    roles: Roles | None = None,
    layer: int | None = None,
    head: int | None = None,
    width: int | None = None,
    headlines: bool = True,
    vector: Literal["pdf", "svg"] = "pdf",
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draw paper 1's Figures 1 to 10, paper 2's figure of norms, and every other figure of this package.

    Args:
        traces: traces or statistics (`open_statistics`); without ``compare`` each gets its own figures.
        excess: ε of Eq. 3, in queries' worth.
        compare: draws all traces in one figure, side by side on a common scale.
        only: names of figures, such as ``"3"`` or ``"norms"``; all when None.
        maps: computes single attention maps; without it Figures 4, 6 and 8 cannot be drawn.
        layer, head: what Figures 1, 4, 6, 7 and 8 show; with ``layer`` alone they choose among its heads.
        width: of a printed figure, in millimetres, such as 89 for one column and 183 for two.
        headlines: writes what a figure shows above it.
        vector: kind of the vector graphics.
        say: gets a line for each figure that cannot be drawn; earlier files of its name are removed.

    Returns the PNG, PDF or SVG, and CSV files of each figure, in order. Raises CallError for traces, thresholds or
    roles that do not fit, TraceError for a trace without a whole step, FigureError where none can be drawn.
    """
    if compare:
        _expect_side_by_side(traces)
    figures = find_figures()
    asked = {_named(name, figures).name for name in only or figures}
    chosen = [figure for figure in figures.values() if figure.name in asked]
    subjects = _subjects(traces, excess, maps, roles, (layer, head))
    groups = [subjects] if compare else [[one] for one in subjects]
    paths: list[Path] = []
    missing: list[str] = []
    stale: list[Path] = []  # under the names of figures that are not drawn now
    with claimed_folder(Path(out), TraceError):
        with replaced_files(Path(out)) as place:  # a failed run leaves earlier figures
            for group, name_of_group in zip(groups, _file_names([group[0].label for group in groups]), strict=True):
                suffix = f"-{name_of_group}" if len(groups) > 1 else ""
                with figure_style(wide=len(group) > 1, millimetres=width):
                    for figure in chosen:
                        try:
                            drawn = figure.draw(group)
                            if not headlines:
                                _without_headlines(drawn.sheet)
                            paths += [Path(out) / one.name for one in drawn.save(place, suffix, vector)]
                        except FigureError as error:
                            labels = ", ".join(one.label for one in group)
                            missing.append(f"Figure {figure.name} is not drawn for {labels}: {error}")
                            stale += [Path(out) / f"{figure.file}{suffix}.{kind}" for kind in KINDS]
            if not paths:  # within the body, so that no empty folder is left
                raise FigureError(f"expected at least one figure that can be drawn, found none. {missing[0]}")
        for path in stale:
            path.unlink(missing_ok=True)
    for line in missing:
        say(line)
    return paths


def draw_figure(
    name: str,
    *traces: Trace | OpenedStatistics | str | Path,
    layer: int | None = None,
    head: int | None = None,
    excess: float = 3.0,
    maps: Maps | None = None,
    roles: Roles | None = None,
) -> DrawnFigure:
    """Draw one of the papers' figures, such as ``"1"`` or ``"norms"``, of open traces, statistics or paths of either,
    and return it; notebooks show it. FigureError where it cannot be drawn, and as `draw_figures`.
    """
    figure = _named(name, find_figures())
    _expect_side_by_side(traces)
    opened: list[Trace | OpenedStatistics] = []
    for one in traces:
        if isinstance(one, str | Path) and is_statistics(one):
            one = open_statistics(one)
        opened.append(one if isinstance(one, OpenedStatistics) else as_trace(one))
    with figure_style(wide=len(traces) > 1):
        return figure.draw(_subjects(opened, excess, maps, roles, (layer, head)))


def _without_headlines(part: Any) -> None:
    part.suptitle("")
    for one in part.subfigs:
        _without_headlines(one)


def _named(name: str, figures: dict[str, Figure]) -> Figure:
    if name not in figures:
        raise CallError(f"no figure {name!r}; expected one of {', '.join(figures)}")
    return figures[name]


def _expect_side_by_side(traces: Sequence[Any]) -> None:
    if not 1 <= len(traces) <= SIDE_BY_SIDE:
        raise CallError(
            f"expected 1 to {SIDE_BY_SIDE} traces side by side, found {len(traces)}; name single ones, such as "
            "FOLDER/000000, or compare many prompts by their statistics (`sinkscope trace --keep statistics`)"
        )


def _subjects(
    traces: Sequence[Trace | OpenedStatistics], excess: float, maps: Maps | None, roles: Roles | None, place: Place
) -> list[Subject]:
    labels = model_labels([trace.manifest for trace in traces])
    return [subject_of(trace, excess, label, maps, roles, place) for trace, label in zip(traces, labels, strict=True)]


def _file_names(labels: Sequence[str]) -> list[str]:
    """Return a part of file names for every label, each different, also on disks that ignore case."""
    names = [re.sub(r"(?:[^\w.]|_)+", "-", label).strip("-")[:LONGEST] for label in labels]
    same = len({name.casefold() for name in names}) < len(names)
    return [f"{name}-{number}" for number, name in enumerate(names, 1)] if same else names


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
