"""What subscribers answer when they are asked: the query groups they watch, the keys they hide, the constant keys they prepend.

Each answer is checked before it is used. Only shapes, dtypes and devices are looked at; reading what a tensor on a GPU holds would wait.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.argument_types import fits, in_words
from sinkscope.attention.records import Hidden, LayerCall, Prefix, described, holds_nothing
from sinkscope.attention.stacks import upload
from sinkscope.attention.subscribers import Hider, Prepender, Subscriber, Watcher
from sinkscope.errors import AttentionError

QUERY_GROUPS = ("all", "masked", "unmasked", "prompt")
"""Query groups whose columns can be watched apart."""


def check_groups(subscriber: Subscriber) -> None:
    """Raise an error for a watcher of query groups that there are not.

    Raises:
        AttentionError: so it is.
    """
    if not isinstance(subscriber, Watcher):
        return
    groups = subscriber.groups
    unknown = (
        [group for group in groups if group not in QUERY_GROUPS] if fits(groups, Sequence[str]) else [in_words(groups)]
    )
    if unknown:
        name = type(subscriber).__name__
        raise AttentionError(
            f"{name}.groups: expected query groups among {', '.join(QUERY_GROUPS)}, found {', '.join(unknown)}"
        )


def observed_by(hider: Hider, layer: LayerCall) -> bool:
    """Return whether a hider needs the columns of a layer.

    Raises:
        AttentionError: no truth value.
    """
    needs = hider.observes(layer)
    if not fits(needs, bool):
        raise AttentionError(
            f"{type(hider).__name__}.observes in {layer.name}: expected True or False, found {described(needs)}"
        )
    return bool(needs)


def hidden_by(hider: Hider, layer: LayerCall) -> list[Hidden]:
    """Return what a hider takes away in a layer, on the device of the layer's keys.

    Raises:
        AttentionError: something else than `Hider.hide` may return, or masks of other shapes than the layer has.
    """
    answer, name = hider.hide(layer), f"{type(hider).__name__}.hide in {layer.name}"
    return [] if answer is None else read_hidden(name, answer, layer.query, layer.key, layer.keys)


def read_hidden(name: str, answer: Any, query: Tensor, key: Tensor, keys: int) -> list[Hidden]:
    """Return hidden keys, given as one mask or as several `Hidden`, on the device of the keys.

    Args:
        name: who gave them, for the error.
        query: [batch, head, query, dim].
        key: [batch, kv_head, key, dim], of which only the device is used.
        keys: how many keys the masks cover.

    Raises:
        AttentionError: something else, or masks of other shapes.
    """
    batch, heads, queries = query.shape[:3]
    if isinstance(answer, Tensor):
        _check_mask(name, answer, ((1, batch), (1, heads)), "batch, head, key", keys)
        return [Hidden(_on(key.device, answer)[:, :, None])]
    listed = (
        isinstance(answer, Iterable)
        and not isinstance(answer, str | bytes | Mapping)
        and getattr(answer, "ndim", 1) > 0
    )
    several: list[Any] = []
    for one in answer if listed else [answer]:
        if not isinstance(one, Hidden):
            found = type(one if isinstance(answer, Sequence) else answer).__name__
            raise AttentionError(
                f"{name}: expected a bool mask [batch, head, key], several Hidden, or None, found {found}"
            )
        _check_mask(f"{name}: keys", one.keys, ((1, batch), (1, heads), (1, queries)), "batch, head, query, key", keys)
        if one.queries is not None:
            _check_mask(f"{name}: queries", one.queries, ((1, batch), (queries,)), "batch, query")
        if one.heads is not None:
            _check_mask(f"{name}: heads", one.heads, ((heads,),), "head")
        for switch in ("zeroed", "front"):
            if not fits(getattr(one, switch), bool):
                raise AttentionError(
                    f"{name}: {switch}: expected True or False, found {type(getattr(one, switch)).__name__}"
                )
        several.append(one)
    return [_hidden_on(key.device, one) for one in several]


def prepended_by(prepender: Prepender, layer: LayerCall) -> Prefix | None:
    """Return the constant keys that a prepender puts in front of a layer.

    Raises:
        AttentionError: something else than a `Prefix`, or one of other shapes than the layer has.
    """
    prefix = prepender.prepend(layer)
    if prefix is not None:
        check_prefix(f"{type(prepender).__name__}.prepend in {layer.name}", prefix, layer.query, layer.key, layer.value)
    return prefix


def check_prefix(name: str, prefix: object, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise an error for constant keys that do not fit queries, keys and values.

    Raises:
        AttentionError: so it is.
    """
    if not isinstance(prefix, Prefix):
        raise AttentionError(f"{name}: expected a Prefix or None, found {type(prefix).__name__}")
    batch, heads, kv_heads = query.shape[0], query.shape[1], key.shape[1]
    shared = (kv_heads, heads)
    if prefix.logits is not None:
        _check_numbers(f"{name}: logits", prefix.logits, ((heads,), None), "head, count")
    for part, wide in (("keys", key.shape[-1]), ("values", value.shape[-1])):
        constant = getattr(prefix, part)
        if constant is not None:
            count = None if part == "keys" else (prefix.count,)
            batched = ((1, batch),) if isinstance(constant, Tensor) and constant.ndim == 4 else ()
            _check_numbers(f"{name}: {part}", constant, (*batched, shared, count, (wide,)), "kv_head, count, dim")


