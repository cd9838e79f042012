"""The page on interventions: its programs run, and it names every rule."""

import re
from pathlib import Path

from sinkscope import interventions
from sinkscope.interventions import Intervention, known_rules

PAGE = (Path(__file__).parents[2] / "docs" / "interventions.md").read_text()


def test_its_programs_run(capsys):
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 2
    namespace = {}
    for program in programs:
        exec(program, namespace)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if re.search(r"0\.\d+", line)]) == 3


def test_it_names_every_intervention_and_every_rule():
    final = {
        kind.__name__
        for kind in vars(interventions).values()
        if isinstance(kind, type) and issubclass(kind, Intervention)
    }
    for name in final - {"Intervention", "Observed", "SinkRule"}:
        assert f"`{name}(" in PAGE
    for word, kind in known_rules().items():
        assert f"`{word}{':' if ':' in kind.rule else '`'}" in PAGE
