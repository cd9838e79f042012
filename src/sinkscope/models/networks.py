"""Networks that some checkpoints need and transformers lacks, as small changes of its own; parameters keep their names.

Encoders have the names that decoding uses: ``model``, the layers, and ``lm_head``, their logits. Under a block-causal
mask a token sees its own block and all blocks before it. Blocks are counted from the first token of the text, padding
left out, so that a prompt need not end where a block does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    Qwen2ForCausalLM,
    Qwen2Model,
    Qwen3ForCausalLM,
    Qwen3Model,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.glm4_moe import modeling_glm4_moe as glm4_moe
from transformers.models.llama import modeling_llama as llama

from sinkscope.attention.stacks import mask_for


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, **more: Any) -> tuple[Tensor, Any]:
    """Return the output [batch, query, width] of an attention module of transformers for its rotated heads."""
    mask, cache = (more.pop(name, None) for name in ("attention_mask", "past_key_values"))
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    kind = module.config._attn_implementation or "eager"
    function = llama.ALL_ATTENTION_FUNCTIONS.get_interface(kind, llama.eager_attention_forward)
    more |= {"dropout": module.attention_dropout if module.training else 0.0, "scaling": module.scaling}
    output, weights = function(module, query, key, value, mask, **more)
    return module.o_proj(output.flatten(2).contiguous()), weights


class FullPrecisionRotaryEmbedding(llama.LlamaRotaryEmbedding):
    """Cosines and sines in fp32. transformers fills the buffers only of classes whose name ends like this one."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x.new_empty(0, dtype=torch.float32), position_ids)


