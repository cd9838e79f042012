"""Attention with the network's own constant keys (a sink token, a learned logit), without subscribers.

Gradients reach the constant keys. There are no column sums here: `dispatch.attend` computes those.
"""

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad, scaled_dot_product_attention

from sinkscope.attention.records import Prefix

FEW_QUERIES = 16  # with more queries, the fused kernel is worth a copy of the keys


def attend_behind(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix: Prefix,
    *,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Return attention output [batch, head, query, dim], in which every query also sees the constant keys.

    Args:
        query: [batch, head, query, dim].
        key, value: [batch, kv_head, key, dim].
        mask: [1 or batch, 1 or head, 1 or query, key], boolean (True is visible) or additive; without constant keys.
        causal: query i sees keys 0…i (upper-left, as sdpa has it); only without a mask.
        scale: factor on the scores; learned logits are scores already.
        dropout: share of attention weights that are dropped.
    """
    count, (batch, heads, queries, dim), kv_heads = prefix.count, query.shape, key.shape[1]
    if causal:
        mask = torch.ones(queries, key.shape[2], dtype=torch.bool, device=query.device).tril_()
    if mask is not None:
        mask = pad(mask, (count, 0), value=True if mask.dtype == torch.bool else 0.0)
    front_keys, front_values = _expanded(prefix.keys, key), _expanded(prefix.values, value)
    gradients = torch.is_grad_enabled()
    if queries <= FEW_QUERIES and not gradients:  # with a cache: keys are not copied
        grouped = query.reshape(batch, kv_heads, -1, dim)  # heads of one key head: one product
        front = query.new_zeros(batch, heads, queries, count)
        if front_keys is not None:
            front = (grouped @ front_keys.transpose(-1, -2)).view_as(front) * scale
        scores = torch.cat([front, (grouped @ key.transpose(-1, -2)).view(batch, heads, queries, -1) * scale], dim=-1)
        weights = _weights(scores, prefix.logits, mask, dropout).view(batch, kv_heads, -1, scores.shape[-1])
        output = weights[..., count:] @ value
        if front_values is not None:
            output = output + weights[..., :count] @ front_values
        return output.view(batch, heads, queries, -1)
    keys = torch.cat([key.new_zeros(batch, kv_heads, count, dim) if front_keys is None else front_keys, key], dim=2)
    nothing = value.new_zeros(batch, kv_heads, count, value.shape[-1])
    values = torch.cat([nothing if front_values is None else front_values, value], dim=2)
    # Plain products beat the CPU's fused kernel on short canvases, backward above all.
    if prefix.logits is None and not (gradients and query.device.type == "cpu"):
        shared = heads > kv_heads
        if shared and query.is_cuda and mask is not None:  # a GPU's fused kernels take a mask or groups, not both
            keys, values = (one.repeat_interleave(heads // kv_heads, dim=1) for one in (keys, values))
            shared = False
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=shared
        )
    grouped = query.reshape(batch * kv_heads, -1, dim)
    scores = torch.baddbmm(query.new_zeros(()), grouped, keys.flatten(0, 1).transpose(-1, -2), beta=0, alpha=scale)
    weights = _weights(scores.view(batch, heads, queries, -1), prefix.logits, mask, dropout)
    return torch.bmm(weights.view(*grouped.shape[:2], -1), values.flatten(0, 1)).view(batch, heads, queries, -1)


def _weights(scores: Tensor, logits: Tensor | None, mask: Tensor | None, dropout: float) -> Tensor:
    """Return the softmax of scores [batch, head, query, count + key], with learned logits as the first ones."""
    if logits is not None:
        scores = scores + pad(logits[None, :, None].to(scores), (0, scores.shape[-1] - logits.shape[-1]))
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
    return drop(weights, dropout) if dropout else weights


def _expanded(constant: Tensor | None, like: Tensor) -> Tensor | None:
    """Return constant keys or values as [batch, kv_head, count, dim] in the type of the keys."""
    if constant is None:
        return None
    return (constant if constant.ndim == 4 else constant[None]).to(like).expand(like.shape[0], -1, -1, -1)
