# isort: skip_file

from .generation import Generation as Generation, generate as generate
from .foreign_steps import ForeignSteps as ForeignSteps, following as following
from .likelihood import Likelihood as Likelihood, log_likelihood as log_likelihood
from .settings import (
    AutoregressiveSettings as AutoregressiveSettings,
    DreamSettings as DreamSettings,
    LLaDA2Settings as LLaDA2Settings,
    LLaDASettings as LLaDASettings,
    MMaDASettings as MMaDASettings,
    SDARSettings as SDARSettings,
    Settings as Settings,
    SettingsError as SettingsError,
    described as described,
    find_sampler as find_sampler,
    resolve_settings as resolve_settings,
    settings_of as settings_of,
)
from .autoregressive import whole_cache as whole_cache
from .canvas import Batch as Batch, Step as Step, Work as Work, make_batch as make_batch
from .caches.policy import CachePolicy as CachePolicy, known_caches as known_caches, parse_cache as parse_cache
from .caches.block_cache import BlockCache as BlockCache
