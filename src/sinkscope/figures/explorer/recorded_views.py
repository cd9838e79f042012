"""The data of one trace for the explorer: its canvas, its sinks, its columns and norms, as tiles.

A tile holds the bytes of one array, little-endian, deflated on its own, so that the page reads only what it shows. With
``delta`` each row but the first is the difference from the one before, modulo the size of its type, so that constant
values deflate to little. Positive numbers take one byte each by their logarithm, all with the same relative error.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from sinkscope.axes import KV_HEAD, TRACE_AXES, by_query_head, lacks_key_heads
from sinkscope.figures.style import model_name, provenance, token_label
from sinkscope.roles.head_roles import Roles
from sinkscope.sinks import last_query_window
from sinkscope.sinks.definition import token_class
from sinkscope.sinks.drift import MainMoves
from sinkscope.sinks.finding import check_reach
from sinkscope.sinks.followed_columns import WINDOW, Followed, columns_add_up, followed_queries
from sinkscope.statistics import PromptSummary, Threshold, summarise
from sinkscope.statistics.thresholds import least_column_sum
from sinkscope.traces import Trace
from sinkscope.traces.stored_maps import stored_map

STRONGEST = 8  # largest columns of each step and head whose exact sizes are stored beside the codes
NO_CONFIDENCE = 65535
LEAST_SHARE = 0.0001  # smaller shares of a query's attention are not told in the maps that were kept
TYPES = {"u8": "<u1", "u16": "<u2", "i32": "<i4", "f32": "<f4"}  # names of types on the page and in NumPy
CODES = 255  # codes 1 to 255 are values; 0 is less than the least of them, or no token
AT_ONCE = 1 << 16  # values that are encoded at a time; the logarithms of a whole layer would take many times its memory


@dataclass(frozen=True)
class LogScale:
    """The value of each code: ``low`` of code 1, ``high`` of code 255."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Float[np.ndarray, "..."], floor: float = 0.0) -> "LogScale":
        """Return the scale that fits the values from ``floor`` on, of positive ones without it."""
        told = values > 0  # NaN is not
        if not told.any():
            return cls(floor or 1.0, 2 * (floor or 1.0))
        low, high = max(floor, float(values.min(where=told, initial=np.inf))), float(values.max(where=told, initial=0))
        return cls(low, high if high > low * 1.0001 else low * 2)

    @property
    def error(self) -> float:
        """Largest relative error of a value between ``low`` and ``high``."""
        return float((self.high / self.low) ** (0.5 / (CODES - 1)) - 1)

    def encode(self, values: Float[np.ndarray, "*size"]) -> UInt8[np.ndarray, "*size"]:
        """Return the nearest code of each value; 0 for NaN and below ``low``. Larger arrays are encoded row by row."""
        if values.ndim > 1 and values.size > AT_ONCE:
            return np.stack([self.encode(row) for row in values])
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.log(values / self.low) * ((CODES - 1) / np.log(self.high / self.low))
        codes = np.clip(np.rint(np.nan_to_num(place, nan=-1, neginf=-1)) + 1, 0, CODES)
        return np.where(values >= self.low * (1 - 1e-6), codes, 0).astype(np.uint8)


@dataclass
class Tiles:
    """Arrays by name: index: {name: {"type", "shape", "delta"}}; content: {name: deflated bytes (zlib)}."""

    index: dict[str, dict[str, Any]] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict, repr=False)

    def add(self, name: str, array: np.ndarray, kind: str = "", *, delta: bool = False) -> None:
        """Add an array of this type, or the smallest that holds its numbers, none of which is negative."""
        if not kind:
            largest = int(array.max(initial=0))
            kind = "u8" if largest < 1 << 8 else "u16" if largest < 1 << 16 else "i32"
        values = np.ascontiguousarray(array, dtype=TYPES[kind])
        self.index[name] = {"type": kind, "shape": list(values.shape), "delta": delta}
        if delta and len(values) > 1:
            values = np.concatenate([values[:1], np.diff(values, axis=0)])
        self.content[name] = zlib.compress(values.tobytes(), 6)


