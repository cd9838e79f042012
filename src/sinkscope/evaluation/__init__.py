"""Accuracy on held-out tasks; names in ``__init__.pyi`` are imported when first used, as the sandbox loads no torch."""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
