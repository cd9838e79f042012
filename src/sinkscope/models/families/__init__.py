"""The families of checkpoints that can be loaded. Each ``NAME_family.py`` here holds one record, ``FAMILY``."""

import pkgutil
from collections.abc import Iterable
from importlib import import_module

from sinkscope.models.family import Family


def find_families(path: Iterable[str]) -> dict[str, Family]:
    """Return the records in the files of this package, by name.

    Raises:
        ValueError: two families of one name.
    """
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(path):
        family: Family = import_module(f"{__name__}.{module.name}").FAMILY
        if family.name in found:
            raise ValueError(
                f"{module.name}.py: expected a family of a new name, found another {family.name!r}; rename one of them"
            )
        found[family.name] = family
    return found


FAMILIES = find_families(__path__)
