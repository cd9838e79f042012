"""Stacks, the modules that own the layers (an encoder and a decoder are two), and the arguments of their calls."""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.records import visible
from sinkscope.errors import AttentionError, CallError

IDS = ("input_ids", "decoder_input_ids")
EMBEDDINGS = ("inputs_embeds", "decoder_inputs_embeds", "hidden_states")
PAD_LEFT = "set tokenizer.padding_side = 'left', or run each text by itself where positions count from the first (BERT)"


@dataclass(frozen=True)
class Stack:
    """A module that owns attention layers; its name is its path, ``""`` for the network itself.

    Attributes:
        layers: module path and index of each layer by its attention module, in order.
        blocks: the layer that contains each attention module.
        causal: whether its queries see only earlier tokens.
    """

    name: str
    module: nn.Module
    layers: dict[nn.Module, tuple[str, int]]
    blocks: dict[nn.Module, nn.Module]
    causal: bool = True

    def layer_numbers(self, alone: bool) -> dict[nn.Module, int]:
        """Return the layer of each attention module, as traces count them: cross-attention of a decoder that is not
        ``alone`` is no layer by itself.
        """
        if alone or not self.causal:
            return {module: index for module, (_, index) in self.layers.items()}
        order = list(dict.fromkeys(self.blocks.values()))
        return {module: order.index(block) for module, block in self.blocks.items()}


def find_stacks(network: nn.Module) -> list[Stack]:
    """Return the stacks of a transformers model: owners of a `ModuleList` whose entries hold a module with
    ``layer_idx``; it may be None, as in encoders that keep no cache (Marian, MBart).
    """
    stacks: list[Stack] = []
    for name, module in network.named_modules():
        layers: dict[nn.Module, tuple[str, int]] = {}
        blocks: dict[nn.Module, nn.Module] = {}
        for child_name, child in module.named_children():
            for number, block in enumerate(child if isinstance(child, nn.ModuleList) else ()):
                for inner_name, inner in block.named_modules():
                    numbered = isinstance(getattr(inner, "layer_idx", ""), int | None) and inner is not block
                    # Feed-forward networks and convolutions may be numbered too.
                    if numbered and any(part in type(inner).__name__.lower() for part in ("attention", "attn", "mla")):
                        path = ".".join(part for part in (name, child_name, str(number), inner_name) if part)
                        layers[inner] = (path, len(layers))
                        blocks[inner] = block
        nested = any(layers.keys() <= stack.layers.keys() for stack in stacks)  # a ModuleList inside a layer
        if layers and not nested:
            said = [getattr(getattr(one, "config", None), "is_causal", None) for one in (module, network)]
            first = next(iter(layers))
            said += [getattr(first, "is_causal", True) or getattr(first, "is_decoder", False)]
            causal = bool(next(one for one in said if one is not None))
            stacks.append(Stack(name, module, layers, blocks, causal))
    if not stacks:
        raise AttentionError(
            "expected a transformers model whose attention modules have a layer_idx, found none in "
            f"{type(network).__name__}; watch any other torch module inside `with sinkscope.attention.foreign(module):`"
        )
    return stacks


def query_heads(attention: nn.Module) -> int | None:
    """Return the number of query heads of an attention module, from itself or its configuration; None if unknown."""
    names = ("num_heads", "num_attention_heads", "n_heads", "n_head")
    found = (getattr(said, name, None) for said in (attention, getattr(attention, "config", None)) for name in names)
    return next((one for one in found if isinstance(one, int) and one > 0), None)


@dataclass(frozen=True, eq=False)
class StackInput:
    """The step as the arguments of a stack call describe it.

    Attributes:
        batch, fresh, seen: number of rows, of tokens that go in, and of tokens in the cache.
        ids: int64 [batch, fresh], None where the call had only embeddings.
        real: bool [batch, seen + fresh], False on padding; None where nothing is padded.
        cache: among the arguments.
        plain: whether the tokens and their padding say all that goes in: no embeddings, and no mask for each query.
    """

    batch: int
    fresh: int
    seen: int
    ids: Tensor | None
    real: Tensor | None
    cache: Any
    device: torch.device
    plain: bool = True

    @property
    def total(self) -> int:
        return self.seen + self.fresh

    def visible(self) -> Tensor:
        whole = (self.batch, self.total)
        return torch.ones(whole, dtype=torch.bool, device=self.device) if self.real is None else self.real

    def lengths(self) -> Tensor:
        if self.real is None and self.total:
            return torch.full((self.batch,), self.total, device="cpu")
        return lengths_of(self.visible(), PAD_LEFT)


