"""Which stored keys are read: a budget of them, chosen in each layer and head of keys after a refresh."""

import torch
from torch import Tensor

from sinkscope.attention import LayerCall, without_autocast
from sinkscope.decoding.caches.policy import Moment


def outside_of(moment: Moment) -> Tensor:
    """Return the tokens outside of the block, bool [batch, position]."""
    outside = moment.real.clone()
    outside[:, moment.start : moment.stop] = False
    return outside


def block_weights(call: LayerCall, moment: Moment, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the attention of the block's queries, [row, head, query, key], constant keys in front first.

    A call of a part of the canvas has the queries of that part; one outside of the block has the weight 0 everywhere.
    """
    queries = slice(moment.start, moment.stop) if call.part is None else slice(None)
    weights = attention_weights(call, moment.real[:, None, None], queries, dtype)
    if call.part is None:
        return weights
    places = call.part.queries
    return weights * ((places >= moment.start) & (places < moment.stop))[:, None, :, None]


def attention_weights(call: LayerCall, seen: Tensor, queries: slice, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the attention of some queries of a call, [row, head, query, key], constant keys in front first.

    ``seen`` marks the keys that the queries see, bool [1 or row, 1, 1 or query, key].
    """
    with without_autocast(call.query.device.type):
        query = call.query[:, :, queries].to(dtype)
        scores = query @ _over_heads(call.key, call, dtype).transpose(-1, -2)
        scores = scores.div(query.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        if call.own is not None:
            if call.own.keys is None:
                assert call.own.logits is not None
                front = call.own.logits.to(dtype)[None, :, None].expand(*scores.shape[:3], -1)
            else:
                front = query @ _over_heads(call.own.keys, call, dtype).transpose(-1, -2) / query.shape[-1] ** 0.5
            scores = torch.cat([front, scores], dim=-1)
        return scores.softmax(-1)


def _over_heads(tensor: Tensor, call: LayerCall, dtype: torch.dtype) -> Tensor:
    """Repeat keys or values of each head of keys, with or without a batch axis, for the heads of queries."""
    batched = tensor.to(dtype) if tensor.ndim == 4 else tensor.to(dtype)[None]
    return batched.repeat_interleave(call.query.shape[1] // batched.shape[1], dim=1)


def loss_without(call: LayerCall, moment: Moment) -> Tensor:
    """Return how much the block's attention output changes when one key is not read, float32 [batch, head, position].

    Without key j, whose weight is w and whose value is v, an output o becomes (o − w v) / (1 − w): it moves by w / (1 −
    w) ‖o − v‖. The squares are added over the queries of the block. Keys are taken away one at a time; the loss of
    several is not the sum. Where w is almost 1, o is almost v, which needs float64.
    """
    double = torch.float64
    weights, value = block_weights(call, moment, double), _over_heads(call.value, call, double)
    own = call.own
    if own is not None:
        values = value.new_zeros(*value.shape[:2], own.count, value.shape[-1])
        if own.values is not None:
            values = values + _over_heads(own.values, call, double)
        value = torch.cat([values, value], dim=2)
    output = weights @ value
    far = output.square().sum(-1)[..., None] + value.square().sum(-1)[:, :, None] - 2 * output @ value.transpose(-1, -2)
    moved = (weights / (1 - weights).clamp(min=1e-12)).square() * far.clamp(min=0)
    return moved.sum(2)[..., -call.key.shape[2] :].float()


def pick(preference: Tensor, moment: Moment, count: int) -> Tensor:
    """Return the positions of the block and the ``count`` preferred most outside of it, in order, int64 […, key].

    Of equal ones in ``preference`` […, position] the lower is picked: in the first layer all masks have one value.
    """
    wanted = preference.masked_fill(~outside_of(moment)[:, None, None], -torch.inf)
    return with_block(wanted.sort(dim=-1, descending=True, stable=True).indices[..., :count], moment)


def with_block(chosen: Tensor, moment: Moment) -> Tensor:
    """Return chosen positions, −1 for none, and those of the block, in order, −1 behind them."""
    last = moment.real.shape[1]
    block = torch.arange(moment.start, moment.stop, device=chosen.device).expand(*chosen.shape[:-1], -1)
    placed = torch.cat([torch.where(chosen < 0, last, chosen), block], dim=-1).sort(dim=-1).values
    return torch.where(placed == last, -1, placed)
