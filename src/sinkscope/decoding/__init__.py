"""Samplers as generators of steps, and `generate`."""

from sinkscope.decoding.autoregressive import autoregressive_steps
from sinkscope.decoding.canvas import Batch, Step, make_batch
from sinkscope.decoding.generation import Generation, generate, step_count
from sinkscope.decoding.llada import llada_steps, quotas
from sinkscope.decoding.settings import SETTINGS, AutoregressiveSettings, LLaDASettings, Settings, SettingsError, resolve_settings

__all__ = [
    "SETTINGS",
    "AutoregressiveSettings",
    "Batch",
    "Generation",
    "LLaDASettings",
    "Settings",
    "SettingsError",
    "Step",
    "autoregressive_steps",
    "generate",
    "llada_steps",
    "make_batch",
    "quotas",
    "resolve_settings",
    "step_count",
]
