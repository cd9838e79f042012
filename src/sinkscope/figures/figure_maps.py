"""Figures 4, 6 and 8, which show attention maps: a jump of a main sink, groups of queries, the first and last step."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from sinkscope.figures import style
from sinkscope.figures.figure import OF_MOVES, DrawnFigure, Figure, Row
from sinkscope.figures.panels import draw_map, followed_columns, scale_of_maps
from sinkscope.figures.subject import FigureError, Jump, Subject
from sinkscope.sinks import HeadMovement
from sinkscope.sinks.followed_columns import followed_queries, uncounted

HEADER = ("model", "panel", "step", "layer", "head", "query", "key", "attention")
CLOSE = 0.9  # of the attention of the new main sink, which an old one may still have
LEAST_SHARE = 1e-4  # smaller shares are left out of CSV files


def _mark(axes: Any, key: int, queries: int, colour: str) -> None:
    looks: dict[str, Any] = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.4}
    axes.plot([key], [queries - 0.5], marker="^", color=colour, clip_on=False, zorder=5, **looks)


def _map_rows(one: Subject, panel: str, place: tuple[int, int, int], attention: np.ndarray) -> list[Row]:
    """Return the shares of a map from `LEAST_SHARE` on."""
    at = np.argwhere(attention >= LEAST_SHARE).tolist()
    return [(one.label, panel, *place, query, key, format(attention[query, key], ".5g")) for query, key in at]


@final
class SinkJump(Figure):
    """The longest jump of a main sink in the whole trace: the maps before and after, and self-attention over steps."""

    name = "4"
    file = "figure4-sink-jump"
    title = "Figure 4: a main sink jumps"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        jumping = [(one, jump) for one in subjects if (jump := one.jump) is not None]
        if not jumping:
            raise FigureError(f"no main sink{subjects[0].where} moves more than with the steps shuffled")
        sheet = style.new_sheet(5.9 * len(jumping) if len(jumping) > 1 else style.WIDE, 5.6, apart=0.12)
        rows: list[Row] = []
        for part, (one, jump) in zip(sheet.subfigures(1, len(jumping), squeeze=False)[0], jumping, strict=True):
            rows += _draw_jump(part, one, jump)
        caption = (
            f"Attention maps before and after the longest jump of a main sink{jumping[0][0].where}, of the heads that "
            f"move. {OF_MOVES} Triangles: the sink before (vermillion) and after (blue). Below: both keys' shares of "
            "attention, and how much queries attend to themselves. What it does not show: other heads."
        )
        return self.drawn([one for one, _ in jumping], sheet, caption, HEADER, rows)


def _draw_jump(part: Any, one: Subject, jump: Jump) -> list[Row]:
    above, below = part.subfigures(2, 1, height_ratios=[1.9, 1])
    maps = above.subplots(1, 2)
    rows: list[Row] = []
    for axes, name, step in zip(maps, ("before", "after"), (jump.step, jump.step + 1), strict=True):
        attention = one.map(step, jump.layer, jump.head)
        image = draw_map(axes, one.trace, step, attention, f"step {step}")
        _mark(axes, jump.before, len(attention), style.VERMILLION)
        _mark(axes, jump.after, len(attention), style.BLUE)
        rows += _map_rows(one, name, (step, jump.layer, jump.head), attention)
    maps[0].set_ylabel("query (position)")
    scale_of_maps(above, image, list(maps))
    columns, axes, what = followed_columns(one.trace, jump.layer, jump.head), below.subplots(), "share of all attention"
    given = np.nansum(columns, axis=-1)
    if "sink_token_columns" in one.trace.tensors:  # which has the rest
        given = followed_queries(one.trace)
    share = columns / given[:, None]
    for key, colour, marker in ((jump.before, style.VERMILLION, "o"), (jump.after, style.BLUE, "s")):
        for step, value in enumerate(share[:, key]):
            rows.append((one.label, what, step, jump.layer, jump.head, "all", key, style.number(value)))
        style.curve(axes, share[:, key], colour, marker, f"key {key}: {what}")
    if "self_attention" in one.trace.tensors:
        mean = np.nanmean(one.trace.self_attention[:, jump.layer, jump.head], axis=-1)
        for step, value in enumerate(map(style.number, mean)):
            rows.append((one.label, "self-attention", step, jump.layer, jump.head, "mean", "itself", value))
        style.curve(axes, mean, style.INK, "", "self-attention, mean over queries", linestyle="--")
    axes.axvspan(jump.step, jump.step + 1, color="#e8e8e8", linewidth=0, zorder=0)
    axes.set(ylim=(0, None), xlim=(-0.5, one.summary.steps - 0.5), xlabel="step (grey: the jump)")
    style.whole_numbers(axes.xaxis)
    axes.set_ylabel("share of attention")
    below.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    before, after = share[jump.step + 1, [jump.before, jump.after]]
    verb = "changes rank" if jump.swap else "moves narrowly" if before > CLOSE * after else "moves"
    shares_after = f"key {jump.after} has {after:.3f} of the attention, key {jump.before} {before:.3f}"
    among = f"; main sinks move in {len(one.moving)} of {len(one.heads)} heads{one.where}" * (one.only is None)
    goes = f"after step {jump.step} the main sink {verb}: {shares_after}{among}"
    style.say(above, f"{one.label}, {one.head_name(jump.layer, jump.head)}: {goes}")
    return rows


@final
class QueryGroups(Figure):
    """The clearest split between masked and unmasked queries, and the strongest sink of one step."""

    name = "6"
    file = "figure6-query-groups"
    title = "Figure 6: sinks of masked and of unmasked queries"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        splitting = [(one, split) for one in subjects if (split := one.split) is not None]
        if not splitting:
            raise FigureError(
                f"in no step{subjects[0].where} do 8 or more masked and 8 or more unmasked queries attend most to "
                "different keys (autoregressive models and --keep top have no masked queries)"
            )
        many, flashing = len(splitting) > 1, any(one.flash is not None for one, _ in splitting)
        sheet = style.new_sheet(5.9 * len(splitting) if many else style.WIDE, 7.9 if flashing else 3.9, apart=0.12)
        rows: list[Row] = []
        for part, (one, split) in zip(sheet.subfigures(1, len(splitting), squeeze=False)[0], splitting, strict=True):
            above, below = part.subfigures(2, 1, height_ratios=[1.25, 1]) if flashing else (part, part)
            step, layer, head, masked_key, unmasked_key, _ = split
            keys = f"masked queries attend most to key {masked_key}, the others to key {unmasked_key}"
            style.say(above, f"{one.label}: in {one.head_name(layer, head)} {keys} in step {step}")
            rows += _draw_split(above, one, (step, layer, head))
            if one.flash is None:
                continue
            middle, layer, head, key, _ = one.flash
            grid = below.subplots(1, 3, sharey=True)
            for axes, step in zip(grid, (middle - 1, middle, middle + 1), strict=True):
                attention = one.map(step, layer, head)
                image = draw_map(axes, one.trace, step, attention, f"step {step}")
                _mark(axes, key, len(attention), style.VERMILLION)
                rows += _map_rows(one, "one step", (step, layer, head), attention)
            grid[0].set_ylabel("query (position)")
            scale_of_maps(below, image, list(grid))
            style.say(below, f"The strongest sink of one step: key {key}, {one.head_name(layer, head)}")
        caption = (
            "Above: the step and head in which masked and unmasked queries differ most clearly (at least 8 queries "
            "each): the map, and the mean over the queries of each group. Below: the strongest sink that lives for "
            "one step, with the steps around it. Triangles: the keys named. What it does not show: typical heads and "
            "steps."
        )
        return self.drawn([one for one, _ in splitting], sheet, caption, HEADER, rows)


def _draw_split(part: Any, one: Subject, place: tuple[int, int, int]) -> list[Row]:
    panels = part.subplot_mosaic([["map", "means"]], width_ratios=[1, 1.15])
    axes, step = panels["means"], place[0]
    attention = one.map(*place)
    title = f"step {step}, {one.head_name(*place[1:])}\ndark strip: masked queries"
    draw_map(panels["map"], one.trace, step, attention, title)
    panels["map"].set_ylabel("query (position)")
    masked = one.trace.masked[step, : len(attention)].astype(bool)
    strip = panels["map"].inset_axes((1.015, 0, 0.03, 1), sharey=panels["map"])
    strip.imshow(masked[:, None], cmap="Greys", vmin=-0.2, vmax=1.2, aspect="auto", interpolation="nearest")
    strip.set_axis_off()
    rows = _map_rows(one, "split", place, attention)
    looks = (("masked", masked, style.VERMILLION, "o", "-"), ("unmasked", ~masked, style.BLUE, "s", "--"))
    for name, members, colour, marker, line in looks:
        mean = attention[members].mean(axis=0)
        key = int(mean.argmax())
        token = style.plain(style.token_label(one.trace, int(one.prompt.canvas.tokens[step, key])))
        for at, value in enumerate(mean):
            rows.append((one.label, f"mean of {name} queries", *place, name, at, style.number(value)))
        label = f"{int(members.sum())} {name} queries: key {key} “{token}”"
        axes.plot(mean, color=colour, linestyle=line, linewidth=0.9, label=label)
        axes.plot([key], [mean[key]], marker, color=colour, markersize=5, markerfacecolor="white")
        _mark(panels["map"], key, len(attention), colour)
    style.whole_numbers(axes.xaxis)
    axes.set(ylim=(0, None), xlabel="key (position)", ylabel="mean share of attention")
    part.legend(loc="outside lower right")
    return rows


@final
class FirstAndLastMaps(Figure):
    """The head whose main sink stays longest above, the one with the fastest drift below."""

    name = "8"
    file = "figure8-first-and-last"
    title = "Figure 8: maps of the first and the last step"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        chosen = [(one, heads) for one in subjects if (heads := chosen_heads(one)) and one.summary.steps > 1]
        if not chosen:
            raise FigureError("no head has a main sink, or there is only one step")
        many, lines = len(chosen) > 1, max(len(heads) for _, heads in chosen)
        sheet = style.new_sheet(5.9 * len(chosen) if many else style.WIDE, 1.0 + (3.4 if many else 2.9) * lines)
        rows: list[Row] = []
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
                        _mark(axes, main, len(attention), style.VERMILLION)
                    if row < len(heads) - 1:
                        axes.set_xlabel("")  # the names of the next row stand below it
                    rows += _map_rows(one, why, (step, *place), attention)
                grid[row, 0].set_ylabel(f"{why.replace(', ', chr(10))}\nquery (position)")
            scale_of_maps(part, image, list(grid[: len(heads)].flat), aspect=40, shrink=0.6)
            stays = one.of_head(heads[0][1])
            (at, steps), *_ = Counter(stays[stays >= 0].tolist()).most_common(1)
            counting = len(stays) - uncounted(one.trace.causal, len(stays))
            among = f"{counting} steps" if counting == len(stays) else f"the {counting} steps that count"
            drift = f"{len(one.drifting)} of {len(one.heads)} heads{one.where} drift more than by chance"
            style.say(part, f"{one.label}: a main sink stays at position {at} in {steps} of {among}; {drift}")
        caption = (
            "Attention maps of the first and the last step. Fixed sink: the head whose main sink stays longest at one "
            "position. Drifts: the fastest to the left, else to the right, of the heads whose slope is steeper than "
            "that of 95 % of the orders of their stays, corrected for the number of heads. Triangles: the main sink "
            "of that step. Of a causal model the first steps, with fewer than 16 newest queries or half the steps, do "
            "not count. What it does not show: the other heads, and the way from the first to the last step."
        )
        return self.drawn([one for one, _ in chosen], sheet, caption, HEADER, rows)


def chosen_heads(one: Subject) -> list[tuple[str, HeadMovement]]:
    """Return the heads whose main sink stays longest, and drifts the fastest beyond chance, with their names."""
    if one.only is not None:
        return [("asked for", one.only)]
    heads = [] if one.most_static is None else [("fixed sink", one.most_static)]
    if one.drifting:
        drift, among = one.drifting[0].drift_per_step or 0, f"one of {len(one.drifting)} of {len(one.heads)} heads"
        where = f"drifts {'left' if drift < 0 else 'right'}, {drift:+.2f} positions a step, {among} that drift"
        heads.append((where, one.drifting[0]))
    return heads
