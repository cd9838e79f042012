"""Figure 6: masked and unmasked queries that keep separate sinks, and a sink that lives for one step."""

from collections.abc import Sequence
from typing import Any

from sinkscope.figures.digest import Digest, titled
from sinkscope.figures.figure import BLUE, VERMILLION, WIDE, DrawnFigure, new_figure, number, plain, whole_numbers
from sinkscope.figures.labels import token_label
from sinkscope.figures.maps import LABEL, MAP_HEADER, Maps, draw_map, map_lines, mark_column


def query_groups(digests: Sequence[Digest], maps: Maps) -> DrawnFigure | str:
    """Draws Figure 6; several traces stand side by side; autoregressive ones have no masked queries."""
    splitting = [one for one in digests if one.split is not None]
    if not splitting:
        return "masked and unmasked queries (Figure 6): no step in which both groups have 8 queries and different strongest keys"
    many, flashing = len(splitting) > 1, any(one.flash is not None for one in splitting)
    figure = new_figure(5.9 * len(splitting) if many else WIDE, 7.9 if flashing else 3.9)
    rows: list[tuple[Any, ...]] = []
    for part, one in zip(figure.subfigures(1, len(splitting), squeeze=False)[0], splitting, strict=True):
        part.suptitle(plain(one.heading), x=0.01, ha="left")
        above, below = part.subfigures(2, 1, height_ratios=[1.15, 1]) if flashing else (part, None)
        rows += _draw_split(above, one, maps)
        if below is not None:
            rows += _draw_flash(below, one, maps)
    return DrawnFigure(
        "figure6-query-groups",
        titled("Figure 6: sinks of masked and of unmasked queries", splitting),
        _caption(splitting),
        figure,
        MAP_HEADER,
        rows,
    )


def _draw_split(part: Any, one: Digest, maps: Maps) -> list[tuple[Any, ...]]:
    split = one.split
    assert split is not None
    panels = part.subplot_mosaic([["map", "means"]], width_ratios=[1, 1.15])
    attention = maps(one.trace, split.step, split.layer, split.head)
    title = f"step {split.step}, layer {split.layer} head {split.head}\ndark strip: masked queries"
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
        token = plain(token_label(one.trace, int(one.tokens[split.step, key])))
        count = int((masked if name == "masked" else ~masked).sum())
        rows += [(one.label, f"mean of {name} queries", *place, name, at, number(value)) for at, value in enumerate(means[name])]
        axes.plot(means[name], color=colour, linestyle=line, linewidth=0.9, label=f"{count} {name} queries: key {key} “{token}”")
        axes.plot([key], [means[name][key]], marker=marker, color=colour, markersize=5, markerfacecolor="white", linestyle="none")
        mark_column(panels["map"], key, len(attention), colour)
    whole_numbers(axes.xaxis)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("key (position)")
    axes.set_ylabel("mean share of attention")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return rows


def _draw_flash(part: Any, one: Digest, maps: Maps) -> list[tuple[Any, ...]]:
    flash = one.flash
    if flash is None:
        part.text(0.5, 0.5, "no sink lives for one step", ha="center")
        return []
    grid = part.subplots(1, 3, sharey=True)
    rows = []
    for axes, step in zip(grid, (flash.step - 1, flash.step, flash.step + 1), strict=True):
        attention = maps(one.trace, step, flash.layer, flash.head)
        image = draw_map(axes, one.trace, step, attention, f"step {step}")
        mark_column(axes, flash.position, len(attention))
        rows += map_lines(one.label, "one step", (step, flash.layer, flash.head), attention)
    grid[0].set_ylabel("query (position)")
    part.colorbar(image, ax=list(grid), aspect=30, pad=0.01).set_label(LABEL.replace(" (", "\n("))
    part.suptitle(
        f"A sink that lives one step: key {flash.position}, layer {flash.layer} head {flash.head}", x=0.01, ha="left", fontsize="medium"
    )
    return rows


def _caption(digests: Sequence[Digest]) -> str:
    parts = []
    for one in digests:
        split = one.split
        assert split is not None
        parts.append(f"{one.label}: each key gets at least {split.clarity:.2f} of a query's attention more from its own group")
    return (
        "Above, the step and head in which masked and unmasked queries differ most clearly (each group has at least 8 queries): the map, "
        "and its columns averaged over the queries of either group, so that a small group counts as much as a large one. Below, the "
        f"strongest sink that lives for one step, with the steps around it. {'; '.join(parts)}. Triangles: the keys named. What it does "
        "not show: these are the clearest of all heads and steps, not typical ones."
    )
