"""`figures`: draws the papers' figures from your own traces."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from sinkscope.commands.command import Command, RolesFile, Switch, Traces, default_is
from sinkscope.commands.map import map_reader
from sinkscope.commands.output import note, open_and_check, roles_for_traces

PLACED = {"1", "4", "6", "7", "8"}  # figures of one layer or head


@dataclass(frozen=True, kw_only=True)
class Figures(Command):
    """Draw paper 1's Figures 1 to 10 and paper 2's norms from your own traces, each as PNG, PDF or SVG, and CSV.

    Attributes:
        traces: folders of traces, or of statistics; for statistics only Figures 3, 5, 9, 10 and norms are drawn.
        out: folder for the files.
        excess: how far a column must exceed the mean of the others (of a causal model: uniform attention), in queries.
        compare: draws up to four traces side by side.
        only: figures to draw, separated by commas: 1 to 10, norms.
        layer: of Figures 1, 4, 6, 7 and 8, which otherwise choose a head themselves; from 0.
        head: in that layer, from 0.
        model: the model that wrote the traces, if it has moved; the maps of Figures 4, 6 and 8 are recomputed with it.
        device: for that model: cpu, cuda …
        width: prints figures at the width of a column of a paper or of its page, in type of 7 points.
        no_title: leaves out the line above each figure that says what it shows.
        vector: kind of the vector graphics.
    """

    traces: Traces
    out: Path
    excess: float = 3.0
    compare: Switch = False
    only: Annotated[str | None, default_is("all")] = None
    layer: Annotated[int | None, default_is("the figure's choice")] = None
    head: Annotated[int | None, default_is("the figure's choice")] = None
    model: Annotated[str | None, default_is("the name in the trace")] = None
    roles: RolesFile = None
    device: str = "cpu"
    width: Annotated[Literal["89mm", "183mm"] | None, default_is("for a screen")] = None
    no_title: Switch = False
    vector: Literal["pdf", "svg"] = "pdf"

    def run(self) -> None:
        from sinkscope.figures import draw_figures, open_statistics
        from sinkscope.traces import is_statistics

        names = None if self.only is None else [name.strip() for name in self.only.split(",")]
        if names is not None and not PLACED & {*names}:
            self.refuse("layer head", f"by Figure {self.only}")
        traces: list[Any] = []
        for folder in self.traces:
            traces += [open_statistics(folder)] if is_statistics(folder) else open_and_check(folder)
        same = {name: getattr(self, name) for name in ("excess", "compare", "layer", "head", "vector")}
        same |= {"width": self.width and int(self.width.removesuffix("mm")), "headlines": not self.no_title}
        roles, maps = roles_for_traces(self.roles, traces), map_reader(self.model, self.device)
        print(*draw_figures(traces, self.out, only=names, roles=roles, maps=maps, say=note, **same), sep="\n")
