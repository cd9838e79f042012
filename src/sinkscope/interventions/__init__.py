"""Taking keys away while a model writes: rules, their controls, and how much attention they removed."""

import warnings
from typing import Any

from sinkscope.interventions.controls import (
    MassMatchedKeys,
    NextRanks,
    PersistentRandomKeys,
    RandomKeys,
    RowMatchedKeys,
    SameClassKeys,
)
from sinkscope.interventions.effect import Effect
from sinkscope.interventions.fixed_keys import HidePositions, HideSinkToken, KeepWindow, drop_past
from sinkscope.interventions.hiding import Hiding
from sinkscope.interventions.intervention import Composed, Intervention, compose
from sinkscope.interventions.observed import Observed, Ranking
from sinkscope.interventions.rule_context import Observation, RuleContext
from sinkscope.interventions.rules import known_controls, known_rules, parse_rule, split_rules
from sinkscope.interventions.sinks_above import HideSinksAbove, calibrate_excess
from sinkscope.interventions.top_sinks import HideTopSinks, SinkRule

__all__ = [
    "Composed",
    "Effect",
    "HidePositions",
    "HideSinkToken",
    "HideSinksAbove",
    "HideTopSinks",
    "Hiding",
    "Intervention",
    "KeepWindow",
    "MassMatchedKeys",
    "NextRanks",
    "Observation",
    "Observed",
    "PersistentRandomKeys",
    "RandomKeys",
    "Ranking",
    "RowMatchedKeys",
    "RuleContext",
    "SameClassKeys",
    "SinkRule",
    "calibrate_excess",
    "compose",
    "drop_past",
    "known_controls",
    "known_rules",
    "parse_rule",
    "split_rules",
]

_RENAMED: dict[str, Any] = {"Look": RuleContext, "Seen": Observation}


def __getattr__(name: str) -> Any:
    """Return what an old name stands for, with a warning."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name].__name__
    warnings.warn(f"sinkscope.interventions.{name} is now called {new}", DeprecationWarning, stacklevel=2)
    return _RENAMED[name]
