import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sinkscope
from sinkscope.lazy_names import attach, public_names

# The names the documentation promises; scripts rely on them.
FUNCTIONS = {
    "add_sink_token",
    "analyse",
    "evaluate",
    "explore",
    "find_roles",
    "find_sinks",
    "following",
    "generate",
    "load",
    "log_likelihood",
    "open_trace",
    "open_traces",
    "parse_rule",
    "recording",
    "track",
}
CLASSES = {
    "Generation",
    "HideTopSinks",
    "Likelihood",
    "Model",
    "Roles",
    "SinkToken",
    "Sinks",
    "Trace",
    "Track",
    "Tracks",
}
PACKAGES = {"evaluation", "figures", "interventions"}
DOCUMENTED = FUNCTIONS | CLASSES | PACKAGES
STUB = Path(sinkscope.__file__).with_suffix(".pyi")


def test_exported_names_are_the_documented_ones():
    assert set(sinkscope.__all__) == DOCUMENTED
    assert len(sinkscope.__all__) == len(DOCUMENTED)


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES))
def test_every_exported_name_resolves_to_a_thing_of_that_name_with_a_docstring(name):
    thing = getattr(sinkscope, name)
    assert thing.__name__ == name
    assert thing.__doc__
    assert thing.__module__.startswith("sinkscope.")
    assert isinstance(thing, type) == (name in CLASSES) or name == "recording"


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_packages_are_exported_as_themselves(name):
    assert getattr(sinkscope, name) is sys.modules[f"sinkscope.{name}"]


def test_dir_lists_the_exported_names():
    assert dir(sinkscope) == sorted(DOCUMENTED)


def test_star_import_gives_the_exported_names():
    namespace = {}
    exec("from sinkscope import *", namespace)
    assert set(namespace) - {"__builtins__"} == DOCUMENTED


def test_type_checkers_read_the_stub_as_the_same_exports():
    """A stub exports what it imports under the same name again, and nothing else."""
    imports = [node for node in ast.parse(STUB.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    exported = [(alias.asname, node.module) for node in imports for alias in node.names if alias.asname == alias.name]
    assert sorted(name for name, _ in exported) == sorted(DOCUMENTED)
    for name, module in exported:
        assert module is None or getattr(import_module(f"sinkscope.{module}"), name) is getattr(sinkscope, name)


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert sinkscope.__version__ == version("sinkscope")


def test_the_docstring_of_the_package_uses_only_names_that_exist():
    words = sinkscope.__doc__.replace("(", " ").split()
    used = {word.removeprefix("sinkscope.") for word in words if word.startswith("sinkscope.")}
    assert used
    assert used <= DOCUMENTED


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(
        AttributeError, match=r"sinkscope has no 'tracks'; it has Model, SinkToken, .*, track, .*, interventions"
    ):
        _ = sinkscope.tracks
    with pytest.raises(ImportError):
        exec("from sinkscope import nonsense")


def test_importing_the_package_loads_nothing_heavy():
    check = "import sys, sinkscope; print(sorted({'torch', 'transformers', 'numpy', 'ast'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_a_name_is_looked_for_only_when_it_is_used(tmp_path, monkeypatch):
    package = tmp_path / "lazily"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from sinkscope.lazy_names import attach\n__getattr__, __dir__ = attach(__name__, __file__)\n"
    )
    (package / "__init__.pyi").write_text(
        "from .oven import bread as bread, gone as gone\nfrom . import oven as oven\n"
    )
    (package / "oven.py").write_text("bread = 'warm'\n")
    monkeypatch.syspath_prepend(tmp_path)
    lazily = import_module("lazily")
    assert public_names(lazily.__file__) == {"bread": "oven", "gone": "oven", "oven": ""}
    assert "lazily.oven" not in sys.modules and dir(lazily) == ["bread", "gone", "oven"]
    assert (lazily.bread, lazily.oven) == ("warm", sys.modules["lazily.oven"])
    with pytest.raises(AttributeError, match=r"module 'lazily\.oven' has no attribute 'gone'"):
        _ = lazily.gone
    with pytest.raises(AttributeError, match="lazily has no 'cake'; it has bread, gone, oven"):
        attach("lazily", lazily.__file__)[0]("cake")
