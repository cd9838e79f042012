"""Sinks of groups of queries: do masked and unmasked queries keep separate sinks, and whose is the head's (Fig. 6a)?

The mean column of a group of 8 queries or more is scaled to the whole canvas before Eq. 3 is applied.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.statistics.intervals import mean, quotient
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds, in_layers, over_steps
from sinkscope.statistics.step import RecordedStep
from sinkscope.statistics.thresholds import Threshold

GROUPS = ("masked", "unmasked", "prompt", "written")
LEAST_QUERIES = 8
NOT_RECORDED = -2
LEAST_SPREAD = 1e-5
"""Standard deviation of a sink's share below which a slope against it would be one of rounding."""
SPLIT = "masked and unmasked queries keep separate sinks and switch over (Fig. 6a)"


@dataclass(frozen=True, eq=False)
class GroupSinks:
    """The sink of each group (`GROUPS`) of queries: position, −1 with fewer than 8 queries, −2 where not recorded.

    clarity: how much more of a query's attention the sinks of masked and unmasked queries get from their own group, the
    smaller one, NaN for one key; self-attention of the query at the largest column, and the mean of the others.
    """

    position: Int[np.ndarray, "*step group layer head"]
    excess: Float[np.ndarray, "*step group layer head"]
    percent: Float[np.ndarray, "*step group layer head"]
    clarity: Float[np.ndarray, "*step layer head"]
    own_attention: Float[np.ndarray, "*step layer head"]
    other_attention: Float[np.ndarray, "*step layer head"]

    @classmethod
    def of(cls, step: RecordedStep) -> "GroupSinks":
        shape, length, masked = step.columns.total.shape, float(step.length), step.masked
        sums = dict(step.group_sums)
        if "masked" in sums:
            sums["unmasked"] = step.columns.sums - sums["masked"]
        if {"masked", "prompt"} <= sums.keys():
            sums["written"] = sums["unmasked"] - sums["prompt"]
        in_prompt = np.arange(step.length) < step.settings.prompt_length
        # The columns of masks in the prompt are not kept apart: none count as written then.
        written = ~masked & ~in_prompt & ~(masked & in_prompt).any()
        members = dict(zip(GROUPS, (masked, ~masked, in_prompt, written), strict=True))
        # Behind a cache some tokens are no queries.
        sizes = {name: int(step.queries_of(members[name], sums[name]).min()) for name in GROUPS if name in sums}
        position, excess = np.full((len(GROUPS), *shape), -1), np.full((len(GROUPS), *shape), np.nan, np.float32)
        percent = excess.copy()
        for number, group in enumerate(GROUPS):
            if group not in sums:
                position[number] = NOT_RECORDED
            elif (queries := sizes[group]) >= LEAST_QUERIES:
                position[number] = sums[group].argmax(axis=-1)
                scaled, total = (
                    values * length / queries
                    for values in (_at(sums[group], position[number]), sums[group].sum(axis=-1))
                )
                excess[number] = scaled - (total - scaled) / max(length - 1, 1)
                percent[number] = np.divide(100 * excess[number], total, out=np.zeros_like(total), where=total > 0)
        clarity = own_attention = other_attention = np.full(shape, np.nan, np.float32)
        if (position[:2] >= 0).all():
            own, other = (
                _at(sums["masked"], at) / sizes["masked"] - _at(sums["unmasked"], at) / sizes["unmasked"]
                for at in position[:2]
            )  # how much more a masked query attends to each of the two
            clarity = np.where(position[0] == position[1], clarity, np.minimum(own, -other).astype(np.float32))
        if (own := step.self_attention) is not None:
            own_attention = _at(own, step.columns.top)  # NaN where its own query was not computed, as behind a cache
            others = np.maximum((~np.isnan(own)).sum(axis=-1) - ~np.isnan(own_attention), 1)
            other_attention = (np.nansum(own, axis=-1) - np.nan_to_num(own_attention)) / others
        attention = (one.astype(np.float32) for one in (own_attention, other_attention))
        return cls(position, excess, percent, clarity, *attention)


def _at(columns: np.ndarray, position: np.ndarray) -> np.ndarray:
    return np.take_along_axis(columns, position[..., None], axis=-1)[..., 0]


