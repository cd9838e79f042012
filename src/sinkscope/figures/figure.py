"""The base class of figures. A figure is one subclass of `Figure` in one file of this package.

`draw_figures` finds every module called ``figure<number>_<what>.py`` or ``figure_<what>.py``.
"""

import csv
import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.figures.subject import Subject
from sinkscope.traces.format import write_together

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Sheet

KINDS = ("png", "pdf", "csv")
"""Endings of a figure's files."""


@dataclass(frozen=True)
class DrawnFigure:
    """A figure that has been drawn: the sheet, its caption and its numbers.

    Attributes:
        file: name of its files, without the ending.
        title: one line with its content and the names of the models.
        caption: explains what it shows and what it does not show.
        header, rows: the numbers drawn, for the CSV file.
    """

    file: str
    title: str
    caption: str
    sheet: "Sheet"
    header: tuple[str, ...]
    rows: Sequence[Sequence[Any]] = field(repr=False)

    def _repr_png_(self) -> bytes:
        return self.sheet._repr_png_()  # type: ignore[attr-defined]  # the class of `style.new_sheet`

    def save(self, folder: str | Path, suffix: str = "") -> list[Path]:
        """Write a PNG, a PDF and a CSV file; `page` reads the caption from the metadata of the PNG."""
        pictures = {
            "png": {"Title": self.title, "Description": self.caption, "Software": "sinkscope"},
            "pdf": {"Title": self.title, "Subject": self.caption, "Creator": "sinkscope", "CreationDate": None},
        }
        contents: list[bytes] = []
        for kind, metadata in pictures.items():
            file = io.BytesIO()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "constrained_layout not applied")  # many labels, few panels
                self.sheet.savefig(file, format=kind, metadata=metadata)
            self.sheet.set_layout_engine("none")  # laid out once, the same in both files
            contents.append(file.getvalue())
        table = io.StringIO(newline="")
        csv.writer(table, lineterminator="\n").writerows([self.header, *self.rows])
        paths = [Path(folder) / f"{self.file}{suffix}.{kind}" for kind in KINDS]
        write_together(dict(zip(paths, [*contents, table.getvalue().encode()], strict=True)))
        return paths


class Figure(ABC):
    """One figure: its name for ``--only``, the name of its files without the ending, its title, and how it is drawn."""

    name: ClassVar[str]
    file: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw the subjects side by side, on common scales.

        Raises:
            FigureError: a subject lacks what the figure needs, such as a `Subject.trace` or a `Subject.map`.
        """

    def drawn(
        self,
        subjects: Sequence[Subject],
        sheet: "Sheet",
        caption: str,
        header: tuple[str, ...],
        rows: Sequence[Sequence[Any]],
    ) -> DrawnFigure:
        """Return the drawn figure, with the names of the subjects in its title."""
        title = f"{self.title} ({', '.join(one.label for one in subjects)})"
        return DrawnFigure(self.file, title, caption, sheet, header, rows)
