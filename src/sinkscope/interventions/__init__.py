"""Taking keys away while a model writes: rules, their controls, and how much attention they removed."""

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
