"""`Statistics`: all accumulators together, updated a step at a time and merged over prompts."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from sinkscope.errors import SinkscopeError
from sinkscope.sinks.accumulators.accumulator import Arrays, SeenStep, ratio
from sinkscope.sinks.accumulators.kept import PromptSettings
from sinkscope.sinks.accumulators.movement import Moves, QueryGroups
from sinkscope.sinks.accumulators.norms import SinkNorms
from sinkscope.sinks.accumulators.profiles import Profiles
from sinkscope.sinks.accumulators.prompt_means import PromptMeans
from sinkscope.sinks.accumulators.strength import ColumnHistogram, EpsilonCurve, HeadStrengths
from sinkscope.sinks.accumulators.tallies import TokenTallies
from sinkscope.sinks.finding import WINDOW
from sinkscope.sinks.token_classes import CLASSES, token_class

MOST_TOKENS = 50


class Statistics:
    """What the prompts written so far show, in arrays of fixed size.

    Args:
        layers, heads: of the model.
        excess: ε of Eq. 3, in queries' worth of attention.
        causal: main sinks are followed in the newest 16 queries, as in `find_sinks`.
        prompt_length: of the prompt that is being written, by which its queries are told from written ones.
        block: tokens of a block of its sampler; None without blocks.
        mask_id, special_ids: the mask token, and others that are special, by which the classes of its tokens are told.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        *,
        excess: float = 3.0,
        causal: bool = False,
        prompt_length: int = 0,
        block: int | None = None,
        mask_id: int | None = None,
        special_ids: tuple[int, ...] = (),
    ) -> None:
        self.layers, self.heads, self.excess, self.causal, self.prompt_length = layers, heads, excess, causal, prompt_length
        self.histogram = ColumnHistogram(layers, heads)
        self.epsilon = EpsilonCurve(layers, heads)
        self.strength = HeadStrengths(layers, heads)
        self.moves = Moves(layers, heads)
        self.groups = QueryGroups(layers, heads)
        self.tokens = TokenTallies(layers, heads)
        self.norms = SinkNorms(layers, heads)
        self.prompts = PromptMeans(layers, heads)
        self.profiles = Profiles(layers, heads, PromptSettings(causal, prompt_length, block, mask_id, special_ids))
        self._rows: deque[np.ndarray] = deque(maxlen=WINDOW)

    @property
    def accumulators(self) -> tuple[Any, ...]:
        """All of them, in a fixed order."""
        return (self.histogram, self.epsilon, self.strength, self.moves, self.groups, self.tokens, self.norms, self.prompts, self.profiles)

    def update(self, step: Mapping[str, np.ndarray]) -> None:
        """Takes in a step of the prompt that is being written: arrays as in `axes.TRACE_AXES`, without the step axis."""
        followed = self._newest(np.asarray(step["last_query"], np.float32)) if self.causal else None
        seen = SeenStep.of(step, self.excess, self.causal, self.prompt_length, followed)
        for one in self.accumulators:
            one.update(seen)

    def _newest(self, row: np.ndarray) -> np.ndarray:
        """The columns of the newest queries."""
        self._rows.append(row)
        summed = np.zeros(row.shape, np.float64)
        for older in self._rows:
            summed[..., : older.shape[-1]] += older
        return summed.astype(np.float32)

    def finish(self, texts: Mapping[int, str] | None = None) -> None:
        """The prompt is written: it counts once among the prompts. Updates after this are another prompt's, in another `Statistics`.

        Args:
            texts: how the tokens of its canvas read, for their classes.
        """
        for one in self.accumulators:
            one.finish(texts or {})
        self._rows.clear()
        strength, moves, groups = self.strength.arrays, self.moves.arrays, self.groups.arrays
        norms = self.norms.arrays
        value = ratio(norms["sum"][0].sum(axis=1), norms["count"][0].sum(axis=1))
        steps = strength["steps"].sum()

        def per_step(name: str) -> float:
            return float(ratio(strength[name].sum(), steps))

        self.prompts.add(
            {
                "sinks_per_head": per_step("sinks"),
                "share_of_tokens_that_are_sinks": float(ratio(strength["sinks"].sum(), self.epsilon.arrays["columns"].sum())),
                "share_of_attention_on_sinks": per_step("sink_share"),
                "share_of_heads_with_a_sink": per_step("steps_with_sink"),
                "main_sink_column_sum": float(ratio(strength["main"].sum(), strength["steps_with_sink"].sum())),
                "entropy": per_step("entropy"),
                "gini": per_step("gini"),
                "moves_per_step": float(ratio(moves["moves"].sum(), moves["pairs"].sum())),
                "drift_per_step": float(ratio(moves["drift"].sum(), moves["drifts"].sum())),
                "split_between_query_groups": float(ratio(groups["split"].sum(), groups["compared"].sum())),
                "split_between_masked_and_prompt": float(ratio(groups["split_prompt"].sum(), groups["compared_prompt"].sum())),
                "split_between_masked_and_written": float(ratio(groups["split_written"].sum(), groups["compared_written"].sum())),
                "value_norm_of_sinks_over_others": float(ratio(value[0], value[1])),
            }
        )

    def merge(self, other: Self) -> None:
        """Adds what other prompts showed; both must be finished.

        Raises:
            SinkscopeError: of another shape of model, or with another threshold.
        """
        mine, theirs = ((one.layers, one.heads, one.excess, one.causal) for one in (self, other))
        if mine != theirs:
            names = "layers, heads, excess, causal"
            raise SinkscopeError(f"expected statistics with the same {names} {mine}, found {theirs}; they cannot be merged")
        for own, added in zip(self.accumulators, other.accumulators, strict=True):
            own.merge(added)

    def arrays(self) -> Arrays:
        """Everything as named arrays, for a file."""
        settings = {"settings": np.array([self.layers, self.heads, self.excess, self.causal], np.float64)}
        return settings | {f"{one.name}.{name}": array for one in self.accumulators for name, array in one.arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Reads back what `arrays` gave.

        Raises:
            SinkscopeError: arrays of something else.
        """
        try:
            layers, heads, excess, causal = arrays["settings"].tolist()
            found = cls(int(layers), int(heads), excess=excess, causal=bool(causal))
            for one in found.accumulators:
                one.arrays = {name: np.array(arrays[f"{one.name}.{name}"]) for name in one.arrays}
        except (KeyError, ValueError) as error:
            raise SinkscopeError(
                f"expected the arrays of statistics, found others ({error}); were they written by another version?"
            ) from error
        return found

    def result(self, texts: Mapping[int, str] | None = None, mask_id: int | None = None, special: tuple[int, ...] = ()) -> dict[str, Any]:
        """Counts and means as plain values; means over layers and heads, and by layer.

        Args:
            texts: how tokens read, for their classes.
            mask_id, special: the mask token, and others that are special.
        """
        strength, moves, groups = self.strength.arrays, self.moves.arrays, self.groups.arrays
        above = self.epsilon.arrays["above"]
        texts = texts or {}
        counts: dict[str, Any] = {
            "prompts": int(self.prompts.arrays["prompts"][0]),
            "steps": int(strength["steps"].max(initial=0)),
            "columns": int(self.epsilon.arrays["columns"].sum()),
            "sinks": int(strength["sinks"].sum()),
            "heads_with_sink": int(strength["steps_with_sink"].sum()),
            "moves": int(moves["moves"].sum()),
            "steps_in_a_row_with_sink": int(moves["pairs"].sum()),
            "groups_compared": int(groups["compared"].sum()),
            "groups_split": int(groups["split"].sum()),
            "above_epsilon": {unit: above[number].sum(axis=0).tolist() for number, unit in enumerate(self.epsilon.units)},
            "column_sums": self.histogram.arrays["columns"].sum(axis=0).tolist(),
            "heads_by_number_of_sinks": strength["per_head"].tolist(),
            "tokens": self._tokens(texts, mask_id, special),
            "classes": self._classes(texts, mask_id, special),
        }
        by_head = {**self.strength.result(), **self.moves.result(), **self.groups.result()}
        by_head.pop("heads_with_that_many_sinks")
        means: dict[str, Any] = {
            "by_prompt": self.prompts.result(),
            "by_layer_and_head": {name: _plain(values) for name, values in by_head.items()},
            "norms_by_layer": {name: _plain(values) for name, values in self.norms.result().items()},
            "epsilon_curve": {name: _plain(values) for name, values in self.epsilon.result().items()},
        }
        return {"counts": counts, "means": means, **self.profiles.result()}

    def _tokens(self, texts: Mapping[int, str], mask_id: int | None, special: tuple[int, ...]) -> list[dict[str, Any]]:
        found = self.tokens.result()
        rows = zip(*(found[name][:MOST_TOKENS].tolist() for name in found), strict=True)
        return [
            {
                **dict(zip(found, row, strict=True)),
                "text": texts.get(row[0]),
                "class": token_class(texts.get(row[0]), row[0] == mask_id, row[0] in special),
            }
            for row in rows
            if row[1]
        ]

    def _classes(self, texts: Mapping[int, str], mask_id: int | None, special: tuple[int, ...]) -> dict[str, dict[str, int]]:
        found = self.tokens.result()
        names = ("sinks", "main_sinks", "canvas")
        classes: dict[str, dict[str, int]] = {kind: {name: 0 for name in names} for kind in CLASSES}
        for token, *numbers in zip(*(values.tolist() for values in found.values()), strict=True):
            kind = token_class(texts.get(token), token == mask_id, token in special)
            for name, number in zip(names, numbers, strict=True):
                classes[kind][name] += number
        return classes


def _plain(values: Any) -> Any:
    """Arrays as nested lists, with None where there is no number."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list):
        return [_plain(one) for one in values]
    return None if isinstance(values, float) and not np.isfinite(values) else values
