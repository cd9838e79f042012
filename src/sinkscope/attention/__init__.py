"""Attention with column sums, and the interface through which a model uses it.

A *column sum* is the attention that one key receives from all queries together, or from one *query group*, in queries'
worth. A *subscriber* *watches* the columns of a layer, *hides* keys from its queries, or *prepends* constant keys. A
*session* holds the subscribers of one network; a *step* is one call of a *stack*, the module that owns the layers.
Names in ``__init__.pyi`` are imported when first used.
"""

from sinkscope.lazy_names import attach

__getattr__, __dir__ = attach(__name__, __file__)
