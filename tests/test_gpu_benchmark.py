"""benchmarks/gpu.py on a CPU, tiny: every row is there with its goal, and a row that fails does not take the others with it."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
TINY = (
    "--device cpu --shape tiny --dtype float32 --length 48 --kernel 32 --written 8 --steps 2 --rounds 1 --backend eager"
)


@pytest.fixture(scope="module")
def rows():
    pytest.importorskip("triton", reason="needs Triton, which has wheels for Linux only")
    command = [sys.executable, str(SCRIPT), *TINY.split(), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert [line[:2] for line in done.stdout.splitlines()][1:3] == ['{"', ",{"], "one row a line, as it comes"
    return {row["what"]: row for row in json.loads(done.stdout)}


def test_only_the_kernel_that_a_cpu_lacks_fails(rows):
    assert [what for what, row in rows.items() if "error" in row] == [
        f"attention, cudnn over flash, S = {length}" for length in (32, 48)
    ]
    assert len(rows) == 28


@pytest.mark.parametrize(
    ("what", "goals"),
    [
        ("attention, columns over flash, S = 32", {"goal_time": 1.7}),
        ("recorded over plain, columns", {"goal_time": 1.03}),
        ("recorded over plain, memory", {"goal_memory": 1.01}),
        ("hiding over recorded", {"goal_time": 1.02}),
        *((f"published loop over ours, {family}", {"goal_time": 1.1}) for family in ("llada", "mmada", "dream")),
    ],
)
def test_every_number_has_its_goal_beside_it(what, goals, rows):
    assert goals.items() <= rows[what].items()
    assert rows[what].get("time", 1) > 0


def test_paths_versions_and_tokens_are_told(rows):
    assert rows["attention, columns over flash, S = 32"]["path"] == ["sweep"]
    assert (
        rows["recorded over plain, columns"]["path"] == ["sweep"]
        and rows["recorded over plain, columns"]["written_mb"] > 0
    )
    assert all(row["same_tokens"] for what, row in rows.items() if "loop" in what or "tokens" in what)
    assert all(ms > 0 for what, row in rows.items() if "tiles" in what for ms in row["ms_by_tiles"].values())
    assert rows["recorded over plain, compiled layers"]["graphs_more"] == 0
    assert all(row["torch"] and row["triton"] and row["device"] for row in rows.values())


def test_where_two_loops_part_is_told(monkeypatch, diffusion):
    import torch

    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from argparse import Namespace

    from _gpu_sampling import difference, published_block

    given = Namespace(device="cpu", length=10, written=6)
    theirs = published_block(diffusion, torch.tensor([5, 9, 11, 7]), 6, 3, None)
    assert difference(diffusion, given, "llada", theirs, theirs) == {"same_tokens": True, "first_difference": None}
    ours = [canvas.clone() for canvas in theirs]
    written = (ours[1] != ours[0]).nonzero().flatten()[0]
    ours[1][written], ours[2][written] = 13, 13
    told = difference(diffusion, given, "llada", ours, theirs)
    assert told["first_difference"] == 1 and told["same_tokens"] is False
    logits = diffusion.network(input_ids=theirs[0][None]).logits[0, written].detach()
    best = logits.topk(2).values
    assert told["logit_gap"] == pytest.approx(float(best[0] - best[1]), rel=1e-4) and told["confidence_gap"] == 0


def test_a_checkout_that_is_not_installed_names_its_version(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(gpu, "version", missing)
    monkeypatch.setattr(sys, "path", list(sys.path))
    gpu.as_installed(str(tmp_path))
    (about,) = metadata.distributions(name="sinkscope", path=[str(tmp_path)])
    assert about.version == metadata.version("sinkscope") and sys.path[0] == str(SCRIPT.parents[1] / "src")
