"""The samplers' settings as flags: one optional flag for each setting of any sampler, read from the settings' own dataclasses."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from tyro.conf import FlagConversionOff, arg


def _flags(default: str | None = None) -> type:
    """Return a typed dictionary whose keys are the settings; parsed, it holds those that were given.

    Args:
        default: what the help says of every default; the samplers' own defaults when None.
    """
    import docstring_parser

    from sinkscope.decoding.samplers import all_settings

    flags: dict[str, Any] = {}
    for kind in all_settings().values():
        texts = {one.arg_name: one.description or "" for one in docstring_parser.parse(kind.__doc__ or "").params}
        for field in dataclasses.fields(kind):
            hint = f"(default: {default or _default_by_sampler(field.name)})"
            shown = arg(help=texts[field.name].replace("`", ""), help_behavior_hint=hint)
            flags.setdefault(field.name, Annotated[FlagConversionOff[field.type], shown])
    return TypedDict("SamplerFlags", flags, total=False)  # type: ignore[operator]


def _default_by_sampler(name: str) -> str:
    """Return a setting's default; with the samplers that have it, where not all do or where they differ."""
    from sinkscope.decoding.samplers import FOLLOW_LENGTH, all_settings

    samplers: dict[Any, list[str]] = {}
    for sampler, kind in all_settings().items():
        for field in dataclasses.fields(kind):
            if field.name == name:
                samplers.setdefault(field.default, []).append(sampler)
    if [*samplers.values()] == [[*all_settings()]]:
        return str(next(iter(samplers)))
    values = "; ".join(f"{value} for {', '.join(names)}" for value, names in samplers.items())
    return f"--length where given, else {values}" if name in FOLLOW_LENGTH else values


SamplerFlags = Annotated[Mapping[str, Any], arg(name="", constructor_factory=_flags)]
"""The settings that were given, by name; the sampler's defaults are in the help."""

TaskSamplerFlags = Annotated[
    Mapping[str, Any], arg(name="", constructor_factory=lambda: _flags("the protocol's or the task's, else the sampler's"))
]
"""The same for `evaluate`, where a protocol or a task has defaults of its own."""
