"""The numbers of prompts, a row each, and the means over prompts that every summary is made of."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.statistics.intervals import Means, interval_of_means
from sinkscope.statistics.move_triggers import TriggerTest
from sinkscope.statistics.statistic import Definition, Key, Values, definition_of
from sinkscope.statistics.thresholds import Threshold


@dataclass(frozen=True)
class Estimate:
    """One number: a mean over prompts.

    Attributes:
        name: of a statistic, with an ending where it is told by layer or by third of the steps.
        place: where it holds, such as {"excess": 3.0, "unit": "queries", "layer": 2}.
        value, low, high: None where no prompt has a value, or where there are fewer than five for an interval.
        prompts: how many have a value.
        p: of the test against shifted commits (triggers only).
    """

    name: str
    place: Mapping[str, Any]
    value: float | None
    low: float | None
    high: float | None
    prompts: int
    p: float | None = None

    @property
    def definition(self) -> Definition:
        """What it is, its unit, and which claim it answers."""
        return definition_of(self.name)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, no NaN."""
        row = {"name": self.name, "at": dict(self.place), "value": self.value, "low": self.low, "high": self.high}
        return {**row, "prompts": self.prompts, **({} if self.p is None else {"p": self.p})}


@dataclass(eq=False)
class PromptRows:
    """One row a prompt, 8 bytes a number.

    Attributes:
        columns: {key: its number}, in the order in which they came.
        rows: may be shorter than ``columns``: numbers that came later are missing in them.
    """

    columns: dict[Key, int] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)

    def add(self, values: Values) -> None:
        """Add one prompt."""
        numbers = [self.columns.setdefault(key, len(self.columns)) for key in values]
        row = np.full(len(self.columns), np.nan)
        row[numbers] = list(values.values())
        self.rows.append(row)

    def extend(self, others: "PromptRows") -> None:
        """Add the prompts of other rows behind these."""
        numbers = [self.columns.setdefault(key, len(self.columns)) for key in others.columns]
        for row in others.rows:
            placed = np.full(len(self.columns), np.nan)
            placed[numbers[: len(row)]] = row
            self.rows.append(placed)

    def whole(self, late: Mapping[Key, np.ndarray] | None = None) -> tuple[tuple[Key, ...], np.ndarray]:
        """Return the keys, and [prompt, key], NaN where a prompt has no such number.

        Args:
            late: columns that only all prompts together give, by key; a shorter one lacks the last prompts.
        """
        late = late or {}
        found = np.full((len(self.rows), len(self.columns) + len(late)), np.nan)
        for number, row in enumerate(self.rows):
            found[number, : len(row)] = row
        for number, column in enumerate(late.values()):
            found[: len(column), len(self.columns) + number] = column
        return (*self.columns, *late), found


def estimates_of(keys: Sequence[Key], means: Means) -> Iterator[Estimate]:
    """Yield means over prompts under their names and places."""
    columns = (one.tolist() for one in (means.mean, means.low, means.high, means.prompts))
    for (name, place), *numbers, prompts in zip(keys, *columns, strict=True):
        yield Estimate(name, dict(place), *map(known, numbers), prompts)


def estimates(
    keys: Sequence[Key], values: Float[np.ndarray, "prompt key"], tests: Mapping[Threshold, TriggerTest], seed: int = 0
) -> Iterator[Estimate]:
    """Yield the mean over prompts of every key with its interval, and p for triggers."""
    p_values = {threshold: test.p_values() for threshold, test in tests.items()}
    for (name, place), one in zip(keys, estimates_of(keys, interval_of_means(values, seed=seed)), strict=True):
        if name != "triggers.over_chance" or one.value is None:
            yield one
            continue
        at, low, high = dict(place), one.low, one.high
        threshold, trigger = Threshold(at["excess"], at["unit"]), at["trigger"]
        if low is not None and high is not None:
            low, high = tests[threshold].widened(trigger, low, high)
        yield Estimate(name, one.place, one.value, low, high, one.prompts, p_values[threshold][trigger])


def known(number: float) -> float | None:
    """Return a number, None for NaN."""
    return None if math.isnan(number) else float(number)
