"""The summary of many prompts: a row of numbers for each, and counts and sums over all of them for figures."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import SinkscopeError
from sinkscope.sinks.definition import CLASSES, Rule, token_class
from sinkscope.sinks.drift import MainMoves
from sinkscope.statistics.agreement import Pattern
from sinkscope.statistics.analysis import Estimate, PromptRows, estimates
from sinkscope.statistics.concentration import Evenness, concentration_values, evenness_values
from sinkscope.statistics.groups import strongest_keys_differ
from sinkscope.statistics.intervals import known, mean, quotient, ratio
from sinkscope.statistics.move_triggers import TRIGGERS, TriggerTest, draws_of, shares_of, trigger_values
from sinkscope.statistics.movement import main_sink_values
from sinkscope.statistics.norms import NORM_KINDS, Moments, moments
from sinkscope.statistics.prompt import PromptFeed, PromptSummary
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.statistic import at_thresholds, feed_of, order_of, values_of
from sinkscope.statistics.step import quarters_of
from sinkscope.statistics.thresholds import EPSILONS, THRESHOLDS, UNITS, Threshold

Arrays = dict[str, np.ndarray]
MOST_SINKS = 32
"""Heads with more sinks in a step are counted with those that have so many."""
MOST_TOKENS = 50
BY_PROMPT = "by_prompt."
"""In front of the names of numbers at one threshold, which a document gives apart."""
COMPARED = {"": "unmasked", "_prompt": "prompt", "_written": "written"}
"""Endings of the arrays that compare masked queries with another group of `groups.GROUPS`."""


@dataclass(eq=False)
class Summary:
    """Numbers of many prompts together: counts and sums at one ε in queries' worth (``arrays``), a row a prompt."""

    layers: int
    heads: int
    excess: float
    causal: bool
    tolerance: int
    corpus: int
    rule: Rule
    arrays: Arrays
    rows: PromptRows

    @staticmethod
    def thresholds(excess: float = 3.0) -> tuple[Threshold, ...]:
        return tuple(dict.fromkeys((*THRESHOLDS, Threshold(excess))))

    @classmethod
    def feed(cls, settings: PromptSettings, excess: float = 3.0) -> PromptFeed:
        return feed_of(settings, cls.thresholds(excess))

    @classmethod
    def of(cls, prompt: PromptSummary, excess: float = 3.0) -> "Summary":
        prompt, settings, rows = replace(prompt, thresholds=THRESHOLDS), prompt.canvas.settings, PromptRows()
        sums, numbers = _sums(prompt, Threshold(excess))
        unmoved = trigger_values(np.full((len(TRIGGERS), 1), np.nan))  # of a prompt without commits
        by_name = {(BY_PROMPT + name, ()): number for name, number in numbers.items()}
        rows.add(by_name | at_thresholds(prompt, lambda *_: unmoved) | values_of(prompt))
        shape = (prompt.layers, prompt.heads, float(excess))
        return cls(*shape, settings.causal, prompt.tolerance, settings.corpus, settings.rule, sums, rows)

    @property
    def _settings(self) -> tuple[float, ...]:
        kind = self.causal + (self.rule == "uniform")  # 1 without a rule before there were two
        return self.layers, self.heads, self.excess, kind, self.tolerance, self.corpus

    def merge(self, other: "Summary") -> None:
        """Add later prompts; SinkscopeError for another shape of model, threshold, tolerance or training corpus."""
        if self._settings != other._settings:
            names = "layers, heads, excess, causal (2: the rule uniform), tolerance, corpus"
            raise SinkscopeError(f"expected statistics with the same {names} {self._settings}, found {other._settings}")
        ids = np.union1d(self.arrays["tokens.ids"], other.arrays["tokens.ids"])
        counts = np.zeros((len(ids), 3), np.int64)
        for one in (self.arrays, other.arrays):
            counts[np.searchsorted(ids, one["tokens.ids"])] += one["tokens.counts"]
        merged = {name: array + other.arrays[name] for name, array in self.arrays.items() if name[:7] != "tokens."}
        self.arrays = merged | {"tokens.ids": ids, "tokens.counts": counts}
        self.rows.extend(other.rows)

    def to_arrays(self) -> Arrays:
        keys, values = self.rows.whole()
        names = zlib.compress(json.dumps(keys, ensure_ascii=False).encode())
        rows = {"rows.keys": np.frombuffer(names, np.uint8), "rows.values": values}
        found = {"settings": np.array(self._settings, np.float64), **self.arrays, **rows}
        return {name: np.array(array, order="C") for name, array in found.items()}  # safetensors writes memory as it is

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Summary":
        """Read the arrays of `to_arrays`."""
        layers, heads, excess, kind, tolerance, corpus = arrays["settings"].tolist()
        sums = {name: np.array(array) for name, array in arrays.items() if not name.startswith(("rows", "settin"))}
        listed = json.loads(zlib.decompress(arrays["rows.keys"].tobytes()))
        columns = {(name, tuple(map(tuple, place))): number for number, (name, place) in enumerate(listed)}
        rows = PromptRows(columns, list(np.array(arrays["rows.values"])))
        rule: Rule = "uniform" if kind == 2 else "eq3"
        return cls(int(layers), int(heads), excess, bool(kind), int(tolerance), int(corpus), rule, sums, rows)

    @property
    def prompts(self) -> int:
        return len(self.rows.rows)

    @property
    def steps(self) -> int:
        return int(self.arrays["steps"])

    @property
    def columns(self) -> int:
        """Number of columns: steps × layers × heads × tokens."""
        return int(self.arrays["columns"])

    @property
    def sinks(self) -> int:
        return int(self.arrays["strength.sinks"].sum())

    @property
    def positions(self) -> int:
        """Tokens of a canvas, mean over steps."""
        return round(self.columns / (self.steps * self.layers * self.heads))

    @property
    def quarters(self) -> Int[np.ndarray, "layer quarter"]:
        """Column sums in bins of a quarter of a query's worth; see `step.quarters_of`."""
        return quarters_of(self.arrays["histogram"])

    @property
    def above(self) -> Int[np.ndarray, "unit layer epsilon"]:
        """Number of columns that exceed each ε of `thresholds.EPSILONS`, in the units `thresholds.UNITS`."""
        return self.arrays["above"]

    @property
    def steps_with_sink(self) -> Int[np.ndarray, "layer head"]:
        return self.arrays["strength.steps_with_sink"]

    @property
    def mean_strength(self) -> Float[np.ndarray, "layer head"]:
        """Column sum of each head's strongest sink, mean over the steps that have one; NaN where there is none."""
        return ratio(self.arrays["strength.main"], self.steps_with_sink)

    @property
    def norms(self) -> Moments:
        return Moments(*(self.arrays[f"norms.{name}"] for name in ("count", "sum", "square")))

    @property
    def by_head(self) -> dict[str, Float[np.ndarray, "layer head"]]:
        arrays, per_step = self.arrays, ("sinks", "largest", "sink_share", "entropy", "gini")
        return {
            "main_sink_column_sum": self.mean_strength,
            "steps_with_sink": ratio(self.steps_with_sink, self.steps),
            **{name: ratio(arrays[f"strength.{name}"], self.steps) for name in per_step},
            "moves_per_step": ratio(arrays["moves.moves"], arrays["moves.pairs"]),
            "swaps_per_step": ratio(arrays["moves.swaps"], arrays["moves.pairs"]),
            "distance_per_move": ratio(arrays["moves.absolute_distance"], arrays["moves.moves"]),
            "drift_per_step": ratio(arrays["moves.drift"], arrays["moves.drifts"]),
            **{f"split{end}": ratio(arrays[f"groups.split{end}"], arrays[f"groups.compared{end}"]) for end in COMPARED},
        }


