"""What one prompt adds to the summary of many: counts and sums in named arrays, each read from its `PromptSummary`.

The axes of the arrays, beside those of `axes`:

bin         of `step.histogram_edges`
unit        of `thresholds.UNITS`
epsilon     of `thresholds.EPSILONS`
number      of sinks that a head has in a step, from 0; the last one is 32 and more
kind        of `norms.NORM_KINDS`
group       sinks, other tokens
token       distinct tokens, by rising id
told        as a sink, as a main sink, on the canvas
name        of `PROMPT_MEANS`
threshold   of `thresholds.THRESHOLDS`
trigger     of `move_triggers.TRIGGERS`; draw: commits shifted at random
tenth       of the canvas; class: of `token_classes.CLASSES`
one         a single number
"""

from dataclasses import dataclass, replace

import numpy as np

from sinkscope.sinks.drift import MainMoves
from sinkscope.sinks.token_classes import CLASSES
from sinkscope.statistics.agreement import TENTHS, Pattern
from sinkscope.statistics.averages import mean, quotient, ratio
from sinkscope.statistics.concentration import Evenness, concentration_values, evenness_values
from sinkscope.statistics.groups import strongest_keys_differ
from sinkscope.statistics.move_triggers import DRAWS, TRIGGERS, TriggerTest, draws_of, shares_of, trigger_values
from sinkscope.statistics.movement import main_sink_values
from sinkscope.statistics.norms import NORM_KINDS, moments
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Values, values_of
from sinkscope.statistics.step import FAR_BINS, LINEAR_BINS
from sinkscope.statistics.thresholds import EPSILONS, THRESHOLDS, UNITS, Threshold

Arrays = dict[str, np.ndarray]
MOST_SINKS = 32
PROMPT_MEANS = (
    "sinks_per_head",
    "share_of_tokens_that_are_sinks",
    "share_of_attention_on_sinks",
    "share_of_heads_with_a_sink",
    "main_sink_column_sum",
    "entropy",
    "gini",
    "moves_per_step",
    "swaps_per_step",
    "drift_per_step",
    "split_between_query_groups",
    "split_between_masked_and_prompt",
    "split_between_masked_and_written",
    "value_norm_of_sinks_over_others",
)
"""Numbers of a prompt whose means are told by name, at one threshold."""

SIZES = {
    "bin": LINEAR_BINS + FAR_BINS,
    "unit": len(UNITS),
    "epsilon": len(EPSILONS),
    "number": MOST_SINKS + 1,
    "kind": len(NORM_KINDS),
    "group": 2,
    "token": 0,
    "told": 3,
    "name": len(PROMPT_MEANS),
    "threshold": len(THRESHOLDS),
    "trigger": len(TRIGGERS),
    "draw": DRAWS,
    "tenth": TENTHS,
    "class": len(CLASSES),
    "one": 1,
}
COMPARED = {"": "unmasked", "_prompt": "prompt", "_written": "written"}
"""Endings of the arrays that compare masked queries with another group of `groups.GROUPS`."""

COUNTS = {
    "histogram.columns": "layer bin",
    "epsilon.above": "unit layer epsilon",
    "epsilon.columns": "layer",
    **{f"strength.{name}": "layer head" for name in ("steps", "steps_with_sink", "sinks")},
    "strength.per_head": "layer number",
    **{
        f"moves.{name}": "layer head" for name in ("pairs", "moves", "swaps", "distance", "absolute_distance", "drifts")
    },
    **{f"groups.{name}{ending}": "layer head" for name in ("compared", "split") for ending in COMPARED},
    "tokens.counts": "token told",
    "norms.count": "kind group layer",
    "prompts.prompts": "one",
    "prompts.count": "name",
    "profiles.moving": "threshold",
    "profiles.heads_with_sink": "threshold layer head",
    "profiles.with_sink": "threshold",
}
SUMS = {
    **{f"strength.{name}": "layer head" for name in ("main", "largest", "sink_share", "entropy", "gini")},
    "moves.drift": "layer head",
    **{f"norms.{name}": "kind group layer" for name in ("sum", "square")},
    **{f"prompts.{name}": "name" for name in ("sum", "square")},
    "profiles.triggered": "threshold trigger",
    "profiles.shifted": "threshold trigger draw",
    "profiles.place": "threshold layer head tenth",
    "profiles.class": "threshold layer head class",
    **{f"profiles.{name}_square": "threshold" for name in ("place", "class")},
}
IDS = {"tokens.ids": "token"}
AXES = COUNTS | SUMS | IDS
"""{array: its axes}; counts are int64, sums float64, ids int32."""


