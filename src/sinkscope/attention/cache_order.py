"""`CacheOrder`: holds that each call behind a cache goes on where the one before it ended."""

import weakref
from typing import Any

from sinkscope.attention.stacks import Stack, StackInput
from sinkscope.errors import AttentionError


class CacheOrder:
    """The cache of the last call of each stack, which is not kept alive, and how many tokens it held then.

    Column sums of a causal network are added up over its calls, so a cache that was cut, copied or swapped between two calls would
    make them wrong.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[weakref.ref[Any] | None, int]] = {}

    def begin(self) -> None:
        """Forget the calls so far, as another text begins."""
        self._last = {}

    def check(self, stack: Stack, given: StackInput) -> None:
        """Raise an error for a call that does not go on where the last one of its stack ended.

        Raises:
            AttentionError: so it is.
        """
        cache, held = self._last.get(stack.name, (None, given.seen))
        other = cache is not None and cache() is not given.cache  # a first call may have made its cache itself
        if given.seen and (other or given.seen != held):
            raise AttentionError(
                f"expected the cache of the step before, of {held} tokens, found {'another' if other else f'one of {given.seen}'}; while "
                "something watches or hides, end one text before the next, and do not cut or copy its cache"
            )

    def end_call(self, name: str, given: StackInput) -> bool:
        """Note what the cache holds behind a call of a stack, and return whether it holds all tokens of the call.

        A decoder that only reads the cache (block diffusion) does not change it.
        """
        held = given.total if given.cache is None else int(given.cache.get_seq_length())
        self._last[name] = None if given.cache is None else weakref.ref(given.cache), held
        return held == given.total
