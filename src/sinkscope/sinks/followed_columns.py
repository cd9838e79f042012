"""The columns in which sinks are followed from step to step, and how many queries columns are made of.

Where old queries keep their rows from step to step (autoregressive models, block diffusion), a sum over all can hardly
move, so only the newest queries count. Behind a cache and in cross-attention there are not as many queries as tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.definition import last_query_window, reach_of, visible_query_mean
from sinkscope.traces.reading import Trace, attends_elsewhere, hidden_rules

WINDOW = 16
"""Newest queries whose columns are followed; the first steps have fewer (see `uncounted`)."""
BLOCKS = f"newest blocks of {WINDOW} or more queries"


def uncounted(causal: bool, steps: int) -> int:
    """Return how many first steps of a causal trace do not count: with fewer queries than 16 or half the steps."""
    return min(WINDOW, (steps + 1) // 2) - 1 if causal else 0


def mean_share(columns: Float[np.ndarray, "step key"]) -> Float[np.ndarray, " key"]:
    """Return the share of each key in columns, mean over the steps that have the key; NaN in others."""
    shares = columns / np.nansum(columns, axis=-1, keepdims=True)
    return np.nansum(shares, axis=0) / np.maximum((~np.isnan(shares)).sum(axis=0), 1)


class Recorded(Protocol):
    """The attributes of a trace by which its sinks are found, beside ``steps`` and its tensors, as `traces.Trace`."""

    @property
    def causal(self) -> bool: ...
    def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Followed:
    """The columns in which a trace's sinks are followed: ``column_sums``; ``last_query`` of autoregressive models,
    added up over 16 steps; ``newest_columns`` of the running block and those before it.
    """

    tensor: Literal["column_sums", "last_query", "newest_columns"]

    @classmethod
    def of(cls, recorded: Recorded) -> "Followed":
        if recorded.causal:
            return cls("last_query")
        held = getattr(recorded, "tensors", ())
        return cls("newest_columns" if "newest_columns" in held or "top_newest_columns" in held else "column_sums")

    @property
    def newest(self) -> bool:
        return self.tensor != "column_sums"

    @property
    def kind(self) -> str:
        """The kind of model."""
        return {"newest_columns": "block diffusion", "last_query": "autoregressive"}.get(self.tensor, "diffusion")

    @property
    def queries_text(self) -> str:
        """Words for the queries whose attention it holds."""
        return self.words(WINDOW)

    def words(self, steps: int) -> str:
        """Words for the queries, fewer in a causal trace of few steps."""
        few = f"the {min(steps, WINDOW)} newest queries" if steps > 1 else "the newest query"
        return {"last_query": few, "newest_columns": f"the {BLOCKS}"}.get(self.tensor, "all queries")

    @property
    def source(self) -> str:
        """Text that names it, as ``sinkscope tracks`` prints it."""
        more = {"last_query": f", window of {WINDOW}", "newest_columns": f", {BLOCKS}"}
        return self.tensor + more.get(self.tensor, "")

    def columns(
        self, recorded: Recorded, layers: slice = slice(None), heads: slice = slice(None)
    ) -> Float[np.ndarray, "step layer head key"]:
        """Return the columns of a trace, or of some of its layers and heads, in queries' worth."""
        values = np.asarray(getattr(recorded, self.tensor)[:, layers, heads], dtype=np.float32)
        return last_query_window(values, WINDOW) if self.tensor == "last_query" else values


def count_queries(
    columns: Float[np.ndarray, "*step layer head key"],
    hidden_norms: Float[np.ndarray, "*step layer key"] | None = None,
    sink_token: Float[np.ndarray, "*step layer head sink"] | None = None,
) -> Int[np.ndarray, "*step layer"]:
    """Return how many queries a layer has, by hidden norms that are not NaN; else columns plus the ``sink_token``."""
    if hidden_norms is not None:
        return (~np.isnan(hidden_norms)).sum(axis=-1)
    total = np.nansum(columns, axis=-1) + (0 if sink_token is None else np.nansum(sink_token, axis=-1))
    return np.rint(total.max(axis=-1)).astype(np.int64)


