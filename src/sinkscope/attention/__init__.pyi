# isort: skip_file

from .dispatch import attend as attend, without_autocast as without_autocast
from .foreign_network import foreign as foreign
from .hooks import (
    NAME as NAME,
    generating_in as generating_in,
    is_generating as is_generating,
    register_interface as register_interface,
    subscribed as subscribed,
)
from .projections import (
    KeyNorms as KeyNorms,
    OutputProjections as OutputProjections,
    norms_of as norms_of,
    output_norms as output_norms,
    output_projection as output_projection,
)
from .records import (
    AttentionInputs as AttentionInputs,
    CallPart as CallPart,
    Columns as Columns,
    GenerationStart as GenerationStart,
    Hidden as Hidden,
    Hider as Hider,
    LayerCall as LayerCall,
    Prefix as Prefix,
    Prepender as Prepender,
    Replacer as Replacer,
    StepContext as StepContext,
    StepResult as StepResult,
    Subscriber as Subscriber,
    Watcher as Watcher,
    upload as upload,
)
from .session import Session as Session, current_session as current_session
from .stacks import mask_for as mask_for, query_heads as query_heads
