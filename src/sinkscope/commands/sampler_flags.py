"""The settings of all samplers as optional flags, read from the dataclasses of the settings."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from tyro.conf import FlagConversionOff, arg


def _flags(default: str | None = None) -> type:
    """Return a type of dictionary with a key for each setting; a parsed one holds the settings that were given.

    Args:
        default: the text for every default in the help; the defaults of the samplers when None.
    """
    import docstring_parser

    from sinkscope.decoding.settings import all_settings

    types: dict[str, Any] = {}
    for kind in all_settings().values():
        for field in dataclasses.fields(kind):
            types[field.name] = types[field.name] | field.type if field.name in types else field.type
    shown: dict[str, Any] = {}
    for kind in all_settings().values():
        docs = [docstring_parser.parse(one.__doc__ or "") for one in reversed(kind.__mro__)]
        texts = {one.arg_name: one.description or "" for doc in docs for one in doc.params}
        for field in dataclasses.fields(kind):
            hint = f"(default: {default or _default_by_sampler(field.name)})"
            shown.setdefault(field.name, arg(help=texts[field.name].replace("`", ""), help_behavior_hint=hint))
    flags = {name: Annotated[FlagConversionOff[types[name]], shown[name]] for name in types}
    return TypedDict("SamplerFlags", flags, total=False)  # type: ignore[operator]


def _default_by_sampler(name: str) -> str:
    """Return the default of a setting as text, with the names of the samplers if their defaults differ."""
    from sinkscope.decoding.settings import all_settings

    samplers: dict[str, list[str]] = {}
    for sampler, kind in all_settings().items():
        for field in dataclasses.fields(kind):
            if field.name == name:
                default = f"--length, else {field.default}" if name in kind.follows_length else str(field.default)
                samplers.setdefault(default, []).append(sampler)
    if [*samplers.values()] == [[*all_settings()]]:
        return next(iter(samplers))
    return "; ".join(f"{value} for {', '.join(names)}" for value, names in samplers.items())


SamplerFlags = Annotated[Mapping[str, Any], arg(name="", constructor_factory=_flags)]
"""The settings that were given, by name; the help shows the defaults of the samplers."""

TaskSamplerFlags = Annotated[
    Mapping[str, Any],
    arg(name="", constructor_factory=lambda: _flags("the protocol's or the task's, else the sampler's")),
]
"""The same for `evaluate`, where a protocol or a task has its own defaults."""
