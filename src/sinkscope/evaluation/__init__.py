"""Accuracy on held-out tasks, with intervals; a sandbox for programs that models write.

The names are in ``__init__.pyi``; they are imported when first used, so that the sandbox's processes and the figures
load no torch.
"""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
