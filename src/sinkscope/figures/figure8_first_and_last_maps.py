"""Figure 8: maps of the first and the last step: a head whose sink stays, and one whose sink drifts left."""

from collections.abc import Sequence
from typing import Any, final

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.panels import MAP_HEADER, draw_map, map_lines, mark_column, scale_of_maps
from sinkscope.figures.style import WIDE, new_sheet, plain
from sinkscope.figures.subject import FigureError, Subject
from sinkscope.sinks import HeadMovement


@final
class FirstAndLastMaps(Figure):
    """The head with the longest stay above, the one with the fastest drift below."""

    name = "8"
    file = "figure8-first-and-last"
    title = "Figure 8: maps of the first and the last step"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        chosen = [(one, heads) for one in subjects if (heads := chosen_heads(one)) and one.summary.steps > 1]
        if not chosen:
            raise FigureError("no head has a main sink, or there is only one step")
        many, lines = len(chosen) > 1, max(len(heads) for _, heads in chosen)
        sheet = new_sheet(5.9 * len(chosen) if many else WIDE, 0.6 + (3.4 if many else 2.9) * lines)
        rows: list[tuple[Any, ...]] = []
        for part, (one, heads) in zip(sheet.subfigures(1, len(chosen), squeeze=False)[0], chosen, strict=True):
            grid = part.subplots(lines, 2, squeeze=False)
            for axes in grid[len(heads) :].flat:
                axes.set_axis_off()
            for row, (why, head) in enumerate(heads):
                place = (head.layer, head.head)
                for axes, step in zip(grid[row], (0, one.summary.steps - 1), strict=True):
                    attention = one.map(step, *place)
                    image = draw_map(axes, one.trace, step, attention, f"{one.head_name(*place)}, step {step}")
                    if (main := int(one.main[(step, *place)])) >= 0:
                        mark_column(axes, main, len(attention))
                    if row < len(heads) - 1:
                        axes.set_xlabel("")  # the names of the next row stand below it
                    rows += map_lines(one.label, why, (step, *place), attention)
                grid[row, 0].set_ylabel(f"{why.replace(', ', chr(10))}\nquery (position)")
            scale_of_maps(part, image, list(grid[: len(heads)].flat), aspect=40, shrink=0.6)
            part.suptitle(plain(one.heading), x=0.01, ha="left")
        return self.drawn([one for one, _ in chosen], sheet, _caption(chosen), MAP_HEADER, rows)


def chosen_heads(one: Subject) -> list[tuple[str, HeadMovement]]:
    """Return the heads whose main sink stays longest and drifts left the fastest, with their names."""
    if one.highlights.only is not None:
        return [("asked for", one.highlights.only)]
    static, drifting = one.highlights.most_static, one.highlights.leftmost
    heads = [] if static is None else [("fixed sink", static)]
    if drifting is not None and drifting != static:
        drift = drifting.drift_per_step or 0
        heads.append((f"drifts {'left' if drift < 0 else 'right'}, {drift:+.2f} positions a step", drifting))
    return heads


def _caption(chosen: Sequence[tuple[Subject, list[tuple[str, HeadMovement]]]]) -> str:
    which = (
        f"Above: the head{chosen[0][0].where} whose main sink stays longest at one position. Below, where there is "
        "another: the head whose main sink drifts left the fastest (least-squares slope over the steps that have one, "
        "at least half of them); where none drifts left, the fastest to the right."
    )
    if chosen[0][0].highlights.only is not None:
        which = "The head is the one that was asked for."
    return (
        f"Attention maps of the first and the last step. {which} Triangles: the main sink of that step. What it does "
        "not show: the other heads, and the way from the first to the last step."
    )
