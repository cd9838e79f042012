"""The numerical tests as other machines would run them: `make test-portable`. With ``--short`` a part of `make test`.

A processor is more than one machine: torch, oneDNN and MKL can be held to the instructions of an older one, sums are split among
threads, and weights can be put where a file's header might leave them. Each setting is a run of pytest of its own.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]

# What is computed by kernels or compared with a number. A test that imports closeness, other_kernels or odd_places belongs here.
NUMERICAL = (
    "tests/attention",
    "tests/decoding",
    "tests/emergence",
    "tests/experiments",
    "tests/interventions",
    "tests/lab",
    "tests/models",
    "tests/recorder",
    "tests/roles",
    "tests/sinks",
    "tests/statistics",
    "tests/test_closeness.py",
    "tests/test_default_device.py",
    "tests/test_odd_places.py",
)
# Left out of the short form, with what they are busy with.
NOT_SHORT = {
    "tests/attention/test_compiled_layers.py": "compiling",
    "tests/attention/test_fused.py": "Triton's interpreter, whose numbers are NumPy's",
    "tests/attention/test_dispatch.py": "Triton's interpreter",
    "tests/decoding/test_quirks.py": "reading the suite",
    "tests/emergence": "training and commands",
    "tests/experiments": "the lab's scripts",
    "tests/interventions/test_adding_a_rule.py": "commands",
    "tests/interventions/test_controls.py": "counting keys",
    "tests/interventions/test_documentation.py": "commands",
    "tests/interventions/test_every_intervention.py": "sixteen rules on three models, a quarter of the time",
    "tests/lab": "training",
    "tests/models/test_hub.py": "a server",
    "tests/models/test_new_family.py": "commands",
    "tests/models/test_refused_configs.py": "messages",
    "tests/models/test_refused_folders.py": "messages",
    "tests/models/test_refused_tokenizers.py": "messages",
    "tests/models/test_refused_weights.py": "messages",
    "tests/recorder/test_levels.py": "processes of their own",
    "tests/recorder/test_no_waits.py": "a simulated GPU",
    "tests/recorder/test_recording_killed.py": "a process of its own",
    "tests/sinks": "NumPy",
    "tests/statistics": "NumPy",
}

ATEN, ONEDNN, MKL = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"
SHORT = {"default": {ATEN: "default"}, "avx2": {ATEN: "avx2"}}
SETTINGS = {
    **SHORT,
    "onednn-avx2": {ONEDNN: "AVX2"},
    "default, two threads": {ATEN: "default", "OMP_NUM_THREADS": "2"},
    "avx2, two threads": {ATEN: "avx2", "OMP_NUM_THREADS": "2"},
    "onednn-avx2, two threads": {ONEDNN: "AVX2", "OMP_NUM_THREADS": "2"},
    "mkl-compatible": {MKL: "COMPATIBLE"},  # MKL takes no notice of torch's capability
    "odd places": {"SINKSCOPE_TEST_PLACES": "odd"},
}


def environment(setting):
    """One thread unless the setting says another number; offline, as `make test`."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", **setting}


def capability(setting):
    """What torch says of itself under a setting, in a process of its own."""
    asked = [sys.executable, "-W", "ignore", "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"]
    return subprocess.run(asked, env=environment(setting), capture_output=True, text=True, check=True).stdout.strip()


def selection(short):
    """Return the arguments of pytest."""
    if not short:
        return list(NUMERICAL)
    # pytest runs a folder that is named although it is to be ignored.
    return [path for path in NUMERICAL if path not in NOT_SHORT] + [
        f"--ignore={path}" for path in NOT_SHORT if path not in NUMERICAL
    ]


def run(name, setting, short, workers, arguments):
    """The exit status of pytest, 0 also where this processor does not have what the setting asks for."""
    found = capability(setting)
    if ATEN in setting and found != setting[ATEN].upper():
        print(f"{name}: left out, torch has {found} here", flush=True)
        return 0
    workers = max(1, workers // int(setting.get("OMP_NUM_THREADS", 1)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "-n",
        str(workers),
        "--dist",
        "loadfile",
        "-r",
        "fE",
    ]
    command += [*selection(short), *arguments]
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = time.monotonic()
    done = subprocess.run(command, env=environment(setting), cwd=ROOT, check=False, **said)
    if done.returncode:
        print(done.stdout)
    print(
        f"{name}: {done.stdout.splitlines()[-1]} (torch's kernels: {found}; {time.monotonic() - started:.0f} s)",
        flush=True,
    )
    return done.returncode


def main():
    """Runs every setting, also after one that failed."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other options go to pytest.")
    parser.add_argument(
        "--short", action="store_true", help="torch's two older capabilities only, without what takes long"
    )
    parser.add_argument("--only", action="append", choices=SETTINGS, help="this setting; may be given more than once")
    parser.add_argument(
        "--workers", type=int, default=int(os.environ.get("WORKERS") or 2), help="processes side by side"
    )
    given, arguments = parser.parse_known_args()
    chosen = {name: SETTINGS[name] for name in given.only or (SHORT if given.short else SETTINGS)}
    print(f"{len(chosen)} settings; by itself torch takes {torch.backends.cpu.get_cpu_capability()} here", flush=True)
    return max(run(name, setting, given.short, given.workers, arguments) for name, setting in chosen.items())


if __name__ == "__main__":
    sys.exit(main())
