r"""See, test and fix the attention sinks of diffusion language models.

model = sinkscope.load("lab-diffusion")
with sinkscope.recording(model, out="run.trace"):
    answer = sinkscope.generate(model, "Q: Tom has 7 apples and buys 5 more. How many apples are left?\nA:", length=64)
sinks = sinkscope.find_sinks(sinkscope.open_trace("run.trace"), excess=3.0)
tracks = sinkscope.track(sinks)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinkscope.decoding import Generation, Likelihood, generate, log_likelihood
    from sinkscope.interventions import (
        HidePositions,
        HideSinksAbove,
        HideSinkToken,
        HideTopSinks,
        KeepWindow,
        MassMatchedKeys,
        NextRanks,
        PersistentRandomKeys,
        RandomKeys,
        SameClassKeys,
        calibrate_excess,
        compose,
        parse_rule,
    )
    from sinkscope.models import Model, SinkToken, add_sink_token, load
    from sinkscope.recorder import recording
    from sinkscope.sinks import Sinks, Track, Tracks, find_sinks, track
    from sinkscope.traces import Trace, open_trace, open_traces

_HOME = {
    "Generation": "decoding",
    "HidePositions": "interventions",
    "HideSinkToken": "interventions",
    "HideSinksAbove": "interventions",
    "HideTopSinks": "interventions",
    "KeepWindow": "interventions",
    "MassMatchedKeys": "interventions",
    "Likelihood": "decoding",
    "Model": "models",
    "NextRanks": "interventions",
    "PersistentRandomKeys": "interventions",
    "RandomKeys": "interventions",
    "SameClassKeys": "interventions",
    "SinkToken": "models",
    "Sinks": "sinks",
    "Trace": "traces",
    "Track": "sinks",
    "Tracks": "sinks",
    "calibrate_excess": "interventions",
    "compose": "interventions",
    "add_sink_token": "models",
    "find_sinks": "sinks",
    "generate": "decoding",
    "load": "models",
    "log_likelihood": "decoding",
    "open_trace": "traces",
    "open_traces": "traces",
    "parse_rule": "interventions",
    "recording": "recorder",
    "track": "sinks",
}

__all__ = [
    "Generation",
    "HidePositions",
    "HideSinkToken",
    "HideSinksAbove",
    "HideTopSinks",
    "KeepWindow",
    "MassMatchedKeys",
    "Likelihood",
    "Model",
    "NextRanks",
    "PersistentRandomKeys",
    "RandomKeys",
    "SameClassKeys",
    "SinkToken",
    "Sinks",
    "Trace",
    "Track",
    "Tracks",
    "calibrate_excess",
    "compose",
    "add_sink_token",
    "find_sinks",
    "generate",
    "load",
    "log_likelihood",
    "open_trace",
    "open_traces",
    "parse_rule",
    "recording",
    "track",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import sinkscope`` is instant."""
    if name not in _HOME:
        raise AttributeError(f"sinkscope has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"sinkscope.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
