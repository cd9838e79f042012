"""The specimens of the trial, and how many cases there are: all of them under ``make hostile``, a part in ``make test``."""

import os
import shutil

import pytest
from hostile import specimens, trial

PART = 6
"""Of so many cases, `make test` tries one."""
FULL = os.environ.get("HOSTILE") == "full"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("whole_trial") and not FULL:
            item.add_marker(pytest.mark.skip(reason="part of `make hostile`"))


@pytest.fixture(scope="session")
def share():
    """Return how many of a number of cases are tried here."""
    return lambda whole: whole if FULL else max(1, whole // PART)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A folder with a whole specimen of everything; never written to."""
    trial.warm_up()
    return specimens.make_specimens(tmp_path_factory.mktemp("specimens") / "whole")


@pytest.fixture(autouse=True)
def small_recipes(monkeypatch):
    """Recipes that train in a second."""
    from sinkscope.lab.recipes import RECIPES

    monkeypatch.setitem(RECIPES, "lab-sink-token", specimens.RECIPE)
    monkeypatch.setitem(RECIPES, "lab-text-diffusion", specimens.TEXT_RECIPE)


@pytest.fixture
def place(whole, tmp_path):
    """A copy of the specimens to be damaged."""
    shutil.copytree(whole, tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture
def tally():
    return trial.Tally()
