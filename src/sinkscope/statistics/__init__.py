"""Statistics of sinks: a summary of each prompt, and all numbers read from it; ``__init__.pyi`` has the names."""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
