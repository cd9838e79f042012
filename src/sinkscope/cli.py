"""The command line: parses the flags of one command, runs it, and turns an error into one message and an exit status.

Only what Python has loaded already is imported at the top, so that an interrupt while the rest is imported is reported too.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sinkscope.commands import Command

INTERRUPTED = "interrupted"
AGAIN_S = 0.02
"""Seconds after which an interrupt that Python ignored is sent once more."""
NARROWEST = 40
"""Columns for which the parser can lay out its help; it loops for ever in five."""
LEAST_BYTES = 1280 << 20
"""Address space without which torch cannot be imported, or waits for ever for a thread that could not be started."""
_NO_MEMORY = ("failed to map segment from shared object", "cannot allocate memory", "can't start new thread")
"""What the loader of libraries and Python say where the address space is too small."""
_SAID: "list[str]" = []
"""Messages of errors that were printed."""


def main() -> None:
    """Run ``sinkscope COMMAND …`` and exit: 0 done, 1 the work failed, 2 the call was wrong."""
    debug = False
    try:
        _heed_interrupts()
        _prepare_output()
        _check_date()
        arguments = sys.argv[1:]
        debug = "--debug" in arguments
        try:
            _run([one for one in arguments if one != "--debug"])
        except SystemExit:  # how --help ends
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # so that an error of writing is raised here, where it can be reported
    except KeyboardInterrupt:
        _catch_late_interrupt()
        exec(
            ""
        )  # Python would end by the signal, not by our status, where it came within an exec, such as a dataclass being made
        _fail(INTERRUPTED, 130, debug)
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        sys.exit(1)
    except Exception as error:
        _fail(*_told(error), debug)
    finally:
        _end_quietly()


def _told(error: Exception) -> "tuple[str, int]":
    """Return the message and the exit status of an error."""
    from sinkscope.errors import CallError, SinkscopeError

    if isinstance(error, SinkscopeError):
        return str(error), 2 if isinstance(error, CallError) else 1
    if isinstance(error, FileNotFoundError) and "usable temporary directory" in str(error):
        return (
            "expected a folder for temporary files that can be written, found none; set TMPDIR to one, or make room in /tmp",
            1,
        )
    if isinstance(error, OSError):
        where = error.filename or ("standard output" if _drop_output("\n") else "the system")
        named = _variable_that_names(str(where))
        return f"{where}: {error.strerror or error}" + (
            f"; the environment variable {named} says so, unset it" if named else ""
        ), 1
    if (
        isinstance(error, MemoryError)
        or any(words in str(error) for words in _NO_MEMORY)
        or _is_torch_out_of_memory(error)
    ):
        sys.unraisablehook = lambda _: None  # what torch prints of itself at the end, where half of it was imported
        return f"there is not enough memory; use {_smaller(sys.argv[1:])}a machine with more", 1
    from sinkscope.library_settings import refused_file
    from sinkscope.refused_variables import refused_variable

    if told := refused_file(error) or refused_variable(error):
        return told, 1
    return f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", 1


def _is_torch_out_of_memory(error: Exception) -> bool:
    if "torch" not in sys.modules or not isinstance(error, RuntimeError):
        return False
    from sinkscope.models.devices import is_out_of_memory

    return is_out_of_memory(error)


def _smaller(words: "list[str]") -> str:
    """Return what makes the command that begins with these words need less memory."""
    import contextlib

    from sinkscope.commands import COMMANDS, find_command

    flags: set[str] = set()
    with contextlib.suppress(MemoryError):
        flags = {
            field
            for name in words[:1]
            if name in COMMANDS
            for field in getattr(find_command(name), "__dataclass_fields__", ())
        }
    less = {"prompts": "fewer or shorter prompts", "batch": "a smaller --batch"}
    found = "".join(f"{advice}, " for flag, advice in less.items() if flag in flags)
    return found and f"{found}or "


def _variable_that_names(path: str) -> "str | None":
    """Return the environment variable that tells a library to use a path, such as TORCHINDUCTOR_CACHE_DIR."""
    for name, value in os.environ.items():
        names_path = value and name.endswith(("_CACHE", "_CACHE_DIR", "_CACHE_HOME", "_HOME", "_LOGS_OUT"))
        if names_path and f"{path}/".startswith((f"{value.rstrip('/')}/", f"{os.path.abspath(value)}/")):
            return name
    return None


def _check_date() -> None:
    """Take SOURCE_DATE_EPOCH that is empty for unset, as matplotlib does; NumPy fails at it, and at what is no number.

    Raises:
        SinkscopeError: it is no whole number.
    """
    from sinkscope.errors import SinkscopeError

    date = os.environ.get("SOURCE_DATE_EPOCH")
    if date == "":
        del os.environ["SOURCE_DATE_EPOCH"]
    elif date is not None and not (date.isascii() and date.isdigit() and len(date) < 12):
        found = f"the environment variable SOURCE_DATE_EPOCH is set to {date[:60]!r}"
        raise SinkscopeError(f"{found}, which matplotlib and NumPy refuse; expected seconds since 1970, or unset it")


def _prepare_output() -> None:
    """Print UTF-8 whatever the locale; on a terminal that shows less, what it cannot show is replaced.

    Raises:
        SinkscopeError: standard output was closed before the start, or the current folder was deleted.
    """
    from sinkscope.errors import SinkscopeError

    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise SinkscopeError("standard output is closed; expected somewhere to print to, such as > /dev/null")
    try:
        os.getcwd()
    except OSError:
        raise SinkscopeError("the current folder does not exist any more; change to another one") from None
    if sys.flags.optimize > 1:
        raise SinkscopeError(
            "PYTHONOPTIMIZE is 2 (python -OO), which takes away texts that transformers needs; unset PYTHONOPTIMIZE"
        )
    for stream in (sys.stdout, sys.stderr):
        change: Any = getattr(stream, "reconfigure", None)  # a stream that stands in for another may have none
        if change is not None:
            change(errors="replace") if stream.isatty() else change(encoding="utf-8", errors="backslashreplace")


def _heed_interrupts() -> None:
    """Let an interrupt while torch is being imported end the program at once: its C++ code would abort.

    While the interpreter itself is ending, interrupts are ignored: Python would end by the signal then, not with a status. One that comes
    where Python ignores what is raised, such as in what it calls around a fork, is sent once more.
    """
    import atexit
    import signal
    import threading

    def heed(*_: object) -> None:
        if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
            _end_interrupted()
        raise KeyboardInterrupt

    def send_again(ignored: "Any", usual: "Any" = sys.unraisablehook) -> None:
        if ignored.exc_type is not KeyboardInterrupt:
            return usual(ignored)
        again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()

    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, heed)
        sys.unraisablehook = send_again
        atexit.register(
            signal.signal, signal.SIGINT, signal.SIG_IGN
        )  # the first to be registered is the last to be called


def _end_interrupted(*_: object) -> None:
    """End the program at once, with one line, unless an earlier interrupt has printed it."""
    if INTERRUPTED not in _SAID:
        os.write(2, f"sinkscope: error: {INTERRUPTED}\n".encode())
    os._exit(130)


def _end_quietly() -> None:
    """From the end of the program on, let an interrupt end it with one line."""
    import atexit

    atexit.unregister(_catch_late_interrupt)
    atexit.register(_catch_late_interrupt)


def _catch_late_interrupt() -> None:
    import signal

    signal.signal(signal.SIGINT, _end_interrupted)


def _run(arguments: "list[str]") -> None:
    from sinkscope.commands import COMMANDS, find_command
    from sinkscope.errors import CallError

    if arguments[:1] == ["help"] and len(arguments) > 1:  # `help sinks` is `sinks --help`
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return
    if arguments[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"sinkscope {version('sinkscope')}")
        return
    for one in arguments:
        if not one.isascii() and any("\ud800" <= letter <= "\udfff" for letter in one):
            raise CallError(f"expected arguments in UTF-8, found {one[:60]!a}")
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise CallError(f"no command {name!r}; expected one of {', '.join(COMMANDS)}")

    from sinkscope.commands.arguments import check_arguments
    from sinkscope.commands.bounds import check_bounds

    if "--help" not in rest and "-h" not in rest:
        _expect_memory()
    command, rest = find_command(name), _without_end_of_flags(rest)
    check_arguments(command, rest)
    parsed = _parse(command, name, rest)
    check_bounds(parsed)
    parsed.run()


def _expect_memory() -> None:
    """Raise an error where so little address space is allowed that libraries in C would end the program in words of their own.

    Raises:
        SinkscopeError: such a limit.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return
    from sinkscope.errors import SinkscopeError

    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed != resource.RLIM_INFINITY and allowed < LEAST_BYTES:
        found = f"found a limit of {allowed >> 20} MiB (ulimit -v)"
        raise SinkscopeError(
            f"expected at least {LEAST_BYTES >> 20} MiB of address space, as torch needs, {found}; raise that limit"
        )


