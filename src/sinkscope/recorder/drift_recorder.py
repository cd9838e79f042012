"""Measures how keys and values of a position drift from a step to a later one, which a cache forgoes.

Keys and values of the last steps stay on their device, and only sums leave it. Keys are taken after rotation; norms
change by a share of the old one. A position's class is the first that fits: *new*, a mask then and a token now; *sink*,
by Eq. 3 now, in some head that reads these keys; *mask*, then and now; *text*.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sinkscope.attention import (
    Columns,
    GenerationStart,
    Hider,
    LayerCall,
    StepContext,
    StepResult,
    Watcher,
    subscribed,
    upload,
)
from sinkscope.attention.session import sessions
from sinkscope.errors import CallError, TraceError
from sinkscope.models import Model, block_length
from sinkscope.models.fingerprints import SameWeights
from sinkscope.recorder.destinations import expect_one_setting
from sinkscope.recorder.step_recorder import plain_values
from sinkscope.runs.files import with_checksum, write_whole
from sinkscope.sinks.definition import excess_of
from sinkscope.sinks.finding import EXCESS
from sinkscope.statistics.intervals import interval_of_means, known, ratio
from sinkscope.traces.format import DRIFT

MEASURES = ("key_cosine", "value_cosine", "key_norm", "value_norm")
CLASSES = ("new", "sink", "mask", "text")


def drift_document(
    sums: Sequence[Float[np.ndarray, "measure lag class layer kv_head"]],
    counts: Sequence[Float[np.ndarray, "lag class layer kv_head"]],
    lags: Sequence[int],
) -> dict[str, Any]:
    """Return the means of every measure, by layer with intervals and by head, from each prompt's sums and counts."""
    values = np.stack([ratio(one, count) for one, count in zip(sums, counts, strict=True)])
    there = ~np.isnan(values)
    heads, in_heads = (ratio(np.where(there, values, 0).sum(axis), there.sum(axis)) for axis in (-1, 0))
    by_layer = interval_of_means(heads.reshape(len(values), -1))
    shape = heads.shape[1:]
    rows = []
    for place in np.ndindex(shape[:3]):
        measure, lag, at = place
        layers = {which: getattr(by_layer, which).reshape(shape)[place] for which in ("mean", "low", "high")}
        rows.append(
            {
                "measure": MEASURES[measure],
                "lag": lags[lag],
                "class": CLASSES[at],
                "positions": int(sum(count[lag, at].sum() for count in counts) // max(1, counts[0].shape[-1])),
                "by_layer": {which: list(map(known, one)) for which, one in layers.items()},
                "by_layer_and_head": [list(map(known, one)) for one in in_heads[place]],
            }
        )
    return {"prompts": len(values), "lags": list(lags), "classes": list(CLASSES), "drift": rows}


def drift_table(document: Mapping[str, Any]) -> str:
    """Return the means over layers as a Markdown table, a row for each lag and class."""
    lines = [f"| steps between | class | {' | '.join(MEASURES)} |", "|---" * (2 + len(MEASURES)) + "|"]
    for lag in document["lags"]:
        for kind in document["classes"]:
            rows = [row for row in document["drift"] if (row["lag"], row["class"]) == (lag, kind)]
            cells = [[one for one in row["by_layer"]["mean"] if one is not None] for row in rows]
            lines.append(
                f"| {lag} | {kind} | " + " | ".join(f"{np.mean(cell):.4f}" if cell else "–" for cell in cells) + " |"
            )
    return "\n".join(lines)


class DriftRecorder(Watcher):
    """Adds up the drift of keys and values over the steps of each prompt of a diffusion model; ``lags`` are the steps
    between the two times that are compared.

    Attributes:
        sums, counts: of the prompts that are complete, see `drift_document`.
        sampler, hidden: settings and rules, alike for all prompts but for the seed and the effect.
    """

    def __init__(self, model: Model, lags: Sequence[int] = (1, 8)) -> None:
        self.model, self.lags = model, tuple(lags)
        self.sums: list[np.ndarray] = []
        self.counts: list[np.ndarray] = []
        self.sampler: dict[str, Any] = {}
        self.hidden: list[Any] = []
        self.has_recorded = False
        self.folders: tuple[Path, ...] = ()
        self._weights = SameWeights(model.network)

    def begin_generation(self, start: GenerationStart) -> None:
        self._past: deque[tuple[StepContext, list[tuple[Tensor, Tensor]]]] = deque(maxlen=max(self.lags))
        self._context: StepContext | None = None
        sampler, name = dict(start.sampler), self.model.family.name
        cache, blocks = sampler.get("cache", "none"), block_length(self.model.network)
        if self.model.family.causal or blocks is not None or cache != "none":
            found = f"{name} with {'blocks' if blocks else 'no blocks'} and cache {cache}"
            raise CallError(f"keep: drift needs a canvas that every step computes again, found {found}")
        self._weights.check("keep='drift' adds up prompts of one network")
        hiders = [one for one in sessions[self.model.network].subscribers if isinstance(one, Hider)]
        hidden = [plain_values(one.describe(0)) for one in hiders]
        if self.sums:
            expect_one_setting("drift", (self.sampler, self.hidden), (sampler, hidden))
        self.sampler, self.hidden = sampler, hidden
        layers, heads = self.model.card.layers, self.model.card.kv_heads
        shape = (len(start.prompt_lengths), len(MEASURES), len(self.lags), len(CLASSES), layers, heads)
        self._sums = torch.zeros(shape, dtype=torch.float64, device="cpu")
        self._counts = torch.zeros(shape[:1] + shape[2:], dtype=torch.float64, device="cpu")

    def begin_step(self, context: StepContext) -> None:
        """Note the canvas of a step, as far as it is recorded; under guidance half of its rows are not."""
        rows = torch.tensor(context.rows, device="cpu")
        self._rows, self._layers = upload(rows, context.tokens.device), list[tuple[Tensor, Tensor]]()
        tokens, masked = context.tokens[self._rows], context.masked[self._rows]
        self._context = StepContext(tokens, masked, context.lengths[rows], tuple(range(len(rows))), context.prompts)

    def watch(self, call: LayerCall, columns: Columns) -> None:
        context = self._context
        if context is None:
            return
        layer, now = len(self._layers), (call.key.detach()[self._rows], call.value.detach()[self._rows])
        self._layers.append(now)
        if not self._past:
            return
        width, device = context.tokens.shape[1], context.tokens.device
        real = torch.arange(width, device=device) >= width - context.lengths.to(device)[:, None]
        placed = columns.sums[:, :, 0][self._rows].float().masked_fill(~real[:, None], torch.nan).cpu().numpy()
        with np.errstate(invalid="ignore"):
            over = torch.from_numpy(np.asarray(excess_of(placed)) > EXCESS).to(device)
        sink = over.unflatten(1, (call.key.shape[1], -1)).any(2)  # in some head that reads these keys
        places = torch.tensor(context.prompts, device="cpu")
        for number, lag in enumerate(self.lags):
            if lag > len(self._past):
                continue
            then, layers = self._past[-lag]
            places_then = torch.tensor([then.prompts.index(one) for one in context.prompts], device="cpu")
            earlier = upload(places_then, self._rows.device)
            was, mask = (one[:, None].expand_as(sink) for one in (then.masked[earlier], context.masked))
            new, rest = was & ~mask, ~sink & ~(was & ~mask)
            members = torch.stack([new, sink & ~new, was & mask & rest, ~(was & mask) & rest], dim=1).double()
            members = members * real[:, None, None]
            before = (layers[layer][0][earlier], layers[layer][1][earlier])
            for at, measured in enumerate(measures(before, now)):  # a NaN counts in its class alone
                drifts = torch.where(members > 0, measured[:, None].double(), 0.0).sum(-1).cpu()
                self._sums[:, at, number, :, layer].index_add_(0, places, drifts)
            self._counts[:, number, :, layer].index_add_(0, places, members.sum(-1).cpu())

    def end_step(self, result: StepResult | None) -> None:
        if self._context is not None:
            self._past.append((self._context, self._layers))
        self._context = None

    def end_generation(self, failed: bool) -> None:
        if not failed:
            self.sums += list(self._sums.numpy())
            self.counts += list(self._counts.numpy())
        self._past.clear()
        self._context = None


def measures(then: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return `MEASURES` of each position, float32 [batch, kv_head, position], from keys and values of two steps.

    NaN where a vector without a length has no direction, or had none whose change could be measured.
    """
    cosines, norms = [], []
    for before, after in zip(then, now, strict=True):
        before, after = before.float(), after.float()
        long, was = after.norm(dim=-1), before.norm(dim=-1)
        cosines.append(cosine_similarity(before, after, dim=-1).masked_fill((long == 0) | (was == 0), torch.nan))
        norms.append((long / was - 1).abs().masked_fill(was == 0, torch.nan))
    return [*cosines, *norms]


@contextmanager
def recording_drift(model: Model, folder: Path) -> Iterator[DriftRecorder]:
    """Measure drift while the body runs, and write it to ``drift.json`` in a folder."""
    recorder = DriftRecorder(model)
    with subscribed(model.network, recorder):
        yield recorder
    if not recorder.sums:
        return
    if not any(count.any() for count in recorder.counts):
        raise CallError("keep: drift lies between two steps, found one; write a longer text, or fewer tokens a step")
    document = {"format": 1, "model": model.card.as_dict(), "sampler": recorder.sampler}
    document |= {"hidden": [one.get("rules") for one in recorder.hidden]}
    document |= drift_document(recorder.sums, recorder.counts, recorder.lags)
    write_whole(
        folder / DRIFT, (json.dumps(with_checksum(document)) + "\n").encode(), TraceError, "choose another folder"
    )
    recorder.folders, recorder.has_recorded = (folder,), True
