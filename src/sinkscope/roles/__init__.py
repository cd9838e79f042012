"""Roles: what each sink does (idle, broadcast, carrier), with the evidence.

The names are in ``__init__.pyi``; they are imported when first used, so that figures read roles without torch.
"""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
