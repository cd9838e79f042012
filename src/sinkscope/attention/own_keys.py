"""Attention behind constant keys of the network's own (a sink token, a learned logit), when nobody watches or hides.

Gradients reach the constant keys. Column sums are the business of `sweep.attend`.
"""

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad, scaled_dot_product_attention

from sinkscope.attention.sweep import Prefix

FEW_QUERIES = 16  # from here on the fused kernel is worth a copy of the keys


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
    """Attention output [batch, head, query, dim], every query seeing the constant keys too.

    Args:
        query: [batch, head, query, dim].
        key, value: [batch, kv_head, key, dim].
        mask: [1 or batch, 1 or head, 1 or query, key], boolean (True is visible) or additive; without constant keys.
        causal: query i sees keys 0…i (upper-left, as sdpa has it); only without a mask.
        scale: factor on the scores; learned logits are scores already.
        dropout: share of attention weights that are dropped.
    """
    count = prefix.count
    if causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril_()
    if mask is not None:
        mask = pad(mask, (count, 0), value=True if mask.dtype == torch.bool else 0.0)
    front_keys, front_values = _expanded(prefix.keys, key), _expanded(prefix.values, value)
    repeat = query.shape[1] // key.shape[1]
    few = query.shape[2] <= FEW_QUERIES
    # Plain products beat the CPU's fused kernel on short canvases, backward above all.
    plain = prefix.logits is not None or few or (query.device.type == "cpu" and torch.is_grad_enabled())
    if not plain:
        assert front_keys is not None
        if front_values is None:
            front_values = value.new_zeros(*value.shape[:2], count, value.shape[-1])
        keys, values = torch.cat([front_keys, key], dim=2), torch.cat([front_values, value], dim=2)
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=repeat > 1)
    grouped = query.reshape(query.shape[0], key.shape[1], repeat * query.shape[2], query.shape[3])  # heads of one key head: one product
    shape = (*query.shape[:3], -1)
    scores = (grouped @ key.transpose(-1, -2) * scale).view(shape)
    if prefix.logits is not None:
        front = prefix.logits[None, :, None, :].to(scores).expand(*query.shape[:3], -1)
    else:
        assert front_keys is not None
        front = (grouped @ front_keys.transpose(-1, -2) * scale).view(shape)
    scores = torch.cat([front, scores], dim=-1)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    weights = drop(torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype), dropout)
    flat = weights.view(*grouped.shape[:3], -1)
    output = flat[..., count:] @ value
    if front_values is not None:
        output = output + flat[..., :count] @ front_values
    return output.view(*query.shape[:3], -1)


def _expanded(constant: Tensor | None, like: Tensor) -> Tensor | None:
    """[batch, kv_head, count, dim] in the type of the keys."""
    if constant is None:
        return None
    return (constant if constant.ndim == 4 else constant[None]).to(like).expand(like.shape[0], -1, -1, -1)
