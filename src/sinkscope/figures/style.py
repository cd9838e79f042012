"""The style of figures: colours (viridis, and Okabe and Ito's), type, sheets, and labels of models and tokens."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.counts import counted
from sinkscope.notebook_card import visible
from sinkscope.traces import Trace

BLUE, VERMILLION, GREEN, INK = "#0072B2", "#D55E00", "#009E73", "#3a3a3a"
ORANGE, PURPLE, SKY = "#E69F00", "#CC79A7", "#56B4E9"
HEAT, LIGHT_HEAT = "viridis", "Blues"
SERIES = ((BLUE, "o"), (VERMILLION, "s"), (GREEN, "^"), (ORANGE, "D"), (PURPLE, "v"), (INK, "P"))
WIDE, WIDER = 5.4, 11.0  # inches: readable in a column of a paper, and over its full width
MARGIN, LEAST_CUT, GAP = 4, 30, 3
"""Positions drawn beside each one that is kept, the fewest that are left out, and the room for these on the axis."""


WIDTH: ContextVar[float | None] = ContextVar("WIDTH", default=None)
"""Width in inches at which sheets are printed, whatever they are made for."""


@contextmanager
def figure_style(wide: bool = False, millimetres: int | None = None) -> Iterator[None]:
    """Set type, lines and resolution; a wide sheet is printed smaller, in larger type, but for ``millimetres``."""
    import matplotlib

    size = 7.0 if millimetres else 10.0 if wide else 8.0
    printed = WIDTH.set(millimetres and millimetres / 25.4)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc("font", size=size)
        matplotlib.rc("figure", titlesize=size + 1.5)
        matplotlib.rc("axes", titlesize=size, titlelocation="left", linewidth=0.6)
        matplotlib.rc("axes.spines", top=False, right=False)
        matplotlib.rcParams.update({"xtick.labelsize": size - 1, "ytick.labelsize": size - 1})
        matplotlib.rcParams.update({"xtick.major.width": 0.6, "ytick.major.width": 0.6})
        matplotlib.rc("legend", fontsize=size - 1, frameon=False)
        matplotlib.rc("savefig", dpi=300 if millimetres else 160 if wide else 200)
        matplotlib.rc("pdf", fonttype=42)
        matplotlib.rc("svg", fonttype="none", hashsalt="sinkscope")
        try:
            yield
        finally:
            WIDTH.reset(printed)


def new_sheet(width: float, height: float, apart: float = 0.04167) -> Any:
    """Return an empty matplotlib figure without pyplot, which notebooks show; all sizes in inches."""
    from matplotlib.figure import Figure as Sheet
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    class ShownSheet(Sheet):
        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            with figure_style():
                self.savefig(content, format="png")
            return content.getvalue()

    printed = WIDTH.get() or width
    size = (printed, height * min(1.0, max(0.8, printed / width)))
    return ShownSheet(figsize=size, layout=ConstrainedLayoutEngine(h_pad=apart))


def say(part: Any, *lines: str) -> None:
    """Write the first lines of a sheet, or of a part of one: what it shows, wrapped to its width."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    size = FontProperties(size=rcParams["figure.titlesize"]).get_size_in_points()
    letters = int(part.bbox.width / part.get_figure(root=True).dpi * 72 / (0.54 * size))
    part.suptitle("\n".join(textwrap.fill(plain(line), letters) for line in lines), x=0.01, ha="left")


def whole_numbers(*axes: Any) -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def curve(axes: Any, values: Any, colour: str, marker: str, label: str, size: float = 2.5, **more: Any) -> None:
    """Draw values over their index as a line with markers."""
    axes.plot(values, color=colour, marker=marker, markersize=size, label=label, **{"linewidth": 1} | more)


def spread_out(places: Sequence[float], least: float, most: int) -> list[float]:
    """Return at most ``most`` of the places, in order of importance, that are at least ``least`` apart."""
    kept: list[float] = []
    for place in places:
        if len(kept) < most and all(abs(place - other) >= least for other in kept):
            kept.append(place)
    return kept