class FullPrecisionAttention(llama.LlamaAttention):
    """Llama's attention; it rotates in the dtype of the cosines and attends in the dtype of the weights."""

    def forward(self, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        heads = (
            one(hidden_states).unflatten(-1, (-1, self.head_dim)) for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key, value = (one.transpose(1, 2) for one in heads)
        query, key = llama.apply_rotary_pos_emb(query.float(), key.float(), *position_embeddings)
        return _attend(self, query.to(value.dtype), key.to(value.dtype), value, **kwargs)


class FullPrecisionLlama(LlamaForCausalLM):
    """Llama with queries and keys rotated in fp32 whatever the dtype, as ML-GSAI/LLaDA's modeling_llada.py does with
    ``rope_full_precision``, and MMaDA; transformers' own rotates in that of the weights: other logits in bf16.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.rotary_emb = FullPrecisionRotaryEmbedding(config)
        for number, layer in enumerate(self.model.layers):
            layer.self_attn = FullPrecisionAttention(config, number)


class NoRotation(nn.Module):
    """A rotary embedding that does not rotate: cosines of 1, sines of 0, [batch, query, dim] each."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        ones = x.new_ones(*position_ids.shape, self.dim)
        return ones, torch.zeros_like(ones)


class LearnedPositionsModel(LlamaModel):
    """Llama's layers, with a learned embedding of each position added to that of the token."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.rotary_emb = NoRotation(config.head_dim or config.hidden_size // config.num_attention_heads)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.post_init()

    def forward(self, input_ids: Any = None, position_ids: Any = None, inputs_embeds: Any = None, **kwargs: Any) -> Any:
        embeds: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            cache = kwargs.get("past_key_values")
            seen = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(seen, seen + embeds.shape[1], device=embeds.device)[None]
        embeds = embeds + self.embed_positions(position_ids)
        return super().forward(position_ids=position_ids, inputs_embeds=embeds, **kwargs)


class OtherBody:
    """A network of transformers with another ``body``; it stands in front of the network in a class's bases."""

    body: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.model = self.body(config)
        self.post_init()  # type: ignore[attr-defined]


class LearnedPositionsLlama(OtherBody, LlamaForCausalLM):
    """`LlamaForCausalLM` with learned absolute positions (GPT-2's way) instead of rotations; the rest is Llama's."""

    body = LearnedPositionsModel


class MasklessHeadLlama(LlamaForCausalLM):
    """`LlamaForCausalLM` whose head has one row less than its embedding: the last row of the embedding is the mask."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size - 1, bias=False)


class InBlocks:
    """The layers of a network in which a token sees its own block and those before, by ``_blocks`` of the places; it
    stands in front of the network in a class's bases.
    """

    embed_tokens: Any
    _blocks: Any

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        """Compute the layers for tokens behind those in the cache. ``attention_mask`` is 0 on left padding [batch,
        key], or on keys [batch, 1, query, key] that are hidden beside those behind the block.
        """
        given = kwargs.pop("inputs_embeds", None)
        embeds: Tensor = self.embed_tokens(input_ids) if given is None else given
        batch, queries = embeds.shape[:2]
        cache = kwargs.get("past_key_values")
        keys = queries + (0 if cache is None else int(cache.get_seq_length()))
        real = torch.ones(batch, keys, dtype=torch.bool, device=embeds.device)
        if attention_mask is not None:
            shown = attention_mask.bool()
            real = shown if shown.ndim == 2 else shown.any(dim=2).any(dim=1)
        places = (real.long().cumsum(-1) - 1).clamp(min=0)
        block = self._blocks(places)
        seen = ((block[:, None, :] <= block[:, -queries:, None]) & real[:, None, :])[:, None]
        if attention_mask is not None and attention_mask.ndim == 4:
            seen = seen & attention_mask.bool()
        position_ids = places[:, -queries:] if position_ids is None else position_ids
        mask = mask_for(self, seen)
        return super().forward(attention_mask=mask, position_ids=position_ids, inputs_embeds=embeds, **kwargs)  # type: ignore[misc]


class BlockCausal(InBlocks):
    """The layers of a network under a block-causal mask, of blocks of one length."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.block_length: int = config.block_size

    def _blocks(self, places: Tensor) -> Tensor:
        return places // self.block_length

    @contextmanager
    def blocks_of(self, length: int) -> Iterator[None]:
        """Mask blocks of another length while the body runs."""
        before, self.block_length = self.block_length, length
        try:
            yield
        finally:
            self.block_length = before


class FirstAloneModel(InBlocks, LlamaModel):
    """Llama's layers, whose first token sees only itself: it is the first block, all others are the second."""

    def _blocks(self, places: Tensor) -> Tensor:
        return (places > 0).long()


class FirstAloneLlama(OtherBody, LlamaForCausalLM):
    """`LlamaForCausalLM` that looks both ways, but for its first token, which sees only itself."""

    body = FirstAloneModel


class BlockCausalModel(BlockCausal, Qwen3Model):
    """Qwen3's layers under a block-causal mask."""


class BlockCausalQwen3(OtherBody, Qwen3ForCausalLM):
    """Qwen3 with a block-causal mask, as JetAstra/SDAR's modeling_sdar.py computes it under generate.py's mask."""

    body = BlockCausalModel


class BlockCausalQwen2Model(BlockCausal, Qwen2Model):
    """Qwen2's layers under a block-causal mask."""


class BlockCausalQwen2(OtherBody, Qwen2ForCausalLM):
    """Qwen2 with a block-causal mask, as Fast-dLLM v2 computes it."""

    body = BlockCausalQwen2Model


class FusedAttention(glm4_moe.Glm4MoeAttention):
    """GLM-4-MoE's attention with one projection to queries, keys and values."""

    def __init__(self, config: Glm4MoeConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        del self.q_proj, self.k_proj, self.v_proj
        self.heads = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        self.query_key_value = nn.Linear(config.hidden_size, sum(self.heads) * self.head_dim, bias=False)

    def forward(self, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        fused = self.query_key_value(hidden_states).unflatten(-1, (-1, self.head_dim))
        query, key, value = fused.split(self.heads, dim=-2)
        query, key, value = (one.transpose(1, 2) for one in (self.q_norm(query), self.k_norm(key), value))
        return _attend(self, *glm4_moe.apply_rotary_pos_emb(query, key, *position_embeddings), value, **kwargs)


class BlockCausalMixtureModel(BlockCausal, Glm4MoeModel):
    """GLM-4-MoE's layers under a block-causal mask."""


class BlockCausalMixture(OtherBody, Glm4MoeForCausalLM):
    """GLM-4-MoE with a block-causal mask and `FusedAttention`, as LLaDA 2.0's modeling_llada2_moe.py computes it."""

    body = BlockCausalMixtureModel

    def __init__(self, config: Glm4MoeConfig) -> None:
        config.norm_topk_prob = config.num_experts_per_tok > 1
        super().__init__(config)
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


class BertForMaskedLM(transformers.BertForMaskedLM):
    """transformers' network of this name."""

    # Of the checkpoints that were trained to tell the next sentence, too.
    _keys_to_ignore_on_load_unexpected = (r"bert\.pooler\.", r"cls\.seq_relationship\.", r"position_ids$")  # pyright: ignore[reportAssignmentType]

    model = property(lambda self: self.bert)
    lm_head = property(lambda self: self.cls)


class LocalModernBertModel(transformers.ModernBertModel):
    """ModernBERT's layers, whose windows stay where a mask for each query is given."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, use_cache: Any = None, **more: Any) -> Any:
        """Compute the layers; ``attention_mask`` is 0 on padding [batch, key], or [batch, 1, query, key]."""
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:  # transformers would take it as it is
            here = torch.arange(attention_mask.shape[-1], device=attention_mask.device)
            near = (here[:, None] - here).abs() <= self.config.sliding_window
            unseen = torch.finfo(attention_mask.dtype).min if attention_mask.is_floating_point() else False
            local = torch.where(near, attention_mask, unseen)
            attention_mask = {"full_attention": attention_mask, "sliding_attention": local}
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **more)


class ModernBertForMaskedLM(transformers.ModernBertForMaskedLM):
    """transformers' network of this name."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = LocalModernBertModel(config)
        self.post_init()
        self.__dict__["lm_head"] = nn.Sequential(self.head, self.decoder)  # no module, whose parameters count twice
