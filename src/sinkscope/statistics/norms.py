"""Norms of sinks (paper 2, Fig. 1): are they small in value space, so that attending to one is close to a no-op?

A token contributes c_j·‖v_j‖, or c_j·‖W_O^h v_j‖ behind the output projection (Kobayashi et al., arXiv 2004.10102).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.statistics.intervals import mean, quotient, ratio
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds, in_layers
from sinkscope.statistics.step import NORMS, OUTPUT_NORMS, RecordedStep
from sinkscope.statistics.thresholds import Threshold

NORM_KINDS = ("value", "key", "hidden", "contribution")
OUTPUT = len(NORM_KINDS)
"""Where the output norms stand behind `NORM_KINDS` in a `StepNorms`."""
NOOP = "sinks have small values: attending to one is close to a no-op (paper 2, Fig. 1)"


@dataclass(frozen=True, eq=False)
class Moments:
    """Number, sum, sum of squares of each kind of norm, of sinks (group 0) and all others (1); 0: not recorded."""

    count: Int[np.ndarray, "kind group layer"]
    total: Float[np.ndarray, "kind group layer"]
    square: Float[np.ndarray, "kind group layer"]

    @property
    def mean(self) -> Float[np.ndarray, "kind group layer"]:
        return ratio(self.total, self.count)

    @property
    def deviation(self) -> Float[np.ndarray, "kind group layer"]:
        return np.sqrt(np.maximum(ratio(self.square, self.count) - self.mean**2, 0))

    @property
    def effect(self) -> Float[np.ndarray, "kind layer"]:
        """Cohen's d, over the pooled standard deviation √(Σ(x − x̄)²/(n₁ + n₂ − 2)); NaN for an empty group."""
        squares = np.maximum(self.square - np.nan_to_num(self.mean) * self.total, 0).sum(axis=1)
        spread = squares / np.maximum(self.count.sum(axis=1) - 2, 1)
        return ratio(self.mean[:, 0] - self.mean[:, 1], np.sqrt(spread))