@dataclass(frozen=True)
class Quantity:
    """A recorded tensor of each step, layer and position, mostly of each head too; smaller values than ``floor`` are
    shown as less than this.
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
            queries = followed_queries(trace).astype("f4")
            return last_query_window(values[:, None], WINDOW)[:, 0] / queries[:, None, None]
        if KV_HEAD in TRACE_AXES[self.tensor] and lacks_key_heads(np.asarray(recorded[-1])):
            return np.stack([by_query_head(one, trace.heads) for one in values])
        return values[:, None] if values.ndim == 2 else values


SUMS = "queries’ worth"
# The columns in which sinks are followed come before the others.
QUANTITIES = (
    Quantity("newest", "last_query", f"share of the {WINDOW} newest queries", "of the newest queries’ attention", 1e-3),
    Quantity("newest", "newest_columns", f"attention from {Followed('newest_columns').queries_text}", SUMS, 0.001),
    Quantity("columns", "column_sums", "attention from all queries", SUMS, 0.01),
    Quantity("masked", "column_sums_masked", "attention from masked queries", SUMS, 0.01),
    Quantity("prompt", "column_sums_prompt", "attention from the prompt’s queries", SUMS, 0.01),
    Quantity("self", "self_attention", "attention of a token on itself", "share", 0.0001),
    Quantity("values", "value_norms", "norm of the value", "Euclidean norm"),
    Quantity("keys", "key_norms", "norm of the key", "Euclidean norm"),
    Quantity("hidden", "hidden_norms", "norm of what enters the layer", "Euclidean norm"),
)


def add_trace(
    tiles: Tiles, number: int, trace: Trace, label: str, excess: float, roles: Roles | None
) -> dict[str, Any]:
    """Add the tiles of one trace, whose names begin with its number on the page, and return the rest of its data."""
    threshold = Threshold(excess)
    prompt = summarise(trace, (threshold,))  # type: ignore[arg-type]  # steps may be a cached property
    manifest, positions, prefix = trace.manifest, int(prompt.canvas.lengths.max()), f"{number}/"
    check_reach(excess, "queries", prompt.by_step.total, positions)
    held = [one for one in QUANTITIES if one.tensor in trace.tensors or f"top_{one.tensor}" in trace.tensors]
    held = [one for one in held if trace.causal or one.tensor != "last_query"]
    quantities = [_add_quantity(tiles, prefix, trace, one) for one in held]
    _add_strongest(tiles, prefix, trace, held[0])
    maps = []
    for step, layer, head in manifest.get("maps") or []:
        if (attention := stored_map(trace, step, layer, head)) is not None:
            name, scale = f"{prefix}map/{step}-{layer}-{head}", LogScale.of(attention, LEAST_SHARE)
            tiles.add(name, scale.encode(attention), "u8")
            tiles.index[name]["scale"] = [scale.low, scale.high]
            maps.append([step, layer, head])
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
        "followed": quantities[0]["name"],
        "threshold": least_column_sum(excess, positions) if columns_add_up(manifest, trace) else 0,
        "quantities": quantities,
        "confidenceRange": confidence_range(trace),
        "maps": maps,
        "about": provenance(trace),
        **_add_canvas(tiles, prefix, trace, prompt),
        **_add_sinks(tiles, prefix, trace, prompt, threshold),
        "roles": [] if roles is None else roles.by_head(),
    }


def confidence_range(trace: Trace) -> tuple[float, float]:
    """Return 0 and 1, or the least and the largest confidence where they lie outside: an entropy is no share."""
    confidence = np.asarray(trace.confidence[:]) if "confidence" in trace.tensors else np.zeros(0)
    finite = confidence[np.isfinite(confidence)]
    return float(finite.min(initial=0)), float(finite.max(initial=1))


def _add_canvas(tiles: Tiles, prefix: str, trace: Trace, prompt: PromptSummary) -> dict[str, Any]:
    """Add the canvas: tokens as numbers of the list of tokens that is returned, 0 where there is none."""
    canvas, mask, special = prompt.canvas, prompt.canvas.settings.mask_id, prompt.canvas.settings.special_ids
    rows = {"tokens": canvas.tokens}
    if canvas.written is not None:  # a position that is masked again is no commit
        rows["written"] = canvas.written if mask is None else np.where(canvas.written == mask, -1, canvas.written)
    known = np.unique(np.concatenate([part.ravel() for part in rows.values()]))
    known = known[known >= 0]
    for name, tokens in rows.items():
        tiles.add(f"{prefix}{name}", np.where(tokens >= 0, np.searchsorted(known, tokens) + 1, 0), delta=True)
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


def _add_sinks(tiles: Tiles, prefix: str, trace: Trace, prompt: PromptSummary, threshold: Threshold) -> dict[str, Any]:
    """Add sinks, main sinks and statistics of heads; return changes of place: step, layer, head, 1 for a swap."""
    main = prompt.main_at(threshold)
    tiles.add(f"{prefix}main", main + 1, delta=True)
    in_heads = np.zeros((prompt.steps, int(prompt.canvas.lengths.max())), np.int64)
    for layer in range(prompt.layers):
        found = prompt.followed.of_layer(layer).at(threshold)
        rows = np.stack([found.head, found.key, found.step], axis=-1)
        tiles.add(f"{prefix}sinks/{layer}", rows, delta=True)
        np.add.at(in_heads, (found.step, found.key), 1)
    tiles.add(f"{prefix}sink-heads", in_heads, delta=True)
    queries = followed_queries(trace)[:, None, None].astype("f4") if trace.causal else 1
    there, moves = main >= 0, MainMoves.of(main, prompt.is_sink_at(threshold))
    by_head = {
        "moves": moves.moves,
        "swaps": moves.swaps,
        "drift": moves.drift,
        "steps-with": there.sum(axis=0),
        "strength": np.where(there, prompt.by_step.main_column / queries, np.nan),
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


def _add_strongest(tiles: Tiles, prefix: str, trace: Trace, followed: Quantity) -> None:
    for layer in range(len(trace.layers)):
        columns = followed.of_layer(trace, layer)
        count = min(STRONGEST, columns.shape[-1])
        sizes = np.nan_to_num(columns, nan=-1)
        order = np.argpartition(sizes, columns.shape[-1] - count, axis=-1)[..., -count:]
        order = np.take_along_axis(order, np.argsort(-np.take_along_axis(sizes, order, axis=-1), axis=-1), axis=-1)
        tiles.add(f"{prefix}strongest-keys/{layer}", order, delta=True)
        tiles.add(f"{prefix}strongest/{layer}", np.take_along_axis(columns, order, axis=-1), "f32")
