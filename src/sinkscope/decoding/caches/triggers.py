"""Triggers: what tells a cache, after a step, that a row of the batch is to be refreshed in the next one.

Each looks at the attention of the block's queries alone, because only these are computed in most steps. A row is judged by itself.

sink        the main sinks have moved: in more than a share ``level`` of the heads that had a sink at the last refresh, the most attended
            key is another one (Eq. 3 in queries' worth, over the block's queries).
drift       the attention that the most attended key of the step before gets has turned: the cosine between its weights then and now, over
            the block's queries, is below ``level`` in some layer. The policy ``elastic-cache`` has such a signal too, and recomputes only
            the layers behind.
confidence  the step before has committed a token with a probability below ``level``.
entropy     the step before has committed a token whose distribution has an entropy above ``level``, in nats. After EntropyCache (Cheong et
            al., 2026), which also computes the tokens written last (``fresh=changed,recent=N``); its code has not been published, and
            nothing here is claimed to equal it.
"""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sinkscope.attention import LayerCall
from sinkscope.decoding.caches.keeping import block_weights, excess
from sinkscope.decoding.caches.policy import Moment
from sinkscope.sinks.finding import EXCESS

LEVELS = {"sink": 0.25, "drift": 0.9, "confidence": 0.5, "entropy": 1.0}
"""The default level of each trigger."""


def block_columns(call: LayerCall, moment: Moment) -> Tensor:
    """Return the column sums of the block's queries, float32 [row, head, position]."""
    return block_weights(call, moment).sum(2)[..., -call.key.shape[2] :]


def block_rows(call: LayerCall, moment: Moment) -> Tensor:
    """Return the attention of each query of the block, mean over heads, float32 [row, block position, position]; 0 where not computed."""
    weights = block_weights(call, moment).mean(1)[..., -call.key.shape[2] :]
    if call.part is None:
        return weights
    width = moment.stop - moment.start
    places = call.part.queries - moment.start
    within = torch.where((places >= 0) & (places < width), places, width)
    placed = weights.new_zeros(len(weights), width + 1, weights.shape[-1])
    return placed.scatter(1, within[..., None].expand_as(weights), weights)[:, :width]


def sinks_moved(moment: Moment, level: float) -> Tensor:
    """Return in which rows more than a share ``level`` of the main sinks have moved since the last refresh, bool [batch]."""
    assert moment.now is not None and moment.at_refresh is not None
    before = moment.at_refresh
    had = (excess(before, moment.real) > EXCESS).any(-1)
    moved = had & (before.argmax(-1) != moment.now.argmax(-1))
    return moved.sum((1, 2)) > level * had.sum((1, 2))


def attention_drifted(moment: Moment, level: float) -> Tensor:
    """Return in which rows the attention to the most attended key has turned by more than ``level`` allows in some layer, bool [batch]."""
    assert moment.now is not None
    if moment.before is None:
        return torch.zeros(len(moment.real), dtype=torch.bool, device=moment.real.device)
    both = (moment.before.sum(-1) > 0) & (moment.now.sum(-1) > 0)
    most = moment.before.masked_fill(~both[..., None], 0).sum(2).argmax(-1)[..., None, None].expand(*both.shape, 1)
    then, now = (one.gather(-1, most).squeeze(-1).masked_fill(~both, 0) for one in (moment.before, moment.now))
    return ((cosine_similarity(then, now, dim=-1) < level) & both.any(-1)).any(-1)


def commits_unsure(moment: Moment, level: float) -> Tensor:
    """Return in which rows the step before has committed a token that was less probable than ``level``, bool [batch]."""
    if moment.confidence is None or not moment.commits:
        return torch.zeros(len(moment.real), dtype=torch.bool, device=moment.real.device)
    return (moment.commits[-1] & (moment.confidence < level)).any(-1)


def commits_open(moment: Moment, level: float) -> Tensor:
    """Return in which rows the step before has committed a token from a distribution with more than ``level`` nats, bool [batch]."""
    if moment.entropy is None or not moment.commits:
        return torch.zeros(len(moment.real), dtype=torch.bool, device=moment.real.device)
    return (moment.commits[-1] & (moment.entropy > level)).any(-1)
