"""Settings of the experiments: the command line, how the lab's models write whole answers, seeds, command and
commit.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError
from sinkscope.lab.prompts import answer_settings

SETTINGS: dict[str, dict[str, Any]] = {name: answer_settings(name) for name in ("lab-diffusion", "lab-autoregressive")}
"""Settings of the sampler by model."""
SEEDS = (0, 1, 2)


def seeded(rule: str) -> list[str]:
    """Return a rule that draws at random, once for each seed."""
    return [f"{rule}{',' if '@' in rule else '@'}seed={seed}" for seed in SEEDS]


def command() -> str:
    """Return the running command, without the folders of this machine."""
    given = [
        Path(one).name if Path(one).is_absolute() else one for one in sys.argv[1:]
    ]  # where a machine keeps its work says nothing
    return " ".join(["python", f"experiments/{Path(sys.argv[0]).name}", *given])


def commit() -> str | None:
    """Return the commit of the checkout, with a ``+`` where its files were changed since."""
    folder = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True
    ).stdout.strip()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno", "--", "*.py"], cwd=folder.parent, capture_output=True, text=True
    ).stdout
    return f"{found}{'+' if changed else ''}" if found else None


def made_by() -> dict[str, str | None]:
    """Return command and commit, for the head of a document; items that an earlier run left were made by that run's
    commit.
    """
    return {"command": command(), "commit": commit()}


class Arguments(argparse.ArgumentParser):
    """A parser that prints the docstring of a script as it stands."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_script(main: Callable[[], Any]) -> None:
    """Run the main function of a script; print an error of ours, or of the file system, in one line."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("error: interrupted")
    except (SinkscopeError, OSError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
