import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sinkscope

# The names the documentation promises; scripts rely on them.
DOCUMENTED = {
    "Generation",
    "HidePositions",
    "HideSinkToken",
    "HideSinksAbove",
    "HideTopSinks",
    "KeepWindow",
    "MassMatchedKeys",
    "Likelihood",
    "Model",
    "NextRanks",
    "PersistentRandomKeys",
    "RandomKeys",
    "SameClassKeys",
    "SinkToken",
    "Sinks",
    "Trace",
    "Track",
    "Tracks",
    "calibrate_excess",
    "compose",
    "add_sink_token",
    "find_sinks",
    "generate",
    "load",
    "log_likelihood",
    "open_trace",
    "open_traces",
    "parse_rule",
    "recording",
    "track",
}
SOURCE = Path(sinkscope.__file__)


def test_exported_names_are_the_documented_ones():
    assert set(sinkscope.__all__) == DOCUMENTED
    assert len(sinkscope.__all__) == len(DOCUMENTED)


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_every_exported_name_resolves_to_a_thing_of_that_name_with_a_docstring(name):
    thing = getattr(sinkscope, name)
    assert thing.__name__ == name
    assert thing.__doc__
    assert thing.__module__.startswith("sinkscope.")


def test_dir_lists_the_exported_names():
    assert dir(sinkscope) == sorted(DOCUMENTED)


def test_star_import_gives_the_exported_names():
    namespace = {}
    exec("from sinkscope import *", namespace)
    assert set(namespace) - {"__builtins__"} == DOCUMENTED


def test_what_type_checkers_see_is_what_is_exported():
    imports = [node for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names if (node.module or "").startswith("sinkscope.")}
    assert set(seen) == DOCUMENTED
    for name, module in seen.items():
        assert getattr(import_module(module), name) is getattr(sinkscope, name)


def test_the_docstring_of_the_package_uses_only_names_that_exist():
    words = sinkscope.__doc__.replace("(", " ").split()
    used = {word.removeprefix("sinkscope.") for word in words if word.startswith("sinkscope.")}
    assert used
    assert used <= DOCUMENTED


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(AttributeError, match=r"sinkscope has no 'tracks'; it has Generation, HidePositions, .*, Likelihood, .*, track"):
        _ = sinkscope.tracks
    with pytest.raises(ImportError):
        exec("from sinkscope import nonsense")


def test_importing_the_package_loads_nothing_heavy():
    check = "import sys, sinkscope; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.strip() == "[]"
