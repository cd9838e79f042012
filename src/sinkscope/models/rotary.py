"""Llama with queries and keys rotated in fp32 whatever the dtype, as LLaDA and MMaDA compute it.

transformers' Llama rotates in the dtype of the weights; in bf16 that moves every logit. In fp32 both are the same.
Source: ML-GSAI/LLaDA, modeling_llada.py, RotaryEmbedding with ``rope_full_precision``.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    ALL_ATTENTION_FUNCTIONS,
    LlamaAttention,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)


class FullPrecisionRotaryEmbedding(LlamaRotaryEmbedding):
    """Cosines and sines in fp32. The name ends as it must for transformers to fill its buffers when loading."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """fp32 [batch, query, dim] twice."""
        return super().forward(x.new_empty(0, dtype=torch.float32), position_ids)


class FullPrecisionAttention(LlamaAttention):
    """Rotates in the dtype of the cosines and attends in the dtype of the weights."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """hidden_states [batch, query, width] → the same shape."""
        assert position_embeddings is not None
        split = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            projection(hidden_states).view(split).transpose(1, 2) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        rotated = apply_rotary_pos_emb(query.float(), key.float(), *position_embeddings)
        query, key = (one.to(value.dtype) for one in rotated)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation or "eager", eager_attention_forward)
        dropout = self.attention_dropout if self.training else 0.0
        output, weights = attend(self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs)
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


class FullPrecisionLlama(LlamaForCausalLM):
    """`LlamaForCausalLM` with both in place; parameters and names are Llama's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.rotary_emb = FullPrecisionRotaryEmbedding(config)
        for number, layer in enumerate(self.model.layers):
            layer.self_attn = FullPrecisionAttention(config, number)
