"""One vocabulary of shapes, used in every signature and in every trace.

batch      rows of one forward call; with guidance the conditional half comes first
step       one call of the network while it writes, from 0
layer      attention modules in the order they run, named by module path
head       query heads; ``kv_head`` where keys and values have fewer
query      tokens that look, in this call
key        tokens that can be looked at; as many as queries, or more behind a cache
position   tokens of the canvas of one prompt, left padding stripped
sink       constant keys of the network's own, no token of the canvas: sink tokens, or the learned logit
group      sets of queries whose columns are kept apart: all, masked, prompt
rank       largest columns of a head, from 0, the largest
dim        components of one head's vectors
"""

import numpy as np
from jaxtyping import Float

STEP, LAYER, HEAD, KV_HEAD, KEY, POSITION, SINK = "step", "layer", "head", "kv_head", "key", "position", "sink"
RANK = "rank"
TOPPED = ("column_sums", "last_query", "newest_columns")
"""Tensors of which ``--keep top`` keeps the largest columns."""

TRACE_AXES: dict[str, tuple[str, ...]] = {
    "tokens": (STEP, POSITION),
    "masked": (STEP, POSITION),
    "written": (STEP, POSITION),
    "predicted": (STEP, POSITION),
    "confidence": (STEP, POSITION),
    "lengths": (STEP,),
    "column_sums": (STEP, LAYER, HEAD, KEY),
    "column_sums_masked": (STEP, LAYER, HEAD, KEY),
    "column_sums_prompt": (STEP, LAYER, HEAD, KEY),
    "self_attention": (STEP, LAYER, HEAD, POSITION),
    "last_query": (STEP, LAYER, HEAD, KEY),
    "newest_columns": (STEP, LAYER, HEAD, KEY),
    "value_norms": (STEP, LAYER, KV_HEAD, POSITION),
    "key_norms": (STEP, LAYER, KV_HEAD, POSITION),
    "hidden_norms": (STEP, LAYER, POSITION),
    "output_norms": (STEP, LAYER, HEAD, POSITION),
    **{
        f"{kind}{name}{key}": (STEP, LAYER, HEAD, RANK)[: 3 if kind == "rest_" else 4]
        for name in TOPPED
        for kind, key in (("top_", ""), ("top_", "_key"), ("rest_", ""))
    },
    "sink_token_columns": (STEP, LAYER, HEAD, SINK),
}

TRACE_UNITS: dict[str, str] = {
    "tokens": "token id, -1 beyond lengths",
    "masked": "1 where the canvas holds the mask token",
    "written": "token id committed there in this step, -1 where none",
    "predicted": "token id that would be committed, -1 where not computed",
    "confidence": "what the sampler ranks masks by: a share of probability, or minus the entropy; NaN: not computed",
    "lengths": "tokens",
    "column_sums": "queries' worth of attention; sums to the number of queries",
    "column_sums_masked": "queries' worth of attention, from masked queries only",
    "column_sums_prompt": "queries' worth of attention, from the prompt's queries only",
    "self_attention": "share of a query's attention on itself",
    "last_query": "share of the newest query's attention",
    "newest_columns": "queries' worth, from the running block and the finished ones before it up to 16 queries",
    "value_norms": "Euclidean norm",
    "key_norms": "Euclidean norm",
    "hidden_norms": "Euclidean norm of what enters the layer",
    "output_norms": "Euclidean norm of a value behind the head's part of the output projection",
    "sink_token_columns": "queries' worth of attention; with column_sums, sums to the number of queries",
}
for _name in TOPPED:
    _unit = TRACE_UNITS[_name].partition(";")[0]
    TRACE_UNITS[f"top_{_name}"] = f"{_unit}; the largest of a head"
    TRACE_UNITS[f"top_{_name}_key"] = "position, -1 where the canvas has fewer tokens"
    TRACE_UNITS[f"rest_{_name}"] = f"{_unit}; mean of the others, NaN where there is none"


def lacks_key_heads(norms: Float[np.ndarray, "*any kv_head key"]) -> bool:
    """Return whether layers differ in their number of key heads, so that norms are NaN in the rest."""
    return bool(np.isnan(norms).all(axis=-1).any()) and not np.isnan(norms).all()


def by_query_head(norms: Float[np.ndarray, "kv_head key"], heads: int) -> Float[np.ndarray, "head key"]:
    """Return norms of one layer's key heads, NaN in those that it does not have, for each of its query heads."""
    held = max(1, int((~np.isnan(norms).all(axis=-1)).sum()))
    return np.repeat(norms[:held], heads // held, axis=0)