def _sums(prompt: PromptSummary, threshold: Threshold) -> tuple[Arrays, dict[str, float]]:
    """Return the counts and sums of one prompt, and its numbers by name; both at one threshold."""
    counts, present, largest = prompt.counts(threshold), prompt.has_sink(threshold), prompt.by_step.largest
    shares, evenness, canvas = prompt.shares(threshold), prompt.kept(Evenness), prompt.canvas
    main, is_sink = prompt.main_at(threshold), prompt.is_sink_at(threshold)
    place = np.minimum(counts, MOST_SINKS) + np.arange(prompt.layers)[:, None] * (MOST_SINKS + 1)
    many = np.bincount(place.ravel(), minlength=prompt.layers * (MOST_SINKS + 1))
    strengths = {"main": np.where(present, largest, 0), "largest": largest, "sink_share": shares}
    strengths |= {"entropy": evenness.entropy, "gini": evenness.gini}
    moves, differ, compared = MainMoves.of(main, is_sink), strongest_keys_differ(prompt), moments(prompt, threshold)
    step, _, _ = places = np.nonzero(main >= 0)
    at_main = np.bincount(canvas.token_indices[step, main[places]], minlength=len(canvas.token_ids))
    on_canvas = canvas.token_counts * prompt.layers * prompt.heads
    tests, draws = [TriggerTest() for _ in THRESHOLDS], draws_of(canvas)
    for one, test in zip(THRESHOLDS, tests, strict=True):
        if (triggers := shares_of(prompt, one)) is not None:
            test.add(triggers, draws)
    patterns = [Pattern.of(prompt, one) for one in THRESHOLDS]
    having = np.array([one.place.any(axis=-1) for one in patterns], np.int64)
    sums = {
        "steps": np.array(prompt.steps),
        "columns": np.array(prompt.columns),
        "histogram": prompt.histogram,  # [layer, bin of step.histogram_edges]
        "above": prompt.above,
        "strength.steps_with_sink": present.sum(axis=0),  # as all strengths [layer, head], and so moves and groups
        "strength.sinks": counts.sum(axis=0, dtype=np.int64),
        "strength.per_head": many.reshape(prompt.layers, -1),  # [layer, number of sinks that a head has in a step]
        **{f"strength.{name}": one.sum(axis=0, dtype=np.float64) for name, one in strengths.items()},
        **{f"moves.{name}": getattr(moves, name) for name in ("pairs", "moves", "swaps")},
        "moves.absolute_distance": np.abs(moves.distance).sum(axis=0),
        "moves.drifts": (~np.isnan(moves.drift)).astype(np.int64),
        "moves.drift": np.nan_to_num(moves.drift),
        **{f"groups.compared{end}": differ[group][0].sum(axis=0) for end, group in COMPARED.items()},
        **{f"groups.split{end}": differ[group][1].sum(axis=0) for end, group in COMPARED.items()},
        "tokens.ids": canvas.token_ids.astype(np.int32),  # rising
        "tokens.counts": np.stack([prompt.sinks_by_token(threshold), at_main, on_canvas], axis=-1).astype(np.int64),
        "norms.count": compared.count,
        "norms.sum": compared.total,
        "norms.square": compared.square,
        "triggers.moving": np.array([test.prompts for test in tests]),  # [threshold], then [threshold, trigger, …]
        "triggers.observed": np.array([test.observed for test in tests]),
        "triggers.null": np.array([test.null for test in tests]),
        "patterns.heads_with_sink": having,  # [threshold, layer, head], then [threshold], one for the prompt
        "patterns.with_sink": having.any(axis=(1, 2)).astype(np.int64),
    }
    for name, found in (("place", [one.place for one in patterns]), ("class", [one.token for one in patterns])):
        sums[f"patterns.{name}"] = shape = np.array(found, np.float64)  # [threshold, layer, head, tenth or class]
        sums[f"patterns.{name}_square"] = (shape**2).sum(axis=(1, 2, 3))

    concentrated, even = concentration_values(prompt, threshold), evenness_values(prompt)
    value = ratio(compared.total[0].sum(axis=-1), compared.count[0].sum(axis=-1))
    split = {group: quotient(differ[group][1].sum(), differ[group][0].sum()) for group in COMPARED.values()}
    return sums, {
        "sinks_per_head": concentrated["concentration.sinks_per_head", ()],
        "share_of_tokens_that_are_sinks": quotient(prompt.sinks(threshold), prompt.columns),
        "share_of_attention_on_sinks": concentrated["concentration.share_on_sinks", ()],
        "share_of_heads_with_a_sink": mean(present),
        "main_sink_column_sum": mean(largest, present),
        "entropy": even["concentration.entropy", ()],
        "gini": even["concentration.gini", ()],
        "moves_per_step": quotient(moves.moves.sum(), moves.pairs.sum()),
        "swaps_per_step": quotient(moves.swaps.sum(), moves.pairs.sum()),
        "drift_per_step": main_sink_values(main, canvas, is_sink)["movement.drift", ()],
        "split_between_query_groups": split["unmasked"],
        "split_between_masked_and_prompt": split["prompt"],
        "split_between_masked_and_written": split["written"],
        "value_norm_of_sinks_over_others": float(ratio(value[0], value[1])),
    }


