"""What the explorer shows of one trace: its canvas, its sinks, and its columns and norms as tiles.

Numbers come from the trace and from its summary; nothing is defined here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.axes import KV_HEAD, TRACE_AXES, by_query_head, lacks_key_heads
from sinkscope.figures.explorer.tiles import LogScale, Tiles, smallest_type
from sinkscope.figures.style import model_name, provenance, token_label
from sinkscope.roles.head_roles import Roles
from sinkscope.sinks import last_query_window
from sinkscope.sinks.drift import MainMoves
from sinkscope.sinks.finding import check_reach
from sinkscope.sinks.followed_columns import WINDOW, Followed, columns_add_up
from sinkscope.sinks.token_classes import token_class
from sinkscope.statistics import PromptSummary, Threshold, summarise
from sinkscope.statistics.thresholds import least_column_sum
from sinkscope.traces import Trace
from sinkscope.traces.format import hidden_rules
from sinkscope.traces.stored_maps import stored_map

STRONGEST = 8
"""Largest columns of each step and head whose exact sizes are stored beside the codes."""
NO_CONFIDENCE = 65535
LEAST_SHARE = 0.0001
"""Smaller shares of a query's attention are not told in the maps that were kept."""


@dataclass(frozen=True)
class Quantity:
    """A recorded number of each step, layer and position, most of them of each head too.

    Attributes:
        tensor: the name of the tensor in the trace.
        label, unit: as the page calls them.
        floor: smaller values are shown as less than this; 0 tells all.
    """

    name: str
    tensor: str
    label: str
    unit: str
    floor: float = 0.0

    def of_layer(self, trace: Trace, layer: int) -> Float[np.ndarray, "step head position"]:
        """Return the values of one layer; tensors without heads have one."""
        recorded = getattr(trace, self.tensor)
        values = np.asarray(recorded[:, layer])
        if self.tensor == "last_query":
            return last_query_window(values[:, None], WINDOW)[:, 0]
        if KV_HEAD in TRACE_AXES[self.tensor] and lacks_key_heads(np.asarray(recorded[-1])):
            return np.stack([by_query_head(one, trace.heads) for one in values])
        return values[:, None] if values.ndim == 2 else values


SUMS = "queries’ worth"
QUANTITIES = (
    Quantity("newest", "last_query", f"attention from the {WINDOW} newest queries", SUMS, 0.001),
    Quantity("newest", "newest_columns", f"attention from {Followed('newest_columns').queries_text}", SUMS, 0.001),
    Quantity("columns", "column_sums", "attention from all queries", SUMS, 0.01),
    Quantity("masked", "column_sums_masked", "attention from masked queries", SUMS, 0.01),
    Quantity("prompt", "column_sums_prompt", "attention from the prompt’s queries", SUMS, 0.01),
    Quantity("self", "self_attention", "attention of a token on itself", "share", 0.0001),
    Quantity("values", "value_norms", "norm of the value", "Euclidean norm"),
    Quantity("keys", "key_norms", "norm of the key", "Euclidean norm"),
    Quantity("hidden", "hidden_norms", "norm of what enters the layer", "Euclidean norm"),
)


def quantities_of(trace: Trace) -> list[Quantity]:
    """Return what a trace holds; the columns in which sinks are followed come first."""
    held = [one for one in QUANTITIES if one.tensor in trace.tensors or f"top_{one.tensor}" in trace.tensors]
    return [one for one in held if trace.causal or one.tensor != "last_query"]


