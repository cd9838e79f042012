"""`draw_figures` draws the papers' figures from your own traces, each as PNG, PDF and CSV."""

import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path

from sinkscope.errors import CallError, SinkscopeError, TraceError
from sinkscope.figures.figure import Figure
from sinkscope.figures.style import figure_style, model_labels
from sinkscope.figures.subject import FigureError, Maps, OpenedStatistics, subject_of
from sinkscope.locks import claimed_folder
from sinkscope.roles.records import Roles
from sinkscope.traces import Trace

SIDE_BY_SIDE = 4  # more panels leave no room for their labels
MODULES = re.compile(r"figure(\d+)?_\w+")


def find_figures() -> dict[str, Figure]:
    """Return every figure of this package by name: numbers first, in order, then words.

    Raises:
        SinkscopeError: two figures have the same name or the same file.
    """
    package = __name__.rpartition(".")[0]
    figures = []
    for found in pkgutil.iter_modules(sys.modules[package].__path__):
        if MODULES.fullmatch(found.name):
            module = import_module(f"{package}.{found.name}")
            kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Figure)]
            figures += [kind() for kind in kinds if kind.__module__ == module.__name__]
    figures.sort(key=lambda figure: (not figure.name.isdigit(), int(figure.name) if figure.name.isdigit() else 0, figure.name))
    for what in ("name", "file"):
        names = [getattr(figure, what) for figure in figures]
        if twice := {name for name in names if names.count(name) > 1}:
            raise SinkscopeError(f"expected every figure to have a {what} of its own, found {min(twice)!r} twice; rename one of them")
    return {figure.name: figure for figure in figures}


def draw_figures(
    traces: Sequence[Trace | OpenedStatistics],
    out: Path,
    *,
    excess: float = 3.0,
    compare: bool = False,
    only: Collection[str] | None = None,
    maps: Maps | None = None,
    roles: Roles | None = None,
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
        say: gets a line for each figure that cannot be drawn, with the reason.

    Returns:
        The files written: PNG, PDF and CSV of each figure, in order.

    Raises:
        CallError: no traces, too many to compare, an unknown figure, a threshold that cannot hold, statistics counted at another one,
            or roles of other weights.
        TraceError: a trace without a whole step, or a file that cannot be written.
    """
    if not traces:
        raise CallError("expected at least one trace to draw, found none")
    figures = find_figures()
    if unknown := [name for name in only or () if name not in figures]:
        raise CallError(f"no figure {unknown[0]!r}; expected one of {', '.join(figures)}")
    if compare and len(traces) > SIDE_BY_SIDE:
        raise CallError(
            f"compare: expected at most {SIDE_BY_SIDE} traces side by side, found {len(traces)}; name single ones, such as FOLDER/000000, "
            "or compare many prompts by their statistics (`sinkscope trace --keep statistics`)"
        )
    labels = model_labels([trace.manifest for trace in traces])
    subjects = [subject_of(trace, excess, label, maps, roles) for trace, label in zip(traces, labels, strict=True)]
    groups = [subjects] if compare else [[one] for one in subjects]
    paths: list[Path] = []
    with claimed_folder(Path(out), TraceError):
        for group in groups:
            suffix = f"-{_file_name(group[0].label)}" if len(groups) > 1 else ""
            with figure_style(wide=len(group) > 1):
                for name, figure in figures.items():
                    if only is not None and name not in only:
                        continue
                    try:
                        paths += figure.draw(group).save(Path(out), suffix)
                    except FigureError as error:
                        say(f"Figure {name} is not drawn for {', '.join(one.label for one in group)}: {error}")
    return paths


def make_folder(folder: Path) -> Path:
    """Make the folder for figures and pages.

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
