"""What a result of these experiments came from."""

import subprocess
import sys
from pathlib import Path


def command() -> str:
    """The running command, without the folders of this machine."""
    given = [Path(one).name if Path(one).is_absolute() else one for one in sys.argv[1:]]  # where a machine keeps its work says nothing
    return " ".join(["python", f"experiments/{Path(sys.argv[0]).name}", *given])


def commit() -> str | None:
    """Of the checkout these experiments lie in; ``+`` where its files were changed since."""
    folder = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno", "--", "*.py"], cwd=folder.parent, capture_output=True, text=True
    ).stdout
    return f"{found}{'+' if changed else ''}" if found else None


def made_by() -> dict[str, str | None]:
    """For the head of a document; work that an earlier run left behind was made by its commit."""
    return {"command": command(), "commit": commit()}
