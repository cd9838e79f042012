"""Statistics of sinks: one summary of each prompt, and every number that is read from it. ``__init__.pyi`` has the
names.
"""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
