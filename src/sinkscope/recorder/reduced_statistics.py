"""What ``keep="statistics"`` needs of a step of a diffusion model, reduced where its tensors are, for all layers and
prompts at once; nothing is read on the host.

Each result is a part of a record of `sinkscope.statistics`, by "class.field", [layer, batch, head if it has one, …], the
other axes behind. The formulas are those of the classes, which compute the same of whole columns on the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import upload
from sinkscope.recorder.largest_columns import AT_ONCE
from sinkscope.statistics.concentration import GU_THRESHOLD
from sinkscope.statistics.groups import LEAST_QUERIES
from sinkscope.statistics.norms import OUTPUT
from sinkscope.statistics.step import HEAD_BASE, NORMS, OUTPUT_NORMS, excess_over_others, histogram_edges
from sinkscope.statistics.thresholds import EPSILONS, UNITS, Threshold

LEAST_ROOM = 32
ONE_IN = 8
"""Of a layer's columns one in so many may be a candidate, of a short canvas ``LEAST_ROOM`` a head."""


@dataclass(eq=False)
class _Rows:
    """The canvas of each prompt: which keys it has, from 0 their position, the members of `groups.GROUPS`."""

    real: Bool[Tensor, "batch one key"]
    position: Int[Tensor, "batch one key"]
    length: Float[Tensor, "batch one"]
    members: Bool[Tensor, "group batch key"]
    sizes: Float[Tensor, "group batch one"]


