"""Figure 8: maps of the first and the last step: a head whose sink stands, and one whose sink goes left."""

from collections.abc import Sequence
from typing import Any

from sinkscope.figures.digest import Digest, titled
from sinkscope.figures.figure import WIDE, DrawnFigure, new_figure, plain
from sinkscope.figures.maps import LABEL, MAP_HEADER, Maps, draw_map, map_lines, mark_column
from sinkscope.sinks import HeadMovement


def first_and_last_maps(digests: Sequence[Digest], maps: Maps) -> DrawnFigure | str:
    """Draws Figure 8; several traces stand side by side."""
    chosen = [(one, heads) for one in digests if (heads := chosen_heads(one)) and one.steps > 1]
    if not chosen:
        return "first and last maps (Figure 8): no head has a main sink, or there is only one step"
    many, lines = len(chosen) > 1, max(len(heads) for _, heads in chosen)
    figure = new_figure(5.9 * len(chosen) if many else WIDE, 1.1 + 3.4 * lines)
    rows: list[tuple[Any, ...]] = []
    for part, (one, heads) in zip(figure.subfigures(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        grid = part.subplots(lines, 2, squeeze=False)
        for axes in grid[len(heads) :].flat:
            axes.set_axis_off()
        for row, (why, head) in enumerate(heads):
            for column, step in enumerate((0, one.steps - 1)):
                attention = maps(one.trace, step, head.layer, head.head)
                axes = grid[row, column]
                image = draw_map(axes, one.trace, step, attention, f"layer {head.layer} head {head.head}, step {step}")
                main = int(one.main[step, head.layer, head.head])
                if main >= 0:
                    mark_column(axes, main, len(attention))
                rows += map_lines(one.label, why, (step, head.layer, head.head), attention)
            grid[row, 0].set_ylabel(f"{why.replace(', ', chr(10))}\nquery (position)")
        part.colorbar(image, ax=list(grid.flat), aspect=40, pad=0.01, shrink=0.6).set_label(LABEL)
        part.suptitle(plain(one.heading), x=0.01, ha="left")
    return DrawnFigure(
        "figure8-first-and-last",
        titled("Figure 8: maps of the first and the last step", [one for one, _ in chosen]),
        _caption(chosen),
        figure,
        MAP_HEADER,
        rows,
    )


def chosen_heads(one: Digest) -> list[tuple[str, HeadMovement]]:
    """The head whose main sink stays longest, and the one whose main sink drifts left the fastest."""
    heads = []
    if one.most_static is not None:
        heads.append(("fixed sink", one.most_static))
    if one.leftmost is not None and (one.most_static is None or one.leftmost != one.most_static):
        drift = one.leftmost.drift_per_step or 0
        heads.append((f"drifts {'left' if drift < 0 else 'right'}, {drift:+.2f} positions a step", one.leftmost))
    return heads


def _caption(chosen: Sequence[tuple[Digest, list[tuple[str, HeadMovement]]]]) -> str:
    right = [one.label for one, heads in chosen if any((head.drift_per_step or 0) > 0 and why.startswith("drifts") for why, head in heads)]
    none_left = (
        f" No head of {', '.join(right)} drifts left in at least half of the steps; the fastest to the right is shown." if right else ""
    )
    return (
        "Attention maps of the first and of the last step, recomputed from the recorded canvas: above, the head whose main sink stands "
        "longest at one position; below, the one whose main sink drifts left the fastest (least-squares slope over all steps that have "
        f"one, at least half of them). Triangles: the main sink of that step, where Eq. 3 holds.{none_left} What it does not show: the "
        "heads between these extremes, and the way from the first step to the last."
    )
