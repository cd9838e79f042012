"""What docs/adding.md shows works: one file and one test file for each extension point, found by the commands."""

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
SOURCES = [path for path in FILES if path.startswith("src/")]
TESTS = [path for path in FILES if path.startswith("tests/")]
NO_CACHES = shutil.ignore_patterns("checkpoints", "__pycache__")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A copy of the package and its tests, with the files of the page."""
    home = tmp_path_factory.mktemp("repository")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, home / folder, ignore=NO_CACHES)
    (home / "src/sinkscope/checkpoints").symlink_to(ROOT / "src/sinkscope/checkpoints")
    shutil.copy(ROOT / "pyproject.toml", home)
    for path, text in FILES.items():
        assert not (home / path).exists(), path
        (home / path).write_text(text)
    return home


@pytest.fixture(scope="module")
def python(repository):
    """Runs a module of Python in the copy: what it printed, and its exit status."""

    def python(*arguments):
        environment = os.environ | {"PYTHONPATH": str(repository / "src")}
        done = subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr * (done.returncode != 0)

    return python


def test_every_example_is_linked():
    assert {
        str(path.relative_to(EXAMPLES)) for folder in ("src", "tests") for path in (EXAMPLES / folder).rglob("*.py")
    } <= set(FILES)


def test_every_file_has_a_test_file():
    own = {Path(path).stem: path for path in SOURCES}
    assert {"bottom_keys", "second_column", "figure99_sinks_by_step", "tiny_family"} <= set(own)
    tested = {Path(path).stem.removeprefix("test_") for path in TESTS}
    assert set(own) - tested == {"leftmost"}  # the sampler is written with by the test of the family


@pytest.mark.slow
def test_the_tests_of_the_page_pass(python):
    status, out = python("pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *TESTS)
    assert status == 0, out
    assert (
        "11 passed" in out
    )  # the rule: 2 tests on two models and 1 without; the statistic 3, the figure 1, the family 2


@pytest.fixture(scope="module")
def trace(python, repository, diffusion_folder):
    """A trace written under the rule of the page."""
    settings = ("--prompt", "Tom has 7 apples", "--length", 8, "--steps", 8, "--block", 8)
    status, out = python(
        "sinkscope", "trace", diffusion_folder, *settings, "--hide", "bottom:2", "--out", "run.trace", "--json"
    )
    assert status == 0, out
    assert json.loads(out)["removed_share"] > 0 and json.loads(out)["keys_per_head"] == 2
    return repository / "run.trace"


def test_the_commands_know_them(python, trace):
    status, out = python("sinkscope", "analyse", trace, "--no-sweep", "--no-choice", "--json")
    assert status == 0, out
    assert json.loads(out)["definitions"]["second.column"]["unit"] == "queries"
    status, out = python("sinkscope", "figures", trace, "--out", "drawn", "--only", "99")
    assert status == 0, out
    assert [Path(line).name for line in out.splitlines()] == [
        f"figure99-sinks-by-step.{kind}" for kind in ("png", "pdf", "csv")
    ]


def test_the_watcher_of_the_page_runs(capsys):
    (block,) = re.findall(
        r"^```python\n(import sinkscope\nfrom sinkscope.attention import Watcher.*?)^```", PAGE.read_text(), re.M | re.S
    )
    exec(compile(block, str(PAGE), "exec"), {"__name__": "example"})
    assert re.match(r"48 \('model\.layers\.0\.self_attn', tensor", capsys.readouterr().out)  # 8 steps, 6 layers


def test_a_linked_example_is_a_file():
    linked = "src/sinkscope/decoding/leftmost.py"
    assert files_of_the_page(f"[a](examples/{linked}) [b](other/x.py)") == {linked: (EXAMPLES / linked).read_text()}
