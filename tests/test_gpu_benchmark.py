"""benchmarks/gpu.py on a CPU, tiny: every row is there, and a row that fails does not take the others with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
TINY = (
    "--device cpu --shape tiny --dtype float32 --length 48 --kernel 32 --written 8 --steps 2 --rounds 1 --backend eager"
)


@pytest.mark.slow
def test_only_the_kernel_that_a_cpu_lacks_fails():
    pytest.importorskip("triton", reason="needs Triton, which has wheels for Linux only")
    command, interpreted = [sys.executable, str(SCRIPT), *TINY.split(), "--json"], {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **interpreted})
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert [what for what, row in rows.items() if "error" in row] == [
        f"attention, cudnn over flash, S = {length}" for length in (32, 48)
    ]
    assert len(rows) == 39 and rows["hiding over recorded"]["goal_time"] == 1.02
    assert all(row["same_tokens"] for what, row in rows.items() if "loop" in what or "tokens" in what)
