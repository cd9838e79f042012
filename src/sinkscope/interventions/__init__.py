"""Taking keys away while a model writes: the rules, their controls, and what came of it."""

from sinkscope.interventions.calibration import calibrate_excess
from sinkscope.interventions.composition import Composed, compose, drop_past
from sinkscope.interventions.effect import Effect
from sinkscope.interventions.hiding import Hiding, Observation, RuleContext
from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.mass_matched_keys import MassMatchedKeys
from sinkscope.interventions.next_ranks import NextRanks
from sinkscope.interventions.observed import Observed, Ranking
from sinkscope.interventions.persistent_random_keys import PersistentRandomKeys
from sinkscope.interventions.positions import HidePositions
from sinkscope.interventions.random_keys import RandomKeys
from sinkscope.interventions.rules import RULES, parse_rule, split_rules
from sinkscope.interventions.same_class_keys import SameClassKeys
from sinkscope.interventions.sink_token import HideSinkToken
from sinkscope.interventions.sinks_above import HideSinksAbove
from sinkscope.interventions.top_sinks import HideTopSinks, SinkRule
from sinkscope.interventions.why import Reliance, reliance
from sinkscope.interventions.window import KeepWindow

__all__ = [
    "RULES",
    "Composed",
    "Effect",
    "HidePositions",
    "HideSinkToken",
    "HideSinksAbove",
    "HideTopSinks",
    "Hiding",
    "Intervention",
    "KeepWindow",
    "RuleContext",
    "MassMatchedKeys",
    "NextRanks",
    "Observed",
    "PersistentRandomKeys",
    "RandomKeys",
    "Ranking",
    "Reliance",
    "SameClassKeys",
    "Observation",
    "SinkRule",
    "calibrate_excess",
    "compose",
    "drop_past",
    "parse_rule",
    "reliance",
    "split_rules",
]
