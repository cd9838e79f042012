"""Recording: column sums, norms and the canvas of every step, written while the model writes."""

from sinkscope.recorder.trace_recorder import Recorder, recording

__all__ = ["Recorder", "recording"]
