"""The command line: parse, call one function, print. Each command imports what it needs, so that each starts quickly."""

import dataclasses
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import tyro
from tyro.conf import FlagCreatePairsOff

from sinkscope.commands import COMMANDS
from sinkscope.errors import CallError, SinkscopeError


def main() -> None:
    """Runs ``sinkscope COMMAND …`` and exits: 0 done, 1 the work failed, 2 the call was wrong."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    arguments = [one for one in arguments if one != "--debug"]
    try:
        _run(arguments)
    except SinkscopeError as error:
        _fail(str(error), 2 if isinstance(error, CallError) else 1, debug)
    except KeyboardInterrupt:
        _fail("interrupted", 130, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}", 1, debug)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", 1, debug)


def _fail(message: str, status: int, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"sinkscope: error: {message}", file=sys.stderr)
    sys.exit(status)


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
    command = COMMANDS[name]
    if "sampler" in command.__annotations__:
        _give_sampler_flags(command)
    tyro.cli(command, prog=f"sinkscope {name}", args=rest, config=(FlagCreatePairsOff,))


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "sinkscope: see, test and fix the attention sinks of diffusion language models",
            "",
            *lines,
            "",
            "`sinkscope COMMAND --help` shows its options.",
        ]
    )


def _sampler_flags() -> Any:
    """One optional flag per setting of any sampler, read from the settings' own dataclasses."""
    import docstring_parser

    from sinkscope.decoding.settings import SETTINGS

    fields: dict[str, Any] = {}
    for kind in SETTINGS.values():
        texts = {item.arg_name: item.description for item in docstring_parser.parse(kind.__doc__ or "").params}
        for field in dataclasses.fields(kind):
            flag = tyro.conf.arg(help=f"{texts.get(field.name, '')} (default: the sampler's)")
            fields.setdefault(field.name, (field.name, Annotated[field.type | None, flag], None))  # type: ignore[operator]
    return dataclasses.make_dataclass("SamplerFlags", list(fields.values()), frozen=True)


def _give_sampler_flags(command: Callable[..., None]) -> None:
    """Fills the type of a command's last parameter, ``sampler``; late, because the settings import torch."""
    flags = _sampler_flags()
    command.__annotations__["sampler"] = Annotated[flags, tyro.conf.arg(name="")]
    command.__defaults__ = (*(command.__defaults__ or ())[:-1], flags())  # type: ignore[attr-defined]
