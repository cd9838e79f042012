"""What the wheel and the sdist hold; `make wheel` installs the wheel and runs it."""

import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import sinkscope
from sinkscope.models import BUNDLED, SPECIMENS

pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed: pip install hatchling")

ROOT = Path(__file__).parents[1]
MB = 10**6


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist of this checkout."""
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    out = str(tmp_path_factory.mktemp("dist"))
    return {
        kind: Path(next(builder(str(ROOT)).build(directory=out)))
        for kind, builder in (("wheel", WheelBuilder), ("sdist", SdistBuilder))
    }


@pytest.fixture(scope="module")
def wheel(built):
    """Size in bytes of every file in the wheel, by its path."""
    with zipfile.ZipFile(built["wheel"]) as archive:
        return {one.filename: one.file_size for one in archive.infolist()}


@pytest.fixture(scope="module")
def sdist(built):
    with tarfile.open(built["sdist"]) as archive:
        return {member.name.split("/", 1)[1] for member in archive if member.isfile()}


def source_files():
    """Everything under src/sinkscope but what Python writes itself."""
    return {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/sinkscope").rglob("*") if unmade(path)}


def unmade(path):
    return path.is_file() and "__pycache__" not in path.parts


def test_the_wheel_is_the_package_and_nothing_else(wheel):
    held = {name for name in wheel if ".dist-info/" not in name}
    assert held == source_files()
    assert not [name for name in held if not name.startswith("sinkscope/")]


def test_the_bundled_models_are_in_the_wheel(wheel):
    for name in BUNDLED + SPECIMENS:
        part = f"sinkscope/checkpoints/{'specimens/' if name in SPECIMENS else ''}{name}"
        for file in ("config.json", "model.safetensors", "tokenizer.json"):
            assert wheel.get(f"{part}/{file}", 0) > 0, f"{part}/{file}"


def test_the_bundled_models_and_the_wheel_are_small(wheel, built):
    assert sum(size for name, size in wheel.items() if "/checkpoints/" in name) < 40 * MB
    assert built["wheel"].stat().st_size < 40 * MB and built["sdist"].stat().st_size < 40 * MB


def test_the_wheel_says_what_it_is(wheel, built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        info = next(name.split("/")[0] for name in wheel if ".dist-info/" in name)
        metadata, scripts = (archive.read(f"{info}/{name}").decode() for name in ("METADATA", "entry_points.txt"))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nVersion: {version}\n" in metadata and sinkscope.__version__ == version
    assert "\nLicense-Expression: Apache-2.0\n" in metadata and f"{info}/licenses/LICENSE" in wheel
    assert "# sinkscope" in metadata, "the README is its long description"
    assert "sinkscope = sinkscope.cli:main" in scripts


def test_the_sdist_holds_the_tests_and_no_results(sdist):
    assert {f"src/{name}" for name in source_files()} <= sdist
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "tests/conftest.py"} <= sdist
    assert not {name.split("/")[0] for name in sdist} & {"results", "experiments", "benchmarks", ".venv", "demo-output"}


def test_a_file_that_is_left_out_is_missed(tmp_path, wheel):
    """The test of the wheel's contents, on a wheel that lacks a file and has one too many."""
    held = {name for name in wheel if ".dist-info/" not in name}
    assert held - {"sinkscope/py.typed"} != source_files() and held | {"tests/conftest.py"} != source_files()
