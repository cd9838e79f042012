# isort: skip_file

from .moment import HeldOut as HeldOut, hold_out as hold_out, measure as measure
from .history import Emergence as Emergence, Moment as Moment, open_emergence as open_emergence
from .moment import TrainingWatch as TrainingWatch