@dataclass(frozen=True)
class Cut:
    """Which positions of a canvas are drawn: the windows (first, end); long stretches with nothing to show are not."""

    windows: tuple[tuple[int, int], ...]
    width: int

    @classmethod
    def around(cls, kept: Iterable[int], width: int) -> "Cut":
        windows = [[0, 0]]
        for position in sorted({position for position in kept if 0 <= position < width}) or [0]:
            if position - MARGIN - windows[-1][1] < LEAST_CUT:
                windows[-1][1] = position + MARGIN + 1
            else:
                windows.append([position - MARGIN, position + MARGIN + 1])
        windows[-1][1] = width if width - windows[-1][1] < LEAST_CUT else windows[-1][1]
        return cls(tuple((first, min(end, width)) for first, end in windows if end), width)

    @cached_property
    def places(self) -> Float[np.ndarray, " position"]:
        """Where each position is drawn; NaN where it is left out."""
        places, at = np.full(self.width, np.nan), 0.0
        for first, end in self.windows:
            places[first:end] = at + np.arange(end - first)
            at += end - first + GAP
        return places

    def ticks(self) -> list[int]:
        """Return positions for ticks: the first of each window, then round ones."""
        places, most = self.places, 9
        drawn = np.nanmax(places) + 1
        round_steps = (one * 10**power for power in count() for one in (1, 2, 5))
        step = next(one for one in round_steps if drawn / one <= most)
        wanted = [*(first for first, _ in self.windows), *range(0, self.width, step)]
        there = {float(places[position]): position for position in wanted if not np.isnan(places[position])}
        return [there[place] for place in sorted(spread_out([*there], drawn / (1.6 * most), 2 * most))]


def number(value: Any) -> str:
    """Return a float as text for a CSV file, with enough digits to restore a float32; nothing for None."""
    return "" if value is None else format(float(value), ".9g")


def plain(text: str) -> str:
    """Return text that matplotlib draws literally: no formulas, and ▯ for characters that the font lacks."""
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))  # both are cached
    return "".join(one if font.get_char_index(ord(one)) else "▯" for one in text).replace("$", r"\$")


def model_name(manifest: Mapping[str, Any]) -> str:
    """Return the name of the model from a manifest; for a local path only its last part."""
    name = str(manifest["model"]["name"])
    return Path(name).name if Path(name).is_absolute() or name.startswith(".") else name


def model_label(manifest: Mapping[str, Any]) -> str:
    """Return the name of the model from a manifest, and whether keys were hidden."""
    return f"{model_name(manifest)}, keys hidden" if manifest.get("hidden") else model_name(manifest)


def model_labels(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for every manifest; labels of the same model are numbered."""
    names = [model_label(one) for one in manifests]
    return [
        f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name for at, name in enumerate(names)
    ]


def token_label(trace: Trace, token: int) -> str:
    """Return a token as visible text: ↵ for a newline, ␣ for a leading space, [M] for the mask."""
    if token < 0 or token == trace.manifest.get("mask_id"):
        return "" if token < 0 else "[M]"
    return text_label(trace.token_text(token))


def text_label(text: str) -> str:
    """Return the text of a token as `token_label` does."""
    bare = text.lstrip(" ")
    return visible("␣" * (len(text) - len(bare)) + bare)


def tick_label(trace: Trace, token: int, longest: int = 9) -> str:
    """Return `token_label` short enough for an axis: without leading spaces, cut at ``longest`` characters."""
    text = token_label(trace, token)
    text = text.lstrip("␣") or text
    return text if len(text) <= longest else text[: longest - 1] + "…"


def provenance(trace: Trace, command: str | None = None) -> list[tuple[str, str]]:
    """Return the model, the settings and the command behind a trace, as names and texts."""
    manifest, card = trace.manifest, trace.manifest["model"]
    sampler = dict(manifest.get("sampler") or {})
    name = sampler.pop("name", None)
    settings = ", ".join(f"{key} {value}" for key, value in sampler.items())
    versions = ", ".join(f"{key} {value}" for key, value in (manifest.get("versions") or {}).items())
    steps = f"{counted(trace.steps, 'step')}, {'complete' if trace.complete else 'incomplete'}"
    rows = [
        ("Model", model_name(manifest)),
        ("Weights, sha256", card.get("weight_hash")),
        ("Parameters", f"{card['parameters']:,}" if card.get("parameters") else None),
        ("Computed in", " on ".join(str(manifest[key]) for key in ("dtype", "device") if manifest.get(key))),
        ("Sampler", f"{name}: {settings}" if name else settings),
        ("Versions", versions),
        ("Trace", f"{trace.folder.name}, {steps}"),
        ("Command", command or manifest.get("command")),
    ]
    return [(name, str(value)) for name, value in rows if value]
