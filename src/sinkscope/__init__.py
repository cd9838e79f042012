r"""See, test and fix the attention sinks of diffusion language models.

model = sinkscope.load("lab-diffusion")
with sinkscope.recording(model, out="run.trace"):
    answer = sinkscope.generate(model, "Q: Tom has 7 apples and buys 5 more. How many apples are left?\nA:", length=64)
sinks = sinkscope.find_sinks(sinkscope.open_trace("run.trace"), excess=3.0)
tracks = sinkscope.track(sinks)

The public names are in ``__init__.pyi``, each once; they are imported when they are first used, so ``import sinkscope`` is instant.
"""

import warnings
from typing import Any

from sinkscope.lazy_names import attach

_MOVED = {
    "HidePositions",
    "HideSinkToken",
    "HideSinksAbove",
    "KeepWindow",
    "MassMatchedKeys",
    "NextRanks",
    "PersistentRandomKeys",
    "RandomKeys",
    "SameClassKeys",
    "calibrate_excess",
    "compose",
}
"""Old names of what is now in `sinkscope.interventions`; they go with the next release."""

_public, __dir__ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a public name, its old place included."""
    if name == "__version__":
        from importlib.metadata import version

        return version("sinkscope")
    if name in _MOVED:
        message = f"sinkscope.{name} is now sinkscope.interventions.{name}; the old name goes with the next release"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(_public("interventions"), name)
    return _public(name)
