# isort: skip_file

from .comparison import Group as Group, Lens as Lens, lens as lens
from .tuned import TunedLens as TunedLens, fit_lens as fit_lens, open_lens as open_lens
