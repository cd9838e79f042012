"""Draws the papers' figures from your own traces, and writes a page with the figures; names are in ``__init__.pyi``."""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
