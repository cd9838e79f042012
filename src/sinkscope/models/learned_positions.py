"""Llama with learned absolute positions (GPT-2's way) instead of rotations: what sinks owe to RoPE shows in the comparison.

Everything else is transformers' Llama. Position embeddings are added to those of the tokens; queries and keys stay unrotated.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel


class NoRotation(nn.Module):
    """Cosines of 1 and sines of 0, in the place of a rotary embedding."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, query, dim] twice."""
        ones = x.new_ones(*position_ids.shape, self.dim)
        return ones, torch.zeros_like(ones)


class LearnedPositionsModel(LlamaModel):
    """The stack, with `embed_positions` [max_position_embeddings, width]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.rotary_emb = NoRotation(config.head_dim or config.hidden_size // config.num_attention_heads)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As Llama's, of tokens [batch, query]."""
        embeds: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(seen, seen + embeds.shape[1], device=embeds.device)[None]
        return super().forward(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=embeds + self.embed_positions(position_ids),
            **kwargs,
        )


class LearnedPositionsLlama(LlamaForCausalLM):
    """`LlamaForCausalLM` around it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model = LearnedPositionsModel(config)
        self.post_init()
