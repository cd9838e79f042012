# isort: skip_file

from .observed import MassMatchedKeys as MassMatchedKeys, NextRanks as NextRanks
from .observed import PersistentRandomKeys as PersistentRandomKeys, RandomKeys as RandomKeys
from .observed import RowMatchedKeys as RowMatchedKeys, SameClassKeys as SameClassKeys
from .effect import Effect as Effect
from .intervention import HidePositions as HidePositions, HideSinkToken as HideSinkToken
from .intervention import KeepWindow as KeepWindow
from .hiding import Hiding as Hiding
from .intervention import Composed as Composed, Intervention as Intervention, compose as compose
from .observed import HideSinksAbove as HideSinksAbove, HideTopSinks as HideTopSinks, Observed as Observed
from .observed import Ranking as Ranking, SinkRule as SinkRule, calibrate_excess as calibrate_excess
from .rule_context import Observation as Observation, RuleContext as RuleContext
from .intervention import known_controls as known_controls, known_rules as known_rules
from .intervention import parse_rule as parse_rule, split_rules as split_rules
