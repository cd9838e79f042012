"""`CacheOrder`: holds that each call behind a cache goes on where the one before it ended."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.stacks import Stack, StackInput
from sinkscope.errors import AttentionError


@dataclass(frozen=True, eq=False)
class _Held:
    """What a cache held behind a call; it is not kept alive."""

    cache: weakref.ref[Any] | None
    tokens: int
    lengths: Tensor
    keys: tuple[weakref.ref[Tensor], ...]

    def mistake(self, given: StackInput, lengths: Tensor) -> str:
        """Return what a call found instead of this, nothing where it goes on."""
        if self.cache is not None and self.cache() is not given.cache:
            return f"another, of {given.seen}"
        if given.seen != self.tokens:
            return f"one of {given.seen}"
        if not torch.equal(lengths, self.lengths + given.fresh):
            real = (lengths - given.fresh).tolist()
            return f"one that an attention mask with other padding reads, {real} tokens in place of {self.lengths.tolist()}"
        now = _keys(given.cache)
        if len(now) == len(self.keys) and any(one() is not found() for one, found in zip(self.keys, now, strict=True)):
            return "one whose keys were replaced, as reorder_cache does"
        return ""


class CacheOrder:
    """The cache of the last call of each stack, which is not kept alive, and how many tokens it held then.

    Column sums of a causal network are added up over its calls, so a cache that was cut, copied, reordered or swapped between two calls,
    or other padding, would make them wrong.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Held] = {}

    def begin(self) -> None:
        """Forget the calls so far, as another text begins."""
        self._last = {}

    def check(self, stack: Stack, given: StackInput, lengths: Tensor) -> None:
        """Raise an error for a call that does not go on where the last one of its stack ended.

        Args:
            lengths: of the rows, without padding, int64 [batch].

        Raises:
            AttentionError: so it is.
        """
        last = self._last.get(stack.name)
        if given.seen and last is not None and (found := last.mistake(given, lengths)):
            raise AttentionError(
                f"expected the cache of the step before, of {last.tokens} tokens, found {found}; while something watches or hides, "
                "end one text before the next, give each call the attention mask of all tokens so far, and do not cut, copy or reorder "
                "the cache"
            )

    def end_call(self, name: str, given: StackInput, made: Any, lengths: Tensor) -> bool:
        """Note what the cache holds behind a call of a stack, and return whether it holds all tokens of the call.

        A decoder that only reads the cache (block diffusion) does not change it.

        Args:
            made: the cache that the stack returned, where none was given.
            lengths: of the rows, without padding, int64 [batch].
        """
        cache = made if given.cache is None and callable(getattr(made, "get_seq_length", None)) else given.cache
        held = given.total if cache is None else int(cache.get_seq_length())
        known = None if cache is None else weakref.ref(cache)
        self._last[name] = _Held(known, held, lengths - (given.total - held), _keys(cache))
        return held == given.total


def _keys(cache: Any) -> tuple[weakref.ref[Tensor], ...]:
    """Return the keys of each layer of a cache; none of one that moves them between devices."""
    cache = getattr(cache, "self_attention_cache", cache)  # of a decoder beside an encoder
    if cache is None or getattr(cache, "offloading", False):
        return ()
    keys = (getattr(layer, "keys", None) for layer in getattr(cache, "layers", ()))
    return tuple(weakref.ref(one) for one in keys if isinstance(one, Tensor))
