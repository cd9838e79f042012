"""Statistics of other packages, and definitions that are missing or double; `test_adding` puts one into the package."""

import dataclasses
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest
from planted import make_trace, random_columns

from sinkscope import extension_points
from sinkscope.statistics import Definition, Statistic, Threshold, analyse
from sinkscope.statistics.statistic import all_definitions, all_statistics


def only(monkeypatch, *statistics):
    monkeypatch.setattr("sinkscope.statistics.statistic.all_statistics", lambda: statistics)


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    what: object


class Keeps(Statistic):
    definitions: ClassVar = {}

    def keep(self, step):
        return Kept(step.tokens)

    def values(self, prompt):
        return {}


@pytest.fixture
def anew():
    """Statistics are looked for again, and once more afterwards."""
    for cached in (all_statistics, all_definitions):
        cached.cache_clear()
    yield
    for cached in (all_statistics, all_definitions):
        cached.cache_clear()


class Elsewhere(Statistic):
    """Of another package."""

    definitions: ClassVar = {"elsewhere.steps": Definition("steps of the trace", "steps", "none")}

    def values(self, prompt):
        return {("elsewhere.steps", ()): float(prompt.steps)}


def test_a_statistic_of_another_package_is_declared_as_an_entry_point(monkeypatch, anew):
    point = EntryPoint("mine", f"{__name__}:Elsewhere", "sinkscope.statistics")
    monkeypatch.setattr(extension_points, "entry_points", lambda group: [point] if group == point.group else [])
    trace = make_trace(random_columns(0, steps=9))
    (found,) = analyse([trace], [Threshold(3.0)], choice=False).find("elsewhere.steps")
    assert (found.value, found.definition.unit) == (9, "steps")