def empty_arrays(layers: int, heads: int) -> Arrays:
    """Return the arrays before the first prompt."""
    sizes = {**SIZES, "layer": layers, "head": heads}
    dtypes = dict.fromkeys(COUNTS, np.int64) | dict.fromkeys(SUMS, np.float64) | dict.fromkeys(IDS, np.int32)
    return {name: np.zeros([sizes[axis] for axis in axes.split()], dtypes[name]) for name, axes in AXES.items()}


@dataclass(frozen=True, eq=False)
class PromptSums:
    """What one prompt adds.

    Attributes:
        arrays: with the axes of `AXES`.
        values: its numbers at `thresholds.THRESHOLDS`, as `analyse` tells them.
    """

    arrays: Arrays
    values: Values

    @classmethod
    def of(cls, prompt: PromptSummary, threshold: Threshold) -> "PromptSums":
        """Return what a prompt adds.

        Args:
            prompt: with sinks counted at all of `THRESHOLDS` and at ``threshold``.
            threshold: of everything that is computed at a single threshold.
        """
        prompt = replace(prompt, thresholds=THRESHOLDS)
        found = (
            _concentration(prompt, threshold) | _moves(prompt, threshold) | _groups(prompt) | _tokens(prompt, threshold)
        )
        compared = moments(prompt, threshold)
        found |= {"norms.count": compared.count, "norms.sum": compared.total, "norms.square": compared.square}
        numbers = prompt_means(prompt, threshold)
        known = np.array([numbers[name] for name in PROMPT_MEANS])
        found |= {"prompts.prompts": np.ones(1, np.int64), **_moments_of("prompts", known)}
        found |= _triggers(prompt) | _patterns(prompt)
        no_trigger: Values = {}
        for one in THRESHOLDS:
            for (name, place), value in trigger_values(np.full((len(TRIGGERS), 1), np.nan)).items():
                no_trigger[name, (*one.place, *place)] = value
        return cls(found, no_trigger | values_of(prompt))


def _moments_of(name: str, numbers: np.ndarray) -> Arrays:
    known = np.isfinite(numbers)
    numbers = np.where(known, numbers, 0)
    return {f"{name}.count": known.astype(np.int64), f"{name}.sum": numbers, f"{name}.square": numbers**2}


