# isort: skip_file

from .controls import MassMatchedKeys as MassMatchedKeys, NextRanks as NextRanks
from .controls import PersistentRandomKeys as PersistentRandomKeys, RandomKeys as RandomKeys
from .controls import RowMatchedKeys as RowMatchedKeys, SameClassKeys as SameClassKeys
from .effect import Effect as Effect
from .fixed_keys import HidePositions as HidePositions, HideSinkToken as HideSinkToken
from .fixed_keys import KeepWindow as KeepWindow
from .hiding import Hiding as Hiding
from .intervention import Composed as Composed, Intervention as Intervention, compose as compose
from .observed import HideSinksAbove as HideSinksAbove, HideTopSinks as HideTopSinks, Observed as Observed
from .observed import Ranking as Ranking, SinkRule as SinkRule, calibrate_excess as calibrate_excess
from .rule_context import Observation as Observation, RuleContext as RuleContext
from .rules import known_controls as known_controls, known_rules as known_rules
from .rules import parse_rule as parse_rule, split_rules as split_rules
