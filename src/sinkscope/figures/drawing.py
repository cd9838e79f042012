"""`draw_figures` draws the papers' figures from your own traces, each as PNG, PDF and CSV."""

import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path

from sinkscope.errors import CallError, TraceError
from sinkscope.figures.figure import DrawnFigure, Figure, files_of
from sinkscope.figures.highlights import Place
from sinkscope.figures.style import figure_style, model_labels
from sinkscope.figures.subject import FigureError, Maps, OpenedStatistics, Subject, open_statistics, subject_of
from sinkscope.roles.head_roles import Roles
from sinkscope.runs.folder import claimed_folder, replaced_files
from sinkscope.traces import Trace, is_statistics
from sinkscope.traces.reading import as_trace

SIDE_BY_SIDE = 4  # more panels leave no room for their labels
LONGEST = 60  # letters of a model's name in the name of a file, which may have 255 bytes
MODULES = re.compile(r"figure(\d+)?_\w+")


def find_figures() -> dict[str, Figure]:
    """Return every figure of this package by name: numbers first, in order, then words."""
    package = __name__.rpartition(".")[0]
    figures = []
    for found in pkgutil.iter_modules(sys.modules[package].__path__):
        if MODULES.fullmatch(found.name):
            module = import_module(f"{package}.{found.name}")
            kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Figure)]
            figures += [kind() for kind in kinds if kind.__module__ == module.__name__]
    figures.sort(
        key=lambda figure: (not figure.name.isdigit(), int(figure.name) if figure.name.isdigit() else 0, figure.name)
    )
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
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draw paper 1's Figures 1 to 10, paper 2's figure of norms, and every other figure of this package.

    Args:
        traces: one or more traces or statistics (`open_statistics`); without ``compare`` each gets its own figures.
        out: a folder, made if it does not exist.
        excess: ε of Eq. 3, in queries' worth.
        compare: draws all traces in one figure, side by side on a common scale.
        only: names of figures, such as ``"3"`` or ``"norms"``; all when None.
        maps: computes single attention maps; without it Figures 4, 6 and 8 cannot be drawn.
        roles: what the sinks of the model do (`find_roles`).
        layer, head: what Figures 1, 4, 6, 7 and 8 show instead of their own choice; with ``layer`` alone they choose
            among its heads.
        say: gets a line for each figure that cannot be drawn, with the reason; earlier files of its name are removed.

    Returns:
        The files written: PNG, PDF and CSV of each figure, in order.

    Raises:
        CallError: no traces, too many to compare, an unknown figure, a threshold that cannot hold, statistics counted
            at another one, or roles of other weights.
        TraceError: a trace without a whole step, or a file that cannot be written.
        FigureError: none of the figures can be drawn.
    """
    if not traces:
        raise CallError("expected at least one trace to draw, found none")
    figures = find_figures()
    if unknown := [name for name in only or () if name not in figures]:
        raise CallError(f"no figure {unknown[0]!r}; expected one of {', '.join(figures)}")
    if compare and len(traces) > SIDE_BY_SIDE:
        raise CallError(
            f"compare: expected at most {SIDE_BY_SIDE} traces side by side, found {len(traces)}; name single ones, "
            "such as FOLDER/000000, or compare many prompts by their statistics (`sinkscope trace --keep statistics`)"
        )
    subjects = _subjects(traces, excess, maps, roles, (layer, head))
    groups = [subjects] if compare else [[one] for one in subjects]
    paths: list[Path] = []
    missing: list[str] = []
    earlier: list[tuple[str, list[Path]]] = []  # files under the names of figures that are not drawn now
    with claimed_folder(Path(out), TraceError):
        with replaced_files(Path(out), TraceError) as place:  # a failed run leaves earlier figures
            for group, name_of_group in zip(groups, _file_names([group[0].label for group in groups]), strict=True):
                suffix = f"-{name_of_group}" if len(groups) > 1 else ""
                with figure_style(wide=len(group) > 1):
                    for name, figure in figures.items():
                        if only is not None and name not in only:
                            continue
                        try:
                            paths += [Path(out) / one.name for one in figure.draw(group).save(place, suffix)]
                        except FigureError as error:
                            labels = ", ".join(one.label for one in group)
                            missing.append(f"Figure {name} is not drawn for {labels}: {error}")
                            there = [path for path in files_of(figure.file, Path(out), suffix) if path.is_file()]
                            earlier += [(name, there)] if there else []
            if not paths:  # within the body, so that no empty folder is left
                raise FigureError(f"expected at least one figure that can be drawn, found none. {missing[0]}")
        for name, there in earlier:
            for path in there:
                path.unlink()
            missing.append(f"Figure {name} that was in {out} is of another run and is removed")
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
    """Draw one of the papers' figures and return it, with its caption and the numbers drawn; notebooks show it.

    Args:
        name: such as ``"1"`` or ``"norms"``.
        traces: one, or several side by side: open traces, statistics (`open_statistics`), or the paths of either.
        layer, head, excess, maps, roles: as for `draw_figures`.

    Raises:
        CallError: an unknown figure, no trace, or more than fit side by side; and what `draw_figures` raises.
        FigureError: the figure cannot be drawn for these traces.
    """
    figures = find_figures()
    if name not in figures:
        raise CallError(f"no figure {name!r}; expected one of {', '.join(figures)}")
    if not 1 <= len(traces) <= SIDE_BY_SIDE:
        raise CallError(f"expected 1 to {SIDE_BY_SIDE} traces side by side, found {len(traces)}")
    with figure_style(wide=len(traces) > 1):
        return figures[name].draw(_subjects([_opened(trace) for trace in traces], excess, maps, roles, (layer, head)))


def _opened(source: Trace | OpenedStatistics | str | Path) -> Trace | OpenedStatistics:
    """Return an open trace or statistics for those that may be the path of one."""
    if isinstance(source, OpenedStatistics):
        return source
    return open_statistics(source) if isinstance(source, str | Path) and is_statistics(source) else as_trace(source)


def _subjects(
    traces: Sequence[Trace | OpenedStatistics], excess: float, maps: Maps | None, roles: Roles | None, place: Place
) -> list[Subject]:
    labels = model_labels([trace.manifest for trace in traces])
    return [subject_of(trace, excess, label, maps, roles, place) for trace, label in zip(traces, labels, strict=True)]


def make_folder(folder: str | Path) -> Path:
    """Make the folder for figures and pages, and return it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def _file_names(labels: Sequence[str]) -> list[str]:
    """Return a part of file names for every label, each different, also on disks that ignore case."""
    names = [re.sub(r"(?:[^\w.]|_)+", "-", label).strip("-")[:LONGEST] or "model" for label in labels]
    while len({*(folded := [name.casefold() for name in names])}) < len(names):
        counts = [folded[: at + 1].count(one) if folded.count(one) > 1 else 0 for at, one in enumerate(folded)]
        names = [f"{name}-{count}" if count else name for name, count in zip(names, counts, strict=True)]
    return names
