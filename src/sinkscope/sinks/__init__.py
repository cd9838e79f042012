"""Sinks: their definition, their places in a trace, and their tracks over its steps. ``__init__.pyi`` has the names."""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
