"""Models: families as data, and loading; names in ``__init__.pyi`` are imported when first used."""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
