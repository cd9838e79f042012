"""Every statistic of `analyse` that one prompt gives, at every point, and the agreement between prompts: sums over prompts."""

import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from sinkscope.sinks.accumulators.accumulator import Accumulator, Arrays, SeenStep, ratio
from sinkscope.sinks.accumulators.kept import KeptStep, PromptSettings, keep, profile_of_kept
from sinkscope.sinks.accumulators.prompt_means import intervals_of_sums
from sinkscope.sinks.agreement import TENTHS, pattern_of
from sinkscope.sinks.analysis import prompt_values
from sinkscope.sinks.catalogue import order_of
from sinkscope.sinks.concentration import CURVE, length_class
from sinkscope.sinks.points import POINTS, Point, Values
from sinkscope.sinks.profile import Profile
from sinkscope.sinks.table import Key
from sinkscope.sinks.token_classes import CLASSES
from sinkscope.sinks.triggers import TRIGGERS, TriggerTest, shares_on, trigger_values

DRAWS = 999
LENGTH_CLASSES = tuple(length_class(64 << number) for number in range(15))
"""Up to a million tokens; a canvas is of one of them."""


class Profiles(Accumulator):
    """Keeps a reduced record of each step while a prompt is written, and sums over prompts.

    Its numbers are those of `analyse` at the same points. What a prompt gives is summed as count, sum and sum of squares of
    `prompt_keys`; ``place`` and ``class`` are sums of its pattern by head, ``place_square`` and ``class_square`` of its squares.
    """

    name = "profiles"

    def __init__(self, layers: int, heads: int, settings: PromptSettings | None = None) -> None:
        super().__init__(layers, heads)
        self.settings = settings or PromptSettings()
        self._kept: list[KeptStep] = []

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        keys, points = len(prompt_keys(layers)), len(POINTS)
        return {
            "count": np.zeros(keys, np.int64),
            "sum": np.zeros(keys),
            "square": np.zeros(keys),
            "moving": np.zeros(points, np.int64),
            "triggered": np.zeros((points, len(TRIGGERS))),
            "shifted": np.zeros((points, len(TRIGGERS), DRAWS)),
            "place": np.zeros((points, layers * heads, TENTHS)),
            "class": np.zeros((points, layers * heads, len(CLASSES))),
            "place_square": np.zeros(points),
            "class_square": np.zeros(points),
            "heads_with_sink": np.zeros((points, layers * heads), np.int64),
            "with_sink": np.zeros(points, np.int64),
        }

    def update(self, step: SeenStep) -> None:
        self._kept.append(keep(step, self.settings))

    def finish(self, texts: Mapping[int, str]) -> None:
        kept, self._kept = self._kept, []
        if not kept:
            return
        profile = profile_of_kept(kept, self.settings, texts)
        draws = zlib.crc32(profile.canvas.tokens.tobytes())  # of the prompt itself, whichever process writes it
        values = prompt_values(profile)
        for number, point in enumerate(POINTS):
            values |= self._triggers(number, point, profile, draws)
            self._add_pattern(number, point, profile)
        row = np.array([values.get(key, np.nan) for key in prompt_keys(self.layers)])
        known = np.isfinite(row)
        self.arrays["count"] += known
        self.arrays["sum"] += np.where(known, row, 0)
        self.arrays["square"] += np.where(known, row**2, 0)

    def _triggers(self, number: int, point: Point, profile: Profile, draws: int) -> Values:
        shares = shares_on(profile.main_at(point), profile.canvas)
        if shares is None:
            return {}
        test = TriggerTest(DRAWS, draws)
        test.add(shares)
        self.arrays["moving"][number] += 1
        self.arrays["triggered"][number] += test.observed
        self.arrays["shifted"][number] += test.null
        return _at(point, trigger_values(shares))

    def _add_pattern(self, number: int, point: Point, profile: Profile) -> None:
        pattern = pattern_of(profile, point)
        for name, shares in (("place", pattern.place), ("class", pattern.token)):
            shares = shares.astype(np.float64)
            self.arrays[name][number] += shares
            self.arrays[f"{name}_square"][number] += (shares**2).sum()
        having = pattern.place.any(axis=1)
        self.arrays["heads_with_sink"][number] += having
        self.arrays["with_sink"][number] += having.any()

    def result(self) -> dict[str, Any]:
        """``statistics``: rows like those of `Analysis.as_dict`, intervals by Student's t over prompts."""
        rows = sorted([*self._means(), *self._agreements()], key=lambda row: order_of(row["name"]))
        return {"statistics": rows}

    def _means(self) -> Iterator[dict[str, Any]]:
        count = self.arrays["count"]
        mean, low, high = intervals_of_sums(count, self.arrays["sum"], self.arrays["square"])
        tests = {}
        for number, point in enumerate(POINTS):
            sums = self.arrays["triggered"][number], self.arrays["shifted"][number]
            test = TriggerTest(DRAWS, 0, int(self.arrays["moving"][number]), *sums)
            tests[point] = test.prompts, test.p_values(), test.intervals()
        for number, (name, place) in enumerate(prompt_keys(self.layers)):
            at = dict(place)
            if not count[number] and at.get("positions") in LENGTH_CLASSES:
                continue
            found, more = {"value": mean[number], "low": low[number], "high": high[number]}, {}
            if name == "triggers.over_chance":
                prompts, p, around = tests[Point(at["excess"], at["unit"])]
                if prompts:
                    more["p"] = p[at["trigger"]]
                    low_around, high_around = around[at["trigger"]]
                    found["low"], found["high"] = min(found["low"], low_around), max(found["high"], high_around)
            yield {"name": name, "at": at, **_plain(found), "prompts": int(count[number]), **more}

    def _agreements(self) -> Iterator[dict[str, Any]]:
        """Mean over pairs of different prompts: Σ_i≠j p_i·p_j = |Σ p_i|² − Σ |p_i|²."""
        arrays = self.arrays
        pairs = (arrays["heads_with_sink"] * (arrays["heads_with_sink"] - 1)).sum(axis=1)
        for name in ("place", "class"):
            products = np.square(arrays[name]).sum(axis=(1, 2)) - arrays[f"{name}_square"]
            for number, (point, value) in enumerate(zip(POINTS, ratio(products, pairs), strict=True)):
                found = _plain({"value": value, "low": np.nan, "high": np.nan})
                at = {"excess": point.excess, "unit": point.unit}
                yield {"name": f"agreement.prompts_{name}", "at": at, **found, "prompts": int(arrays["with_sink"][number])}


def _plain(found: Mapping[str, float]) -> dict[str, float | None]:
    return {key: None if np.isnan(value) else float(value) for key, value in found.items()}


def _at(point: Point, values: Values) -> Values:
    return {(name, (("excess", point.excess), ("unit", point.unit), *place)): value for (name, place), value in values.items()}


@cache
def prompt_keys(layers: int) -> tuple[Key, ...]:
    """Names and places of all numbers of a prompt, for a model of so many layers."""
    values = prompt_values(profile_of_kept([keep(SeenStep.blank(layers), PromptSettings())] * 2, PromptSettings(), {}))
    for point in POINTS:
        values |= _at(point, trigger_values(np.zeros((len(TRIGGERS), 1))))
    for positions in LENGTH_CLASSES:
        for unit in ("queries", "percent"):
            values |= {("epsilon.not_sinks", (("positions", positions), ("unit", unit), ("excess", one))): 0.0 for one in CURVE}
    return tuple(values)
