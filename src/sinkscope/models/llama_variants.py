"""Variants of transformers' Llama that some checkpoints need; each changes one thing and keeps Llama's names."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.models.llama.modeling_llama import (
    ALL_ATTENTION_FUNCTIONS,
    LlamaAttention,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Any]:
    """Return the output [batch, query, width] of an attention module of transformers for its rotated heads."""
    function = ALL_ATTENTION_FUNCTIONS.get_interface(
        module.config._attn_implementation or "eager", eager_attention_forward
    )
    dropout = module.attention_dropout if module.training else 0.0
    output, weights = function(module, query, key, value, mask, dropout=dropout, scaling=module.scaling, **kwargs)
    return module.o_proj(output.flatten(2).contiguous()), weights


class FullPrecisionRotaryEmbedding(LlamaRotaryEmbedding):
    """Cosines and sines in fp32. transformers fills the buffers only of classes whose name ends like this one."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, fp32 [batch, query, dim] each."""
        return super().forward(x.new_empty(0, dtype=torch.float32), position_ids)


class FullPrecisionAttention(LlamaAttention):
    """Llama's attention; it rotates in the dtype of the cosines and attends in the dtype of the weights."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """Return the output [batch, query, width] for hidden states of the same shape."""
        assert position_embeddings is not None
        split = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            projection(hidden_states).view(split).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        rotated = apply_rotary_pos_emb(query.float(), key.float(), *position_embeddings)
        query, key = (one.to(value.dtype) for one in rotated)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        return attend(self, query, key, value, attention_mask, **kwargs)


class FullPrecisionLlama(LlamaForCausalLM):
    """`LlamaForCausalLM` with queries and keys rotated in fp32 whatever the dtype, as LLaDA and MMaDA compute it.

    transformers' Llama rotates in the dtype of the weights, which changes every logit in bf16. Source: ML-GSAI/LLaDA,
    modeling_llada.py, RotaryEmbedding with ``rope_full_precision``.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.rotary_emb = FullPrecisionRotaryEmbedding(config)
        for number, layer in enumerate(self.model.layers):
            layer.self_attn = FullPrecisionAttention(config, number)


class NoRotation(nn.Module):
    """A rotary embedding that does not rotate: cosines of 1, sines of 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, [batch, query, dim] each."""
        ones = x.new_ones(*position_ids.shape, self.dim)
        return ones, torch.zeros_like(ones)


class LearnedPositionsModel(LlamaModel):
    """Llama's layers, with a learned embedding of each position added to that of the token."""

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
        """Compute the forward pass of Llama, for tokens [batch, query]."""
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
    """`LlamaForCausalLM` with learned absolute positions (GPT-2's way) instead of rotations; the rest is Llama's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model = LearnedPositionsModel(config)
        self.post_init()


class MasklessHeadLlama(LlamaForCausalLM):
    """`LlamaForCausalLM` whose head has one row less than its embedding: the last row of the embedding is the mask."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size - 1, bias=False)
