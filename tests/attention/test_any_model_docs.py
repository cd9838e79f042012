"""The example that docs/any-model.md names runs unchanged and does what it claims."""

import re
from pathlib import Path

import torch
from closeness import assert_close

import sinkscope

PAGE = Path(__file__).parents[2] / "docs" / "any-model.md"
EXAMPLE = PAGE.parent / "examples" / "foreign_module.py"


def test_the_example_of_a_foreign_module_runs(tmp_path, monkeypatch, capsys):
    block = EXAMPLE.read_text()
    said = re.findall(r"^print\(.*\) +# (.*?)(?:: .*)?$", block, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(block, str(EXAMPLE), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.splitlines() == said and len(said) == 2
    plain, hidden = sinkscope.open_trace("plain.trace"), sinkscope.open_trace("hidden.trace")
    assert plain.causal and plain.layers == hidden.layers
    assert_close(plain.column_sums[0].sum(-1), 17, terms=3 * 17)
    assert_close(hidden.column_sums[0, :, :, 0], 1, terms=3 * 17)  # the first query keeps its only key
    assert (plain.column_sums[0, :, :, 0] > 1.5).all()


def test_what_the_page_shows_of_it_is_in_it():
    page, example = PAGE.read_text(), EXAMPLE.read_text()
    (shown,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert "(examples/foreign_module.py)" in page
    assert all(line in example.splitlines() for line in shown.splitlines())
