"""Figure 8: maps of the first and the last step: a head whose sink stays, and one whose sink drifts left."""

from collections.abc import Sequence
from typing import Any, final

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.heatmap import MAP_HEADER, SCALE, draw_map, map_lines, mark_column
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
        """Draw two maps for each head."""
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
                for column, step in enumerate((0, one.summary.steps - 1)):
                    attention = one.map(step, head.layer, head.head)
                    axes = grid[row, column]
                    image = draw_map(
                        axes, one.trace, step, attention, f"{one.head_name(head.layer, head.head)}, step {step}"
                    )
                    main = int(one.main[step, head.layer, head.head])
                    if main >= 0:
                        mark_column(axes, main, len(attention))
                    rows += map_lines(one.label, why, (step, head.layer, head.head), attention)
                grid[row, 0].set_ylabel(f"{why.replace(', ', chr(10))}\nquery (position)")
                for axes in grid[row] if row < len(heads) - 1 else ():
                    axes.set_xlabel("")  # the names of the next row stand below it
            part.colorbar(image, ax=list(grid[: len(heads)].flat), aspect=40, pad=0.01, shrink=0.6).set_label(
                SCALE.replace(" (", "\n(")
            )
            part.suptitle(plain(one.heading), x=0.01, ha="left")
        return self.drawn([one for one, _ in chosen], sheet, _caption(chosen), MAP_HEADER, rows)


def chosen_heads(one: Subject) -> list[tuple[str, HeadMovement]]:
    """Return the heads whose main sink stays longest and drifts left the fastest, with their names."""
    if one.highlights.only is not None:
        return [("asked for", one.highlights.only)]
    static, drifting = one.highlights.most_static, one.highlights.leftmost
    heads = []
    if static is not None:
        heads.append(("fixed sink", static))
    if drifting is not None and drifting != static:
        drift = drifting.drift_per_step or 0
        heads.append((f"drifts {'left' if drift < 0 else 'right'}, {drift:+.2f} positions a step", drifting))
    return heads


def _caption(chosen: Sequence[tuple[Subject, list[tuple[str, HeadMovement]]]]) -> str:
    right = [
        one.label
        for one, heads in chosen
        if any((head.drift_per_step or 0) > 0 and why.startswith("drifts") for why, head in heads)
    ]
    none_left = (
        f" No head of {', '.join(right)} drifts left in at least half of the steps; the fastest to the right is drawn "
        "instead."
        if right
        else ""
    )
    static = f"he head{chosen[0][0].where} whose main sink stays longest at one position"
    alone = [one for one, heads in chosen if len(heads) == 1]
    which = (
        f"T{static}."
        if len(alone) == len(chosen)
        else f"Above: t{static}. Below: the head whose main sink drifts left the fastest (least-squares slope over the "
        "steps that have "
        "one, at least half of them)."
    )
    for one in alone:
        drifts = (
            "no main sink drifts in at least half of the steps"
            if one.highlights.leftmost is None
            else "it also drifts the fastest"
        )
        which += f" {one.label} has no second head: {drifts}."
    if chosen[0][0].highlights.only is not None:
        which = "The head is the one that was asked for."
    return (
        f"Attention maps of the first and the last step. {which} Triangles: the main sink of that step.{none_left} "
        "What it does not show: the other heads, and the way from the first to the last step."
    )
