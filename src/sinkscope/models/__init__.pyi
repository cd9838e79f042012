# isort: skip_file

from .networks import block_length as block_length
from .families import FAMILIES as FAMILIES
from .family import Family as Family, PublishedShape as PublishedShape
from .folders import (
    BUNDLED as BUNDLED,
    SPECIMENS as SPECIMENS,
    bundled_folder as bundled_folder,
    check_name as check_name,
    is_bundled as is_bundled,
)
from .loading import describe as describe, load as load
from .model import Model as Model, ModelCard as ModelCard, expect_model as expect_model
from .conversion import recognise as recognise
from .sink_token import SinkToken as SinkToken, add_sink_token as add_sink_token
