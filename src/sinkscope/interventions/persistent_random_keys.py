"""Control: random keys that stay as long as the sinks they stand for."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.intervention import check_count
from sinkscope.interventions.observed import Ranking
from sinkscope.interventions.random_keys import random_ranks
from sinkscope.interventions.top_sinks import SinkRule


@dataclass(frozen=True)
class PersistentRandomKeys(SinkRule):
    """Control: hides one random key for each of the k sinks, the same one as long as that sink stays in the top k.

    It is drawn anew only if it becomes a sink itself. Separates what is lost for long from what is lost for one step.

    Attributes:
        seed: see `RandomKeys`.
    """

    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("seed", self.seed)

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        free = ranking.candidates & ~top & ~ranking.sinks
        stand_in = context.memory.get("stand_in", torch.zeros(*top.shape[:2], 0, dtype=torch.long, device=top.device))
        stand_in = pad(stand_in, (0, top.shape[-1] - stand_in.shape[-1]), value=-1)  # sink position → its key, −1 for none
        kept = top & (stand_in >= 0)
        kept = kept & free.gather(-1, stand_in.clamp(min=0))
        stand_in = stand_in.masked_fill(~kept, -1)
        taken = _marked(stand_in)
        needy = top & ~kept
        drawn = random_ranks(context, ranking, top | taken, self.seed)
        in_line = needy.cumsum(-1) - 1
        order = drawn.argsort(dim=-1)
        enough = in_line < (ranking.candidates & ~top & ~taken).sum(-1, keepdim=True)
        stand_in = torch.where(needy & enough, order.gather(-1, in_line.clamp(min=0)), stand_in)
        context.memory["stand_in"] = stand_in
        return _marked(stand_in)


def _marked(stand_in: Tensor) -> Tensor:
    """Which keys are somebody's, bool [batch, group, key]."""
    marks = torch.zeros(*stand_in.shape[:2], stand_in.shape[-1] + 1, dtype=torch.bool, device=stand_in.device)
    return marks.scatter_(-1, stand_in + 1, True)[..., 1:]