@dataclass(frozen=True, eq=False)
class StepNorms:
    """Norms of one step, or of all; kinds are `NORM_KINDS`, then output norms; NaN where a norm was not recorded.

    The share of others above the largest column's norm; the ``given`` sums Σ_j c_j·‖v_j‖, and the share from sinks.
    """

    of_sinks: Float[np.ndarray, "*step threshold kind moment layer"]
    of_all: Float[np.ndarray, "*step kind moment layer"]
    above: Float[np.ndarray, "*step norm layer head"]
    on_sinks: Float[np.ndarray, "*step added threshold layer head"]
    given: Float[np.ndarray, "*step added layer head"]

    @classmethod
    def of(cls, step: RecordedStep) -> "StepNorms":
        sinks, columns = step.columns.candidates, step.columns
        shape = layers, heads = columns.total.shape
        thresholds = len(sinks.thresholds)
        of_sinks = np.full((thresholds, OUTPUT + 1, 3, layers), np.nan)
        of_all = np.full((OUTPUT + 1, 3, layers), np.nan)
        above = np.full((len(NORMS) + 1, *shape), np.nan, np.float32)
        on_sinks = np.full((2, thresholds, *shape), np.nan, np.float32)
        given = [np.full(shape, np.nan, np.float32)] * 2
        for kind, name in enumerate((*NORMS, OUTPUT_NORMS)):
            if name not in step.norms:
                continue
            norms, place = step.norms[name], OUTPUT if name == OUTPUT_NORMS else kind
            shared = heads // norms.shape[1]
            known, there = np.nan_to_num(norms), ~np.isnan(norms)
            total = known.sum(axis=(1, 2), dtype=np.float64)
            of_all[place] = shared * np.stack([np.count_nonzero(there, axis=(1, 2)), total, _sum_of_squares(known)])
            at = known[sinks.layer, sinks.head // shared, sinks.key].astype(np.float64)
            of_sinks[:, place] = _tallied(step, at, there[sinks.layer, sinks.head // shared, sinks.key])
            above[kind] = _share_above(norms, shared, columns.top)
            if name not in ("value_norms", OUTPUT_NORMS):
                continue
            product = columns.sums.reshape(layers, norms.shape[1], shared, -1) * known[:, :, None]
            product = product.reshape(layers, heads, -1)
            added = int(name == OUTPUT_NORMS)
            sums = product.sum(axis=-1)
            of_each = product[sinks.layer, sinks.head, sinks.key].astype(np.float64)
            part = sinks.tally(sinks.layer * heads + sinks.head, layers * heads, of_each).reshape(-1, *shape)
            on_sinks[added], given[added] = ratio(part, sums), sums
            if not added:
                total, many = sums.sum(axis=-1, dtype=np.float64), np.full(layers, heads * step.length)
                of_all[OUTPUT - 1] = np.stack([many, total, _sum_of_squares(product)])
                of_sinks[:, OUTPUT - 1] = _tallied(step, sinks.column * at)
        return cls(of_sinks, of_all, above, on_sinks, np.stack(given))


def _sum_of_squares(values: Float[np.ndarray, "layer any key"]) -> Float[np.ndarray, " layer"]:
    return np.einsum("lhk,lhk->l", values, values, dtype=np.float64, casting="unsafe")


def _tallied(
    step: RecordedStep, at: Float[np.ndarray, " candidate"], there: Bool[np.ndarray, " candidate"] | None = None
) -> Float[np.ndarray, "threshold moment layer"]:
    """Return the moments of the sinks; ``there``: which of them have a norm, by default all."""
    sinks, layers = step.columns.candidates, len(step.columns.total)
    weights = None if there is None or there.all() else there.astype(np.float64)
    return np.stack([sinks.tally(sinks.layer, layers, one) for one in (weights, at, at**2)], axis=1, dtype=np.float64)


def _share_above(
    norms: Float[np.ndarray, "layer kv_head key"], shared: int, top: Int[np.ndarray, "layer head"]
) -> Float[np.ndarray, "layer head"]:
    """Return the share of the other tokens whose norm is above the largest column's (NaN if unknown); ties half."""
    layers, kv_heads, _ = norms.shape
    own = np.take_along_axis(norms, top.reshape(layers, kv_heads, shared), axis=-1)
    share = np.empty(own.shape, np.float32)
    for one in range(shared):
        larger = np.count_nonzero(norms > own[..., one, None], axis=-1)
        equal = np.count_nonzero(norms == own[..., one, None], axis=-1) - 1
        share[..., one] = larger + 0.5 * equal
    others = np.maximum((~np.isnan(norms)).sum(axis=-1) - 1, 1)
    return np.where(np.isnan(own), np.nan, share / others[..., None]).astype(np.float32).reshape(top.shape)


def moments(prompt: PromptSummary, threshold: Threshold, kinds: int = len(NORM_KINDS)) -> Moments:
    """Return the moments of the norms of one prompt; the kinds as in `StepNorms`."""
    found = prompt.kept(StepNorms)
    of_sinks, of_all = found.of_sinks[:, prompt.number(threshold)].sum(axis=0), found.of_all.sum(axis=0)
    known = np.nan_to_num(np.stack([of_sinks, of_all - of_sinks], axis=1))[:kinds]  # [kind, group, moment, layer]
    return Moments(known[:, :, 0].astype(np.int64), known[:, :, 1], known[:, :, 2])


def _above(what: str) -> Definition:
    text = f"other tokens of the canvas whose {what} is above the largest sink's; ½ is no difference"
    return Definition(text, "share", NOOP)


class Norms(Statistic):
    """Norms of sinks beside those of other tokens, two sizes of the difference, and the contribution of sinks."""

    order = 9
    definitions: ClassVar = {
        "norms.contribution": Definition("part of Σ_j c_j·‖v_j‖ from sinks, in heads with one", "share", NOOP),
        "norms.contribution_over_attention": Definition(
            "that, over what it would be with the head's mean value norm; below 1: smaller values", "ratio", NOOP
        ),
    }
    for _kind, _what in (("value", "value norm"), ("key", "key norm"), ("hidden", "norm of the hidden state")):
        _effect = f"Cohen's d of the {_what}, sinks minus others; mean over layers"
        definitions |= {
            f"norms.{_kind}_norm_of_sinks": Definition(f"mean {_what} of sinks", "norm", NOOP),
            f"norms.{_kind}_norm_of_others": Definition(f"mean {_what} of all other tokens", "norm", NOOP),
            f"norms.{_kind}_norm_effect": Definition(_effect, "standard deviations", NOOP),
            f"norms.{_kind}_norm_auc": _above(_what),
        }
    definitions |= {
        "norms.output_norm_of_sinks": Definition("mean output norm ‖W_O v‖ of sinks", "norm", NOOP),
        "norms.output_norm_of_others": Definition("mean output norm of all other tokens", "norm", NOOP),
        "norms.output_norm_auc": _above("output norm"),
        "norms.output_contribution": Definition("part of Σ_j c_j·‖W_O v_j‖ from sinks", "share", NOOP),
        "norms.output_contribution_over_attention": Definition("that, over the mean output norm's", "ratio", NOOP),
    }

    def keep(self, step: RecordedStep) -> StepNorms:
        return StepNorms.of(step)

    def values(self, prompt: PromptSummary) -> Values:
        return at_thresholds(prompt, _values_at)


def _values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
    found, number, present = prompt.kept(StepNorms), prompt.number(threshold), prompt.has_sink(threshold)
    compared = moments(prompt, threshold, OUTPUT + 1)
    both = np.all(compared.count >= 1, axis=1, keepdims=True)
    means, effect = np.where(both, compared.mean, np.nan), compared.effect
    kinds = ["value", "key", "hidden"]
    if not np.isnan(found.of_all[:, OUTPUT]).any():
        kinds.append("output")
    values: Values = {}
    for which, name in enumerate(kinds):
        short, kind, above = f"norms.{name}_norm", OUTPUT if name == "output" else which, found.above[:, which]
        values |= in_layers(f"{short}_of_sinks", means[kind, 0]) | in_layers(f"{short}_of_others", means[kind, 1])
        values |= in_layers(f"{short}_auc", map(mean, above.swapaxes(0, 1), present.swapaxes(0, 1)))
        values[f"{short}_auc", ()] = mean(above, present)
        if name != "output":
            values |= in_layers(f"{short}_effect", effect[kind])
            values[f"{short}_effect", ()] = mean(effect[kind])
    for added, start in enumerate(("norms.", "norms.output_")[: len(kinds) - 2]):
        on_sinks, given = found.on_sinks[:, added, number], found.given[:, added]
        values[f"{start}contribution", ()] = mean(on_sinks, present)
        # Sums, linear in the norms: a mean of the heads' own ratios is below 1 also where norms know nothing of sinks.
        counted = present & ~np.isnan(on_sinks)
        total = (on_sinks * given)[counted].sum(dtype=np.float64)
        expected = (prompt.shares(threshold) * given)[counted].sum(dtype=np.float64)
        values[f"{start}contribution_over_attention", ()] = quotient(total, expected)
    return values
