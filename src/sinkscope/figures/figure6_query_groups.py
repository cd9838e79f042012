"""Figure 6: masked and unmasked queries with different sinks, and a sink that lives for one step."""

from collections.abc import Sequence
from typing import Any, final

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.highlights import Flash, Split
from sinkscope.figures.panels import MAP_HEADER, draw_map, map_lines, mark_column, scale_of_maps
from sinkscope.figures.style import BLUE, VERMILLION, WIDE, new_sheet, number, plain, token_label, whole_numbers
from sinkscope.figures.subject import FigureError, Subject


@final
class QueryGroups(Figure):
    """The clearest split between the two groups of queries, and the strongest sink of one step."""

    name = "6"
    file = "figure6-query-groups"
    title = "Figure 6: sinks of masked and of unmasked queries"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        splitting = [(one, split) for one in subjects if (split := one.highlights.split) is not None]
        if not splitting:
            raise FigureError(
                f"in no step{subjects[0].where} do 8 or more masked and 8 or more unmasked queries attend most to "
                "different keys (autoregressive models and --keep top have no masked queries)"
            )
        many, flashing = len(splitting) > 1, any(one.highlights.flash is not None for one, _ in splitting)
        sheet = new_sheet(5.9 * len(splitting) if many else WIDE, 7.9 if flashing else 3.9, apart=0.12)
        rows: list[tuple[Any, ...]] = []
        for part, (one, split) in zip(sheet.subfigures(1, len(splitting), squeeze=False)[0], splitting, strict=True):
            above, below = part.subfigures(2, 1, height_ratios=[1.25, 1]) if flashing else (part, None)
            above.suptitle(plain(one.heading), x=0.01, ha="left")
            rows += _draw_split(above, one, split)
            if (flash := one.highlights.flash) is not None:
                rows += _draw_flash(below, one, flash)
        return self.drawn([one for one, _ in splitting], sheet, _caption(splitting), MAP_HEADER, rows)


def _draw_split(part: Any, one: Subject, split: Split) -> list[tuple[Any, ...]]:
    panels = part.subplot_mosaic([["map", "means"]], width_ratios=[1, 1.15])
    axes, place = panels["means"], (split.step, split.layer, split.head)
    attention = one.map(*place)
    title = f"step {split.step}, {one.head_name(split.layer, split.head)}\ndark strip: masked queries"
    draw_map(panels["map"], one.trace, split.step, attention, title)
    panels["map"].set_ylabel("query (position)")
    masked = one.trace.masked[split.step, : len(attention)].astype(bool)
    strip = panels["map"].inset_axes((1.015, 0, 0.03, 1), sharey=panels["map"])
    strip.imshow(masked[:, None], cmap="Greys", vmin=-0.2, vmax=1.2, aspect="auto", interpolation="nearest")
    strip.set_axis_off()
    rows = map_lines(one.label, "split", place, attention)
    for name, members, colour, marker, line in (
        ("masked", masked, VERMILLION, "o", "-"),
        ("unmasked", ~masked, BLUE, "s", "--"),
    ):
        mean = attention[members].mean(axis=0)
        key = int(mean.argmax())
        token = plain(token_label(one.trace, int(one.prompt.canvas.tokens[split.step, key])))
        rows += [
            (one.label, f"mean of {name} queries", *place, name, at, number(value)) for at, value in enumerate(mean)
        ]
        label = f"{int(members.sum())} {name} queries: key {key} “{token}”"
        axes.plot(mean, color=colour, linestyle=line, linewidth=0.9, label=label)
        axes.plot([key], [mean[key]], marker, color=colour, markersize=5, markerfacecolor="white")
        mark_column(panels["map"], key, len(attention), colour)
    whole_numbers(axes.xaxis)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("key (position)")
    axes.set_ylabel("mean share of attention")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return rows


def _draw_flash(part: Any, one: Subject, flash: Flash) -> list[tuple[Any, ...]]:
    grid = part.subplots(1, 3, sharey=True)
    rows = []
    for axes, step in zip(grid, (flash.step - 1, flash.step, flash.step + 1), strict=True):
        attention = one.map(step, flash.layer, flash.head)
        image = draw_map(axes, one.trace, step, attention, f"step {step}")
        mark_column(axes, flash.position, len(attention))
        rows += map_lines(one.label, "one step", (step, flash.layer, flash.head), attention)
    grid[0].set_ylabel("query (position)")
    scale_of_maps(part, image, list(grid))
    title = f"A sink that lives one step: key {flash.position}, {one.head_name(flash.layer, flash.head)}"
    part.suptitle(title, x=0.01, ha="left", fontsize="medium")
    return rows


def _caption(splitting: Sequence[tuple[Subject, Split]]) -> str:
    where = splitting[0][0].where
    parts = [
        f"{one.label}: each of the two keys gets at least {split.clarity:.2f} of a query's attention more from its own "
        "group"
        for one, split in splitting
    ]
    return (
        f"Above: the step and head in which masked and unmasked queries differ most clearly{where} (at least 8 queries "
        "each): the map, and the mean over the queries of each group, so that a small group counts as much as a large "
        f"one. Below, where there is one: the strongest sink that lives for one step{where}, with the steps around it. "
        f"Triangles: the keys named. {'; '.join(parts)}. What it does not show: these are the clearest of those heads "
        "and steps, not typical ones."
    )
