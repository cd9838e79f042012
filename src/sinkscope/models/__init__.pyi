# isort: skip_file

from .families import FAMILIES as FAMILIES
from .family import Family as Family, PublishedShape as PublishedShape, SpecialTokens as SpecialTokens
from .folders import BUNDLED as BUNDLED, bundled_folder as bundled_folder, check_name as check_name
from .loading import describe as describe, identify as identify, load as load
from .model import Model as Model, ModelCard as ModelCard
from .recognition import recognise as recognise
from .sink_token import SinkToken as SinkToken, add_sink_token as add_sink_token
