"""`attend` by torch's fused attention alone, for a GPU without Triton: queries and keys exchange their roles.

With lse_i the log-sum-exp of query i, log c_j = log Σ_i w_i exp(k_j·q_i − lse_i): the log-sum-exp of an attention in which
the keys ask and the queries answer, each answer lowered by lse_i − log w_i. The lowering travels in three more head
dimensions, as a sum of three numbers of the inputs' dtype, so that no bias is needed.
"""

import math

import torch
from torch import Tensor

from sinkscope.attention.sweep import Columns

LEAST = -30000.0
"""What stands for −∞ where float16 has to hold it; its exponential is 0."""


def attend_exchanged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    scale: float | None,
    mask: Tensor | None,
    causal: bool,
    hidden: Tensor | None,
) -> tuple[Tensor, Columns]:
    """Attention output and column sums, as `sweep.attend` gives them; no gradients.

    Args:
        hidden: bool [1 or batch, 1 or head, key]; only without a mask and not causal, so that a head loses its keys for
            all queries alike.
    """
    batch, heads, queries, dim = query.shape
    keys, repeat = key.shape[2], heads // key.shape[1]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    key, value = (one.repeat_interleave(repeat, dim=1) if repeat > 1 else one for one in (key, value))
    bias = _additive(mask, causal, queries, keys, query)
    output, lse = _attention(query, key, value, bias, scale)
    blind = None if bias is None else ~torch.isfinite(bias).any(-1).expand(batch, heads, queries)
    output, lse = _for_the_blind(output, lse, blind)
    turned = None if bias is None else bias.mT
    shift = 0 if causal else keys - queries
    sums = _columns(query, key, lse, groups, turned, scale)
    last_row, diagonal = _row(query, key, lse, bias, scale), _diagonal(query, key, lse, bias, scale, shift)
    if hidden is None:
        return output, Columns(sums, None, diagonal, last_row, last_row, None, None, "exchanged")
    kept = ~(hidden & ~hidden.all(-1, keepdim=True)).expand(batch, heads, -1)  # a head that would lose all keys keeps them
    without = torch.zeros(kept.shape, dtype=query.dtype, device=query.device).masked_fill(~kept, -torch.inf)[:, :, None]
    output, in_force = _attention(query, key, value, without.expand(-1, -1, queries, -1), scale)
    visible = kept[:, :, None]
    local, sums = sums, _columns(query, key, in_force, groups, None, scale) * visible
    removed = -torch.expm1((in_force - lse).clamp(max=0.0))
    last_in_force = _row(query, key, in_force, None, scale) * kept
    at = torch.arange(queries, device=query.device) + shift
    own = kept[..., at.clamp(0, keys - 1)] & (at >= 0) & (at < keys)
    diagonal = _diagonal(query, key, in_force, None, scale, shift) * own
    return output, Columns(sums, local, diagonal, last_row, last_in_force, removed, None, "exchanged")


def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Output, and the natural log-sum-exp of each query in float32 [batch, head, query]."""
    batch, heads, queries, _ = query.shape
    if bias is not None:
        bias = bias.to(query.dtype).expand(batch, heads, queries, key.shape[2])
    width = max(query.shape[-1], value.shape[-1])
    width += -width % 8
    taken = [torch.nn.functional.pad(one, (0, width - one.shape[-1])) for one in (query, key, value)]
    if query.device.type == "cpu":
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*taken, attn_mask=bias, scale=scale)
        return output[..., : value.shape[-1]], lse.float()
    if bias is not None and bias.shape[-1] % 8:  # its rows have to stand at multiples of 16 bytes
        room = bias.new_zeros(*bias.shape[:-1], bias.shape[-1] + -bias.shape[-1] % 8)
        room[..., : bias.shape[-1]] = bias
        bias = room[..., : bias.shape[-1]]
    output, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(*taken, bias, True, scale=scale)
    return output[..., : value.shape[-1]], lse[..., :queries].float()  # which the kernel rounds up to a multiple of 32 queries


def _columns(query: Tensor, key: Tensor, lse: Tensor, groups: Tensor, turned: Tensor | None, scale: float) -> Tensor:
    """Float32 [batch, head, group, key]."""
    batch, heads, queries, _ = query.shape
    nothing = query.new_zeros(batch, heads, queries, 8)
    sums = []
    for group in range(groups.shape[1]):
        lowered = torch.where(torch.isfinite(lse), torch.log(groups[:, None, group]) - lse, LEAST).clamp(min=LEAST)
        answers = torch.cat([query, *_three(lowered / scale, query.dtype)], dim=-1)
        asking = torch.cat([key, key.new_ones(*key.shape[:-1], 3)], dim=-1)
        _, found = _attention(asking, answers, nothing, turned, scale)
        sums.append(torch.exp(found))
    stacked = torch.stack(sums, dim=2)
    if turned is None:
        return stacked
    return torch.where(torch.isfinite(turned).any(-1)[:, :, None], stacked, 0.0)  # keys that nobody sees


def _three(number: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Three numbers of a dtype [..., 1] whose sum is the number, to float32's digits."""
    parts, rest = [], number.clamp(min=torch.finfo(dtype).min)
    for _ in range(3):
        part = rest.to(dtype)
        parts.append(part[..., None])
        rest = rest - part.float()
    return parts


def _for_the_blind(output: Tensor, lse: Tensor, blind: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries that see nothing get nothing."""
    if blind is None:
        return output, lse
    return output.masked_fill(blind[..., None], 0.0), lse.masked_fill(blind, torch.inf)


def _row(query: Tensor, key: Tensor, lse: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The newest query's own attention, float32 [batch, head, key]."""
    scores = (key.float() @ query[:, :, -1, :, None].float())[..., 0] * scale
    if bias is not None:
        scores = scores + bias[:, :, -1].float()
    return torch.exp(scores - lse[:, :, -1:])


def _diagonal(query: Tensor, key: Tensor, lse: Tensor, bias: Tensor | None, scale: float, shift: int) -> Tensor:
    """Each query's attention on itself, float32 [batch, head, query]; 0 where it stands at no key."""
    queries, keys = query.shape[2], key.shape[2]
    at = torch.arange(queries, device=query.device) + shift
    there, at = (at >= 0) & (at < keys), at.clamp(0, keys - 1)
    scores = (query.float() * key[:, :, at].float()).sum(-1) * scale
    if bias is not None:
        own = bias.expand(-1, -1, queries, -1).gather(-1, at[None, None, :, None].expand(*bias.shape[:2], -1, -1))
        scores = scores + own[..., 0].float()
    return torch.exp(scores - lse) * there


def _additive(mask: Tensor | None, causal: bool, queries: int, keys: int, query: Tensor) -> Tensor | None:
    """Bool or additive mask, or causality, as what is added: [1 or batch, 1 or head, query, key]."""
    if causal:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()[None, None]
        return torch.zeros(seen.shape, device=query.device).masked_fill(~seen, -torch.inf)
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        bias = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)
    else:
        bias = mask.float().masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf)
    return bias.expand(-1, -1, queries, -1)
