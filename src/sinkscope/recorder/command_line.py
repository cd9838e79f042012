"""The command line that a trace was made by."""

import shlex
import sys
from pathlib import Path


def command_line() -> str | None:
    """The running ``sinkscope`` command as it was typed; None where sinkscope is used as a library."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    called = program.stem == "sinkscope" or program.parts[-2:] == ("sinkscope", "__main__.py")
    return shlex.join(["sinkscope", *sys.argv[1:]]) if called else None
