"""Figure 6: masked and unmasked queries with sinks of their own, and a sink that lives for one step."""

from collections.abc import Sequence
from typing import Any, final

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.heatmap import MAP_HEADER, SCALE, draw_map, map_lines, mark_column
from sinkscope.figures.highlights import Split
from sinkscope.figures.style import BLUE, VERMILLION, WIDE, new_sheet, number, plain, token_label, whole_numbers
from sinkscope.figures.subject import FigureError, Subject
from sinkscope.statistics.groups import GroupSinks


@final
class QueryGroups(Figure):
    """The clearest split between the two groups of queries, and the strongest sink of one step."""

    name = "6"
    file = "figure6-query-groups"
    title = "Figure 6: sinks of masked and of unmasked queries"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw the split above, the steps around the short-lived sink below; causal models have no masked queries."""
        splitting = [(one, split) for one in subjects if (split := one.highlights.split) is not None]
        if all(one.manifest.get("level") == "top" for one in subjects):
            raise FigureError(
                "the trace keeps no columns of the masked queries alone (it was recorded with --keep top)"
            )
        if not splitting:
            raise FigureError(_why_none(subjects))
        many, flashing = len(splitting) > 1, any(one.highlights.flash is not None for one, _ in splitting)
        sheet = new_sheet(5.9 * len(splitting) if many else WIDE, 7.9 if flashing else 3.9, apart=0.12)
        rows: list[tuple[Any, ...]] = []
        for part, (one, split) in zip(sheet.subfigures(1, len(splitting), squeeze=False)[0], splitting, strict=True):
            above, below = part.subfigures(2, 1, height_ratios=[1.25, 1]) if flashing else (part, None)
            above.suptitle(plain(one.heading), x=0.01, ha="left")
            rows += _draw_split(above, one, split)
            if below is not None:
                rows += _draw_flash(below, one)
        return self.drawn([one for one, _ in splitting], sheet, _caption(splitting), MAP_HEADER, rows)


def _why_none(subjects: Sequence[Subject]) -> str:
    if all(one.prompt.canvas.settings.causal for one in subjects):
        return "an autoregressive model has no masked queries"
    positions = [one.prompt.kept(GroupSinks).position[:, :2] for one in subjects]
    if not any((both >= 0).all(axis=1).any() for both in positions):
        return "no step has 8 masked and 8 unmasked queries"
    return f"in no step do 8 or more masked and unmasked queries attend most to different keys{subjects[0].where}"


def _draw_split(part: Any, one: Subject, split: Split) -> list[tuple[Any, ...]]:
    panels = part.subplot_mosaic([["map", "means"]], width_ratios=[1, 1.15])
    attention = one.map(split.step, split.layer, split.head)
    title = f"step {split.step}, {one.head_name(split.layer, split.head)}\ndark strip: masked queries"
    draw_map(panels["map"], one.trace, split.step, attention, title)
    panels["map"].set_ylabel("query (position)")
    masked = one.trace.masked[split.step, : len(attention)].astype(bool)
    strip = panels["map"].inset_axes((1.015, 0, 0.03, 1), sharey=panels["map"])
    strip.imshow(masked[:, None], cmap="Greys", vmin=-0.2, vmax=1.2, aspect="auto", interpolation="nearest")
    strip.set_axis_off()
    means = {"masked": attention[masked].mean(axis=0), "unmasked": attention[~masked].mean(axis=0)}
    looks = (("masked", VERMILLION, "o", "-"), ("unmasked", BLUE, "s", "--"))
    axes = panels["means"]
    place = (split.step, split.layer, split.head)
    rows = map_lines(one.label, "split", place, attention)
    for name, colour, marker, line in looks:
        key = int(means[name].argmax())
        token = plain(token_label(one.trace, int(one.prompt.canvas.tokens[split.step, key])))
        count = int((masked if name == "masked" else ~masked).sum())
        rows += [
            (one.label, f"mean of {name} queries", *place, name, at, number(value))
            for at, value in enumerate(means[name])
        ]
        axes.plot(
            means[name],
            color=colour,
            linestyle=line,
            linewidth=0.9,
            label=f"{count} {name} queries: key {key} “{token}”",
        )
        axes.plot(
            [key],
            [means[name][key]],
            marker=marker,
            color=colour,
            markersize=5,
            markerfacecolor="white",
            linestyle="none",
        )
        mark_column(panels["map"], key, len(attention), colour)
    whole_numbers(axes.xaxis)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("key (position)")
    axes.set_ylabel("mean share of attention")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return rows


def _draw_flash(part: Any, one: Subject) -> list[tuple[Any, ...]]:
    flash = one.highlights.flash
    if flash is None:
        part.text(0.5, 0.5, "no sink lives for one step", ha="center")
        return []
    grid = part.subplots(1, 3, sharey=True)
    rows = []
    for axes, step in zip(grid, (flash.step - 1, flash.step, flash.step + 1), strict=True):
        attention = one.map(step, flash.layer, flash.head)
        image = draw_map(axes, one.trace, step, attention, f"step {step}")
        mark_column(axes, flash.position, len(attention))
        rows += map_lines(one.label, "one step", (step, flash.layer, flash.head), attention)
    grid[0].set_ylabel("query (position)")
    part.colorbar(image, ax=list(grid), aspect=30, pad=0.01).set_label(SCALE.replace(" (", "\n("))
    part.suptitle(
        f"A sink that lives one step: key {flash.position}, {one.head_name(flash.layer, flash.head)}",
        x=0.01,
        ha="left",
        fontsize="medium",
    )
    return rows


def _caption(splitting: Sequence[tuple[Subject, Split]]) -> str:
    parts = [
        f"{one.label}: each of the two keys gets at least {split.clarity:.2f} of a query's attention more from its own "
        "group"
        for one, split in splitting
    ]
    flashing, where = any(one.highlights.flash is not None for one, _ in splitting), splitting[0][0].where
    below = f"Below: the strongest sink that lives for one step{where}, with the steps around it."
    below = below if flashing else f"No sink{where} lives for one step, with a step before and one behind it."
    return (
        f"{'Above: the' if flashing else 'The'} step and head in which masked and unmasked queries differ most "
        f"clearly{where} (at least 8 queries each): the map, and the mean over the queries of each group, so that a "
        f"small group counts as much as a large one. {below} Triangles: the keys named. {'; '.join(parts)}. What it "
        "does not show: these are the clearest of those heads and steps, not typical ones."
    )
