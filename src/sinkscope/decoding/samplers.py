"""Samplers by name: NAME is the function ``NAME_steps(model, batch, settings)`` in the file NAME.py of this package.

The annotation of ``settings`` is the class of its settings. Those of the samplers that ship with sinkscope are in
`settings`, which loads without torch for the command line; another sampler defines its class in its own file.
"""

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

from sinkscope.decoding.settings import (
    AutoregressiveSettings,
    DreamSettings,
    LLaDA2Settings,
    LLaDASettings,
    MMaDASettings,
    SDARSettings,
    Settings,
    SettingsError,
)
from sinkscope.models.families import FAMILIES
from sinkscope.models.family import Family

SHIPPED: dict[str, type[Settings]] = {
    "llada": LLaDASettings,
    "mmada": MMaDASettings,
    "dream": DreamSettings,
    "sdar": SDARSettings,
    "llada2": LLaDA2Settings,
    "autoregressive": AutoregressiveSettings,
}

OTHER_NAMES = {
    "max_new_tokens": "length",
    "max_length": "length",
    "gen_length": "length",
    "block_length": "block",
    "block_size": "block",
    "small_block_size": "small_block",
    "cfg_scale": "guidance",
    "cfg": "guidance",
    "do_sample": "temperature",
    "diffusion_steps": "steps",
    "num_steps": "steps",
    "alg": "algorithm",
    "algorithm_temp": "alg_temp",
    "algorithm_temperature": "alg_temp",
    "sampling_eps": "eps",
    "denoising_steps": "block_steps",
    "remasking_strategy": "remasking",
    "confidence_threshold": "threshold",
    "stopping_criteria_idx": "stop",
}
"""Our name for each setting of other libraries."""


def find_sampler(name: str) -> Callable[..., Any]:
    """Return the function that writes, one step at a time."""
    return getattr(import_module(f"sinkscope.decoding.{name}"), f"{name}_steps")


def settings_of(sampler: str) -> type[Settings]:
    """Return the class of a sampler's settings."""
    return SHIPPED[sampler] if sampler in SHIPPED else get_type_hints(find_sampler(sampler))["settings"]


def all_settings() -> dict[str, type[Settings]]:
    """Return the class of the settings of every sampler that a family names, by the sampler's name."""
    return {name: settings_of(name) for name in [*SHIPPED, *(family.sampler for family in FAMILIES.values())]}


def resolve_settings(family: Family, **given: Any) -> Settings:
    """Return the settings of a family's sampler; for diffusion, ``length`` alone sets ``steps`` and ``block`` to it.

    Raises:
        SettingsError: an unknown setting, with the right name where there is one.
        CallError: values that do not fit together.
    """
    kind = settings_of(family.sampler)
    import numpy as np  # not for help

    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    names = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in names:
            other = OTHER_NAMES.get(name)
            hint = f"; here it is called {other}" if other in names else ""
            raise SettingsError(f"{family.name} has no setting {name!r}{hint}. Its settings are {', '.join(names)}")
    if "length" in given:
        given = {**{name: given["length"] for name in kind.follows_length if name in names}, **given}
    settings = kind(**given)
    if getattr(settings, "cache", "none") != "none":
        from sinkscope.decoding.caches.parsing import parse_cache

        if (policy := parse_cache(settings.cache)) is not None:  # type: ignore[attr-defined]
            policy.check(family, settings)
    return settings