def document_of(
    summary: Summary, texts: Mapping[int, str] | None = None, mask_id: int | None = None, special: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Return counts, means and statistics of many prompts as plain values; ``texts``: {token: how it reads}."""
    arrays, norms, texts, columns = summary.arrays, summary.norms, texts or {}, summary.columns
    counted_as = ("sinks", "main_sinks", "canvas")
    tokens, classes = list[dict[str, Any]](), {kind: dict.fromkeys(counted_as, 0) for kind in CLASSES}
    ids, counts = arrays["tokens.ids"], arrays["tokens.counts"]
    for at in np.lexsort((ids, -counts[:, 0])):
        token, numbers = int(ids[at]), dict(zip(counted_as, counts[at].tolist(), strict=True))
        kind = token_class(texts.get(token), token == mask_id, token in special)
        tokens.append({"token": token, **numbers, "text": texts.get(token), "class": kind})
        for name, number in numbers.items():
            classes[kind][name] += number
    above = {unit: one.sum(axis=0) for unit, one in zip(UNITS, summary.above, strict=True)}
    by_layer = {}
    for kind, (sinks, others), effect in zip(NORM_KINDS, norms.mean, norms.effect, strict=True):
        by_layer |= {f"{kind}_sinks": sinks, f"{kind}_others": others, f"{kind}_effect_size": effect}
    by_prompt, statistics = {}, list[Estimate]()
    for one in _estimates(summary):
        if one.name.startswith(BY_PROMPT):
            row = {"mean": one.value, "interval": None if one.low is None else [one.low, one.high]}
            by_prompt[one.name.removeprefix(BY_PROMPT)] = row | {"prompts": one.prompts}
        else:
            statistics.append(one)
    return {
        "counts": {
            "prompts": summary.prompts,
            "steps": summary.steps,
            "columns": columns,
            "sinks": summary.sinks,
            "heads_with_sink": int(summary.steps_with_sink.sum()),
            "moves": int(arrays["moves.moves"].sum()),
            "swaps": int(arrays["moves.swaps"].sum()),
            "steps_in_a_row_with_sink": int(arrays["moves.pairs"].sum()),
            "groups_compared": int(arrays["groups.compared"].sum()),
            "groups_split": int(arrays["groups.split"].sum()),
            "above_epsilon": {unit: one.tolist() for unit, one in above.items()},
            "column_sums": arrays["histogram"].sum(axis=0).tolist(),
            "heads_by_number_of_sinks": arrays["strength.per_head"].tolist(),
            "tokens": [row for row in tokens[:MOST_TOKENS] if row["sinks"]],
            "classes": classes,
        },
        "means": {
            "by_prompt": by_prompt,
            "by_layer_and_head": {name: _plain(values) for name, values in summary.by_head.items()},
            "norms_by_layer": {name: _plain(values) for name, values in by_layer.items()},
            "epsilon_curve": {
                "epsilon": EPSILONS.tolist(),
                **{f"not_sinks_{unit}": _plain(1 - ratio(one, columns)) for unit, one in above.items()},
            },
        },
        "statistics": [one.as_dict() for one in sorted(statistics, key=lambda one: order_of(one.name))],
    }


def _estimates(summary: Summary) -> list[Estimate]:
    """Return every mean, and agreement between prompts, Σ_i≠j p_i·p_j = |Σ p_i|² − Σ |p_i|²."""
    arrays, (keys, values) = summary.arrays, summary.rows.whole()
    tested = zip(*(arrays[f"triggers.{name}"] for name in ("moving", "observed", "null")), strict=True)
    tests = {one: TriggerTest(int(moving), *sums) for one, (moving, *sums) in zip(THRESHOLDS, tested, strict=True)}
    order = sorted(range(len(keys)), key=lambda at: "" if keys[at][0].startswith(BY_PROMPT) else repr(keys[at]))
    found = list(estimates([keys[at] for at in order], values[:, order], tests))
    pairs = (arrays["patterns.heads_with_sink"] * (arrays["patterns.heads_with_sink"] - 1)).sum(axis=(1, 2))
    for name in ("place", "class"):
        products = np.square(arrays[f"patterns.{name}"]).sum(axis=(1, 2, 3)) - arrays[f"patterns.{name}_square"]
        agreed = zip(THRESHOLDS, ratio(products, pairs).tolist(), arrays["patterns.with_sink"].tolist(), strict=True)
        for one, value, prompts in agreed:
            found.append(Estimate(f"agreement.prompts_{name}", dict(one.place), known(value), None, None, prompts))
    return found


def _plain(values: Float[np.ndarray, "..."]) -> Any:
    return np.where(np.isfinite(values), values, None).tolist()  # type: ignore[call-overload]
