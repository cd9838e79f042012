"""The files that docs/adding.md shows work where they would lie: found by the commands, with tests that pass."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from adding_page import EXAMPLES, PAGE, files_of_the_page

ROOT = Path(__file__).parents[1]
FILES = files_of_the_page()


def test_every_example_is_linked():
    found = [path for folder in ("src", "tests") for path in (EXAMPLES / folder).rglob("*.py")]
    assert {str(path.relative_to(EXAMPLES)) for path in found} <= set(FILES)


@pytest.mark.slow
def test_the_files_of_the_page_are_found_and_their_tests_pass(tmp_path, diffusion_folder):
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("checkpoints", "__pycache__"))
    (tmp_path / "src/sinkscope/checkpoints").symlink_to(ROOT / "src/sinkscope/checkpoints")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, text in FILES.items():
        (tmp_path / path).write_text(text)

    def python(*arguments):
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
        command = [sys.executable, "-m", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tests = [path for path in FILES if path.startswith("tests/")]
    assert "passed" in python("pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *tests)
    settings = ("--prompt", "Tom has 7 apples", "--length", 8, "--steps", 8, "--block", 8, "--hide", "bottom:2")
    written = json.loads(python("sinkscope", "trace", diffusion_folder, *settings, "--out", "run.trace", "--json"))
    assert written["removed_share"] > 0 and written["keys_per_head"] == 2
    analysed = json.loads(python("sinkscope", "analyse", "run.trace", "--no-sweep", "--no-choice", "--json"))
    assert analysed["definitions"]["second.column"]["unit"] == "queries"
    python("sinkscope", "trace", diffusion_folder, *settings[:8], "--keep", "statistics", "--out", "counted")
    kept = json.loads(python("sinkscope", "sinks", "counted", "--json"))["statistics"]
    assert "second.beside_sink" in {row["name"] for row in kept}
    drawn = python("sinkscope", "figures", "run.trace", "--out", "drawn", "--only", "99").splitlines()
    assert [Path(line).stem for line in drawn] == ["figure99-sinks-by-step"] * 3


def test_the_watcher_of_the_page_runs(capsys):
    code = r"^```python\n(import sinkscope\nfrom sinkscope.attention import Watcher.*?)^```"
    (block,) = re.findall(code, PAGE.read_text(), re.M | re.S)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "example"})
    assert re.match(r"48 \('model\.layers\.0\.self_attn', tensor", capsys.readouterr().out)  # 8 steps, 6 layers
