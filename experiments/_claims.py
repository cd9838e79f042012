"""A claim as a record: parts that are fixed beforehand, what the runs say of each, a verdict, and the file it is stored in.

A part names one number (or the difference of two, prompt by prompt) and where the claim wants it: above or below a bound. The number is a
mean over prompts with a 95 % interval (BCa bootstrap over prompts). It is measured for every number of shots of its run and at every
threshold of `THRESHOLDS`; each of these has a verdict of its own:

    holds           the whole interval lies where the claim wants it
    does not hold   the whole interval lies elsewhere
    undecided       the bound is inside the interval, or fewer than five prompts have a value

In all, a part

    depends         if it holds somewhere and does not hold elsewhere: on the shots where two numbers of shots contradict each other at one
                    threshold, on ε where two thresholds contradict each other at one number of shots
    holds           if it does so at ε = 3 queries' worth for every number of shots, and likewise does not hold
    undecided       otherwise

A claim is told by its parts: its verdict is theirs where all have the same, and a count of them otherwise.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from _lab_runs import RUNS, Run, analysis
from claims_page import RESULTS, command_of, shown

from sinkscope.statistics import THRESHOLDS, Threshold, definition_of
from sinkscope.statistics.intervals import interval_of_means

MAIN = Threshold(3.0, "queries")
Verdict = Literal["holds", "does not hold", "undecided"]
Found = tuple[float, float, float, int]
"""Mean, ends of the interval, number of prompts with a value."""
Cells = Mapping[tuple[int, str], Verdict]
"""Verdicts by number of shots and threshold."""


def text_of(point: Threshold) -> str:
    """Return a threshold as it is stored."""
    return f"{point.excess:g} {point.unit}"


@dataclass(frozen=True)
class Number:
    """A statistic of a run at a place, such as ``{"third": "first"}``."""

    run: str
    statistic: str
    at: tuple[tuple[str, Any], ...] = ()

    @property
    def words(self) -> str:
        """For the page."""
        place = ", ".join(str(value) for _, value in self.at)
        return f"`{self.statistic}`{f' ({place})' if place else ''}, {self.run}"

    @property
    def has_threshold(self) -> bool:
        """Whether the statistic depends on ε."""
        return not self.statistic.startswith(("concentration.gini", "concentration.entropy", "concentration.gu_rate"))

    def by_prompt(self, shots: int, prompts: int, point: Threshold) -> np.ndarray | None:
        """Return the values [prompt]; None where single prompts have no value, or the statistic has an interval of its own."""
        if self.statistic == "triggers.over_chance":
            return None
        found = analysis(RUNS[self.run], shots, prompts)
        key = self._place(point)
        for number, (name, place) in enumerate(found.keys):
            if name == self.statistic and dict(place) == key:
                return found.values[:, number]
        return None

    def over_prompts(self, shots: int, prompts: int, point: Threshold) -> Found:
        """Return mean, ends of the interval and number of prompts of a statistic that exists only over prompts; NaN where there is none."""
        key = self._place(point)
        for one in analysis(RUNS[self.run], shots, prompts).find(self.statistic):
            if dict(one.place) == key:
                value, low, high = (np.nan if number is None else number for number in (one.value, one.low, one.high))
                return value, low, high, one.prompts
        raise KeyError(f"{self.run} has no {self.statistic} at {key}")

    def _place(self, point: Threshold) -> dict[str, Any]:
        return dict(self.at) | ({"excess": point.excess, "unit": point.unit} if self.has_threshold else {})


@dataclass(frozen=True)
class Part:
    """One thing a claim says.

    Attributes:
        what: in words; short: in a few, for the page; a part without them has no say in the verdict.
        number: what is measured; minus: what is taken from it, prompt by prompt.
        wanted: ``above`` or ``below`` the bound.
    """

    what: str
    number: Number
    wanted: Literal["above", "below"]
    bound: float
    short: str = ""
    minus: Number | None = None

    @property
    def decides(self) -> bool:
        return bool(self.short)


@dataclass(frozen=True)
class Claim:
    """What a script tests.

    Attributes:
        name: of its file; title: of its section; source: where the paper says it.
        says: the claim; expected: in a word or two; limits: what the test cannot show.
        parts: in the order of the page.
    """

    name: str
    title: str
    source: str
    says: str
    expected: str
    limits: str
    parts: tuple[Part, ...]


def judge(low: float, high: float, wanted: str, bound: float) -> Verdict:
    """Return whether an interval lies where the claim wants it."""
    if np.isnan(low) or np.isnan(high):
        return "undecided"
    if wanted == "below":
        low, high, bound = -high, -low, -bound
    return "holds" if low > bound else "does not hold" if high <= bound else "undecided"


def _contradict(verdicts: Sequence[Verdict]) -> bool:
    return {"holds", "does not hold"} <= set(verdicts)


def verdict_over(cells: Cells) -> str:
    """Return the verdict of a part, given those at every number of shots and threshold."""
    if _contradict(list(cells.values())):
        shots, points = {shots for shots, _ in cells}, {point for _, point in cells}
        on_shots = any(_contradict([cells[one, point] for one in shots if (one, point) in cells]) for point in points)
        on_excess = any(_contradict([cells[one, point] for point in points if (one, point) in cells]) for one in shots)
        both = on_shots == on_excess  # with neither, only a change of both at once contradicts
        return "depends on " + ("shots and ε" if both else "shots" if on_shots else "ε")
    at_main = {verdict for (_, point), verdict in cells.items() if point == text_of(MAIN)}
    return at_main.pop() if len(at_main) == 1 else "undecided"


def verdict_of(verdicts: Sequence[str]) -> str:
    """Return the verdict of a claim, given those of its deciding parts."""
    counted = Counter(verdicts)
    if len(counted) == 1:
        return verdicts[0]
    return ", ".join(f"{verdict} ({count} of {len(verdicts)})" for verdict, count in counted.most_common())


def interval(numbers: np.ndarray) -> Found:
    """Return the mean over prompts, the ends of its interval, and the number of prompts with a value."""
    found = interval_of_means(np.asarray(numbers, dtype=np.float64)[:, None])
    return float(found.mean[0]), float(found.low[0]), float(found.high[0]), int(found.prompts[0])


def measure(part: Part, shots: int, prompts: int, point: Threshold = MAIN) -> Found:
    """Return mean, ends of the interval and number of prompts of a part."""
    numbers = part.number.by_prompt(shots, prompts, point)
    if numbers is None:
        return part.number.over_prompts(shots, prompts, point)
    if part.minus is not None:
        taken = part.minus.by_prompt(shots, prompts, point)
        assert taken is not None, part.minus
        numbers = numbers - taken
    return interval(numbers)


def result_of(part: Part, found: Mapping[int, Mapping[str, Found]], unit: str) -> dict[str, Any]:
    """Return a part as it is stored.

    Args:
        found: {shots: {threshold: what was measured}}, `MAIN` among the thresholds.
    """
    cells: dict[tuple[int, str], Verdict] = {
        (shots, point): judge(low, high, part.wanted, part.bound)
        for shots, by_point in found.items()
        for point, (_, low, high, _) in by_point.items()
    }
    at = []
    for shots, by_point in found.items():
        value, low, high, prompts = by_point[text_of(MAIN)]
        at.append(
            {
                "shots": shots,
                "found": {name: _rounded(number) for name, number in (("value", value), ("low", low), ("high", high))},
                "prompts": prompts,
                "verdict": cells[shots, text_of(MAIN)],
                "verdicts_elsewhere": {point: cells[shots, point] for point in by_point if point != text_of(MAIN)},
            }
        )
    return {
        "what": part.what,
        "short": part.short,
        "number": part.number.words + (f" minus {part.minus.words}" if part.minus else ""),
        "unit": unit,
        "expected": f"{part.wanted} {part.bound:g}",
        "decides": part.decides,
        "at": at,
        "verdict": verdict_over(cells),
    }


def _rounded(number: float) -> float | None:
    return None if np.isnan(number) else float(f"{number:.4g}")


def read_part(part: Part, prompts: int) -> dict[str, Any]:
    """Return a part as it is stored, at every number of shots of its run and at every threshold."""
    points = THRESHOLDS if part.number.has_threshold else (MAIN,)
    found = {
        shots: {text_of(point): measure(part, shots, prompts, point) for point in points}
        for shots in RUNS[part.number.run].shots
    }
    return result_of(part, found, definition_of(part.number.statistic).unit)


def store(claim: Claim, parts: Sequence[dict[str, Any]], runs: Sequence[Run], prompts: int) -> dict[str, Any]:
    """Write a claim's result and print it."""
    verdict = verdict_of([part["verdict"] for part in parts if part["decides"]])
    document = {
        **{name: value for name, value in asdict(claim).items() if name != "parts"},
        "command": command_of(claim.name),
        "prompts": prompts,
        "runs": {run.name: run.command for run in runs},
        "parts": list(parts),
        "verdict": verdict,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{claim.name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(
        f"{claim.title} ({claim.source})\nclaim     {claim.says}\ncommand   {document['command']}\nexpected  {claim.expected}"
    )
    for part in parts:
        print(f"part      {part['what']}, wanted {part['expected']}: {part['verdict']}")
        for one in part["at"]:
            print(f"found       {one['shots']} shots: {shown(one['found'])} {part['unit']}: {one['verdict']}")
    print(f"verdict   {verdict}\n")
    return document


def report(claim: Claim, prompts: int, read: Callable[[Part, int], dict[str, Any]] = read_part) -> dict[str, Any]:
    """Measure the parts of a claim, store and print them."""
    numbers = [one for part in claim.parts for one in (part.number, part.minus) if one is not None]
    runs = [RUNS[name] for name in dict.fromkeys(one.run for one in numbers)]
    return store(claim, [read(part, prompts) for part in claim.parts], runs, prompts)
