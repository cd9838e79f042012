"""Figure 4: the maps of two successive steps between which the main sink moves, and self-attention over all steps."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.highlights import Jump
from sinkscope.figures.incoming_attention import followed_columns
from sinkscope.figures.panels import MAP_HEADER, draw_map, map_lines, mark_column, scale_of_maps
from sinkscope.figures.style import BLUE, INK, VERMILLION, WIDE, curve, new_sheet, number, plain, whole_numbers
from sinkscope.figures.subject import FigureError, Subject
from sinkscope.sinks.followed_columns import followed_queries


@final
class SinkJump(Figure):
    """The longest jump of a main sink in the whole trace."""

    name = "4"
    file = "figure4-sink-jump"
    title = "Figure 4: a main sink jumps"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        jumping = [(one, jump) for one in subjects if (jump := one.highlights.jump) is not None]
        if not jumping:
            raise FigureError(f"no main sink{subjects[0].where} moves from one step to the next")
        sheet = new_sheet(5.9 * len(jumping) if len(jumping) > 1 else WIDE, 5.6, apart=0.12)
        rows: list[tuple[Any, ...]] = []
        for part, (one, jump) in zip(sheet.subfigures(1, len(jumping), squeeze=False)[0], jumping, strict=True):
            rows += _draw(part, one, jump)
        return self.drawn([one for one, _ in jumping], sheet, _caption(jumping), MAP_HEADER, rows)


def _draw(part: Any, one: Subject, jump: Jump) -> list[tuple[Any, ...]]:
    panels = part.subplot_mosaic([["before", "after"], ["over", "over"]], height_ratios=[2.5, 1])
    rows = []
    for name, step in (("before", jump.step), ("after", jump.step + 1)):
        attention = one.map(step, jump.layer, jump.head)
        image = draw_map(panels[name], one.trace, step, attention, f"step {step}")
        mark_column(panels[name], jump.before, len(attention), VERMILLION)
        mark_column(panels[name], jump.after, len(attention), BLUE)
        rows += map_lines(one.label, name, (step, jump.layer, jump.head), attention)
    panels["before"].set_ylabel("query (position)")
    scale_of_maps(part, image, [panels["before"], panels["after"]])
    rows += _draw_over_steps(panels["over"], one, jump)
    part.legend(*panels["over"].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    goes = f"the main sink goes from {jump.before} to {jump.after}{' (swap of rank)' if jump.swap else ''}"
    part.suptitle(f"{plain(one.heading)}\n{one.head_name(jump.layer, jump.head)}: {goes}", x=0.01, ha="left")
    return rows


def _draw_over_steps(axes: Any, one: Subject, jump: Jump) -> list[tuple[Any, ...]]:
    share, mean = shares(one, jump), self_attention(one, jump)
    rows: list[tuple[Any, ...]] = []

    def listed(what: str, query: str, key: Any, values: np.ndarray) -> None:
        place = (jump.layer, jump.head, query, key)
        rows.extend((one.label, what, at, *place, number(value)) for at, value in enumerate(values))

    for key, colour, marker in ((jump.before, VERMILLION, "o"), (jump.after, BLUE, "s")):
        listed("share of all attention", "all", key, share[:, key])
        curve(axes, share[:, key], colour, marker, f"key {key}: share of all attention")
    if mean is not None:
        listed("self-attention", "mean", "itself", mean)
        curve(axes, mean, INK, "", "self-attention, mean over queries", linestyle="--")
    axes.axvspan(jump.step, jump.step + 1, color="#e8e8e8", linewidth=0, zorder=0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.5, one.summary.steps - 0.5)
    whole_numbers(axes.xaxis)
    axes.set_xlabel("step (grey: the jump)")
    axes.set_title("share of attention")  # as a label of the axis it would be cut off
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


def _caption(jumping: Sequence[tuple[Subject, Jump]]) -> str:
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
    itself = any(self_attention(one, jump) is not None for one, jump in jumping)
    return (
        f"Attention maps before and after the longest jump of a main sink{jumping[0][0].where}. Triangles: the sink "
        "before (vermillion) and after (blue). Below: both keys' shares of attention over all "
        f"steps{', and how much queries attend to themselves' if itself else ''}. {'; '.join(parts)}. What it does not "
        "show: this is the most extreme case of all those, and a correlation over neighbouring steps is no evidence "
        "of a cause."
    )