@torch.no_grad()
def reduce_statistics(
    step: Mapping[str, Float[Tensor, "layer batch *head token"]],
    masked: Bool[Tensor, "batch position"],
    lengths: Int[Tensor, " batch"],
    prompt_lengths: Int[Tensor, " batch"],
    thresholds: Sequence[Threshold],
) -> dict[str, Tensor]:
    """Return the parts of the records of a step that is stacked over its layers, each row padded on the left; the
    candidates are all there if ``….many`` is at most the width of ``….place`` in every layer.
    """
    columns = step["column_sums"]
    keys, device = columns.shape[-1], columns.device
    lengths, prompt_lengths = (upload(one, device)[:, None] for one in (lengths, prompt_lengths))
    position = torch.arange(keys, device=device) - (keys - lengths)
    real, in_prompt, masked = position >= 0, position < prompt_lengths, masked.to(device)
    masks_asked = (masked & in_prompt & real).any(-1, keepdim=True)
    members = torch.stack([masked, ~masked, in_prompt, ~(masked | in_prompt | masks_asked)]) & real
    whole = {  # NaN where there is no token, or none was computed
        name: torch.where(real[:, None] if one.ndim == 4 else real, pad(one, (keys - one.shape[-1], 0), value=torch.nan), torch.nan)
        for name, one in step.items()
        if name in (*NORMS, OUTPUT_NORMS, "self_attention")
    }
    queries = ~whole["hidden_norms"].isnan() if "hidden_norms" in whole else real.expand(len(columns), -1, -1)
    sizes = (queries & members[:, None]).sum(-1, keepdim=True)
    rows = _Rows(real[:, None], position[:, None], lengths.double(), members, sizes.amin(1).float())
    whole |= {name: torch.where(rows.real, step[name], 0.0) for name in step if name.startswith("column_sums")}
    whole |= {"queries": queries.sum(-1, keepdim=True), "prompt_queries": sizes[2]}
    many = max(1, AT_ONCE // max(1, columns[0].numel()))
    parts = [
        _Layers({name: one[first : first + many] for name, one in whole.items()}, rows, thresholds).found
        for first in range(0, len(columns), many)
    ]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    followed = found.pop("means").sum(0) / (len(columns) * columns.shape[2])
    return found | {"step.means": followed[None], "total": found["StepSummary.total"][..., None]}


class _Layers:
    """Some layers of a step, whose parts of records are ``found``."""

    def __init__(self, step: dict[str, Tensor], rows: _Rows, thresholds: Sequence[Threshold]) -> None:
        self.step, self.rows, self.thresholds, self.found = step, rows, thresholds, dict[str, Tensor]()
        self.sums = step["column_sums"]
        self.others = (rows.length[..., None] - 1).clamp(min=1)
        self.total = self.sums.sum(-1, keepdim=True)
        # Ties to the lower position; what is no token comes last, and falls into no bin.
        self.ranked, self.order = torch.where(rows.real, self.sums, -1.0).sort(dim=-1, descending=True, stable=True)
        self.top = self.order[..., :1]
        self._columns()
        self._evenness()
        self._groups()
        self._norms()

    def _keep(self, record: str, **fields: Tensor) -> None:
        self.found |= {f"{record}.{name}": one for name, one in fields.items()}

    def _sizes(self, columns: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the excess of columns ``of`` each head, by default all, in both units; the sum of the percents."""
        total, of = columns.sum(-1, keepdim=True), columns if of is None else of
        share, chosen = (torch.where(total > 0, one / total, 0.0) * 100 for one in (columns, of))
        percent = share.sum(-1, keepdim=True)
        return excess_over_others(of, total, self.others), excess_over_others(chosen, percent, self.others), percent

    def _candidates(self, record: str, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the candidates of each layer, ordered by head and key; return the excess in both units."""
        excess, percent, all_percent = self._sizes(columns)
        least = [min((one.excess for one in self.thresholds if one.unit == unit), default=torch.inf) for unit in UNITS]
        chosen = (((excess > least[0]) | (percent > least[1])) & self.rows.real).flatten(2)
        heads, keys = columns.shape[2:]
        room = heads * min(keys, max(LEAST_ROOM, keys // ONE_IN))
        behind = chosen.cumsum(-1)
        slot = torch.where(chosen & (behind <= room), behind - 1, room)
        head = torch.arange(heads, device=columns.device)[:, None] * HEAD_BASE
        place = (head + self.rows.position).int().flatten(1).expand_as(chosen)
        shape = (*chosen.shape[:2], room + 1)
        self._keep(
            record,
            many=behind[..., -1:].int(),
            place=place.new_zeros(shape).scatter_(-1, slot, place)[..., :room],
            column=columns.new_zeros(shape).scatter_(-1, slot, columns.flatten(2))[..., :room],
            total=columns.sum(-1),
            all_percent=all_percent[..., 0],
        )
        return excess, percent

    def _positions(self, at: Tensor) -> Tensor:
        """Return positions on the canvas of places [layer, batch, head, 1] on the padded one."""
        return at - (self.rows.position.shape[-1] - self.rows.length[..., None].long())

    def _columns(self) -> None:
        excess, percent = self._candidates("columns", self.sums)
        largest = {"excess": excess.gather(-1, self.top)[..., 0], "percent": percent.gather(-1, self.top)[..., 0]}
        edges = {unit: [one.excess for one in self.thresholds if one.unit == unit] for unit in UNITS}
        above, counts = [], {}
        for unit, ranked in zip(UNITS, self._sizes(self.sums, self.ranked)[:2], strict=True):
            counted = _count_above(ranked, [*EPSILONS.tolist(), *edges[unit]])
            above.append(counted[..., : len(EPSILONS)].sum(2))
            counts |= {(unit, at): counted[..., len(EPSILONS) + number] for number, at in enumerate(edges[unit])}
        self.counts = torch.stack([counts[one.unit, one.excess] for one in self.thresholds], -1)
        bins = _count_above(self.ranked, histogram_edges().tolist(), or_at=True).sum(2)
        self.found |= {"means": self.sums.sum(2, dtype=torch.float64)}
        self._keep("step", above=torch.stack(above, -1), bins=bins - pad(bins[..., 1:], (0, 1)))
        shares = (self._tallied(self.sums) / self.total.clamp(min=torch.finfo(torch.float32).tiny)).float()
        summary = {"counts": self.counts.int(), "shares": shares, "top": self._positions(self.top)[..., 0]}
        self._keep("StepSummary", **summary, largest=self.ranked[..., 0], total=self.total[..., 0])
        self._keep("step", **largest)

    def _tallied(self, weights: Tensor) -> Float[Tensor, "layer batch head threshold"]:
        """Return the sum of weights over the sinks of each head, the largest ones, at each threshold."""
        running = weights.gather(-1, self.order).cumsum(-1, dtype=torch.float64)
        return pad(running, (1, 0)).gather(-1, self.counts)

    def _evenness(self) -> None:
        length, columns = self.rows.length[..., None], self.ranked.clamp(min=0)
        queries = self.step["queries"].clamp(min=1)
        first = self.sums.gather(-1, self._first(self.sums))[..., 0]
        share = torch.where(self.total > 0, columns / self.total, (1 / length).float())
        share = torch.where(self.ranked < 0, 0.0, share)
        entropy = -torch.xlogy(share, share).sum(-1) / length[..., 0].clamp(min=2).log()
        rank = length - torch.arange(columns.shape[-1], device=columns.device)
        ranked = (columns * rank).sum(-1)
        gini = torch.where(self.total[..., 0] > 0, ranked / self.total[..., 0], (length[..., 0] + 1) / 2)
        self._keep(
            "Evenness",
            entropy=entropy,
            gini=2 * gini / length[..., 0] - (length[..., 0] + 1) / length[..., 0],
            over_third=(self.ranked[..., 0] / queries.double() > GU_THRESHOLD).float(),
            first_over_third=(first / queries.double() > GU_THRESHOLD).float(),
        )

    def _first(self, columns: Tensor) -> Tensor:
        first = columns.shape[-1] - self.rows.length[..., None].long()
        return first.expand(*columns.shape[:3], 1)

    def _groups(self) -> None:
        masked, prompt = self.step["column_sums_masked"], self.step["column_sums_prompt"]
        unmasked, sizes = self.sums - masked, self.rows.sizes
        groups, positions, excesses, percents, length = (masked, unmasked, prompt, unmasked - prompt), [], [], [], self.rows.length
        at = [_largest(one, self.rows.real) for one in groups]
        for sums, place, size in zip(groups, at, sizes, strict=True):
            scaled, total = (one * length.float() / size for one in (sums.gather(-1, place)[..., 0], sums.sum(-1)))
            excess = scaled - (total - scaled) / (length.float() - 1).clamp(min=1)
            percent, enough = torch.where(total > 0, 100 * excess / total, 0.0), size >= LEAST_QUERIES
            positions.append(torch.where(enough, self._positions(place)[..., 0], -1))
            excesses.append(torch.where(enough, excess, torch.nan))
            percents.append(torch.where(enough, percent, torch.nan))
        own, other = (
            (masked.gather(-1, one) / sizes[0, ..., None] - unmasked.gather(-1, one) / sizes[1, ..., None])[..., 0]
            for one in at[:2]
        )
        apart = (positions[0] >= 0) & (positions[1] >= 0) & (positions[0] != positions[1])
        itself = self.step["self_attention"]
        mine = itself.gather(-1, self.top)[..., 0]
        rest = ((~itself.isnan()).sum(-1) - (~mine.isnan()).int()).clamp(min=1)
        self._keep(
            "GroupSinks",
            position=torch.stack(positions, -1),
            excess=torch.stack(excesses, -1),
            percent=torch.stack(percents, -1),
            clarity=torch.where(apart, torch.minimum(own, -other), torch.nan),
            own_attention=mine,
            other_attention=(itself.nansum(-1) - mine.nan_to_num()) / rest,
        )
        queries = (self.step["queries"] - self.step["prompt_queries"]).clamp(min=1).float()[..., None]
        answer = torch.where(self.rows.real, (self.sums - prompt) * (length[..., None].float() / queries), 0.0)
        excess, percent = self._candidates("answer", answer)
        main = _largest(answer, self.rows.real)
        found = {"queries": excess.gather(-1, main)[..., 0], "percent": percent.gather(-1, main)[..., 0]}
        self._keep("AnswerMain", position=self._positions(main)[..., 0], **found)

    def _norms(self) -> None:
        layers, batch, heads, _ = self.sums.shape
        lacking = self.total[..., 0].new_full((layers, batch, heads), torch.nan)
        moment = torch.full((layers, batch, 3), torch.nan, dtype=torch.float64, device=self.sums.device)
        of_all, above = [moment] * (OUTPUT + 1), [lacking] * (len(NORMS) + 1)
        of_sinks = [moment[..., None].expand(-1, -1, -1, len(self.thresholds))] * (OUTPUT + 1)
        on_sinks, given = [lacking[..., None].expand(*lacking.shape, len(self.thresholds))] * 2, [lacking] * 2
        for kind, name in enumerate(one for one in (*NORMS, OUTPUT_NORMS)):
            if name not in self.step:
                continue
            norms = self.step[name] if name != "hidden_norms" else self.step[name][:, :, None]
            place, shared = OUTPUT if name == OUTPUT_NORMS else kind, heads // norms.shape[2]
            norms = norms[:, :, :, None].expand(-1, -1, -1, shared, -1).flatten(2, 3)
            there, known, own = ~norms.isnan(), norms.nan_to_num(), norms.gather(-1, self.top)
            moments = (there.float(), known, known.double().square())
            of_all[place] = torch.stack([one.sum((2, 3), dtype=torch.float64) for one in moments], -1)
            of_sinks[place] = torch.stack([self._tallied(one).sum(2) for one in moments], -2)
            larger = (norms > own).sum(-1) + 0.5 * ((norms == own).sum(-1) - 1)
            share = larger / (there.sum(-1) - 1).clamp(min=1)
            above[kind] = torch.where(own[..., 0].isnan(), torch.nan, share)
            self.found[f"largest {name}"] = known.amax(-1)  # by which infinite ones are found
            if name not in ("value_norms", OUTPUT_NORMS):
                continue
            product, added = self.sums * known, int(name == OUTPUT_NORMS)
            on, given[added] = self._tallied(product), product.sum(-1)
            on_sinks[added] = torch.where(given[added][..., None] > 0, on / given[added][..., None], torch.nan).float()
            if not added:
                square, many = product.double().square(), (heads * self.rows.length[..., 0]).expand(layers, -1)
                sums = [given[0].sum(2, dtype=torch.float64), square.sum((2, 3))]
                of_all[OUTPUT - 1] = torch.stack([many, *sums], -1)
                of_each = [self.counts.double(), on, self._tallied(square)]
                of_sinks[OUTPUT - 1] = torch.stack([one.sum(2) for one in of_each], -2)
        parts = {"of_all": torch.stack(of_all, 2), "of_sinks": torch.stack(of_sinks, 2).movedim(-1, 2)}
        parts |= {"above": torch.stack(above, -1), "given": torch.stack(given, -1)}
        self._keep("StepNorms", **parts, on_sinks=torch.stack(on_sinks, -2))


def _largest(columns: Tensor, real: Tensor) -> Int[Tensor, "layer batch head 1"]:
    """Return where the largest column of each head stands, ties to the lower one."""
    columns = torch.where(real, columns, -torch.inf)
    keys = torch.arange(columns.shape[-1], device=columns.device)
    return torch.where(columns == columns.amax(-1, keepdim=True), keys, len(keys) - 1).amin(-1, keepdim=True)


def _count_above(falling: Float[Tensor, "*any key"], edges: list[float], or_at: bool = False) -> Int[Tensor, "*any edge"]:
    """Return how many values, in falling order, are above each edge, or at it."""
    low = -upload(torch.tensor(edges, dtype=falling.dtype), falling.device)
    return torch.searchsorted(-falling, low.expand(*falling.shape[:-1], -1).contiguous(), right=or_at)
