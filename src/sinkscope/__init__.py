r"""See, test and fix the attention sinks of diffusion language models.

model = sinkscope.load("lab-diffusion")
with sinkscope.recording(model, out="run.trace"):
    answer = sinkscope.generate(model, "Q: Tom has 7 apples and buys 5 more. How many apples are left?\nA:", length=64)
sinks = sinkscope.find_sinks(sinkscope.open_trace("run.trace"), excess=3.0)
tracks = sinkscope.track(sinks)

``__init__.pyi`` lists the public names, each once. Each is imported when it is first used, so ``import sinkscope`` is
instant.
"""

from typing import Any

from sinkscope.lazy_names import attach

_public, __dir__ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sinkscope")
    return _public(name)
