"""The specimens of the trial."""

import shutil

import pytest
from hostile import specimens, trial


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
    return shutil.copytree(whole, tmp_path / "place")
