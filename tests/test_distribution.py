"""What the wheel and the sdist hold; `make wheel` installs the wheel and runs it."""

import tarfile
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
    kinds = {"wheel": WheelBuilder, "sdist": SdistBuilder}
    return {kind: Path(next(builder(str(ROOT)).build(directory=out))) for kind, builder in kinds.items()}


def test_both_hold_the_package_and_its_models(built):
    files = (path for path in (ROOT / "src/sinkscope").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    source = {path.relative_to(ROOT / "src").as_posix() for path in files}
    with zipfile.ZipFile(built["wheel"]) as archive:
        wheel = {one.filename: one.file_size for one in archive.infolist()}
        info = next(name.split("/")[0] for name in wheel if ".dist-info/" in name)
        metadata, scripts = (archive.read(f"{info}/{name}").decode() for name in ("METADATA", "entry_points.txt"))
    assert {name for name in wheel if ".dist-info/" not in name} == source
    for name in BUNDLED + SPECIMENS:
        part = f"sinkscope/checkpoints/{'specimens/' if name in SPECIMENS else ''}{name}"
        weights = "adapter_model" if name.startswith("smollm2") else "model"
        assert all(wheel.get(f"{part}/{file}", 0) > 0 for file in ("config.json", f"{weights}.safetensors")), name
    assert f"\nVersion: {sinkscope.__version__}\n" in metadata and f"{info}/licenses/LICENSE" in wheel
    assert "sinkscope = sinkscope.cli:main" in scripts
    with tarfile.open(built["sdist"]) as archive:
        sdist = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
    assert {f"src/{name}" for name in source} | {"pyproject.toml", "README.md", "tests/conftest.py"} <= sdist
    assert not {name.split("/")[0] for name in sdist} & {"results", "experiments", "benchmarks", "demo-output"}
    assert all(path.stat().st_size < 40 * MB for path in built.values())
