"""Runs the numerical tests with the kernels of older processors and with two threads: part of `make test-all`."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
NUMERICAL = [f"tests/{one}" for one in "attention decoding interventions models recorder roles".split()]
ATEN, ONEDNN, MKL = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"
SETTINGS = {
    "default": {ATEN: "default"},
    "avx2": {ATEN: "avx2"},
    "onednn-avx2": {ONEDNN: "AVX2"},
    "default, two threads": {ATEN: "default", "OMP_NUM_THREADS": "2"},
    "mkl-compatible": {MKL: "COMPATIBLE"},  # MKL takes no notice of torch's capability
}


def run(name: str, workers: int, arguments: list[str]) -> int:
    """Run the numerical tests under a setting; return the exit status of pytest."""
    setting = SETTINGS[name]
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    workers = max(1, workers // int(setting.get("OMP_NUM_THREADS", 1)))
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadfile", "-m", "not slow"]
    print(f"{name}:", flush=True)
    return subprocess.run(
        [*command, *NUMERICAL, *arguments], env={**os.environ, **offline, **setting}, cwd=ROOT
    ).returncode


def main() -> int:
    """Run every setting, also after one that failed."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other options go to pytest.")
    parser.add_argument("--only", action="append", choices=SETTINGS, help="this setting; may be given more than once")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    given, arguments = parser.parse_known_args()
    print(f"by itself torch takes {torch.backends.cpu.get_cpu_capability()} here", flush=True)
    return max(run(name, given.workers, arguments) for name in given.only or SETTINGS)


if __name__ == "__main__":
    sys.exit(main())
