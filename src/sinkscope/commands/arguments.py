"""Checks the words behind a command before they are parsed, so that a mistake is told in one message that names the flag."""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tyro.conf import FlagConversionOff, Positional, UseAppendAction

from sinkscope.argument_types import check_argument
from sinkscope.commands.bounds import metadata_in, types_in
from sinkscope.commands.command import Command
from sinkscope.errors import CallError

SHOWN = 60
"""Characters of a word in a message."""
PLAIN: dict[type, str] = {int: "-?[0-9]+", float: "[-+.0-9A-Za-z]+"}
"""The letters of numbers that are taken."""


@dataclass(frozen=True)
class _Flag:
    """A flag, or a place for words without one, as the class of a command declares it.

    Attributes:
        name: ``--keep-maps``; of a place the name of its field.
        types: all that its value may be.
        choices: the only values, where they are listed.
        switch: takes no value.
        several: takes one value or more, up to the next flag.
        again: may be given several times.
        required: must be given.
    """

    name: str
    types: list[Any]
    choices: tuple[str, ...]
    switch: bool
    several: bool
    again: bool
    required: bool


def check_arguments(command: type[Command], arguments: Sequence[str]) -> None:
    """Raise CallError for a flag that the command does not have or that is given twice, and for a value that its flag cannot take.

    Raises:
        CallError: the first such word.
    """
    if {"-h", "--help"} & {*arguments}:
        return
    flags, places = _declared(command)
    free, given, words, last = list(places), set[str](), list(arguments), ""
    while words:
        word = words.pop(0)
        if not _is_flag(word):
            if not free:
                raise CallError(_one_too_many(word, last, places))
            _check_value(free[0], word)
            last = word
            given.add(free[0].name)
            if not free[0].several:
                free.pop(0)
            continue
        name, equals, value = word.partition("=")
        flag = _find(name.replace("_", "-"), flags)
        if flag.name in given and not flag.again:
            count = sum(one.partition("=")[0].replace("_", "-") == flag.name for one in arguments)
            raise CallError(
                f"{flag.name} is given {count} times; give it once, with commas between its values where it takes several"
            )
        given.add(flag.name)
        if flag.switch and equals:
            raise CallError(f"{flag.name}: expected no value, found {_shown(value)}")
        if flag.switch:
            continue
        values = [value] if equals else _take(flag, words, flags)
        for one in values:
            _check_value(flag, one)
    for flag in [*places, *flags.values()]:
        if flag.required and flag.name not in given:
            raise CallError(f"expected {flag.name}, found none; --help says what it is")


def _one_too_many(word: str, last: str, places: Sequence[_Flag]) -> str:
    """Return the message for a word that is no flag where the last place has been taken by another one."""
    behind = word.startswith("./-")  # as paths behind -- are written
    found = _shown(word[2:]) if behind else _shown(word)
    why = "; what stands behind -- is no flag" if behind else ""
    if not last:
        return f"expected a flag, found {found}, a word that belongs to none{why}"
    return f"expected one {places[-1].name}, found {_shown(last)} and {found}, a word that belongs to no flag{why}"


def _take(flag: _Flag, words: list[str], flags: Mapping[str, _Flag]) -> list[str]:
    """Remove the values of a flag from the words behind it, and return them."""
    if not words or words[0].partition("=")[0] in flags:
        raise CallError(f"{flag.name}: expected a value, found {f'the flag {words[0]}' if words else 'none'}")
    values = [words.pop(0)]
    while flag.several and words and not _is_flag(words[0]):
        values.append(words.pop(0))
    return values


def _declared(command: type[Command]) -> tuple[dict[str, _Flag], list[_Flag]]:
    """Return the flags of a command by name, and the places for words without a flag."""
    flags, places = {}, []
    hints = get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):  # type: ignore[arg-type]
        hint = hints[field.name]
        if Mapping in types_in(hint):
            from sinkscope.commands.sampler_flags import setting_types

            settings = [_flag(f"--{name}", one, False, False) for name, one in setting_types().items()]
            flags |= {flag.name: flag for flag in settings}
            continue
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if Positional in metadata_in(hint):
            places.append(_flag(field.name, hint, required, False))
            continue
        name = f"--{'no-' if field.default is True else ''}{field.name}".replace("_", "-")
        flags[name] = _flag(name, hint, required, FlagConversionOff not in metadata_in(hint))
    return flags, places


def _flag(name: str, hint: Any, required: bool, may_switch: bool) -> _Flag:
    types, again = types_in(hint), UseAppendAction in metadata_in(hint)
    choices = tuple(choice for one in types if get_origin(one) is Literal for choice in get_args(one))
    several = tuple in (get_origin(one) for one in types)
    return _Flag(
        name.replace("_", "-"),
        types,
        choices,
        may_switch and bool in types,
        several and not again,
        again,
        required and not several,
    )


def _is_flag(word: str) -> bool:
    """Return whether a word is no value; a negative number is one."""
    return (
        word.startswith("-")
        and len(word) > 1
        and not (word[1].isdigit() or word[1] == "." or word[1:4] in ("inf", "nan"))
    )


def _find(name: str, flags: Mapping[str, _Flag]) -> _Flag:
    if name in flags:
        return flags[name]
    near = difflib.get_close_matches(name, flags, n=2)
    expected = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join([*flags, '--help'])}"
    raise CallError(f"no flag {_shown(name)}; {expected}")


def _check_value(flag: _Flag, value: str) -> None:
    if flag.choices:
        if value not in flag.choices:
            raise CallError(f"{flag.name}: expected one of {', '.join(flag.choices)}, found {_shown(value)}")
    elif bool in flag.types:
        if value not in ("True", "False"):
            raise CallError(f"{flag.name}: expected True or False, found {_shown(value)}")
    elif float in flag.types:
        _check_number(flag, value, float, "a number")
    elif int in flag.types:
        _check_number(flag, value, int, "a whole number")
    elif Path in flag.types:
        check_argument(flag.name if flag.name.startswith("--") else "the folder", value, Path | str)


def _check_number(flag: _Flag, value: str, kind: type, expected: str) -> None:
    try:
        found = kind(value)
    except ValueError as error:
        raise CallError(f"{flag.name}: expected {expected}, found {_shown(value)}") from error
    if not re.fullmatch(PLAIN[kind], value):  # Python takes underscores, spaces and other scripts' digits too
        raise CallError(
            f"{flag.name}: expected {expected} in plain digits, found {_shown(value)}; write {str(found)[:SHOWN]}"
        )


def _shown(word: str) -> str:
    return repr(word if len(word) <= SHOWN else word[:SHOWN] + "…")
