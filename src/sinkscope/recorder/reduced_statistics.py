"""What ``keep="statistics"`` needs of a step of a diffusion model, reduced where its tensors are, for all layers and
prompts at once; nothing is read on the host.

Each result is part of a record of `sinkscope.statistics`, "class.field", [layer, batch, head if it has one, …], the
other axes behind. The formulas are those of the classes, which compute the same of whole columns on the host.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import upload
from sinkscope.recorder.largest_columns import AT_ONCE
from sinkscope.statistics.concentration import GU_THRESHOLD
from sinkscope.statistics.groups import LEAST_QUERIES
from sinkscope.statistics.step import NORMS, OUTPUT_NORMS, excess_over_others, histogram_edges
from sinkscope.statistics.thresholds import EPSILONS, UNITS, Threshold

SHORT = 100
"""Behind so many keys at most half of a head's n columns, and one more, are candidates: n² / (2n − 1) columns of all n
queries have an excess of 1 in queries, and 100n / (n + 99) of 1 in percent.
"""
ALL_NORMS = (*NORMS, OUTPUT_NORMS)


@torch.no_grad()
def reduce_statistics(
    step: Mapping[str, Float[Tensor, "layer batch *head token"]],
    masked: Bool[Tensor, "batch position"],
    lengths: Int[Tensor, " batch"],
    prompt_lengths: Int[Tensor, " batch"],
    thresholds: Sequence[Threshold],
) -> dict[str, Tensor]:
    """Return the parts of the records of a step that is stacked over its layers, each row padded on the left."""
    columns = step["column_sums"]
    keys, device = columns.shape[-1], columns.device
    lengths, prompt_lengths = (upload(one, device)[:, None] for one in (lengths, prompt_lengths))
    position = torch.arange(keys, device=device) - (keys - lengths)
    real, in_prompt, masked = position >= 0, position < prompt_lengths, masked.to(device)
    unknown = (masked & in_prompt & real).any(-1, keepdim=True)
    members = torch.stack([masked, ~masked, in_prompt, ~(masked | in_prompt | unknown)]) & real  # of `groups.GROUPS`
    whole = {name: torch.where(real[:, None], one, 0.0) for name, one in step.items() if name.startswith("column_sums")}
    for name in (one for one in (*ALL_NORMS, "self_attention") if one in step):  # NaN where nothing was computed
        one = pad(step[name], (keys - step[name].shape[-1], 0), value=torch.nan)
        whole[name] = torch.where(real[:, None], one if one.ndim == 4 else one[:, :, None], torch.nan)
    asked = real.expand(len(columns), -1, -1) if "hidden_norms" not in step else ~whole["hidden_norms"][:, :, 0].isnan()
    sizes = (asked & members[:, None]).sum(-1, keepdim=True)
    whole |= {"queries": asked.sum(-1, keepdim=True), "prompt_queries": sizes[2]}
    rows = {"real": real[:, None], "length": lengths.double(), "sizes": sizes.amin(1).float()}
    many = max(1, AT_ONCE // max(1, columns[0].numel()))
    layers = [{name: one[at : at + many] for name, one in whole.items()} for at in range(0, len(columns), many)]
    parts = [_Layers(one, rows, thresholds).found for one in layers]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return found | {"step.means": found["step.means"].sum(0, keepdim=True) / (len(columns) * columns.shape[2])}


class _Layers:
    """Some layers of a step, whose parts of records are ``found``."""

    def __init__(self, step: dict[str, Tensor], rows: dict[str, Tensor], thresholds: Sequence[Threshold]) -> None:
        self.step, self.thresholds, self.length, self.real = step, thresholds, rows["length"], rows["real"]
        self.sizes, self.sums = rows["sizes"], step["column_sums"]
        self.total, self.start = self.sums.sum(-1), self.real.shape[-1] - self.length[..., None].long()
        # Ties to the lower position; places without a token come last, and fall into no bin.
        ranked = torch.where(self.real, self.sums, -1.0)
        self.ranked, self.order = ranked.sort(dim=-1, descending=True, stable=True)
        self.top = self.order[..., :1]
        self.limits = self._limits()
        self.found = {"total": self.total[..., None], "step.means": self.sums.sum(2, dtype=torch.float64)}
        self.found |= self._columns() | self._evenness() | self._groups() | self._answer() | self._norms()

    def _sizes(self, columns: Tensor, of: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the excess of columns ``of`` each head in both units, and the sum of its percents."""
        total, others = columns.sum(-1, keepdim=True), (self.length[..., None] - 1).clamp(min=1)
        every, chosen = (torch.where(total > 0, one / total, 0.0) * 100 for one in (columns, of))
        percents = every.sum(-1, keepdim=True)
        return excess_over_others(of, total, others), excess_over_others(chosen, percents, others), percents

    def _limits(self) -> Int[Tensor, "layer batch head limit"]:
        """Return how many columns of each head are sinks at each threshold, then how many keys; keep the ε curve."""
        edges = {unit: [one.excess for one in self.thresholds if one.unit == unit] for unit in UNITS}
        sizes = zip(UNITS, self._sizes(self.sums, self.ranked)[:2], strict=True)
        above = {unit: _count_above(one, [*EPSILONS.tolist(), *edges[unit]]) for unit, one in sizes}
        self.above = torch.stack([one[..., : len(EPSILONS)].sum(2) for one in above.values()], -1)
        at = [(one.unit, len(EPSILONS) + edges[one.unit].index(one.excess)) for one in self.thresholds]
        every = torch.full_like(self.top[..., 0], self.sums.shape[-1])
        return torch.stack([*(above[unit][..., number] for unit, number in at), every], -1)

    def _tallied(self, weights: Tensor) -> Float[Tensor, "layer batch head limit"]:
        """Return the sum of weights over the sinks of each head, its largest columns, and over all keys."""
        running = weights.gather(-1, self.order).cumsum(-1, dtype=torch.float64)
        return pad(running, (1, 0)).gather(-1, self.limits)

    def _candidates(self, name: str, columns: Tensor, top: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the candidates of each layer, a bit for each column and those that are, in order; and the excess of
        each head's ``top``.
        """
        excess, percent, percents = self._sizes(columns, columns)
        least = [min((one.excess for one in self.thresholds if one.unit == unit), default=torch.inf) for unit in UNITS]
        chosen = ((excess > least[0]) | (percent > least[1])) & self.real
        heads, keys = columns.shape[2:]
        room = heads * (keys if keys <= SHORT else keys // 2 + 1)
        behind = chosen.flatten(2).cumsum(-1)
        slot = torch.where(chosen.flatten(2), behind - 1, room).clamp(max=room)
        kept = columns.new_zeros(*slot.shape[:2], room + 1).scatter_(-1, slot, columns.flatten(2))[..., :room]
        bits = pad(chosen, (-keys % 8, 0)).unflatten(-1, (-1, 8)).to(torch.uint8)
        bits = (bits << torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)).sum(-1, dtype=torch.uint8)
        found = {"bits": bits, "column": kept, "total": columns.sum(-1), "all_percent": percents[..., 0]}
        return _named(name, found), excess.gather(-1, top)[..., 0], percent.gather(-1, top)[..., 0]

    def _columns(self) -> dict[str, Tensor]:
        found, excess, percent = self._candidates("columns", self.sums, self.top)
        bins = _count_above(self.ranked, histogram_edges().tolist(), or_at=True).sum(2)
        parts = {"above": self.above, "bins": bins - pad(bins[..., 1:], (0, 1)), "excess": excess, "percent": percent}
        shares = self._tallied(self.sums) / self.total.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
        summary = {"counts": self.limits[..., :-1].int(), "shares": shares[..., :-1].float(), "total": self.total}
        summary |= {"top": (self.top - self.start)[..., 0], "largest": self.ranked[..., 0]}
        return found | _named("step", parts) | _named("StepSummary", summary)

    def _evenness(self) -> dict[str, Tensor]:
        length, columns, total = self.length[..., None], self.ranked.clamp(min=0), self.total[..., None]
        share = torch.where(total > 0, columns / total, (1 / length).float() * (self.ranked >= 0))
        rank = length - torch.arange(columns.shape[-1], device=columns.device)
        ranked = torch.where(total > 0, (columns * rank).sum(-1, keepdim=True) / total, (length + 1) / 2)
        first = self.sums.gather(-1, self.start.expand_as(self.top))
        over = [
            (one / self.step["queries"].double().clamp(min=1) > GU_THRESHOLD).float()
            for one in (self.ranked[..., 0], first[..., 0])
        ]
        found = {
            "gini": ((2 * ranked - length - 1) / length)[..., 0],
            "over_third": over[0],
            "first_over_third": over[1],
        }
        return _named(
            "Evenness", found | {"entropy": -torch.xlogy(share, share).sum(-1) / self.length.clamp(min=2).log()}
        )

    def _groups(self) -> dict[str, Tensor]:
        masked, prompt, length = self.step["column_sums_masked"], self.step["column_sums_prompt"], self.length.float()
        groups = (masked, self.sums - masked, prompt, self.sums - masked - prompt)
        found, tops = {"position": [], "excess": [], "percent": []}, [_largest(one, self.real) for one in groups]
        for sums, top, size in zip(groups, tops, self.sizes, strict=True):
            scaled, total = (one * length / size for one in (sums.gather(-1, top)[..., 0], sums.sum(-1)))
            excess, enough = scaled - (total - scaled) / (length - 1).clamp(min=1), size >= LEAST_QUERIES
            found["position"].append(torch.where(enough, (top - self.start)[..., 0], -1))
            found["excess"].append(torch.where(enough, excess, torch.nan))
            percent = torch.where(total > 0, 100 * excess / total, 0.0)
            found["percent"].append(torch.where(enough, percent, torch.nan))
        parts = {name: torch.stack(one, -1) for name, one in found.items()}
        more, less = (
            [one.gather(-1, top)[..., 0] / size for top in tops[:2]]
            for one, size in zip(groups[:2], self.sizes[:2], strict=True)
        )
        apart = (parts["position"][..., :2] >= 0).all(-1) & (tops[0] != tops[1])[..., 0]
        clarity = torch.minimum(more[0] - less[0], less[1] - more[1])
        own = self.step["self_attention"]
        mine = own.gather(-1, self.top)[..., 0]
        others = ((~own.isnan()).sum(-1) - (~mine.isnan()).int()).clamp(min=1)
        parts |= {"own_attention": mine, "other_attention": (own.nansum(-1) - mine.nan_to_num()) / others}
        return _named("GroupSinks", parts | {"clarity": torch.where(apart, clarity, torch.nan)})

    def _answer(self) -> dict[str, Tensor]:
        queries = (self.step["queries"] - self.step["prompt_queries"]).clamp(min=1).float()
        scale = self.length.float() / queries
        answer = (self.sums - self.step["column_sums_prompt"]) * scale[..., None]
        top = _largest(answer, self.real)
        found, excess, percent = self._candidates("answer", answer, top)
        main = {"position": (top - self.start)[..., 0], "queries": excess, "percent": percent}
        return found | _named("AnswerMain", main)

    def _norms(self) -> dict[str, Tensor]:
        found, above, moments, given = {}, [], [], []
        for name in ALL_NORMS:
            norms = self.step.get(name, torch.full_like(self.sums[:, :, :1], torch.nan))
            norms = norms.repeat_interleave(self.sums.shape[2] // norms.shape[2], 2)
            there, own, known = ~norms.isnan(), norms.gather(-1, self.top), norms.nan_to_num()
            moments.append(self._moments(there.float(), known) * (1 if name in self.step else torch.nan))
            larger = (norms > own).sum(-1) + 0.5 * ((norms == own).sum(-1) - 1)
            above.append(torch.where(own.isnan()[..., 0], torch.nan, larger / (there.sum(-1) - 1).clamp(min=1)))
            found[f"largest.{name}"] = torch.where(there, norms, 0.0).amax(-1)  # by which infinite ones are found
            if name in ("value_norms", OUTPUT_NORMS):
                given.append(self._tallied(self.sums * known) * (1 if name in self.step else torch.nan))
            if name == "value_norms":
                contributions = self._moments(self.real.expand_as(known).float(), self.sums * known)
        by_kind = torch.stack([*moments[:3], contributions, moments[3]], 3)  # [layer, batch, limit, kind, moment]
        sums = torch.stack(given, -2)  # [layer, batch, head, added, limit]
        on_sinks = torch.where(sums[..., -1:] > 0, sums / sums[..., -1:], torch.nan)[..., :-1]
        parts = {"of_sinks": by_kind[:, :, :-1], "of_all": by_kind[:, :, -1], "above": torch.stack(above, -1)}
        return found | _named("StepNorms", parts | {"on_sinks": on_sinks.float(), "given": sums[..., -1].float()})

    def _moments(self, there: Tensor, values: Tensor) -> Float[Tensor, "layer batch limit moment"]:
        return torch.stack([self._tallied(one).sum(2) for one in (there, values, values.double().square())], -1)


def _named(record: str, fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{record}.{name}": one for name, one in fields.items()}


def _largest(columns: Tensor, real: Tensor) -> Int[Tensor, "layer batch head 1"]:
    """Return where the largest column of each head stands, ties to the lower one."""
    columns = torch.where(real, columns, -torch.inf)
    keys = torch.arange(columns.shape[-1], device=columns.device)
    return torch.where(columns == columns.amax(-1, keepdim=True), keys, len(keys) - 1).amin(-1, keepdim=True)


def _count_above(
    falling: Float[Tensor, "*any key"], edges: list[float], or_at: bool = False
) -> Int[Tensor, "*any edge"]:
    """Return how many values, in falling order, are above each edge, or at it."""
    low = -upload(torch.tensor(edges, dtype=falling.dtype), falling.device)
    return torch.searchsorted(-falling, low.expand(*falling.shape[:-1], -1).contiguous(), right=or_at)
