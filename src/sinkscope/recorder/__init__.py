"""Recording: column sums, norms and the canvas of every step go to disk while the model writes."""

from sinkscope.recorder.levels import recording
from sinkscope.recorder.step_recorder import Recorder

__all__ = ["Recorder", "recording"]
