"""The paths of main sinks at every point: moves, drift, triggers and agreement of heads, one number a prompt each."""

import zlib
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sinkscope.sinks.accumulators.accumulator import Accumulator, Arrays, SeenStep
from sinkscope.sinks.accumulators.prompt_means import intervals_of_sums
from sinkscope.sinks.agreement import heads_agreement
from sinkscope.sinks.layers import Canvas
from sinkscope.sinks.movement import main_sink_values
from sinkscope.sinks.points import POINTS
from sinkscope.sinks.table import Key
from sinkscope.sinks.triggers import TRIGGERS, TriggerTest, shares_on, trigger_values

DRAWS = 999


class _Seen(NamedTuple):
    """What is kept of a step, as in `SeenStep`."""

    tokens: np.ndarray
    masked: np.ndarray
    written: np.ndarray | None
    prompt_length: int
    top: np.ndarray
    top_excess: np.ndarray
    top_percent: np.ndarray


class Paths(Accumulator):
    """Keeps the largest column of each step and head while a prompt is written, a few bytes each, and sums over prompts.

    Its numbers are those of `analyse`, at the same points; `block` is that of the sampler.
    """

    name = "paths"

    def __init__(self, layers: int, heads: int, causal: bool = False, block: int | None = None) -> None:
        super().__init__(layers, heads)
        self.causal, self.block = causal, block
        self._seen: list[_Seen] = []

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        shape = (len(POINTS), len(path_keys(layers)))
        return {
            "count": np.zeros(shape, np.int64),
            "sum": np.zeros(shape),
            "square": np.zeros(shape),
            "moving": np.zeros(len(POINTS), np.int64),
            "triggered": np.zeros((len(POINTS), len(TRIGGERS))),
            "shifted": np.zeros((len(POINTS), len(TRIGGERS), DRAWS)),
        }

    def update(self, step: SeenStep) -> None:
        self._seen.append(_Seen(step.tokens, step.masked, step.written, step.prompt_length, step.top, step.top_excess, step.top_percent))

    def finish(self) -> None:
        seen, self._seen = self._seen, []
        if not seen:
            return
        canvas = self._canvas(seen)
        top, excess, percent = (np.array([getattr(one, name) for one in seen]) for name in ("top", "top_excess", "top_percent"))
        draws = zlib.crc32(canvas.tokens.tobytes())  # of the prompt itself, whichever process writes it
        keys = path_keys(self.layers)
        for number, point in enumerate(POINTS):
            main = np.where((excess if point.unit == "queries" else percent) > point.excess, top, -1)
            values = {**main_sink_values(main, canvas), **heads_agreement(main)}
            shares = shares_on(main, canvas)
            if shares is not None:
                values |= trigger_values(shares)
                test = TriggerTest(DRAWS, draws)
                test.add(shares)
                self.arrays["moving"][number] += 1
                self.arrays["triggered"][number] += test.observed
                self.arrays["shifted"][number] += test.null
            row = np.array([values.get(key, np.nan) for key in keys])
            known = np.isfinite(row)
            self.arrays["count"][number] += known
            self.arrays["sum"][number] += np.where(known, row, 0)
            self.arrays["square"][number] += np.where(known, row**2, 0)

    def _canvas(self, seen: list[_Seen]) -> Canvas:
        def side_by_side(rows: list[np.ndarray]) -> np.ndarray:
            found = np.full((len(rows), max(map(len, rows))), -1, np.int64)
            for row, one in zip(found, rows, strict=True):
                row[: len(one)] = one
            return found

        written = [one.written for one in seen]
        return Canvas(
            tokens=side_by_side([one.tokens for one in seen]),
            masked=side_by_side([one.masked for one in seen]) > 0,
            lengths=np.array([len(one.tokens) for one in seen]),
            written=None if any(one is None for one in written) else side_by_side([one for one in written if one is not None]),
            causal=self.causal,
            prompt_length=seen[0].prompt_length,
            block=self.block,
            mask_id=None,
            special_ids=(),
            vocabulary={},
        )

    def result(self) -> dict[str, Any]:
        """``statistics``: rows like those of `Analysis.as_dict`, intervals by Student's t over prompts."""
        count = self.arrays["count"]
        mean, low, high = intervals_of_sums(count, self.arrays["sum"], self.arrays["square"])
        rows = []
        for number, point in enumerate(POINTS):
            test = TriggerTest(
                DRAWS, 0, int(self.arrays["moving"][number]), self.arrays["triggered"][number], self.arrays["shifted"][number]
            )
            p, around = test.p_values(), test.intervals()
            for at, (name, place) in enumerate(path_keys(self.layers)):
                found = {"value": mean[number, at], "low": low[number, at], "high": high[number, at]}
                more: dict[str, Any] = {}
                if name == "triggers.over_chance" and test.prompts:
                    trigger = dict(place)["trigger"]
                    more["p"] = p[trigger]
                    found["low"], found["high"] = min(found["low"], around[trigger][0]), max(found["high"], around[trigger][1])
                plain = {key: None if np.isnan(value) else float(value) for key, value in found.items()}
                at_point = {"excess": point.excess, "unit": point.unit, **dict(place)}
                rows.append({"name": name, "at": at_point, **plain, "prompts": int(count[number, at]), **more})
        return {"statistics": rows}


@cache
def path_keys(layers: int) -> tuple[Key, ...]:
    """Names and places of the numbers of a prompt at one point, for a model of so many layers."""
    nothing = np.zeros((2, 2), np.int64)
    canvas = Canvas(nothing, nothing > 0, np.full(2, 2), None, False, 0, None, None, (), {})
    main = np.zeros((2, layers, 1), np.int64)
    return tuple({**main_sink_values(main, canvas), **heads_agreement(main), **trigger_values(np.zeros((len(TRIGGERS), 1)))})
