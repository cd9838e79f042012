"""Lenses: what the residual stream behind each layer would predict; the names are in ``__init__.pyi``."""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