def add_trace(
    tiles: Tiles, number: int, trace: Trace, label: str, excess: float, roles: Roles | None
) -> dict[str, Any]:
    """Add the tiles of one trace, whose names begin with its number on the page, and return the rest of its data.

    Raises:
        CallError: a threshold that no column can exceed.
        TraceError: not every column was kept.
    """
    threshold = Threshold(excess)
    prompt = summarise(trace, (threshold,), statistics=())  # type: ignore[arg-type]  # steps may be a cached property
    manifest, positions, prefix = trace.manifest, int(prompt.canvas.lengths.max()), f"{number}/"
    check_reach(excess, "queries", prompt.by_step.total, positions)
    quantities = [_add_quantity(tiles, prefix, trace, quantity) for quantity in quantities_of(trace)]
    _add_strongest(tiles, prefix, trace)
    followed = Followed.of(trace)
    return {
        "label": label,
        "model": model_name(manifest),
        "name": trace.folder.name,
        "complete": trace.complete,
        "level": manifest.get("level", "columns"),
        "kept": int(trace.top_column_sums.shape[-1]) if "top_column_sums" in trace.tensors else None,
        "kind": followed.kind,
        "newest": followed.newest,
        "steps": prompt.steps,
        "layers": prompt.layers,
        "heads": prompt.heads,
        "positions": positions,
        "promptLength": prompt.canvas.settings.prompt_length,
        "hidden": hidden_rules(manifest),
        "followed": quantities[0]["name"],
        "threshold": least_column_sum(excess, positions) if columns_add_up(manifest, trace) else 0,
        "quantities": quantities,
        "confidenceRange": confidence_range(trace),
        "maps": _add_maps(tiles, prefix, trace),
        "about": provenance(trace),
        **_add_canvas(tiles, prefix, trace, prompt),
        **_add_sinks(tiles, prefix, prompt, threshold),
        "roles": [] if roles is None else roles.by_head(),
    }


def confidence_range(trace: Trace) -> tuple[float, float]:
    """Return 0 and 1, or the least and the largest confidence where they lie outside: an entropy is no share."""
    confidence = np.asarray(trace.confidence[:]) if "confidence" in trace.tensors else np.zeros(0)
    finite = confidence[np.isfinite(confidence)]
    return float(finite.min(initial=0)), float(finite.max(initial=1))


def _add_canvas(tiles: Tiles, prefix: str, trace: Trace, prompt: PromptSummary) -> dict[str, Any]:
    """Add what stood on the canvas: tokens as numbers of the list of tokens that is returned, 0 where there is none."""
    canvas, mask, special = prompt.canvas, prompt.canvas.settings.mask_id, prompt.canvas.settings.special_ids
    rows = {"tokens": canvas.tokens}
    if canvas.written is not None:  # a position that is masked again is no commit
        rows["written"] = canvas.written if mask is None else np.where(canvas.written == mask, -1, canvas.written)
    if "predicted" in trace.tensors:
        rows["predicted"] = np.asarray(trace.predicted[:])
    known = np.unique(np.concatenate([part.ravel() for part in rows.values()]))
    known = known[known >= 0]
    kind = smallest_type(np.array([len(known) + 1]))
    for name, tokens in rows.items():
        tiles.add(f"{prefix}{name}", np.where(tokens >= 0, np.searchsorted(known, tokens) + 1, 0), kind, delta=True)
    tiles.add(f"{prefix}masked", canvas.masked, "u8", delta=True)
    tiles.add(f"{prefix}lengths", canvas.lengths, "i32", delta=True)
    if "confidence" in trace.tensors:
        confidence = np.asarray(trace.confidence[:], np.float64)
        lowest, highest = confidence_range(trace)
        shares = (np.nan_to_num(confidence, posinf=highest, neginf=lowest) - lowest) / (highest - lowest)
        codes = np.where(np.isnan(confidence), NO_CONFIDENCE, np.rint(shares.clip(0, 1) * (NO_CONFIDENCE - 1)))
        tiles.add(f"{prefix}confidence", codes, "u16", delta=True)
    texts = [
        [token_label(trace, token), token_class(trace.token_text(token), token == mask, token in special)]
        for token in known.tolist()
    ]
    return {"tokens": [["", ""], *texts], "tokenIds": [-1, *known.tolist()]}


