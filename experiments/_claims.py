"""A claim as a record: parts that are fixed beforehand, what the runs say of each, a verdict, and the file it is stored
in.

A part names one number (or the difference of two, prompt by prompt) and where the claim wants it: above or below a
bound. The number is a mean over prompts with an interval (BCa bootstrap over prompts), which holds for all deciding
parts of all claims together (Bonferroni, see `FAMILY`). It is measured for every number of shots of its run and at
every threshold of `THRESHOLDS`, and so are its nulls: the same number of a network that learnt nothing (*untrained*,
`_lab_runs.load`) and of *shuffled* attention (`_nulls`). Each has a verdict of its own:

    holds             the whole interval lies where the claim wants it, and beyond the intervals of both nulls
    no more than a null   it lies where the claim wants it, but not beyond a null
    does not hold     the whole interval lies elsewhere
    undecided         the bound is inside the interval, fewer than five prompts have a value, or it would hold and no
                      null was run
    not comparable    a difference of two runs that have no value at an equal number of queries

A null that has no value, because it has no sink to speak of, forbids nothing; the page shows where. In all, a part

    depends         if it holds somewhere and fails elsewhere: on the shots where two numbers of shots contradict each
                    other at one threshold, on ε where two thresholds contradict each other at one number of shots
    the same        if it has one verdict at ε = 3 queries' worth for every number of shots (two that fail: does not
                    hold)
    undecided       otherwise

A claim is told by its parts: its verdict is theirs where all have the same, and a count of them otherwise.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _lab_runs import MAIN, RUNS, THRESHOLDS, Run, analysis, untrained
from _nulls import Kind
from claims_page import FAMILY, RESULTS, command_of, shown
from scipy.special import stdtrit

from sinkscope.statistics import Threshold, definition_of
from sinkscope.statistics.intervals import interval_of_means

NULLS = ("untrained", "shuffled")
FAILS = ("does not hold", "no more than a null")
Verdict = Literal["holds", "no more than a null", "does not hold", "undecided", "not comparable"]
Found = tuple[float, float, float, int]
"""Mean, ends of the interval, number of prompts with a value."""
Beside = Mapping[str, Found]
"""What was measured, under "", and each null under its name."""
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
        return f"`{self.statistic}`{f' ({place})' if place else ''}, {RUNS[self.run].name}"

    @property
    def has_threshold(self) -> bool:
        """Whether the statistic depends on ε."""
        free = ("concentration.gini", "concentration.entropy", "concentration.gu_rate", "averaged.")
        return not self.statistic.startswith(free)

    @property
    def shuffle(self) -> Kind:
        """What is shuffled in its null."""
        if self.statistic.startswith(("concentration.", "epsilon.")) or self.statistic == "movement.steps_with_sink":
            return "rows"
        moving = ("movement.", "answer_queries.", "triggers.", "averaged.", "groups.self_attention")
        return "steps" if self.statistic.startswith(moving) else "keys"

    def _analysis(self, shots: int, prompts: int, null: str) -> Any:
        run = RUNS[self.run]
        if null == "shuffled":
            return analysis(run, shots, prompts, self.shuffle)
        return analysis(untrained(run) if null else run, shots, prompts)

    def by_prompt(self, shots: int, prompts: int, point: Threshold, null: str = "") -> np.ndarray | None:
        """Return the values [prompt]; None where single prompts have no value, or the statistic has an interval of its
        own.
        """
        if self.statistic == "triggers.over_chance":
            return None
        if (
            null == "shuffled"
            and self.run == "autoregressive"
            and not self.statistic.startswith(("movement.", "averaged."))
        ):
            return np.full(prompts, np.nan)  # only the newest queries' rows are shuffled
        found = self._analysis(shots, prompts, null)
        key = self._place(point)
        for number, (name, place) in enumerate(found.keys):
            if name == self.statistic and dict(place) == key:
                return np.asarray(found.values[:, number])
        return None

    def over_prompts(self, shots: int, prompts: int, point: Threshold, null: str = "") -> Found:
        """Return mean, ends of the interval and number of prompts of a statistic that exists only over prompts; NaN
        where there is none.
        """
        key = self._place(point)
        for one in self._analysis(shots, prompts, null).statistics:
            if one.name == self.statistic and dict(one.place) == key:
                value, low, high = (np.nan if number is None else number for number in (one.value, one.low, one.high))
                return widened((value, low, high, one.prompts))
        if null:
            return np.nan, np.nan, np.nan, 0
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


def judge(low: float, high: float, wanted: str, bound: float, nulls: Collection[Found] | None = ()) -> Verdict:
    """Return whether an interval lies where the claim wants it, and beyond its nulls; None: they were not run."""
    if np.isnan(low) or np.isnan(high):
        return "undecided"
    ends = [(one_low, one_high) for _, one_low, one_high, _ in nulls or ()]
    if wanted == "below":
        low, high, bound, ends = -high, -low, -bound, [(-one_high, -one_low) for one_low, one_high in ends]
    if low <= bound:
        return "does not hold" if high <= bound else "undecided"
    if nulls is None:
        return "undecided"
    return "no more than a null" if any(low <= one_high for _, one_high in ends) else "holds"


def judge_part(part: Part, found: Beside) -> Verdict:
    """Return the verdict of what was measured of a part beside its nulls."""
    _, low, high, prompts = found[""]
    if part.minus is not None and part.number.statistic.startswith("averaged.") and not prompts:
        return "not comparable"
    nulls = [found[name] for name in NULLS if name in found]
    return judge(low, high, part.wanted, part.bound, nulls if len(found) > 1 else None)


def _contradict(verdicts: Collection[Verdict]) -> bool:
    return "holds" in verdicts and not {*FAILS}.isdisjoint(verdicts)


def verdict_over(cells: Cells) -> str:
    """Return the verdict of a part, given those at every number of shots and threshold."""
    if _contradict(list(cells.values())):
        shots, points = {shots for shots, _ in cells}, {point for _, point in cells}
        on_shots = any(_contradict([cells[one, point] for one in shots if (one, point) in cells]) for point in points)
        on_excess = any(_contradict([cells[one, point] for point in points if (one, point) in cells]) for one in shots)
        both = on_shots == on_excess  # with neither, only a change of both at once contradicts
        return "depends on " + ("shots and ε" if both else "shots" if on_shots else "ε")
    at_main = {verdict for (_, point), verdict in cells.items() if point == text_of(MAIN)}
    if at_main == {*FAILS}:
        return "does not hold"
    return at_main.pop() if len(at_main) == 1 else "undecided"


def verdict_of(verdicts: Sequence[str]) -> str:
    """Return the verdict of a claim, given those of its deciding parts."""
    counted = Counter(verdicts)
    if len(counted) == 1:
        return verdicts[0]
    return ", ".join(f"{verdict} ({count} of {len(verdicts)})" for verdict, count in counted.most_common())


def widened(found: Found) -> Found:
    """Return an interval that holds for all parts together: its ends lie further out as Student's t does
    (Bonferroni).
    """
    value, low, high, prompts = found
    if prompts < 2:
        return found
    times = stdtrit(prompts - 1, 1 - 0.025 / FAMILY) / stdtrit(prompts - 1, 0.975)
    return value, value - times * (value - low), value + times * (high - value), prompts


def interval(numbers: np.ndarray) -> Found:
    """Return the mean over prompts, the ends of its interval, and the number of prompts with a value."""
    found = interval_of_means(np.asarray(numbers, dtype=np.float64)[:, None])
    return widened((float(found.mean[0]), float(found.low[0]), float(found.high[0]), int(found.prompts[0])))


def measure(part: Part, shots: int, prompts: int, point: Threshold = MAIN, null: str = "") -> Found:
    """Return mean, ends of the interval and number of prompts of a part, or of a null of it."""
    numbers = part.number.by_prompt(shots, prompts, point, null)
    if numbers is None:
        return part.number.over_prompts(shots, prompts, point, null)
    if part.minus is not None:
        taken = part.minus.by_prompt(shots, prompts, point, null)
        numbers = numbers - (np.nan if taken is None else taken)
    return interval(numbers)


def result_of(part: Part, found: Mapping[int, Mapping[str, Beside]], unit: str) -> dict[str, Any]:
    """Return a part as it is stored; ``met_by``: the nulls that meet its bound at ε = 3 for every number of shots.

    Args:
        found: {shots: {threshold: what was measured, and its nulls}}, `MAIN` among the thresholds.
    """
    cells: dict[tuple[int, str], Verdict] = {
        (shots, point): judge_part(part, measured)
        for shots, by_point in found.items()
        for point, measured in by_point.items()
    }
    at = []
    for shots, by_point in found.items():
        main = by_point[text_of(MAIN)]
        at.append(
            {
                "shots": shots,
                **{name or "found": _stored(one) for name, one in main.items()},
                "prompts": main[""][3],
                "verdict": cells[shots, text_of(MAIN)],
                "verdicts_elsewhere": {point: cells[shots, point] for point in by_point if point != text_of(MAIN)},
            }
        )
    mains = [by_point[text_of(MAIN)] for by_point in found.values()]
    return {
        "what": part.what,
        "short": part.short,
        "number": part.number.words + (f" minus {part.minus.words}" if part.minus else ""),
        "unit": unit,
        "expected": f"{part.wanted} {part.bound:g}",
        "decides": part.decides,
        "at": at,
        "met_by": [
            name
            for name in NULLS
            if all(name in one and judge(*one[name][1:3], part.wanted, part.bound) == "holds" for one in mains)
        ],
        "verdict": verdict_over(cells),
    }


def _stored(found: Found) -> dict[str, float | None]:
    names = zip(("value", "low", "high"), found[:3], strict=True)
    return {name: None if np.isnan(number) else float(f"{number:.6g}") for name, number in names}


def read_part(part: Part, prompts: int, shots: Collection[int]) -> dict[str, Any]:
    """Return a part as it is stored, at every number of shots of its run that is asked for, and at every threshold."""
    points = THRESHOLDS if part.number.has_threshold else (MAIN,)
    found = {
        one: {
            text_of(point): {null: measure(part, one, prompts, point, null) for null in ("", *NULLS)}
            for point in points
        }
        for one in RUNS[part.number.run].shots
        if one in shots
    }
    averaged = part.number.statistic.startswith("averaged.")
    return result_of(part, found, "moves" if averaged else definition_of(part.number.statistic).unit)


def store(
    claim: Claim, parts: Sequence[dict[str, Any]], runs: Sequence[Run], prompts: int, folder: Path = RESULTS
) -> dict[str, Any]:
    """Write a claim's result and print it."""
    verdict = verdict_of([part["verdict"] for part in parts if part["decides"]])
    document = {
        **{name: value for name, value in asdict(claim).items() if name != "parts"},
        "command": command_of(claim.name, folder),
        "prompts": prompts,
        "runs": {run.name: run.command for run in runs},
        "parts": list(parts),
        "verdict": verdict,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{claim.name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(
        f"{claim.title} ({claim.source})\nclaim     {claim.says}\ncommand   {document['command']}\nexpected  {claim.expected}"
    )
    for part in parts:
        print(f"part      {part['what']}, wanted {part['expected']}: {part['verdict']}")
        for one in part["at"]:
            print(f"found       {one['shots']} shots: {shown(one['found'])} {part['unit']}: {one['verdict']}")
    print(f"verdict   {verdict}\n")
    return document


def report(
    claim: Claim,
    prompts: int,
    shots: Collection[int],
    read: Callable[..., dict[str, Any]] = read_part,
    folder: Path = RESULTS,
) -> dict[str, Any]:
    """Measure the parts of a claim, store and print them."""
    numbers = [one for part in claim.parts for one in (part.number, part.minus) if one is not None]
    runs = [RUNS[name] for name in dict.fromkeys(one.run for one in numbers)]
    return store(claim, [read(part, prompts, shots) for part in claim.parts], runs, prompts, folder)
