# The table of contents: every public name, once, in the order of the work.
# isort: skip_file

__version__: str

from .models import Model as Model, SinkToken as SinkToken, add_sink_token as add_sink_token, load as load
from .decoding import (
    Generation as Generation,
    Likelihood as Likelihood,
    generate as generate,
    log_likelihood as log_likelihood,
)
from .recorder import recording as recording
from .decoding import following as following
from .traces import Trace as Trace, open_trace as open_trace, open_traces as open_traces
from .sinks import Sinks as Sinks, Track as Track, Tracks as Tracks, find_sinks as find_sinks, track as track
from .statistics import analyse as analyse
from .interventions import HideTopSinks as HideTopSinks, parse_rule as parse_rule
from .figures.explorer import explore as explore
from .roles import Roles as Roles, find_roles as find_roles
from .lenses import Lens as Lens, lens as lens
from .evaluation import evaluate as evaluate
from . import evaluation as evaluation, figures as figures, interventions as interventions
