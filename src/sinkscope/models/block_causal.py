"""Networks of transformers with a block-causal mask: a token sees its own block and all blocks before it, none after
it.

`BlockCausalQwen3` is SDAR's, `BlockCausalQwen2` Fast-dLLM v2's, `BlockCausalMixture` LLaDA 2's: GLM-4-MoE with queries, keys and values in one tensor.

Blocks are counted from the first token of the text, padding left out, so that a prompt need not end where a block does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeAttention, apply_rotary_pos_emb

from sinkscope.attention.scores import mask_for
from sinkscope.models.llama_variants import attend


def block_causal_mask(real: Tensor, queries: int, block: int) -> Tensor:
    """Return which keys the newest queries see, bool [batch, 1, query, key].

    Args:
        real: bool [batch, key], False on padding, which is on the left.
        queries: how many of the newest positions are queries.
        block: tokens of a block.
    """
    number = (real.long().cumsum(-1) - 1).clamp(min=0) // block
    return ((number[:, None, :] <= number[:, -queries:, None]) & real[:, None, :])[:, None]


class BlockCausal:
    """The layers of a network under a block-causal mask; it stands in front of the network in a class's bases.

    A cache of keys and values holds finished blocks.

    Attributes:
        block_length: tokens of a block.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.block_length: int = config.block_size

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
        """Compute the forward pass of the layers, for tokens [batch, query] behind those in the cache.

        Args:
            attention_mask: 0 on padding [batch, key]; or which keys count [batch, 1, query, key], on top of the
                block-causal mask.
        """
        entering = input_ids if input_ids is not None else inputs_embeds
        assert entering is not None
        batch, queries = entering.shape[:2]
        keys = queries + (0 if past_key_values is None else int(past_key_values.get_seq_length()))
        real = torch.ones(batch, keys, dtype=torch.bool, device=entering.device)
        if attention_mask is not None:
            given = attention_mask.bool()
            real = given if given.ndim == 2 else given.any(dim=2).any(dim=1)
        if position_ids is None:
            position_ids = (real.long().cumsum(-1) - 1).clamp(min=0)[:, -queries:]
        seen = block_causal_mask(real, queries, self.block_length)
        if attention_mask is not None and attention_mask.ndim == 4:
            seen = seen & attention_mask.bool()
        return super().forward(  # type: ignore[misc]
            attention_mask=mask_for(self, seen),
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds,  # type: ignore[attr-defined]
            **kwargs,
        )


class BlockCausalModel(BlockCausal, Qwen3Model):
    """Qwen3's layers under a block-causal mask."""


class BlockCausalQwen3(Qwen3ForCausalLM):
    """`Qwen3ForCausalLM` with a block-causal mask; parameters and their names are Qwen3's.

    Source: JetAstra/SDAR, training/model/SDAR-8B-Chat/modeling_sdar.py and the mask that generate.py passes to it.
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.model = BlockCausalModel(config)
        self.post_init()


class BlockCausalQwen2Model(BlockCausal, Qwen2Model):
    """Qwen2's layers under a block-causal mask."""


class BlockCausalQwen2(Qwen2ForCausalLM):
    """`Qwen2ForCausalLM` with a block-causal mask, as Fast-dLLM v2 has it; parameters and their names are Qwen2's."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = BlockCausalQwen2Model(config)
        self.post_init()


class FusedAttention(Glm4MoeAttention):
    """GLM-4-MoE's attention with one projection to queries, keys and values."""

    def __init__(self, config: Glm4MoeConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        del self.q_proj, self.k_proj, self.v_proj
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.query_key_value = nn.Linear(
            config.hidden_size, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False
        )

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """Return the output [batch, query, width] for hidden states of the same shape."""
        fused = self.query_key_value(hidden_states).unflatten(-1, (-1, self.head_dim))
        query, key, value = fused.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        return attend(self, query, key, value, attention_mask, **kwargs)


class BlockCausalMixtureModel(BlockCausal, Glm4MoeModel):
    """GLM-4-MoE's layers under a block-causal mask."""


class BlockCausalMixture(Glm4MoeForCausalLM):
    """`Glm4MoeForCausalLM` with a block-causal mask and `FusedAttention`; other parameters and their names are
    GLM-4-MoE's.

    Source: inclusionAI/LLaDA2.0-mini, modeling_llada2_moe.py, as ZHZisZZ/dllm carries it.
    """

    def __init__(self, config: Glm4MoeConfig) -> None:
        config.norm_topk_prob = config.num_experts_per_tok > 1
        super().__init__(config)
        self.model = BlockCausalMixtureModel(config)
        for number, layer in enumerate(self.model.layers):
            layer.self_attn = FusedAttention(config, number)
        self.post_init()


# transformers joins experts that are stored one by one for its own classes only.
register_checkpoint_conversion_mapping(
    BlockCausalMixture.__name__, get_checkpoint_conversion_mapping("glm4_moe") or [], overwrite=True
)


def block_length(network: Any) -> int | None:
    """Return the tokens of a block of a block-causal network; None for any other."""
    body = getattr(network, "model", None)
    return body.block_length if isinstance(body, BlockCausal) else None
