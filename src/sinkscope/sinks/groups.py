"""Who attends: do masked and unmasked queries keep separate sinks, and whose sink is the head's (Fig. 6a)?

A group's sink is the arg-max of the mean column of its queries. Eq. 3 in sums can never fire for three queries, so
a group is asked only from 8 queries on, and its mean column is scaled to the whole canvas before Eq. 3 is applied:
the columns there would be if all queries attended as the group does.

A trace keeps the columns of all queries, of the masked ones and of the prompt's; unmasked and written (unmasked, but not
the prompt's) are differences. Prompt and written queries are told apart where a trace holds ``column_sums_prompt``.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks.concentration import thirds
from sinkscope.sinks.layers import Canvas, Layer
from sinkscope.sinks.points import Point, Values

if TYPE_CHECKING:
    from sinkscope.sinks.profile import Profile

GROUPS = ("masked", "unmasked", "prompt", "written")
LEAST_QUERIES = 8
LEAST_SPREAD = 1e-5
"""Standard deviation of a sink's share below which a slope against it would be one of rounding."""


@dataclass(frozen=True)
class Groups:
    """Axes group, step, (layer,) head, groups as in `GROUPS`.

    Attributes:
        position: arg-max of the group's mean column, ties to the lower; −1 with fewer than 8 queries.
        excess: of that column, scaled to the whole canvas, in queries' worth.
        self_attention: [2, …], of the head's largest column's own query, and the mean of all others; NaN if not recorded.
    """

    position: Int[np.ndarray, "group step *head"]
    excess: Float[np.ndarray, "group step *head"]
    self_attention: Float[np.ndarray, "two step *head"]


def group_sizes(canvas: Canvas) -> Int[np.ndarray, "group step"]:
    """Queries of each group in each step."""
    return sizes_of_groups(canvas.masked, canvas.lengths, canvas.prompt_length)


def sizes_of_groups(
    masked: Bool[np.ndarray, "step position"], lengths: Int[np.ndarray, " step"], prompt_length: int
) -> Int[np.ndarray, "group step"]:
    """Queries of each of `GROUPS`; none are written where the prompt itself holds masks, as their columns are not kept apart then."""
    masks, prompt = masked.sum(axis=1), np.minimum(lengths, prompt_length)
    written = np.where(masked[:, :prompt_length].any(axis=1), 0, lengths - masks - prompt)
    return np.stack([masks, lengths - masks, prompt, written])


def layer_groups(layer: Layer, canvas: Canvas, top: Int[np.ndarray, "step head"]) -> Groups:
    """One layer's; ``top`` is the largest column of each step and head."""
    steps, heads, _ = layer.sums.shape
    position, excess = np.full((len(GROUPS), steps, heads), -1), np.full((len(GROUPS), steps, heads), np.nan, np.float32)
    sizes = group_sizes(canvas)
    for number, group in enumerate(GROUPS):
        if group == "unmasked" and "masked" in layer.group_sums:
            columns = layer.sums - layer.group_sums["masked"]
        elif group == "written" and {"masked", "prompt"} <= layer.group_sums.keys():
            columns = layer.sums - layer.group_sums["masked"] - layer.group_sums["prompt"]
        elif group in layer.group_sums:
            columns = layer.group_sums[group]
        else:
            continue
        columns = np.nan_to_num(columns, nan=-1.0)
        best = columns.argmax(axis=-1)
        largest = np.take_along_axis(columns, best[..., None], axis=-1)[..., 0]
        asked = (sizes[number] >= LEAST_QUERIES)[:, None]
        length = canvas.lengths[:, None].astype(np.float64)
        scaled = largest * length / np.maximum(sizes[number], 1)[:, None]
        position[number] = np.where(asked, best, -1)
        excess[number] = np.where(asked, scaled - (length - scaled) / np.maximum(length - 1, 1), np.nan)
    return Groups(position, excess, _self_attention(layer.self_attention, top, canvas.lengths))


