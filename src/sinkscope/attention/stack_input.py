"""What the arguments of a stack call say of the step: its tokens, how many are behind a cache, where padding stands."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import AttentionError

IDS = ("input_ids", "decoder_input_ids")
EMBEDDINGS = ("inputs_embeds", "decoder_inputs_embeds", "hidden_states")


@dataclass(frozen=True)
class StackInput:
    """One call of a stack that no sampler published.

    Attributes:
        batch, fresh, seen: rows, tokens that go in, tokens behind the cache.
        ids: int64 [batch, fresh], None where the call had only embeddings.
        real: bool [batch, seen + fresh], False on padding; None where nothing is padded.
        cache: the cache that came with the call.
        device: where the tokens lie.
    """

    batch: int
    fresh: int
    seen: int
    ids: Tensor | None
    real: Tensor | None
    cache: Any
    device: torch.device

    @property
    def total(self) -> int:
        """Tokens so far."""
        return self.seen + self.fresh

    def visible(self) -> Tensor:
        """Bool [batch, seen + fresh], False on padding."""
        return torch.ones(self.batch, self.total, dtype=torch.bool, device=self.device) if self.real is None else self.real

    def lengths(self) -> Tensor:
        """Real tokens of each row, int64 [batch], on the host: a GPU is waited for where a mask says them.

        Raises:
            AttentionError: padding on the right.
        """
        if self.real is None:
            return torch.full((self.batch,), self.total, device="cpu")
        real = self.real.cpu().long()
        if bool((real.diff(dim=-1) < 0).any()):
            raise AttentionError("expected padding on the left, found it on the right; set tokenizer.padding_side = 'left'")
        return real.sum(-1)


def read_stack_input(arguments: Mapping[str, Any], parents: Iterable[Mapping[str, Any]] = ()) -> StackInput | None:
    """Reads a stack's arguments; where it got embeddings only, the ids come from the nearest module around it.

    Args:
        arguments: of the stack, by name.
        parents: arguments of the modules around it that are running, the nearest first.

    Returns:
        None where the call shows no tokens and no embeddings.

    Raises:
        AttentionError: a cache whose keys are not simply the newest tokens.
    """
    cache = arguments.get("past_key_values")
    check_cache(cache)
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
    return StackInput(batch, fresh, seen, ids, real, cache, entering.device)


def _first(arguments: Mapping[str, Any], names: Iterable[str], axes: int) -> Tensor | None:
    found = (arguments.get(name) for name in names)
    return next((one for one in found if isinstance(one, Tensor) and one.ndim == axes), None)


def _real(mask: Any, batch: int, total: int) -> Tensor | None:
    """Which tokens are no padding; of a mapping of ready masks (transformers' own generate), what queries see."""
    if isinstance(mask, Mapping):
        ready = [mask.get("full_attention"), *mask.values()]
        fitting = (one for one in ready if isinstance(one, Tensor) and one.ndim == 4 and one.shape[-1] == total)
        return None if (found := next(fitting, None)) is None else real_tokens(found).expand(batch, -1)
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape == (batch, total):
        return mask.bool()
    return None


def real_tokens(mask: Tensor) -> Tensor:
    """Tokens that are no padding, bool [batch, key], by a boolean or additive mask [batch, head, query, key].

    Padding is what no query sees at either end; a key in between that nobody sees is one that was taken away.
    """
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    seen = visible.any(dim=2).any(dim=1).long()
    return (seen.cummax(dim=-1).values & seen.flip(-1).cummax(dim=-1).values.flip(-1)).bool()


def check_cache(cache: Any) -> None:
    """Caches whose keys are not simply the newest tokens are refused until they are right."""
    if getattr(cache, "is_compileable", False):
        raise AttentionError("static caches are not modelled by sinkscope; use a DynamicCache")


def slides(cache: Any) -> bool:
    """Whether some layers of a cache hold the newest tokens only."""
    return any(getattr(cache, "is_sliding", ()))