class Groups(Statistic):
    """Splits between groups of queries, and the share of a sink's own query; NaN where a trace has no groups."""

    order = 6
    definitions: ClassVar = {
        "groups.both": Definition("steps × heads in which masked and unmasked queries have a sink", "share", SPLIT),
        "groups.split": Definition("of those, where the two groups have different sinks", "share", SPLIT),
        "groups.split_from_prompt": Definition("the same for masked queries and the prompt's", "share", SPLIT),
        "groups.split_from_written": Definition("the same for masked queries and written ones", "share", SPLIT),
        "groups.split_prompt_written": Definition("the same for the prompt's queries and written ones", "share", SPLIT),
        "groups.persistence": Definition(
            "how much more often a group's sink is its own sink than the other's one step later", "share", SPLIT
        ),
        "groups.follows_masked": Definition("splits where the largest column is the masked ones' sink", "share", SPLIT),
        "groups.self_share": Definition("part of the largest sink's column from its own query", "share", "Fig. 4b"),
        "groups.self_attention_absorbed": Definition(
            "slope of the other queries' self-attention, of what the sink leaves, against its share, within heads",
            "share per share",
            "the sink absorbs the self-attention of its queries (Fig. 4b): below 0",
        ),
    }

    def keep(self, step: RecordedStep) -> GroupSinks:
        return GroupSinks.of(step)

    def values(self, prompt: PromptSummary) -> Values:
        return at_thresholds(prompt, _values_at)


def strongest_keys_differ(prompt: PromptSummary) -> dict[str, Bool[np.ndarray, "two step layer head"]]:
    """Return where masked queries can be compared with each other group, and where their largest keys differ."""
    masked, *others = np.moveaxis(prompt.kept(GroupSinks).position, 1, 0)
    found = {}
    for group, other in zip(GROUPS[1:], others, strict=True):
        compared = (masked >= 0) & (other >= 0)
        found[group] = np.stack([compared, compared & (masked != other)])
    return found


def _values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
    found = prompt.kept(GroupSinks)
    sinks = (found.excess if threshold.unit == "queries" else found.percent) > threshold.excess
    masked, unmasked, prompts, written = np.moveaxis(np.where(sinks, found.position, -1), 1, 0)
    both = (masked >= 0) & (unmasked >= 0)
    split = both & (masked != unmasked)
    follows = split & (prompt.by_step.top == masked)
    recorded = bool((found.position[:, :2] > NOT_RECORDED).all())
    # Chance differences between two groups of few queries are forgotten by the next step; separate sinks are not.
    within = (masked[1:] == masked[:-1]).astype(float) + (unmasked[1:] == unmasked[:-1])
    across = (masked[1:] == unmasked[:-1]).astype(float) + (unmasked[1:] == masked[:-1])
    is_sink, largest = prompt.has_sink(threshold), prompt.by_step.largest
    of_itself = np.divide(found.own_attention, largest, out=np.zeros_like(found.own_attention), where=largest > 0)
    return {
        ("groups.both", ()): float(both.mean()) if recorded else float("nan"),
        ("groups.split", ()): quotient(split.sum(), both.sum()),
        ("groups.split_from_prompt", ()): _split(masked, prompts),
        ("groups.split_from_written", ()): _split(masked, written),
        ("groups.split_prompt_written", ()): _split(prompts, written),
        ("groups.persistence", ()): mean((within - across) / 2, both[1:] & both[:-1]),
        ("groups.follows_masked", ()): quotient(follows.sum(), split.sum()),
        **in_layers("groups.split", (_split(masked[:, one], unmasked[:, one]) for one in range(prompt.layers))),
        **over_steps("groups.split", prompt.steps, lambda steps: quotient(split[steps].sum(), both[steps].sum())),
        **over_steps(
            "groups.follows_masked", prompt.steps, lambda steps: quotient(follows[steps].sum(), split[steps].sum())
        ),
        ("groups.self_share", ()): mean(of_itself, is_sink),
        ("groups.self_attention_absorbed", ()): _absorbed(prompt, found.other_attention, is_sink),
    }


def _split(one: np.ndarray, other: np.ndarray) -> float:
    both = (one >= 0) & (other >= 0)
    return quotient((both & (one != other)).sum(), both.sum())


def _absorbed(prompt: PromptSummary, others: np.ndarray, is_sink: np.ndarray) -> float:
    """Return the slope, within heads, of self-attention over 1 − a against the sink's share a: 0 if all pay alike."""
    share = prompt.by_step.largest / np.maximum(prompt.by_step.total, 1)
    rest = np.where(is_sink & (share < 1), others / np.maximum(1 - share, 1e-6), np.nan).astype(np.float64)
    share = np.where(np.isnan(rest), np.nan, share)
    count = (~np.isnan(rest)).sum(axis=0)
    centred = np.nan_to_num(share - np.nansum(share, axis=0) / np.maximum(count, 1))
    products, squares = (centred * np.nan_to_num(rest)).sum(), (centred**2).sum()
    return float(products / squares) if squares > LEAST_SPREAD**2 * max(1, count.sum()) else float("nan")
