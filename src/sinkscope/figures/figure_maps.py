"""Figures 4, 6 and 8, which show attention maps: a jump of a main sink, groups of queries, the first and last step."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.incoming_attention import followed_columns
from sinkscope.figures.panels import draw_map, scale_of_maps
from sinkscope.figures.style import (
    BLUE,
    INK,
    VERMILLION,
    WIDE,
    curve,
    new_sheet,
    number,
    plain,
    token_label,
    whole_numbers,
)
from sinkscope.figures.subject import FigureError, Flash, Jump, Split, Subject
from sinkscope.sinks import HeadMovement
from sinkscope.sinks.followed_columns import followed_queries

HEADER = ("model", "panel", "step", "layer", "head", "query", "key", "attention")
LEAST_SHARE = 1e-4  # smaller shares are left out of CSV files
Rows = list[tuple[Any, ...]]


def _mark(axes: Any, key: int, queries: int, colour: str = VERMILLION) -> None:
    """Draw a triangle below a map at a key."""
    looks: dict[str, Any] = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.4}
    axes.plot([key], [queries - 0.5], marker="^", color=colour, clip_on=False, zorder=5, **looks)


def _map_rows(one: Subject, panel: str, place: tuple[int, int, int], attention: np.ndarray) -> Rows:
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
            raise FigureError(f"no main sink{subjects[0].where} moves from one step to the next")
        sheet = new_sheet(5.9 * len(jumping) if len(jumping) > 1 else WIDE, 5.6, apart=0.12)
        rows: Rows = []
        for part, (one, jump) in zip(sheet.subfigures(1, len(jumping), squeeze=False)[0], jumping, strict=True):
            rows += _draw_jump(part, one, jump)
        return self.drawn([one for one, _ in jumping], sheet, _caption_of_jumps(jumping), HEADER, rows)


def _draw_jump(part: Any, one: Subject, jump: Jump) -> Rows:
    panels = part.subplot_mosaic([["before", "after"], ["over", "over"]], height_ratios=[2.5, 1])
    rows: Rows = []
    for name, step in (("before", jump.step), ("after", jump.step + 1)):
        attention = one.map(step, jump.layer, jump.head)
        image = draw_map(panels[name], one.trace, step, attention, f"step {step}")
        _mark(panels[name], jump.before, len(attention), VERMILLION)
        _mark(panels[name], jump.after, len(attention), BLUE)
        rows += _map_rows(one, name, (step, jump.layer, jump.head), attention)
    panels["before"].set_ylabel("query (position)")
    scale_of_maps(part, image, [panels["before"], panels["after"]])
    share, mean, axes = shares(one, jump), self_attention(one, jump), panels["over"]
    what = "share of all attention"
    for key, colour, marker in ((jump.before, VERMILLION, "o"), (jump.after, BLUE, "s")):
        for step, value in enumerate(share[:, key]):
            rows.append((one.label, what, step, jump.layer, jump.head, "all", key, number(value)))
        curve(axes, share[:, key], colour, marker, f"key {key}: {what}")
    if mean is not None:
        for step, value in enumerate(mean):
            rows.append((one.label, "self-attention", step, jump.layer, jump.head, "mean", "itself", number(value)))
        curve(axes, mean, INK, "", "self-attention, mean over queries", linestyle="--")
    axes.axvspan(jump.step, jump.step + 1, color="#e8e8e8", linewidth=0, zorder=0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.5, one.summary.steps - 0.5)
    whole_numbers(axes.xaxis)
    axes.set_xlabel("step (grey: the jump)")
    axes.set_title("share of attention")  # as a label of the axis it would be cut off
    part.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    goes = f"the main sink goes from {jump.before} to {jump.after}{' (swap of rank)' if jump.swap else ''}"
    part.suptitle(f"{plain(one.heading)}\n{one.head_name(jump.layer, jump.head)}: {goes}", x=0.01, ha="left")
    return rows


def shares(one: Subject, jump: Jump) -> Float[np.ndarray, "step key"]:
    """Return each key's share of all attention in the head of the jump; a sink token has the rest."""
    columns = followed_columns(one.trace, jump.layer, jump.head)
    if "sink_token_columns" in one.trace.tensors:
        return columns / followed_queries(one.trace)[:, None]
    return columns / np.nansum(columns, axis=-1, keepdims=True)


def self_attention(one: Subject, jump: Jump) -> Float[np.ndarray, " step"] | None:
    """Return the mean attention of queries on themselves in the head of the jump; None where it was not kept."""
    if "self_attention" not in one.trace.tensors:
        return None
    return np.nanmean(one.trace.self_attention[:, jump.layer, jump.head], axis=-1)


def absorbed(one: Subject, jump: Jump) -> float | None:
    """Return the correlation over steps of the largest column's share and the mean self-attention in its head."""
    mean = self_attention(one, jump)
    if mean is None or one.summary.steps < 3:
        return None
    share = np.nanmax(shares(one, jump), axis=-1)
    return float(np.corrcoef(share, mean)[0, 1]) if share.std() > 0 and mean.std() > 0 else None