def _add_sinks(tiles: Tiles, prefix: str, prompt: PromptSummary, threshold: Threshold) -> dict[str, Any]:
    """Add sinks, main sinks and statistics of heads; return changes of place: step, layer, head, 1 for a swap."""
    main = prompt.main_at(threshold)
    tiles.add(f"{prefix}main", main + 1, smallest_type(main + 1), delta=True)
    in_heads = np.zeros((prompt.steps, int(prompt.canvas.lengths.max())), np.int64)
    for layer in range(prompt.layers):
        found = prompt.followed.of_layer(layer).at(threshold)
        rows = np.stack([found.head, found.key, found.step], axis=-1)
        tiles.add(f"{prefix}sinks/{layer}", rows, smallest_type(rows), delta=True)
        np.add.at(in_heads, (found.step, found.key), 1)
    tiles.add(f"{prefix}sink-heads", in_heads, smallest_type(in_heads), delta=True)
    there, moves = main >= 0, MainMoves.of(main, prompt.is_sink_at(threshold))
    by_head = {
        "moves": moves.moves,
        "swaps": moves.swaps,
        "drift": moves.drift,
        "steps-with": there.sum(axis=0),
        "strength": np.where(there, prompt.by_step.main_column, np.nan),
        "counts": prompt.counts(threshold),
        "shares": prompt.shares(threshold),
    }
    for name, values in by_head.items():
        tiles.add(f"{prefix}heads/{name}", values, "f32")
    step, layer, head = np.nonzero(there[1:] & there[:-1] & (main[1:] != main[:-1]))
    swapped = moves.distance[step, layer, head] == 0
    return {"changes": np.stack([step + 1, layer, head, swapped], axis=-1).astype(int).tolist()}


def _add_quantity(tiles: Tiles, prefix: str, trace: Trace, quantity: Quantity) -> dict[str, Any]:
    """Add a tile of each layer, [head, step, position], one of means over heads, and one of the mean over layers."""
    means, gaps = [], False
    lengths = np.asarray(trace.lengths[:])[:, None]

    def added(name: str, values: np.ndarray) -> list[float]:
        scale = LogScale.of(values, quantity.floor)
        tiles.add(f"{prefix}{quantity.name}/{name}", scale.encode(values), "u8", delta=True)
        return [scale.low, scale.high]

    scales = []
    for layer in range(len(trace.layers)):
        values = quantity.of_layer(trace, layer)
        if values.shape[1] > 1:
            scales.append(added(str(layer), values))
        means.append(values.mean(axis=1, dtype=np.float64))
        gaps |= bool((np.isnan(means[-1]) & (np.arange(values.shape[-1]) < lengths)).any())
    mean = np.stack(means, axis=1)
    of_mean, of_all = added("mean", mean), added("all", mean.mean(axis=1))
    return {
        "name": quantity.name,
        "label": quantity.label,
        "unit": quantity.unit,
        "heads": values.shape[1],
        "gaps": gaps,
        "layers": scales,
        "mean": of_mean,
        "all": of_all,
        "error": max(LogScale(*one).error for one in (*scales, of_mean, of_all)),
    }


def _add_strongest(tiles: Tiles, prefix: str, trace: Trace) -> None:
    """Add the largest followed columns of every step and head with their exact sizes."""
    for layer in range(len(trace.layers)):
        columns = quantities_of(trace)[0].of_layer(trace, layer)
        count = min(STRONGEST, columns.shape[-1])
        sizes = np.nan_to_num(columns, nan=-1)
        order = np.argpartition(sizes, columns.shape[-1] - count, axis=-1)[..., -count:]
        order = np.take_along_axis(order, np.argsort(-np.take_along_axis(sizes, order, axis=-1), axis=-1), axis=-1)
        tiles.add(f"{prefix}strongest-keys/{layer}", order, smallest_type(order), delta=True)
        tiles.add(f"{prefix}strongest/{layer}", np.take_along_axis(columns, order, axis=-1), "f32")


def _add_maps(tiles: Tiles, prefix: str, trace: Trace) -> list[list[int]]:
    """Add the single attention maps that were kept with the trace, and return their places: step, layer, head."""
    places = []
    for step, layer, head in trace.manifest.get("maps") or []:
        attention = stored_map(trace, step, layer, head)
        if attention is not None:
            name, scale = f"{prefix}map/{step}-{layer}-{head}", LogScale.of(attention, LEAST_SHARE)
            tiles.add(name, scale.encode(attention), "u8")
            tiles.index[name]["scale"] = [scale.low, scale.high]
            places.append([step, layer, head])
    return places
