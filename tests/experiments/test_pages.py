"""The pages of results say what the files beside them hold, and every script imports and prints its help."""

import importlib
import sys
from pathlib import Path

import claims_page
import compression_verdict
import hiding_page
import pytest
import substitutes_page
from _settings import run_script

from sinkscope.errors import CallError

SCRIPTS = sorted(path.stem for path in Path(claims_page.__file__).parent.glob("[a-z]*.py"))


def test_the_pages_are_what_the_results_say():
    for folder in (claims_page.RESULTS, claims_page.PAIR):
        assert (folder / "README.md").read_text() == claims_page.full(folder)
    assert hiding_page.PAGE.read_text() == hiding_page.page(hiding_page.read())
    assert {name for name, _ in hiding_page.SECTIONS} == set(hiding_page.read())
    assert substitutes_page.PAGE.read_text() == substitutes_page.page()
    assert (compression_verdict.OUT / "README.md").read_text() == compression_verdict.page(*compression_verdict.PAIR)[0]


@pytest.mark.parametrize("name", [name for name in SCRIPTS if not name.endswith("_page")])
def test_every_script_prints_its_help(name, monkeypatch, capsys):
    module = importlib.import_module(name)
    if hasattr(module, "main"):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
        with pytest.raises(SystemExit) as end:
            module.main()
        assert end.value.code == 0 and "usage" in capsys.readouterr().out


@pytest.mark.parametrize("error", [CallError("a\nb"), KeyboardInterrupt()])
def test_an_error_is_told_in_one_line(error):
    def main():
        raise error

    with pytest.raises(SystemExit, match=r"^error: [^\n]*$"):
        run_script(main)