def _self_attention(own: np.ndarray | None, top: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    if own is None:
        return np.full((2, *top.shape), np.nan, np.float32)
    sink = np.nan_to_num(np.take_along_axis(own, top[..., None], axis=-1)[..., 0])
    others = (np.nansum(own, axis=-1) - sink) / np.maximum(lengths - 1, 1)[:, None]
    return np.stack([sink, others]).astype(np.float32)


def group_values(profile: "Profile", point: Point) -> Values:
    """Where the groups split, how they switch over, what a sink absorbs; NaN where the trace has no groups."""
    found, canvas = profile.groups, profile.canvas
    percent = 100 / canvas.lengths[:, None, None]
    with np.errstate(invalid="ignore"):
        sinks = (found.excess if point.unit == "queries" else found.excess * percent) > point.excess
    masked, unmasked, prompt, written = np.where(sinks, found.position, -1)
    both = (masked >= 0) & (unmasked >= 0)
    split = both & (masked != unmasked)
    largest = profile.concentration.top
    values: Values = {
        ("groups.both", ()): float(both.mean()),
        ("groups.split", ()): _share(split, both),
        ("groups.split_from_prompt", ()): _split(masked, prompt),
        ("groups.split_from_written", ()): _split(masked, written),
        ("groups.split_prompt_written", ()): _split(prompt, written),
        ("groups.persistence", ()): _persistence(masked, unmasked),
        ("groups.follows_masked", ()): _share(split & (largest == masked), split),
    }
    for layer in range(both.shape[1]):
        values["groups.split_in", (("layer", layer),)] = _share(split[:, layer], both[:, layer])
    for third, steps in thirds(profile.steps).items():
        values["groups.split_over_steps", (("third", third),)] = _share(split[steps], both[steps])
        values["groups.follows_masked_over_steps", (("third", third),)] = _share((split & (largest == masked))[steps], split[steps])
    own, others = found.self_attention
    is_sink = profile.concentration.counts[profile.points.index(point)] > 0
    values["groups.self_share", ()] = _mean(np.where(is_sink, own / profile.concentration.largest, np.nan))
    values["groups.self_attention_absorbed", ()] = _absorbed(profile, others, is_sink)
    return values


def _persistence(masked: np.ndarray, unmasked: np.ndarray) -> float:
    """How much oftener a group's sink is found again one step later in its own group than in the other.

    Chance differences between two groups of few queries are forgotten by the next step; separate sinks are not.
    """
    there = ((masked >= 0) & (unmasked >= 0))[1:] & ((masked >= 0) & (unmasked >= 0))[:-1]
    within = (masked[1:] == masked[:-1]).astype(float) + (unmasked[1:] == unmasked[:-1])
    across = (masked[1:] == unmasked[:-1]).astype(float) + (unmasked[1:] == masked[:-1])
    return float((within - across)[there].mean() / 2) if there.any() else float("nan")


def _absorbed(profile: "Profile", others: np.ndarray, is_sink: np.ndarray) -> float:
    """Slope, within each head over the steps, of the self-attention that is left over against the sink's share.

    A sink that takes a share a of every query's attention leaves 1 − a to all else; self-attention over 1 − a then
    does not depend on a. It falls where the sink takes from the diagonal first.
    """
    share = profile.concentration.largest / np.maximum(profile.concentration.total, 1)
    rest = np.where(is_sink & (share < 1), others / np.maximum(1 - share, 1e-6), np.nan).astype(np.float64)
    share = np.where(np.isnan(rest), np.nan, share)
    count = (~np.isnan(rest)).sum(axis=0)
    centred = np.nan_to_num(share - np.nansum(share, axis=0) / np.maximum(count, 1))
    products = (centred * np.nan_to_num(rest)).sum()
    squares = (centred**2).sum()
    return float(products / squares) if squares > LEAST_SPREAD**2 * max(1, count.sum()) else float("nan")


def _split(one: np.ndarray, other: np.ndarray) -> float:
    both = (one >= 0) & (other >= 0)
    return _share(both & (one != other), both)


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum() / whole.sum()) if whole.any() else float("nan")


def _mean(array: np.ndarray) -> float:
    there = ~np.isnan(array)
    return float(array[there].mean()) if there.any() else float("nan")
