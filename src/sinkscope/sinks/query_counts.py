"""How many queries a step's columns are made of: fewer than tokens behind a cache, any number in cross-attention."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.definition import visible_query_mean
from sinkscope.sinks.followed_columns import Followed, Recorded
from sinkscope.traces.reading import Trace, attends_elsewhere, hidden_rules


def count_queries(
    columns: Float[np.ndarray, "*step layer head key"],
    hidden_norms: Float[np.ndarray, "*step layer key"] | None = None,
    sink_token: Float[np.ndarray, "*step layer head sink"] | None = None,
) -> Int[np.ndarray, "*step layer"]:
    """Return how many queries a layer has.

    Args:
        columns: column sums.
        hidden_norms: NaN for tokens that were not computed and so are no queries. Without them the queries are what
            columns add up to, of which a rule that zeroes keys takes some away.
        sink_token: attention on a sink token, which is no key.
    """
    if hidden_norms is not None:
        return (~np.isnan(hidden_norms)).sum(axis=-1)
    total = np.nansum(columns, axis=-1) + (0 if sink_token is None else np.nansum(sink_token, axis=-1))
    return np.rint(total.max(axis=-1)).astype(np.int64)


def query_means(
    recorded: Recorded, columns: Float[np.ndarray, "step layer head key"]
) -> Float[np.ndarray, "step layer head key"]:
    """Return columns over the number of queries that may see the key.

    In self-attention of causal models these are all from the key on, whatever window hides older keys, in block
    diffusion all from the key's block on, else the queries of the step, or all tokens where only arrays are given.
    """
    crossing = attends_elsewhere(getattr(recorded, "manifest", None) or {})
    if not crossing and (recorded.causal or not isinstance(recorded, Trace)):
        return visible_query_mean(columns, recorded.causal)
    tensors = recorded.tensors if isinstance(recorded, Trace) else ()
    if (
        Followed.of(recorded).tensor == "newest_columns"
        and not crossing
        and (block := (recorded.manifest.get("sampler") or {}).get("block"))
    ):
        lengths, position = (~np.isnan(columns)).sum(axis=-1, keepdims=True), np.arange(columns.shape[-1])
        return columns / np.maximum(lengths - position // block * block, 1)
    hidden = np.asarray(recorded.hidden_norms[:]) if "hidden_norms" in tensors and not crossing else None
    sink_token = np.asarray(recorded.sink_token_columns[:]) if "sink_token_columns" in tensors else None
    counts = _all_tokens(recorded) if hidden is None and isinstance(recorded, Trace) else None
    counts = count_queries(columns, hidden, sink_token) if counts is None else counts
    return columns / np.maximum(counts, 1)[..., None, None]


def followed_queries(recorded: Recorded) -> Float[np.ndarray, " step"]:
    """Return how many queries' attention the columns of each step hold in which sinks are followed."""
    followed = Followed.of(recorded)
    if followed.newest or not isinstance(recorded, Trace):
        return followed.queries(recorded)
    if attends_elsewhere(recorded.manifest) or "hidden_norms" not in recorded.tensors:
        sink_token = (
            np.asarray(recorded.sink_token_columns[:, :1]) if "sink_token_columns" in recorded.tensors else None
        )
        counts = _all_tokens(recorded)
        counts = (
            count_queries(followed.columns(recorded, slice(1)), sink_token=sink_token) if counts is None else counts
        )
    else:
        counts = count_queries(np.zeros(0), np.asarray(recorded.hidden_norms[:]))
    return np.maximum(counts.max(axis=-1), 1).astype(float)


def _all_tokens(trace: Trace) -> Int[np.ndarray, "step 1"] | None:
    """Return the tokens of each step, where all are queries and a rule takes some of their attention away; None
    elsewhere.
    """
    elsewhere = attends_elsewhere(trace.manifest) or cached(trace.manifest)
    return np.asarray(trace.lengths[:])[:, None] if zeroes(trace.manifest) and not elsewhere else None


def zeroes(manifest: Mapping[str, Any]) -> bool:
    """Return whether a trace or statistics were recorded under a rule that zeroes weights, so that columns add up to
    less.
    """
    return any("zero" in rule for rule in hidden_rules(manifest))


def cached(manifest: Mapping[str, Any]) -> bool:
    """Return whether a recording was made behind a cache, so that a step has fewer queries than tokens."""
    return bool((manifest.get("sampler") or {}).get("cache", "none") != "none")


def columns_add_up(manifest: Mapping[str, Any], trace: Trace | None = None) -> bool:
    """Return whether the columns of every head add up to the tokens of its canvas.

    They do not behind a cache, in cross-attention, with a sink token of the network's own, or under a rule that zeroes
    weights.

    Args:
        manifest: of a trace, or of statistics.
        trace: where single steps are known.
    """
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