@dataclass(frozen=True, eq=False)
class HeldCache:
    """The content of a cache after a call of a stack, without keeping it alive."""

    cache: weakref.ref[Any] | None
    tokens: int
    lengths: Tensor
    keys: tuple[weakref.ref[Tensor], ...]

    def goes_on(self, given: StackInput, lengths: Tensor) -> bool:
        """Return whether a call continues where the last one ended; ``lengths`` of its rows, without padding."""
        if (self.cache is not None and self.cache() is not given.cache) or given.seen != self.tokens:
            return False
        now = cached_keys(given.cache)
        same = len(now) != len(self.keys) or all(one() is other() for one, other in zip(self.keys, now, strict=True))
        return same and torch.equal(lengths, self.lengths + given.fresh)


def cached_keys(cache: Any) -> tuple[weakref.ref[Tensor], ...]:
    """Return the keys of each layer of a cache; none of one that moves them between devices."""
    cache = getattr(cache, "self_attention_cache", cache)  # of a decoder beside an encoder
    if cache is None or getattr(cache, "offloading", False):
        return ()
    keys = (getattr(layer, "keys", None) for layer in getattr(cache, "layers", ()))
    return tuple(weakref.ref(one) for one in keys if isinstance(one, Tensor))


def lengths_of(real: Tensor, advice: str) -> Tensor:
    """Return the number of real tokens of each row, int64 [batch], on the host; this waits for a GPU."""
    real = real.cpu().bool().long()
    falls = real.diff(dim=-1) < 0
    if bool(falls.any()):
        row, before = falls.nonzero()[0].tolist()
        raise AttentionError(
            f"expected padding on the left alone, found it behind position {before} of row {row}; {advice}"
        )
    lengths = real.sum(-1)
    if bool((lengths == 0).any()):
        raise CallError("expected at least one token in each row, found one that is all padding; leave it out")
    return lengths


def read_stack_input(arguments: Mapping[str, Any], parents: Iterable[Mapping[str, Any]] = ()) -> StackInput | None:
    """Return the step that a stack's arguments describe; None where the call has neither tokens nor embeddings."""
    cache = arguments.get("past_key_values")
    if getattr(cache, "is_compileable", False):
        raise AttentionError("static caches are not modelled; use a DynamicCache")
    ids = _first(arguments, IDS, 2)
    entering = ids if ids is not None else _first(arguments, EMBEDDINGS, 3)
    if entering is None:
        return None
    batch, fresh = entering.shape[:2]
    seen = 0 if cache is None else int(cache.get_seq_length())
    mask = arguments.get("decoder_attention_mask" if "decoder_input_ids" in arguments else "attention_mask")
    real = _real(mask, batch, seen + fresh)
    if ids is None:
        for around in parents:
            ids = _first(around, IDS[:1], 2) if ids is None else ids
            real = _real(around.get("attention_mask"), batch, seen + fresh) if real is None else real
        ids = ids if ids is not None and ids.shape == (batch, fresh) else None
    plain = entering is ids and not (isinstance(mask, Tensor) and mask.ndim != 2)
    return StackInput(batch, fresh, seen, ids, real, cache, entering.device, plain)


def _first(arguments: Mapping[str, Any], names: Iterable[str], axes: int) -> Tensor | None:
    found = (arguments.get(name) for name in names)
    return next((one for one in found if isinstance(one, Tensor) and one.ndim == axes), None)


def _real(mask: Any, batch: int, total: int) -> Tensor | None:
    """Return which tokens are not padding, bool [batch, token]; None if the mask does not say."""
    if isinstance(mask, Mapping):  # of whole masks, in transformers' own generate
        ready = [mask.get("full_attention"), *mask.values()]
        fitting = (one for one in ready if isinstance(one, Tensor) and one.ndim == 4 and one.shape[-1] == total)
        return None if (found := next(fitting, None)) is None else real_tokens(found).expand(batch, -1)
    return mask.bool() if isinstance(mask, Tensor) and mask.shape == (batch, total) else None


def real_tokens(mask: Tensor) -> Tensor:
    """Return the tokens that are not padding, bool [batch, key], by a mask [batch, head, query, key].

    Padding is the keys at either end that no query sees; a key in between that no query sees was taken away.
    """
    seen = visible(mask).any(dim=2).any(dim=1).long()
    return (seen.cummax(dim=-1).values & seen.flip(-1).cummax(dim=-1).values.flip(-1)).bool()


def mask_for(network: Any, seen: Tensor | None) -> Tensor | None:
    """Return bool [1 or batch, 1, query, key] in the form that a transformers network takes: its eager attention adds
    the mask to the scores.
    """
    if seen is None or network.config._attn_implementation != "eager":
        return seen
    added = torch.zeros(seen.shape, dtype=network.dtype, device=seen.device)
    return added.masked_fill(~seen, torch.finfo(network.dtype).min)