def _concentration(prompt: PromptSummary, threshold: Threshold) -> Arrays:
    counts, present, evenness = prompt.counts(threshold), prompt.has_sink(threshold), prompt.kept(Evenness)
    place = np.minimum(counts, MOST_SINKS) + np.arange(prompt.layers)[:, None] * (MOST_SINKS + 1)
    per_head = np.bincount(place.ravel(), minlength=prompt.layers * (MOST_SINKS + 1))
    sums = {
        "main": np.where(present, prompt.by_step.largest, 0),
        "largest": prompt.by_step.largest,
        "sink_share": prompt.shares(threshold),
        "entropy": evenness.entropy,
        "gini": evenness.gini,
    }
    return {
        "histogram.columns": prompt.histogram,
        "epsilon.above": prompt.above,
        "epsilon.columns": np.full(prompt.layers, prompt.columns // prompt.layers),
        "strength.steps": np.full((prompt.layers, prompt.heads), prompt.steps),
        "strength.steps_with_sink": present.sum(axis=0),
        "strength.sinks": counts.sum(axis=0, dtype=np.int64),
        "strength.per_head": per_head.reshape(prompt.layers, -1),
        **{f"strength.{name}": values.sum(axis=0, dtype=np.float64) for name, values in sums.items()},
    }


def _moves(prompt: PromptSummary, threshold: Threshold) -> Arrays:
    found = MainMoves.of(prompt.main_at(threshold), prompt.is_sink_at(threshold))
    return {
        "moves.pairs": found.pairs,
        "moves.moves": found.moves,
        "moves.swaps": found.swaps,
        "moves.distance": found.distance.sum(axis=0),
        "moves.absolute_distance": np.abs(found.distance).sum(axis=0),
        "moves.drifts": (~np.isnan(found.drift)).astype(np.int64),
        "moves.drift": np.nan_to_num(found.drift),
    }


def _groups(prompt: PromptSummary) -> Arrays:
    found = strongest_keys_differ(prompt)
    return {
        f"groups.{name}{ending}": found[group][number].sum(axis=0)
        for ending, group in COMPARED.items()
        for number, name in enumerate(("compared", "split"))
    }


def _tokens(prompt: PromptSummary, threshold: Threshold) -> Arrays:
    canvas = prompt.canvas
    main = prompt.main_at(threshold)
    step, _, _ = places = np.nonzero(main >= 0)
    at_main = np.bincount(canvas.token_indices[step, main[places]], minlength=len(canvas.token_ids))
    on_canvas = canvas.token_counts * prompt.layers * prompt.heads
    return {
        "tokens.ids": canvas.token_ids.astype(np.int32),
        "tokens.counts": np.stack([prompt.sinks_by_token(threshold), at_main, on_canvas], axis=-1).astype(np.int64),
    }


def _triggers(prompt: PromptSummary) -> Arrays:
    tests = []
    for threshold in THRESHOLDS:
        test = TriggerTest()
        if (shares := shares_of(prompt, threshold)) is not None:
            test.add(shares, draws_of(prompt.canvas))
        tests.append(test)
    return {
        "profiles.moving": np.array([test.prompts for test in tests]),
        "profiles.triggered": np.array([test.observed for test in tests]),
        "profiles.shifted": np.array([test.null for test in tests]),
    }


def _patterns(prompt: PromptSummary) -> Arrays:
    patterns = [Pattern.of(prompt, threshold) for threshold in THRESHOLDS]
    place, token = (np.array([getattr(one, name) for one in patterns], np.float64) for name in ("place", "token"))
    having = np.any(place, axis=-1, keepdims=True)[..., 0].astype(np.int64)
    return {
        "profiles.place": place,
        "profiles.class": token,
        "profiles.place_square": (place**2).sum(axis=(1, 2, 3)),
        "profiles.class_square": (token**2).sum(axis=(1, 2, 3)),
        "profiles.heads_with_sink": having,
        "profiles.with_sink": np.array([one.any() for one in having], np.int64),
    }


def prompt_means(prompt: PromptSummary, threshold: Threshold) -> dict[str, float]:
    """Return the numbers of `PROMPT_MEANS` of one prompt; NaN where it has none."""
    concentrated, evenness = concentration_values(prompt, threshold), evenness_values(prompt)
    main = prompt.main_at(threshold)
    is_sink = prompt.is_sink_at(threshold)
    moves, differ = MainMoves.of(main, is_sink), strongest_keys_differ(prompt)
    norms = moments(prompt, threshold)
    value = ratio(norms.total[0].sum(axis=-1), norms.count[0].sum(axis=-1))

    def split(group: str) -> float:
        compared, different = differ[group]
        return quotient(different.sum(), compared.sum())

    return {
        "sinks_per_head": concentrated["concentration.sinks_per_head", ()],
        "share_of_tokens_that_are_sinks": quotient(prompt.sinks(threshold), prompt.columns),
        "share_of_attention_on_sinks": concentrated["concentration.share_on_sinks", ()],
        "share_of_heads_with_a_sink": mean(prompt.has_sink(threshold)),
        "main_sink_column_sum": mean(prompt.strength(threshold)),
        "entropy": evenness["concentration.entropy", ()],
        "gini": evenness["concentration.gini", ()],
        "moves_per_step": quotient(moves.moves.sum(), moves.pairs.sum()),
        "swaps_per_step": quotient(moves.swaps.sum(), moves.pairs.sum()),
        "drift_per_step": main_sink_values(main, prompt.canvas, is_sink)["movement.drift", ()],
        "split_between_query_groups": split("unmasked"),
        "split_between_masked_and_prompt": split("prompt"),
        "split_between_masked_and_written": split("written"),
        "value_norm_of_sinks_over_others": float(ratio(value[0], value[1])),
    }
