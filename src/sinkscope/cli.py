"""The command line: parses the flags of one command, runs it, and turns an error into one line and an exit status."""

import os
import sys
from typing import Any

NO_MEMORY = "there is not enough memory; use a smaller batch, fewer or shorter prompts, or a machine with more"
EXTRAS = {"gguf": "gguf", "peft": "peft", "submitit": "slurm"} | dict.fromkeys(("pyarrow", "xarray", "zarr"), "export")
"""The extra that brings a package."""


def main() -> None:
    """Run ``sinkscope COMMAND …`` and exit: 0 done, 1 the work failed, 2 the call was wrong, 130 interrupted."""
    debug = "--debug" in sys.argv
    try:
        for stream in (sys.stdout, sys.stderr):  # UTF-8 whatever the locale, but what a terminal shows
            change: Any = getattr(stream, "reconfigure", None)  # a stream that stands in for another may have none
            if change is not None:
                change(errors="replace") if stream.isatty() else change(encoding="utf-8", errors="backslashreplace")
        try:
            _run([one for one in sys.argv[1:] if one != "--debug"])
        finally:
            sys.stdout.flush()  # an error of writing is raised here, where it can be reported
    except KeyboardInterrupt:
        _fail("interrupted", 130, debug)
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        sys.exit(1)
    except Exception as error:
        _fail(*_message_and_status(error), debug)


def _message_and_status(error: Exception) -> tuple[str, int]:
    from sinkscope.errors import CallError, SinkscopeError

    if isinstance(error, SinkscopeError):
        return str(error), 2 if isinstance(error, CallError) else 1
    if isinstance(error, MemoryError):
        return NO_MEMORY, 1
    if "torch" in sys.modules and isinstance(error, RuntimeError):
        from sinkscope.models.devices import is_out_of_memory

        if is_out_of_memory(error):
            return NO_MEMORY, 1
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return f"{error}: pip install 'sinkscope[{EXTRAS[error.name]}]'", 2
    if isinstance(error, OSError):
        return f"{error.filename or 'standard output'}: {error.strerror or error}", 1
    return f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", 1


def _run(arguments: list[str]) -> None:
    from sinkscope.commands import COMMANDS, find_command, summary
    from sinkscope.errors import CallError

    if arguments[:1] == ["help"] and len(arguments) > 1:  # `help sinks` is `sinks --help`
        arguments = [*arguments[1:], "--help"]
    name, *rest = arguments or ["help"]
    if name in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        lines = (f"  {command:<{width}}  {summary(command)}" for command in COMMANDS)
        print("sinkscope: see, test and fix the attention sinks of diffusion language models\n", *lines, sep="\n")
        print("\n`sinkscope COMMAND --help` shows its options.")
    elif name in ("-V", "--version"):
        from importlib.metadata import version

        print(f"sinkscope {version('sinkscope')}")
    elif name in COMMANDS:
        import tyro  # which reports flags that do not fit, and exits with status 2
        from tyro.conf import DisallowNone, FlagCreatePairsOff

        config = (FlagCreatePairsOff, DisallowNone)
        tyro.cli(find_command(name), prog=f"sinkscope {name}", args=rest, config=config).run()
    else:
        raise CallError(f"no command {name!r}; expected one of {', '.join(COMMANDS)}")


def _fail(message: str, status: int, debug: bool) -> None:
    """Print an error to standard error and exit; with ``debug`` the traceback comes first."""
    from sinkscope.runs.files import printable

    if debug:
        import traceback

        traceback.print_exc()
    _drop_output()
    print(f"sinkscope: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(status)


def _drop_output() -> None:
    """Drop what standard output cannot take, so that the interpreter ends without a second error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
