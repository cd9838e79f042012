"""A claim as a record: parts that are fixed beforehand, what the runs say of each, a verdict, and the file it is stored in.

A part names one number (or the difference of two, prompt by prompt) and where the claim wants it: above or below a bound. The
number is a mean over prompts with a 95 % interval (BCa bootstrap over prompts).

    holds           the whole interval lies where the claim wants it
    does not hold   the whole interval lies elsewhere
    undecided       the bound is inside the interval, or fewer than five prompts have a value

A claim holds if all its parts do, does not hold if one of them does not, and is undecided otherwise. The verdict is taken at
ε = 3 queries' worth; where the number depends on ε, the verdicts at the nine other points stand beside it and decide nothing.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _lab_runs import PROMPTS, RUNS, Run, analysis
from claims_page import RESULTS, shown

from sinkscope.statistics import THRESHOLDS, Threshold, definition_of
from sinkscope.statistics.intervals import interval_of_means

MAIN = Threshold(3.0, "queries")
Verdict = Literal["holds", "does not hold", "undecided"]


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

    def by_prompt(self, prompts: int, point: Threshold) -> np.ndarray | None:
        """Return the values [prompt]; None where single prompts have no value, or the statistic has an interval of its own."""
        if self.statistic == "triggers.over_chance":
            return None
        found = analysis(RUNS[self.run], prompts)
        key = self._place(point)
        for number, (name, place) in enumerate(found.keys):
            if name == self.statistic and dict(place) == key:
                return found.values[:, number]
        return None

    def over_prompts(self, prompts: int, point: Threshold) -> tuple[float, float, float, int]:
        """Return mean, ends of the interval and number of prompts of a statistic that exists only over prompts; NaN where there is none."""
        key = self._place(point)
        for one in analysis(RUNS[self.run], prompts).find(self.statistic):
            if dict(one.place) == key:
                value, low, high = (np.nan if number is None else number for number in (one.value, one.low, one.high))
                return value, low, high, one.prompts
        raise KeyError(f"{self.run} has no {self.statistic} at {key}")

    def _place(self, point: Threshold) -> dict[str, Any]:
        if self.statistic.startswith(("epsilon.", "concentration.gini", "concentration.entropy", "concentration.gu_rate")):
            return dict(self.at)
        return {"excess": point.excess, "unit": point.unit, **dict(self.at)}


@dataclass(frozen=True)
class Part:
    """One thing a claim says.

    Attributes:
        what: in words.
        number: what is measured; minus: what is taken from it, prompt by prompt.
        wanted: ``above`` or ``below`` the bound.
        decides: False for what stands beside the claim, without a say in its verdict.
    """

    what: str
    number: Number
    wanted: Literal["above", "below"]
    bound: float
    minus: Number | None = None
    decides: bool = True


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


def verdict_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of a claim, given those of its deciding parts."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "undecided" if "undecided" in verdicts else "holds"


def interval(numbers: np.ndarray) -> tuple[float, float, float, int]:
    """Return the mean over prompts, the ends of its interval, and the number of prompts with a value."""
    found = interval_of_means(np.asarray(numbers, dtype=np.float64)[:, None])
    return float(found.mean[0]), float(found.low[0]), float(found.high[0]), int(found.prompts[0])


def measure(part: Part, prompts: int, point: Threshold = MAIN) -> tuple[float, float, float, int]:
    """Return mean, ends of the interval and number of prompts of a part."""
    numbers = part.number.by_prompt(prompts, point)
    if numbers is None:
        return part.number.over_prompts(prompts, point)
    if part.minus is not None:
        taken = part.minus.by_prompt(prompts, point)
        assert taken is not None, part.minus
        numbers = numbers - taken
    return interval(numbers)


def result_of(part: Part, found: tuple[float, float, float, int], unit: str, elsewhere: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a part as it is stored."""
    value, low, high, prompts = found
    return {
        "what": part.what,
        "number": part.number.words + (f" minus {part.minus.words}" if part.minus else ""),
        "unit": unit,
        "expected": f"{part.wanted} {part.bound:g}",
        "found": {
            name: None if np.isnan(number) else float(f"{number:.4g}") for name, number in (("value", value), ("low", low), ("high", high))
        },
        "prompts": prompts,
        "decides": part.decides,
        "verdict": judge(low, high, part.wanted, part.bound),
        "verdicts_elsewhere": elsewhere or {},
    }


def read_part(part: Part, prompts: int) -> dict[str, Any]:
    """Return a part as it is stored, with its verdicts at the other thresholds."""
    found = measure(part, prompts)
    fixed = not {"excess", "unit"} & set(part.number._place(MAIN)) or "epsilon." in part.number.statistic
    elsewhere = {}
    for point in () if fixed else THRESHOLDS:
        if point != MAIN:
            _, low, high, _ = measure(part, prompts, point)
            elsewhere[f"{point.excess:g} {point.unit}"] = judge(low, high, part.wanted, part.bound)
    return result_of(part, found, definition_of(part.number.statistic).unit, elsewhere)


def store(claim: Claim, parts: Sequence[dict[str, Any]], runs: Sequence[Run], prompts: int, script: str) -> dict[str, Any]:
    """Write a claim's result and print it."""
    verdict = verdict_of([part["verdict"] for part in parts if part["decides"]])
    document = {
        **{name: value for name, value in asdict(claim).items() if name != "parts"},
        "command": f"python experiments/{script}",
        "prompts": prompts,
        "runs": {run.name: run.command for run in runs},
        "parts": list(parts),
        "verdict": verdict,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{claim.name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(f"{claim.title} ({claim.source})\nclaim     {claim.says}\ncommand   {document['command']}\nexpected  {claim.expected}")
    for part in parts:
        print(f"found     {part['what']}: {shown(part['found'])} {part['unit']}, wanted {part['expected']}: {part['verdict']}")
    print(f"verdict   {verdict}\n")
    return document


def report(claim: Claim, prompts: int, script: str, read: Callable[[Part, int], dict[str, Any]] = read_part) -> dict[str, Any]:
    """Measure the parts of a claim, store and print them."""
    names = {name: None for part in claim.parts for one in (part.number, part.minus) if one is not None for name in [one.run]}
    return store(claim, [read(part, prompts) for part in claim.parts], [RUNS[name] for name in names], prompts, script)


def tell(claim: Claim, script: str, read: Callable[[Part, int], dict[str, Any]] = read_part) -> None:
    """Do the same from the command line: the main function of every script."""
    parser = argparse.ArgumentParser(description=claim.says)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    report(claim, parser.parse_args().prompts, Path(script).name, read)
