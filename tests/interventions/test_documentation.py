"""The programs of the page on interventions run."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "interventions.md").read_text()


def test_its_programs_run(capsys):
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    namespace = {}
    for program in programs:
        exec(program, namespace)
    assert programs and re.search(r"0\.\d+", capsys.readouterr().out)