def query_means(
    recorded: Recorded, columns: Float[np.ndarray, "step layer head key"]
) -> Float[np.ndarray, "step layer head key"]:
    """Return columns over the number of queries that may see the key: in causal models from the key on (its window), in
    block diffusion from its block on, else all of the step, or all tokens where only arrays are given.
    """
    crossing = attends_elsewhere(getattr(recorded, "manifest", None) or {})
    if not crossing and (recorded.causal or not isinstance(recorded, Trace)):
        reach = reach_of(np.asarray(recorded.last_query[:])) if recorded.causal else None
        return visible_query_mean(columns, recorded.causal, reach)
    block = (getattr(recorded, "manifest", {}).get("sampler") or {}).get("block")
    if not crossing and block and Followed.of(recorded).tensor == "newest_columns":
        lengths, position = (~np.isnan(columns)).sum(axis=-1, keepdims=True), np.arange(columns.shape[-1])
        return columns / np.maximum(lengths - position // block * block, 1)
    return columns / np.maximum(_queries(recorded, columns), 1)[..., None, None]


def followed_queries(recorded: Recorded) -> Float[np.ndarray, " step"]:
    """Return how many queries' attention the columns of each step hold in which sinks are followed."""
    followed = Followed.of(recorded)
    if followed.tensor == "last_query":
        return np.minimum(np.arange(recorded.steps) + 1.0, WINDOW)
    if followed.tensor == "newest_columns":
        return np.nansum(followed.columns(recorded, slice(1), slice(1))[:, 0, 0], axis=-1, dtype=float).round()
    if not isinstance(recorded, Trace):
        return np.asarray(recorded.lengths[:], dtype=float)
    return np.maximum(_queries(recorded, followed.columns(recorded, slice(1))).max(axis=-1), 1).astype(float)


def _queries(recorded: Recorded, columns: Float[np.ndarray, "step layer head key"]) -> Int[np.ndarray, "step layer"]:
    """Return the queries of these columns' layers: all tokens where a rule takes some of the attention away."""
    held = recorded.tensors if isinstance(recorded, Trace) else ()
    crossing = attends_elsewhere(recorded.manifest)
    if "hidden_norms" in held and not crossing:
        return count_queries(columns, np.asarray(recorded.hidden_norms[:]))
    if held and zeroes(recorded.manifest) and not (crossing or cached(recorded.manifest)):
        return np.asarray(recorded.lengths[:])[:, None]
    layers = slice(columns.shape[1])
    sink_token = np.asarray(recorded.sink_token_columns[:, layers]) if "sink_token_columns" in held else None
    return count_queries(columns, sink_token=sink_token)


def zeroes(manifest: Mapping[str, Any]) -> bool:
    """Return whether a recording was made under a rule that zeroes weights, so that columns add up to less."""
    return any("zero" in rule for rule in hidden_rules(manifest))


def cached(manifest: Mapping[str, Any]) -> bool:
    """Return whether a recording was made behind a cache, so that a step has fewer queries than tokens."""
    return bool((manifest.get("sampler") or {}).get("cache", "none") != "none")


def columns_add_up(manifest: Mapping[str, Any], trace: Trace | None = None) -> bool:
    """Return whether all columns add up to the tokens: no cache, crossing, sink tokens, or rules that zero weights."""
    if cached(manifest) or attends_elsewhere(manifest) or zeroes(manifest):
        return False
    if trace is None:
        return not (manifest.get("model") or {}).get("sink_token")
    if "sink_token_columns" in trace.tensors:
        return False
    if "hidden_norms" not in trace.tensors:
        return True
    counts = count_queries(np.zeros(0), np.asarray(trace.hidden_norms[:]))
    return bool((counts == np.asarray(trace.lengths[:])[:, None]).all())
