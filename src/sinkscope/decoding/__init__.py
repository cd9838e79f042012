"""Samplers as generators of steps, and `generate`."""

from sinkscope.decoding.autoregressive import autoregressive_steps
from sinkscope.decoding.blocks import quotas
from sinkscope.decoding.canvas import Batch, Step, make_batch
from sinkscope.decoding.dream import dream_steps
from sinkscope.decoding.generation import Generation, generate, step_count
from sinkscope.decoding.likelihood import Likelihood, log_likelihood
from sinkscope.decoding.llada import llada_steps
from sinkscope.decoding.mmada import mmada_steps
from sinkscope.decoding.settings import (
    SETTINGS,
    AutoregressiveSettings,
    DreamSettings,
    LLaDASettings,
    MMaDASettings,
    Settings,
    SettingsError,
    resolve_settings,
)

__all__ = [
    "SETTINGS",
    "AutoregressiveSettings",
    "Batch",
    "DreamSettings",
    "Generation",
    "LLaDASettings",
    "Likelihood",
    "MMaDASettings",
    "Settings",
    "SettingsError",
    "Step",
    "autoregressive_steps",
    "dream_steps",
    "generate",
    "llada_steps",
    "log_likelihood",
    "make_batch",
    "mmada_steps",
    "quotas",
    "resolve_settings",
    "step_count",
]
