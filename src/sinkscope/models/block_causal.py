"""transformers' Qwen3 with a block-causal mask: a token sees its own block and all blocks before it, none after it (SDAR).

Blocks are counted from the first token of the text, padding left out, so that a prompt need not end where a block does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

from sinkscope.errors import CallError


def block_causal_mask(real: Tensor, queries: int, block: int) -> Tensor:
    """Return which keys the newest queries see, bool [batch, 1, query, key].

    Args:
        real: bool [batch, key], False on padding, which is on the left.
        queries: how many of the newest positions are queries.
        block: tokens of a block.
    """
    number = (real.long().cumsum(-1) - 1).clamp(min=0) // block
    return ((number[:, None, :] <= number[:, -queries:, None]) & real[:, None, :])[:, None]


class BlockCausalModel(Qwen3Model):
    """Qwen3's layers under a block-causal mask. A cache of keys and values holds finished blocks.

    Attributes:
        block_length: tokens of a block.
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.block_length: int = config.block_size  # type: ignore[attr-defined]

    @contextmanager
    def blocks_of(self, length: int) -> Iterator[None]:
        """Mask blocks of another length while the body runs."""
        before, self.block_length = self.block_length, length
        try:
            yield
        finally:
            self.block_length = before

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute the forward pass of Qwen3, for tokens [batch, query] behind those in the cache.

        Args:
            attention_mask: 0 on padding [batch, key]; or which keys count [batch, 1, query, key], on top of the block-causal mask.

        Raises:
            CallError: an attention mask of another shape.
        """
        entering = input_ids if input_ids is not None else inputs_embeds
        if entering is None:
            raise CallError("expected input_ids or inputs_embeds, found neither")
        batch, queries = entering.shape[:2]
        keys = queries + (0 if past_key_values is None else int(past_key_values.get_seq_length()))
        real = torch.ones(batch, keys, dtype=torch.bool, device=entering.device)
        if attention_mask is not None:
            if attention_mask.ndim not in (2, 4) or attention_mask.shape[-1] != keys:
                raise CallError(f"attention_mask: expected [batch, {keys}] or [batch, 1, {queries}, {keys}], found {attention_mask.shape}")
            given = attention_mask.bool()
            real = given if given.ndim == 2 else given.any(dim=2).any(dim=1)
        if position_ids is None:
            position_ids = (real.long().cumsum(-1) - 1).clamp(min=0)[:, -queries:]
        seen = block_causal_mask(real, queries, self.block_length)
        if attention_mask is not None and attention_mask.ndim == 4:
            seen = seen & attention_mask.bool()
        return super().forward(
            attention_mask=seen,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds,
            **kwargs,
        )


class BlockCausalQwen3(Qwen3ForCausalLM):
    """`Qwen3ForCausalLM` with a block-causal mask; parameters and their names are Qwen3's.

    Source: JetAstra/SDAR, training/model/SDAR-8B-Chat/modeling_sdar.py and the mask that generate.py passes to it.
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.model = BlockCausalModel(config)
        self.post_init()


def block_length(network: Any) -> int | None:
    """Return the tokens of a block of a block-causal network; None for any other."""
    return network.model.block_length if isinstance(network.model, BlockCausalModel) else None
