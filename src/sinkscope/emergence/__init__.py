"""Emergence: how sinks are born while a network is trained; names are in ``__init__.pyi``, imported when first used."""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
