"""A statistic is one file: put into the package, it is found by `analyse`, by its JSON and table, and by ``--keep
statistics``.
"""

import dataclasses
import json
import os
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


@pytest.mark.slow
def test_it_shows_up_in_analyse_its_table_and_the_level_of_statistics(diffusion_folder, tmp_path):
    """In a copy of the package that has one file more."""
    package, copy = Path(sinkscope.__file__).parent, tmp_path / "package"
    shutil.copytree(package, copy / "sinkscope", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "sinkscope" / "statistics" / "second_column.py").write_text(EXAMPLE)

    def command(*arguments):
        call, environment = [sys.executable, "-m", "sinkscope", *map(str, arguments)], {"PYTHONPATH": str(copy)}
        done = subprocess.run(call, env=os.environ | environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(document):
        mine = [row for row in document["statistics"] if row["name"].startswith("second.")]
        return {tuple(row["at"].items()): row["value"] for row in mine}

    settings = ("--prompt", "Tom has 7 apples", "--length", 8, "--steps", 8, "--block", 8)
    for level in ("columns", "statistics"):
        command("trace", diffusion_folder, *settings, "--keep", level, "--out", tmp_path / level)
    document = json.loads(command("analyse", tmp_path / "columns", "--json"))
    assert document["definitions"]["second.column"]["unit"] == "queries"
    found, columns = rows(document), np.sort(sinkscope.open_trace(tmp_path / "columns").column_sums[:], axis=-1)
    for layer in range(columns.shape[1]):
        assert found[(("layer", layer),)] == pytest.approx(columns[:, layer, :, -2].mean())
    assert len(found) == 1 + 10 + columns.shape[1]
    assert "second\n  column" in command("analyse", tmp_path / "columns")
    assert rows(json.loads(command("sinks", tmp_path / "statistics", "--json"))) == pytest.approx(found)


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


class Keeps(Statistic):
    definitions: ClassVar = {}

    def keep(self, step):
        return Kept(step.tokens)

    def values(self, prompt):
        return {}


def test_two_statistics_that_keep_one_record_are_refused():
    with pytest.raises(CallError, match="Kept: expected one record of each step from the first on"):
        summarise(make_trace(random_columns(0)), statistics=[Keeps(), Keeps()])


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


def test_a_statistic_of_another_package_is_declared_as_an_entry_point(monkeypatch, anew):
    declared(monkeypatch, f"{__name__}:Elsewhere")
    trace = make_trace(random_columns(0, steps=9))
    (found,) = analyse([trace], [Threshold(3.0)], choice=False).find("elsewhere.steps")
    assert (found.value, found.definition.unit) == (9, "steps")
