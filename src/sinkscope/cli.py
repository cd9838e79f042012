"""The command line: parses the flags of one command, runs it, and turns an error into one message and an exit status."""

import dataclasses
import os
import sys
import traceback

import tyro
from tyro.conf import DisallowNone, FlagCreatePairsOff, UseAppendAction

from sinkscope.commands import COMMANDS, Command, find_command
from sinkscope.errors import CallError, SinkscopeError


def main() -> None:
    """Run ``sinkscope COMMAND …`` and exit: 0 done, 1 the work failed, 2 the call was wrong."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    arguments = [one for one in arguments if one != "--debug"]
    try:
        try:
            _run(arguments)
        except SystemExit:  # how --help ends
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # so that an error of writing is raised here, where it can be reported
    except SinkscopeError as error:
        _fail(str(error), 2 if isinstance(error, CallError) else 1, debug)
    except KeyboardInterrupt:
        _fail("interrupted", 130, debug)
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        sys.exit(1)
    except OSError as error:
        where = error.filename or ("standard output" if _drop_output("\n") else "the system")
        _fail(f"{where}: {error.strerror or error}", 1, debug)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", 1, debug)


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return
    if arguments[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"sinkscope {version('sinkscope')}")
        return
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise CallError(f"no command {name!r}; expected one of {', '.join(COMMANDS)}")
    command = find_command(name)
    _refuse_repeated_flags(command, rest)
    tyro.cli(command, prog=f"sinkscope {name}", args=rest, config=(FlagCreatePairsOff, DisallowNone)).run()


def _refuse_repeated_flags(command: type[Command], arguments: list[str]) -> None:
    """Raise CallError where a flag is given twice; otherwise the first value would silently be lost."""
    fields = {field.name: getattr(field.type, "__metadata__", ()) for field in dataclasses.fields(command)}  # type: ignore[arg-type]
    flags = [one.partition("=")[0].replace("_", "-") for one in arguments if one.startswith("--")]
    for flag in dict.fromkeys(flags):
        repeatable = UseAppendAction in fields.get(flag[2:].replace("-", "_"), ())
        if flags.count(flag) > 1 and not repeatable:
            raise CallError(
                f"{flag} is given {flags.count(flag)} times; give it once, with commas between its values where it takes several"
            )


def _overview() -> str:
    """Return the help that lists every command with the first line of its docstring."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {(find_command(name).__doc__ or '').splitlines()[0]}" for name in COMMANDS]
    return "\n".join(
        [
            "sinkscope: see, test and fix the attention sinks of diffusion language models",
            "",
            *lines,
            "",
            "`sinkscope COMMAND --help` shows its options.",
        ]
    )


def _fail(message: str, status: int, debug: bool) -> None:
    """Print an error to standard error and exit; with ``debug`` the traceback comes first."""
    if debug:
        traceback.print_exc()
    _drop_output()
    print(f"sinkscope: error: {message}", file=sys.stderr)
    sys.exit(status)


def _drop_output(probe: str = "") -> bool:
    """Return whether standard output fails; if so, drop its buffer, so that the interpreter ends without a second error.

    Args:
        probe: text to write first, so that a failure shows even if the buffer is empty.
    """
    try:
        sys.stdout.write(probe)
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        return True
    return False
