"""Figure 4: the maps of two successive steps between which the main sink moves, and what becomes of self-attention."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.figures.digest import Digest, titled
from sinkscope.figures.figure import BLUE, INK, VERMILLION, WIDE, DrawnFigure, new_figure, number, plain, whole_numbers
from sinkscope.figures.maps import LABEL, MAP_HEADER, Maps, draw_map, map_lines, mark_column


def sink_jump(digests: Sequence[Digest], maps: Maps) -> DrawnFigure | str:
    """Draws Figure 4: the longest jump of a main sink; several traces stand side by side."""
    jumping = [one for one in digests if one.jump is not None]
    if not jumping:
        return "the jump of a sink (Figure 4): no main sink moves from one step to the next"
    many = len(jumping) > 1
    figure = new_figure(5.9 * len(jumping) if many else WIDE, 5.4)
    rows: list[tuple[Any, ...]] = []
    for part, one in zip(figure.subfigures(1, len(jumping), squeeze=False)[0], jumping, strict=True):
        rows += _draw(part, one, maps)
    return DrawnFigure("figure4-sink-jump", titled("Figure 4: a main sink jumps", jumping), _caption(jumping), figure, MAP_HEADER, rows)


def _draw(part: Any, one: Digest, maps: Maps) -> list[tuple[Any, ...]]:
    jump = one.jump
    assert jump is not None
    panels = part.subplot_mosaic([["before", "after"], ["over", "over"]], height_ratios=[2.5, 1])
    rows = []
    for name, step in (("before", jump.step), ("after", jump.step + 1)):
        attention = maps(one.trace, step, jump.layer, jump.head)
        image = draw_map(panels[name], one.trace, step, attention, f"step {step}")
        mark_column(panels[name], jump.before, len(attention), VERMILLION)
        mark_column(panels[name], jump.after, len(attention), BLUE)
        rows += map_lines(one.label, name, (step, jump.layer, jump.head), attention)
    panels["before"].set_ylabel("query (position)")
    part.colorbar(image, ax=[panels["before"], panels["after"]], aspect=30, pad=0.01).set_label(LABEL.replace(" (", "\n("))
    rows += _draw_over(panels["over"], one)
    part.legend(*panels["over"].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    part.suptitle(
        f"{plain(one.heading)}\nlayer {jump.layer}, head {jump.head}: the main sink goes from {jump.before} to {jump.after}"
        + ("" if jump.clean else " (change of rank)"),
        x=0.01,
        ha="left",
    )
    return rows


def _draw_over(axes: Any, one: Digest) -> list[tuple[Any, ...]]:
    jump = one.jump
    assert jump is not None
    columns = one.head_columns(jump.layer, jump.head)
    share = columns / np.nansum(columns, axis=-1, keepdims=True)
    rows: list[tuple[Any, ...]] = []
    place = (jump.layer, jump.head)
    for key, colour, marker in ((jump.before, VERMILLION, "o"), (jump.after, BLUE, "s")):
        rows += [(one.label, "share of all attention", at, *place, "all", key, number(value)) for at, value in enumerate(share[:, key])]
        axes.plot(share[:, key], color=colour, marker=marker, markersize=2.5, linewidth=1, label=f"key {key}: share of all attention")
    if (mean := self_attention(one)) is not None:
        rows += [(one.label, "self-attention", at, *place, "mean", "itself", number(value)) for at, value in enumerate(mean)]
        axes.plot(mean, color=INK, linestyle="--", linewidth=1, label="self-attention, mean over queries")
    axes.axvspan(jump.step, jump.step + 1, color="#e8e8e8", linewidth=0, zorder=0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.5, one.steps - 0.5)
    whole_numbers(axes.xaxis)
    axes.set_xlabel("step (grey: the jump)")
    axes.set_title("share of attention")  # as a label of the axis it would be cut off
    return rows


def self_attention(one: Digest) -> np.ndarray | None:
    """[step], mean over queries of the attention on themselves, in the head of the jump; None where it was not kept."""
    if one.jump is None or "self_attention" not in one.trace.tensors:
        return None
    return np.nanmean(one.trace.self_attention[:, one.jump.layer, one.jump.head], axis=-1)


def absorbed(one: Digest) -> float | None:
    """Correlation over steps between the largest column's share and the mean self-attention in the head of the jump."""
    mean = self_attention(one)
    if mean is None or one.jump is None or one.steps < 3:
        return None
    columns = one.head_columns(one.jump.layer, one.jump.head)
    share = np.nanmax(columns, axis=-1) / np.nansum(columns, axis=-1)
    return float(np.corrcoef(share, mean)[0, 1]) if share.std() > 0 and mean.std() > 0 else None


def _caption(digests: Sequence[Digest]) -> str:
    parts = []
    for one in digests:
        jump, together = one.jump, absorbed(one)
        assert jump is not None
        said = f"{one.label}: {abs(jump.distance)} positions to the {'right' if jump.distance > 0 else 'left'} after step {jump.step}"
        said += "" if jump.clean else " (both positions are sinks in one of the two steps, so this is a change of rank)"
        said += "" if together is None else f"; correlation over steps between the main column's share and self-attention {together:+.2f}"
        parts.append(said)
    return (
        "Attention maps of two successive steps, recomputed from the recorded canvas: the step before and after the longest jump of a main "
        "sink in the whole trace. Triangles: the sink before (vermillion) and after (blue). Below: both keys' shares of attention over all "
        f"steps, and how much queries attend to themselves. {'; '.join(parts)}. What it does not show: this is the most extreme case of "
        "all heads, and a correlation over neighbouring steps says nothing of cause."
    )
