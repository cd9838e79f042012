"""Sparse-dLLM (Song et al., 2025; OpenMOSS/Sparse-dLLM, models/sparse_dllm/modeling_llada.py, llada_generate.py).

The first two steps of a block compute everything (*delayed*). After the second, each layer keeps a share of the keys
outside of the block: those with the largest product with the mean query of the block, averaged over heads and pooled
over neighbours. Later steps compute the block and read it and the keys that were kept.

Quirk: the product is neither scaled nor passed through a softmax: it may be negative, and larger heads count more.
Quirk: pooling makes neighbours tie; which of them are kept follows from how top-k breaks ties.
Quirk: the window of the pooling runs over the keys outside of the block as if they were adjacent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, pad

from sinkscope.attention import Columns, LayerCall
from sinkscope.decoding.caches.policy import CachePolicy, Moment, Plan, Share, outside_of, with_block


@dataclass(frozen=True)
class SparseDLLM(CachePolicy):
    """Computes the block, and reads a share of the keys outside of it.

    Attributes:
        ratio: share of the keys outside of the block that are kept (published: ``keep_ratio``).
        pool: how many adjacent keys share the largest score of them, an odd number (published: ``kernel_size``).
    """

    name = "sparse-dllm"
    own_places = True
    measures = True
    selects = True
    ratio: Share = 0.5
    pool: int = 3

    def contradictions(self) -> Iterator[str]:
        if self.pool < 1 or self.pool % 2 == 0:
            yield f"expected pool as an odd number of keys, found {self.pool}"

    def plan(self, moment: Moment) -> Plan:
        return Plan() if moment.number <= 1 else Plan(slice(moment.start, moment.stop))

    def measure(self, call: LayerCall, columns: Columns, moment: Moment) -> Tensor:
        mean = call.query[:, :, moment.start : moment.stop].mean(dim=2)
        keys = call.key.repeat_interleave(mean.shape[1] // call.key.shape[1], dim=1)
        return (keys @ mean[..., None]).squeeze(-1).mean(dim=1)

    def kept(self, moment: Moment) -> Tensor | None:
        assert moment.scores is not None
        scores, chosen = torch.stack(list(moment.scores), dim=1), []
        for row, outside in enumerate(outside_of(moment)):
            places = outside.nonzero().flatten()
            pooled = max_pool1d(scores[row][:, places], self.pool, stride=1, padding=self.pool // 2)
            chosen.append(places[pooled.topk(int(len(places) * self.ratio), dim=-1).indices])
        most = max(one.shape[-1] for one in chosen)
        padded = torch.stack([pad(one, (0, most - one.shape[-1]), value=-1) for one in chosen])
        return with_block(padded[:, :, None], moment)
