# isort: skip_file

from .held_out import HeldOut as HeldOut, hold_out as hold_out
from .moment import measure as measure
from .history import Emergence as Emergence, Moment as Moment
from .storage import open_emergence as open_emergence
from .watch import TrainingWatch as TrainingWatch