def _without_end_of_flags(words: "list[str]") -> "list[str]":
    """Return words without the ``--`` behind which none is a flag: those behind it follow the first words, as paths."""
    if "--" not in words:
        return words
    end = words.index("--")
    first = next((at for at, word in enumerate(words[:end]) if word.startswith("-")), end)
    paths = [f"./{word}" if word.startswith("-") else word for word in words[end + 1 :]]
    return [*words[:first], *paths, *words[first:end]]


def _parse(command: "type[Command]", name: str, arguments: "list[str]") -> "Command":
    """Return a command with the values of its flags.

    Raises:
        CallError: they cannot be parsed. The parser's own words are dropped, because `check_arguments` has reported the mistake.
    """
    import contextlib
    import io
    import shutil

    import tyro
    from tyro.conf import DisallowNone, FlagCreatePairsOff

    from sinkscope.errors import CallError

    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(
                command, prog=f"sinkscope {name}", args=arguments, config=(FlagCreatePairsOff, DisallowNone)
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        found = " ".join(arguments)
        raise CallError(f"expected the flags that `sinkscope {name} --help` lists, found {found[:60]!r}") from end


def _overview() -> str:
    """Return the help that lists every command with the first line of its docstring."""
    from sinkscope.commands import COMMANDS, find_command

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
    from sinkscope.documents import printable

    if debug:
        import traceback

        traceback.print_exc()
    _drop_output()
    message = " ".join(message.split()) if "\n" in message else message
    print(f"sinkscope: error: {printable(message)}", file=sys.stderr)
    _SAID.append(message)
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
