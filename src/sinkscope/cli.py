"""The command line: parse, call one function, print. Each command imports what it needs, so that each starts quickly."""

import dataclasses
import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, get_args

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
        try:
            _run(arguments)
        except SystemExit:  # how --help ends
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # what is still in the buffer fails here, where it can be told
    except SinkscopeError as error:
        _fail(str(error), 2 if isinstance(error, CallError) else 1, debug)
    except KeyboardInterrupt:
        _fail("interrupted", 130, debug)
    except BrokenPipeError:  # whoever read has seen enough: nothing to say
        _drop_output()
        sys.exit(1)
    except OSError as error:
        where = error.filename or ("standard output" if _drop_output("\n") else "the system")
        _fail(f"{where}: {error.strerror or error}", 1, debug)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", 1, debug)


def _fail(message: str, status: int, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    _drop_output()
    print(f"sinkscope: error: {message}", file=sys.stderr)
    sys.exit(status)


def _drop_output(probe: str = "") -> bool:
    """Whether standard output takes nothing more; then what is in its buffer is dropped, so that the interpreter can end in peace."""
    try:
        sys.stdout.write(probe)
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        return True
    return False


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
    _refuse_options_given_twice(command, rest)
    _tell_defaults(command)
    if "sampler" in command.__annotations__:
        _give_sampler_flags(command)
    tyro.cli(command, prog=f"sinkscope {name}", args=rest, config=(FlagCreatePairsOff,))


def _refuse_options_given_twice(command: Callable[..., None], arguments: list[str]) -> None:
    """Of two the last would win, without a word."""
    given = [one.partition("=")[0] for one in arguments if one.startswith("--")]
    kinds = inspect.get_annotations(command, eval_str=True)
    for name in dict.fromkeys(given):
        kind = kinds.get(name[2:].replace("-", "_"))
        if given.count(name) > 1 and "UseAppendAction" not in repr(getattr(kind, "__metadata__", "")):
            raise CallError(
                f"{name} is given {given.count(name)} times; give it once, with commas between its values where it takes several"
            )


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


_DEFAULT = re.compile(r"\s*(\(default: [^()]*\)|\(required\))$")


@functools.cache
def _tell_defaults(command: Callable[..., None]) -> None:
    """Options whose help ends with "(default: …)" keep that; switches are off; tyro says the rest."""
    texts = _texts(command)
    for name, parameter in inspect.signature(command).parameters.items():
        found = _DEFAULT.search(texts.get(name, ""))
        given: dict[str, Any] = {"help_behavior_hint": "(default: off)"} if isinstance(parameter.default, bool) else {}
        if found:
            given = {"help": texts[name][: found.start()], "help_behavior_hint": found[1]}
        if parameter.default is None and parameter.annotation is not Any:
            given["metavar"] = _metavar(parameter.annotation)
        if given and name != "sampler":
            command.__annotations__[name] = Annotated[parameter.annotation, tyro.conf.arg(**given)]


def _texts(documented: Any) -> dict[str, str]:
    """What a docstring says of each argument or attribute."""
    import docstring_parser

    return {one.arg_name: one.description or "" for one in docstring_parser.parse(documented.__doc__ or "").params}


def _metavar(kind: Any) -> str:
    """What stands for the value of an option that need not be given: STR, INT, {low_confidence,random} …"""
    (one,) = (one for one in get_args(kind) if one is not type(None))
    values = (True, False) if one is bool else get_args(one)
    return "{" + ",".join(map(str, values)) + "}" if values else one.__name__.upper()


def _sampler_flags(defaults: str | None) -> Any:
    """One optional flag per setting of any sampler, read from the settings' own dataclasses; ``defaults`` are told for all of them."""
    from sinkscope.decoding.settings import SETTINGS

    fields: dict[str, Any] = {}
    for kind in SETTINGS.values():
        texts = _texts(kind)
        for field in dataclasses.fields(kind):
            flag = tyro.conf.arg(
                help=texts.get(field.name, "").replace("`", ""),
                help_behavior_hint=defaults or _sampler_defaults(field.name),
                metavar=_metavar(field.type | None),  # type: ignore[operator]
            )
            fields.setdefault(field.name, (field.name, Annotated[field.type | None, flag], None))  # type: ignore[operator]
    return dataclasses.make_dataclass("SamplerFlags", list(fields.values()), frozen=True)


def _sampler_defaults(name: str) -> str:
    """A setting's default, with the samplers that have it where not all do or where they differ."""
    from sinkscope.decoding.settings import FOLLOW_LENGTH, SETTINGS

    samplers: dict[Any, list[str]] = {}
    for sampler, kind in SETTINGS.items():
        for field in dataclasses.fields(kind):
            if field.name == name:
                samplers.setdefault(field.default, []).append(sampler)
    if [*samplers.values()] == [[*SETTINGS]]:
        return f"(default: {next(iter(samplers))})"
    told = "; ".join(f"{value} for {', '.join(names)}" for value, names in samplers.items())
    return f"(default: {'--length where given, else ' if name in FOLLOW_LENGTH else ''}{told})"


def _give_sampler_flags(command: Callable[..., None]) -> None:
    """Fills the type of a command's last parameter, ``sampler``; late, because the settings import torch."""
    told = _DEFAULT.search(_texts(command).get("sampler", ""))
    flags = _sampler_flags(told and told[1])
    command.__annotations__["sampler"] = Annotated[flags, tyro.conf.arg(name="")]
    command.__defaults__ = (*(command.__defaults__ or ())[:-1], flags())  # type: ignore[attr-defined]
