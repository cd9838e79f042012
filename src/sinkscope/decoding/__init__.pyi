# isort: skip_file

from .autoregressive import autoregressive_steps as autoregressive_steps
from .blocks import quotas as quotas
from .canvas import Batch as Batch, Step as Step, make_batch as make_batch
from .dream import dream_steps as dream_steps
from .generation import Generation as Generation, generate as generate, step_count as step_count
from .likelihood import Likelihood as Likelihood, log_likelihood as log_likelihood
from .llada import llada_steps as llada_steps
from .mmada import mmada_steps as mmada_steps
from .settings import (
    SETTINGS as SETTINGS,
    AutoregressiveSettings as AutoregressiveSettings,
    DreamSettings as DreamSettings,
    LLaDASettings as LLaDASettings,
    MMaDASettings as MMaDASettings,
    Settings as Settings,
    SettingsError as SettingsError,
    resolve_settings as resolve_settings,
)
