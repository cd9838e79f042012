"""Models: families as data, loading, and what a loaded model is. The names are in ``__init__.pyi``; they are imported
when first used.
"""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
