"""A statistic is one file: put into the package, it is found by `analyse`, by its JSON and table, and by ``--keep
statistics``.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from adding_page import files_of_the_page
from planted import make_trace, random_columns

import sinkscope
from sinkscope import extension_points
from sinkscope.errors import CallError
from sinkscope.statistics import Definition, Statistic, Threshold, analyse, norms, summarise
from sinkscope.statistics.statistic import all_definitions, all_statistics, values_of

EXAMPLE = files_of_the_page()["src/sinkscope/statistics/second_column.py"]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """`sinkscope` of a copy of the package that has one file more."""
    package, copy = Path(sinkscope.__file__).parent, tmp_path_factory.mktemp("package")
    shutil.copytree(package, copy / "sinkscope", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "sinkscope" / "statistics" / "second_column.py").write_text(EXAMPLE)

    def command(*arguments):
        found = subprocess.run(
            [sys.executable, "-m", "sinkscope", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    return command


@pytest.fixture(scope="module")
def recorded(command, diffusion_folder, tmp_path_factory):
    """The same prompt as a trace and as statistics."""
    folder = tmp_path_factory.mktemp("recorded")
    settings = ("--prompt", "Tom has 7 apples", "--length", 8, "--steps", 8, "--block", 8)
    for level in ("columns", "statistics"):
        command("trace", diffusion_folder, *settings, "--keep", level, "--out", folder / level)
    return folder


def test_it_shows_up_in_analyse_and_its_table(command, recorded):
    document = json.loads(command("analyse", recorded / "columns", "--json"))
    assert document["definitions"]["second.column"]["unit"] == "queries"
    rows = {
        tuple(row["at"].items()): row["value"] for row in document["statistics"] if row["name"].startswith("second.")
    }
    columns = np.sort(sinkscope.open_trace(recorded / "columns").column_sums[:], axis=-1)
    for layer in range(columns.shape[1]):
        assert rows[(("layer", layer),)] == pytest.approx(columns[:, layer, :, -2].mean())
    assert len(rows) == 1 + 10 + columns.shape[1]
    names = [row["name"] for row in document["statistics"]]
    ordered = [name for one in all_statistics() if one.order < Statistic.order for name in one.definitions]
    assert names.index("second.column") > max(names.index(name) for name in ordered if name in names)
    assert "second\n  column" in command("analyse", recorded / "columns")


def test_it_shows_up_in_what_the_level_of_statistics_keeps(command, recorded):
    whole, kept = (
        command("analyse", recorded / "columns", "--json"),
        command("sinks", recorded / "statistics", "--json"),
    )
    of_traces, of_statistics = (
        {
            (row["name"], tuple(row["at"].items())): row["value"]
            for row in document["statistics"]
            if row["name"].startswith("second.")
        }
        for document in map(json.loads, (whole, kept))
    )
    assert of_statistics == pytest.approx(of_traces)


class Undefined(Statistic):
    definitions: ClassVar = {"one.thing": Definition("one", "thing", "none")}

    def values(self, prompt):
        return {("another.thing", ()): 1.0}


def test_a_number_without_a_definition_is_refused():
    with pytest.raises(CallError, match=r"Undefined: expected a definition of 'another.thing', found none"):
        values_of(summarise(make_trace(random_columns(0))), [Undefined()])


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    what: object


class Says(Statistic):
    """Says and keeps what a test gives it."""

    definitions: ClassVar = {"my.x": Definition("one", "thing", "none")}
    kept: ClassVar = None

    def __init__(self, said=None):
        self.said = said

    def keep(self, step):
        return self.kept and self.kept(step)

    def values(self, prompt):
        return self.said


@pytest.mark.parametrize("number", [3, 3.0, np.float32(3), np.int16(3), np.array(3.0), float("nan")])
def test_every_number_is_one(number):
    (found,) = values_of(summarise(make_trace(random_columns(0))), [Says({("my.x", ()): number})]).values()
    assert type(found) is float and found == pytest.approx(float(number), nan_ok=True)


def test_two_statistics_that_keep_one_record_are_refused(monkeypatch):
    monkeypatch.setattr(Says, "kept", staticmethod(lambda step: Kept(step.tokens)))
    message = "Kept: expected one record of each step from the first on"
    with pytest.raises(CallError, match=re.escape(message)):
        summarise(make_trace(random_columns(0)), statistics=[Says(), Says()])


@pytest.fixture
def anew():
    """Statistics are looked for again, and once more afterwards."""
    for cached in (all_statistics, all_definitions):
        cached.cache_clear()
    yield
    for cached in (all_statistics, all_definitions):
        cached.cache_clear()


def test_a_statistic_that_is_defined_twice_is_refused(monkeypatch, anew):
    monkeypatch.setattr(norms, "Again", type("Again", (norms.Norms,), {"__module__": norms.__name__}), raising=False)
    with pytest.raises(CallError, match=r"found two definitions of norms.contribution"):
        all_statistics()


class Elsewhere(Statistic):
    """Of another package."""

    definitions: ClassVar = {"elsewhere.steps": Definition("steps of the trace", "steps", "none")}

    def values(self, prompt):
        return {("elsewhere.steps", ()): float(prompt.steps)}


def declared(monkeypatch, value):
    point = EntryPoint("mine", value, "sinkscope.statistics")
    monkeypatch.setattr(extension_points, "entry_points", lambda group: [point] if group == point.group else [])


@pytest.mark.parametrize("value", [f"{__name__}:Elsewhere"])
def test_a_statistic_of_another_package_is_declared_as_an_entry_point(monkeypatch, anew, value):
    declared(monkeypatch, value)
    trace = make_trace(random_columns(0, steps=9))
    (found,) = analyse([trace], [Threshold(3.0)], choice=False).find("elsewhere.steps")
    assert (found.value, found.definition.unit) == (9, "steps")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "sinkscope.statistics.norms:Moments",
            "expected a class that extends Statistic, or a module with one, found sinkscope.statistics",
        ),
        ("sinkscope.errors", "expected a class that extends Statistic, or a module with one, found sinkscope.errors"),
        ("sinkscope.nothing:Here", "cannot be loaded from sinkscope.nothing:Here"),
    ],
)
def test_an_entry_point_that_brings_no_statistic_is_refused(monkeypatch, anew, value, message):
    declared(monkeypatch, value)
    with pytest.raises(CallError, match=message):
        all_statistics()