def _caption_of_jumps(jumping: Sequence[tuple[Subject, Jump]]) -> str:
    parts = []
    for one, jump in jumping:
        together = absorbed(one, jump)
        said = (
            f"{one.label}: {abs(jump.distance)} positions to the {'right' if jump.distance > 0 else 'left'} after step"
        )
        said += f" {jump.step}{' (both positions are sinks before and after: they swap their rank)' * jump.swap}"
        if together is not None:
            said += f"; correlation over steps between the main column's share and self-attention {together:+.2f}"
        parts.append(said)
    itself = any("self_attention" in one.trace.tensors for one, _ in jumping)
    return (
        f"Attention maps before and after the longest jump of a main sink{jumping[0][0].where}. Triangles: the sink "
        "before (vermillion) and after (blue). Below: both keys' shares of attention over all "
        f"steps{', and how much queries attend to themselves' if itself else ''}. {'; '.join(parts)}. What it does not "
        "show: this is the most extreme case of all those, and a correlation over neighbouring steps is no evidence "
        "of a cause."
    )


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
        sheet = new_sheet(5.9 * len(splitting) if many else WIDE, 7.9 if flashing else 3.9, apart=0.12)
        rows: Rows = []
        for part, (one, split) in zip(sheet.subfigures(1, len(splitting), squeeze=False)[0], splitting, strict=True):
            above, below = part.subfigures(2, 1, height_ratios=[1.25, 1]) if flashing else (part, None)
            above.suptitle(plain(one.heading), x=0.01, ha="left")
            rows += _draw_split(above, one, split)
            if (flash := one.flash) is not None:
                rows += _draw_flash(below, one, flash)
        where = splitting[0][0].where
        parts = [
            f"{one.label}: each of the two keys gets at least {split.clarity:.2f} of a query's attention more from its "
            "own group"
            for one, split in splitting
        ]
        caption = (
            f"Above: the step and head in which masked and unmasked queries differ most clearly{where} (at least 8 "
            "queries each): the map, and the mean over the queries of each group, so that a small group counts as "
            "much as a large one. Below, where there is one: the strongest sink that lives for one step"
            f"{where}, with the steps around it. Triangles: the keys named. {'; '.join(parts)}. What it does not "
            "show: these are the clearest of those heads and steps, not typical ones."
        )
        return self.drawn([one for one, _ in splitting], sheet, caption, HEADER, rows)


def _draw_split(part: Any, one: Subject, split: Split) -> Rows:
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
    rows = _map_rows(one, "split", place, attention)
    for name, members, colour, marker, line in (
        ("masked", masked, VERMILLION, "o", "-"),
        ("unmasked", ~masked, BLUE, "s", "--"),
    ):
        mean = attention[members].mean(axis=0)
        key = int(mean.argmax())
        token = plain(token_label(one.trace, int(one.prompt.canvas.tokens[split.step, key])))
        for at, value in enumerate(mean):
            rows.append((one.label, f"mean of {name} queries", *place, name, at, number(value)))
        label = f"{int(members.sum())} {name} queries: key {key} “{token}”"
        axes.plot(mean, color=colour, linestyle=line, linewidth=0.9, label=label)
        axes.plot([key], [mean[key]], marker, color=colour, markersize=5, markerfacecolor="white")
        _mark(panels["map"], key, len(attention), colour)
    whole_numbers(axes.xaxis)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("key (position)")
    axes.set_ylabel("mean share of attention")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return rows


def _draw_flash(part: Any, one: Subject, flash: Flash) -> Rows:
    grid = part.subplots(1, 3, sharey=True)
    rows: Rows = []
    for axes, step in zip(grid, (flash.step - 1, flash.step, flash.step + 1), strict=True):
        attention = one.map(step, flash.layer, flash.head)
        image = draw_map(axes, one.trace, step, attention, f"step {step}")
        _mark(axes, flash.position, len(attention))
        rows += _map_rows(one, "one step", (step, flash.layer, flash.head), attention)
    grid[0].set_ylabel("query (position)")
    scale_of_maps(part, image, list(grid))
    title = f"A sink that lives one step: key {flash.position}, {one.head_name(flash.layer, flash.head)}"
    part.suptitle(title, x=0.01, ha="left", fontsize="medium")
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
        sheet = new_sheet(5.9 * len(chosen) if many else WIDE, 0.6 + (3.4 if many else 2.9) * lines)
        rows: Rows = []
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
                        _mark(axes, main, len(attention))
                    if row < len(heads) - 1:
                        axes.set_xlabel("")  # the names of the next row stand below it
                    rows += _map_rows(one, why, (step, *place), attention)
                grid[row, 0].set_ylabel(f"{why.replace(', ', chr(10))}\nquery (position)")
            scale_of_maps(part, image, list(grid[: len(heads)].flat), aspect=40, shrink=0.6)
            part.suptitle(plain(one.heading), x=0.01, ha="left")
        first = chosen[0][0]
        which = (
            f"Above: the head{first.where} whose main sink stays longest at one position. Below, where there is "
            "another: the head whose main sink drifts left the fastest (least-squares slope over the steps that have "
            "one, at least half of them); where none drifts left, the fastest to the right."
        )
        if first.only is not None:
            which = "The head is the one that was asked for."
        caption = (
            f"Attention maps of the first and the last step. {which} Triangles: the main sink of that step. What it "
            "does not show: the other heads, and the way from the first to the last step."
        )
        return self.drawn([one for one, _ in chosen], sheet, caption, HEADER, rows)


def chosen_heads(one: Subject) -> list[tuple[str, HeadMovement]]:
    """Return the heads whose main sink stays longest and drifts left the fastest, with their names."""
    if one.only is not None:
        return [("asked for", one.only)]
    static, drifting = one.most_static, one.leftmost
    heads = [] if static is None else [("fixed sink", static)]
    if drifting is not None and drifting != static:
        drift = drifting.drift_per_step or 0
        heads.append((f"drifts {'left' if drift < 0 else 'right'}, {drift:+.2f} positions a step", drifting))
    return heads
