"""The workflow files call what exists: targets of the Makefile, scripts of this repository, jobs of their own."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def faults(text: str) -> list[str]:
    """What is wrong with a workflow; an empty list where nothing is."""
    workflow = yaml.safe_load(text)
    found = [] if workflow.get("permissions") == {"contents": "read"} else ["permissions"]
    for name, job in workflow["jobs"].items():
        needs = job.get("needs", [])
        found += [
            f"{name} needs {one}"
            for one in ([needs] if isinstance(needs, str) else needs)
            if one not in workflow["jobs"]
        ]
        for step in job["steps"]:
            if "run" in step:
                found += [line for line in step["run"].splitlines() if not runs(line)]
            elif not re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"]):
                found.append(step["uses"])
    return found


def runs(line: str) -> bool:
    words = line.split(" #")[0].split()
    if words[0] == "make":
        return words[1] in TARGETS
    if words[:2] == ["python", "-m"]:
        return words[2] == "pip"
    return words[0] == "python" and (ROOT / words[1]).is_file()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_exists(path):
    assert faults(path.read_text()) == []


def test_there_are_workflows_for_tests_docs_and_releases():
    assert {path.stem for path in WORKFLOWS} == {"tests", "docs", "release"} and {"test", "docs", "wheel"} <= TARGETS


def test_their_python_is_one_that_the_package_takes():
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    versions = {version for path in WORKFLOWS for version in re.findall(r'python-version: "(.*)"', path.read_text())}
    assert versions == {least}


@pytest.mark.parametrize(
    ("here", "broken", "fault"),
    [
        ("run: make test", "run: make tests", "make tests"),
        ("actions/checkout@v4", "actions/checkout", "actions/checkout"),
        ("contents: read", "contents: write", "permissions"),
        ("run: make test", "run: python tests/missing.py", "python tests/missing.py"),
    ],
)
def test_what_is_wrong_is_found(here, broken, fault):
    assert faults((ROOT / ".github/workflows/tests.yml").read_text().replace(here, broken)) == [fault]


def test_a_job_that_waits_for_none_is_found():
    text = (ROOT / ".github/workflows/docs.yml").read_text()
    assert faults(text.replace("needs: build", "needs: built")) == ["publish needs built"]
