import sys
from importlib import import_module

import pytest

import sinkscope
from sinkscope.lazy_names import public_names

FUNCTIONS = set(
    "add_sink_token analyse evaluate explore find_roles find_sinks following generate lens load log_likelihood "
    "open_trace open_traces parse_rule recording track".split()
)
CLASSES = set("Generation HideTopSinks Lens Likelihood Model Roles SinkToken Sinks Trace Track Tracks".split())
PACKAGES = {"evaluation", "figures", "interventions"}


def test_exported_names_are_the_documented_ones():
    """Scripts rely on them."""
    assert set(sinkscope.__all__) == set(dir(sinkscope)) == FUNCTIONS | CLASSES | PACKAGES
    assert len(sinkscope.__all__) == len(FUNCTIONS | CLASSES | PACKAGES)


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES))
def test_every_exported_name_resolves_to_a_thing_of_that_name_with_a_docstring(name):
    thing = getattr(sinkscope, name)
    assert thing.__name__ == name
    assert thing.__doc__
    assert isinstance(thing, type) == (name in CLASSES) or name == "recording"


def test_a_name_is_looked_for_only_when_it_is_used(tmp_path, monkeypatch):
    package = tmp_path / "lazily"
    package.mkdir()
    attach = "from sinkscope.lazy_names import attach\n__getattr__, __dir__ = attach(__name__, __file__)\n"
    (package / "__init__.py").write_text(attach)
    (package / "__init__.pyi").write_text("from .oven import bread as bread\nfrom . import oven as oven\n")
    (package / "oven.py").write_text("bread = 'warm'\n")
    monkeypatch.syspath_prepend(tmp_path)
    lazily = import_module("lazily")
    assert public_names(lazily.__file__) == {"bread": "oven", "oven": ""}
    assert "lazily.oven" not in sys.modules and dir(lazily) == ["bread", "oven"]
    assert (lazily.bread, lazily.oven) == ("warm", sys.modules["lazily.oven"])
