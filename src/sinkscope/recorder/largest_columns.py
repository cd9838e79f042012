"""What ``keep="top"`` keeps of columns: the largest of each head, where they are, and the mean of the others.

It is computed where the columns are, for all layers and prompts of a step at once, and nothing is read on the host.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.axes import TOPPED
from sinkscope.traces.writing import Step

AT_ONCE = 1 << 22
"""Columns that are ranked together; each takes 8 bytes."""
KEPT = ("tokens", "masked", "written", "predicted", "confidence", "lengths", "sink_token_columns")


@torch.no_grad()
def largest_columns(
    name: str,
    columns: Float[Tensor, "layer batch head key"],
    count: int,
    first: Int[Tensor, " batch"] | None = None,
) -> dict[str, Tensor]:
    """Return, by their names in a trace, the ``count`` largest columns of each head, NaN where there are fewer; their
    positions, −1 there; and the mean of the others, NaN without any. The lower position wins a tie.

    Tokens of a row begin at its ``first`` key, from which positions count, or all at 0. Without a name in a trace:
    ``total``, float64 [layer, batch, head, 1], NaN where any column is.
    """
    many = max(1, AT_ONCE // max(1, columns[0].numel()))
    parts = [_largest(some, count, first) for some in columns.split(many)]
    names = (f"top_{name}", f"top_{name}_key", f"rest_{name}", "total")
    return dict(zip(names, map(torch.cat, zip(*parts, strict=True)), strict=True))


def _largest(columns: Tensor, count: int, first: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    keys, device = columns.shape[-1], columns.device
    start = torch.zeros(columns.shape[1], dtype=torch.int64, device=device) if first is None else first
    start, position = start[:, None, None], torch.arange(keys, device=device)
    columns = torch.where(position < start, -0.0, columns + 0.0)
    # Floats from 0 on are ordered as their bits are; −0 has the sign bit, which marks places without a token.
    ranked = (columns.view(torch.int32).long() << 32) | (keys - 1 - position)
    chosen = ranked.topk(min(count, keys)).values
    chosen = pad(chosen, (0, count - chosen.shape[-1]), value=-1)
    there = chosen >= 0
    values = torch.where(there, (chosen >> 32).int().view(torch.float32), 0.0)
    at = keys - 1 - (chosen & 0xFFFFFFFF) - start
    total, others = columns.sum(-1, keepdim=True, dtype=torch.float64), keys - start[..., 0] - there.sum(-1)
    rest = (total[..., 0] - values.sum(-1, dtype=torch.float64)).clamp(min=0) / others.clamp(min=1)
    rest = torch.where(others > 0, rest, torch.nan).float()
    return torch.where(there, values, torch.nan), torch.where(there, at, -1).int(), rest, total


def keep_top(step: Step, count: int) -> Step:
    """Return the canvas of a step, and the largest columns of a step not reduced yet."""
    kept = {name: one for name, one in step.items() if name in KEPT or name.startswith(("top_", "rest_"))}
    for name in (one for one in TOPPED if one in step):
        found = largest_columns(name, torch.from_numpy(step[name])[:, None], count)
        kept |= {part: one[:, 0].numpy() for part, one in found.items() if part != "total"}
    return kept
