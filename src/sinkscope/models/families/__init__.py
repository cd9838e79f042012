"""The families of checkpoints that can be loaded: every `Family` in the files ``NAME_family.py`` here."""

import pkgutil
from importlib import import_module

from sinkscope.models.family import Family

_MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
FAMILIES = {one.name: one for module in _MODULES for one in vars(module).values() if isinstance(one, Family)}