def _check_mask(name: str, mask: object, sizes: Sequence[tuple[int, ...]], axes: str, keys: int | None = None) -> None:
    """Raise an error for anything but a bool tensor with axes of these sizes, and with so many keys on one more where there are keys."""
    shown = sizes if keys is None else (*sizes, (keys,))
    allowed = sizes if keys is None else (*sizes, None)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or holds_nothing(mask) or not _has_sizes(mask, allowed):
        raise AttentionError(f"{name}: expected bool {shown_sizes(shown)} ({axes}), found {described(mask)}")
    if keys is not None and mask.shape[-1] != keys:
        raise AttentionError(
            f"{name}: expected hidden keys over {keys} tokens, found {mask.shape[-1]}; "
            "a layer with a sliding window holds fewer keys than there are tokens, LayerCall.keys counts them all"
        )


def _check_numbers(name: str, constant: object, sizes: Sequence[tuple[int, ...] | None], axes: str) -> None:
    """Raise an error for anything but a tensor of fractions with axes of these sizes, any where None."""
    if (
        not isinstance(constant, Tensor)
        or not constant.is_floating_point()
        or holds_nothing(constant)
        or not _has_sizes(constant, sizes)
    ):
        raise AttentionError(f"{name}: expected numbers {shown_sizes(sizes)} ({axes}), found {described(constant)}")


def _has_sizes(tensor: Tensor, sizes: Sequence[tuple[int, ...] | None]) -> bool:
    return tensor.ndim == len(sizes) and all(
        allowed is None or size in allowed for size, allowed in zip(tensor.shape, sizes, strict=True)
    )


def shown_sizes(sizes: Sequence[tuple[int, ...] | None]) -> str:
    """Return in words which sizes the axes of a tensor may have; any where None."""
    return f"[{', '.join('any' if one is None else ' or '.join(map(str, dict.fromkeys(one))) for one in sizes)}]"


def _on(device: torch.device, mask: Tensor) -> Tensor:
    return mask if mask.device == device else upload(mask, device)


def _hidden_on(device: torch.device, hidden: Hidden) -> Hidden:
    """Return hidden keys on a device."""
    given = {"keys": hidden.keys, "queries": hidden.queries, "heads": hidden.heads}
    elsewhere = {name: upload(one, device) for name, one in given.items() if one is not None and one.device != device}
    return replace(hidden, **elsewhere) if elsewhere else hidden
