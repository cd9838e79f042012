"""One recorded step of one prompt, with what Eq. 3 says of it: the record from which every statistic of a step is computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.axes import by_query_head, lacks_key_heads
from sinkscope.errors import CallError
from sinkscope.sinks.definition import excess_of, in_unit
from sinkscope.statistics.candidates import Candidates, find_candidates
from sinkscope.statistics.thresholds import Threshold

NORMS = ("value_norms", "key_norms", "hidden_norms")
KEY_HEAD_NORMS = {"value_norms", "key_norms"}
OUTPUT_NORMS = "output_norms"
SINK_TOKEN = "sink_token_columns"
QUERY_GROUPS = ("masked", "prompt")
"""Groups of queries whose column sums are recorded apart."""
NEWEST = ("last_query", "newest_columns")
"""Of autoregressive models and of block diffusion, whose running sums can hardly move: what sinks are followed in."""
PER_LAYER = (
    "column_sums",
    *(f"column_sums_{group}" for group in QUERY_GROUPS),
    "self_attention",
    *NEWEST,
    *NORMS,
    OUTPUT_NORMS,
    SINK_TOKEN,
)
PER_STEP = ("tokens", "masked", "written", *PER_LAYER)
"""Tensors of a trace that are read, as `axes.TRACE_AXES` names them."""


@dataclass(frozen=True, eq=False)
class SummedColumns:
    """Column sums of one step, with what Eq. 3 says of them.

    Attributes:
        sums: in queries' worth.
        excess, percent: of each over the mean of the others, in queries' worth and in percent of all attention.
        total: what the columns of a head add up to.
        candidates: those that are sinks at the loosest threshold.
        top: position of the largest column of each head, ties to the lower one.
    """

    sums: Float[np.ndarray, "layer head key"]
    excess: Float[np.ndarray, "layer head key"]
    percent: Float[np.ndarray, "layer head key"]
    total: Float[np.ndarray, "layer head"]
    candidates: Candidates
    top: Int[np.ndarray, "layer head"]

    @classmethod
    def of(cls, sums: Float[np.ndarray, "layer head key"], thresholds: Sequence[Threshold]) -> "SummedColumns":
        """Return column sums with their excesses, candidates and largest columns."""
        excess, percent = excess_of(sums), excess_of(in_unit(sums, "percent"))
        return cls(
            sums,
            excess,
            percent,
            sums.sum(axis=-1),
            find_candidates(sums, excess, percent, thresholds),
            sums.argmax(axis=-1),
        )

    def at_top(self, array: Float[np.ndarray, "layer head key"]) -> Float[np.ndarray, "layer head"]:
        """Return what an array has at the largest column of each head."""
        return np.take_along_axis(array, self.top[..., None], axis=-1)[..., 0]


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One step of one prompt, cut to the tokens of its canvas.

    Attributes:
        columns: column sums of all queries.
        followed: the columns in which sinks are followed from step to step: ``columns`` itself, or for autoregressive models, whose
            running sums can hardly move, those of the 16 newest queries (in block diffusion those of the running block, and as many
            finished blocks before it as make 16).
        tokens, masked: the canvas.
        written: tokens committed in this step, −1 where none; None where not recorded.
        prompt_length: tokens of the prompt, 0 where unknown.
        causal: whether the model is autoregressive.
        crossing: whether the keys are another stack's tokens.
        queries: of each layer, whose attention the columns are; fewer than tokens behind a cache.
        group_sums: {group of queries: column sums of these queries only}, those of `QUERY_GROUPS` that were recorded.
        self_attention: attention of each query on itself; None where not recorded.
        norms: {name of `NORMS`, and `OUTPUT_NORMS`: norms as recorded}; hidden norms are the same for all heads and have one kv head,
            output norms have as many as there are query heads, and so have all where layers have different numbers of key heads.
    """

    columns: SummedColumns
    followed: SummedColumns
    tokens: Int[np.ndarray, " key"]
    masked: Bool[np.ndarray, " key"]
    written: Int[np.ndarray, " position"] | None
    prompt_length: int
    causal: bool
    crossing: bool
    queries: Int[np.ndarray, " layer"]
    group_sums: Mapping[str, Float[np.ndarray, "layer head key"]]
    self_attention: Float[np.ndarray, "layer head key"] | None
    norms: Mapping[str, Float[np.ndarray, "layer kv_head key"]]

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, np.ndarray],
        thresholds: Sequence[Threshold],
        *,
        causal: bool = False,
        prompt_length: int = 0,
        newest: Float[np.ndarray, "layer head key"] | None = None,
        crossing: bool = False,
        queries: Int[np.ndarray, " layer"] | None = None,
    ) -> "RecordedStep":
        """Return a step as it was recorded, with what Eq. 3 says of it.

        Args:
            arrays: as in `axes.TRACE_AXES`, without the step axis and without positions beyond the canvas.
            newest: columns of the newest queries, for autoregressive models.
            crossing: whether the keys are another stack's tokens.
            queries: of each layer; all tokens when not given.

        Raises:
            CallError: columns that are not those of the canvas.
        """
        found = {name: np.shape(arrays[name]) for name in ("tokens", "column_sums")}
        if len(found["tokens"]) != 1 or len(found["column_sums"]) != 3 or found["tokens"][0] != found["column_sums"][2]:
            given = ", ".join(f"{name} {list(shape)}" for name, shape in found.items())
            raise CallError(
                f"arrays: expected tokens [key] and column_sums [layer, head, key] of one canvas, found {given}"
            )
        columns = SummedColumns.of(np.asarray(arrays["column_sums"], np.float32), thresholds)
        tokens = np.asarray(arrays["tokens"])
        masked = arrays.get("masked")
        norms = {name: np.asarray(arrays[name]) for name in (*NORMS, OUTPUT_NORMS) if arrays.get(name) is not None}
        for name in KEY_HEAD_NORMS & norms.keys():
            if lacks_key_heads(norms[name]):
                norms[name] = np.stack([by_query_head(one, columns.sums.shape[1]) for one in norms[name]])
        return cls(
            columns,
            columns if newest is None else SummedColumns.of(newest, thresholds),
            tokens,
            np.zeros(tokens.shape, bool) if masked is None else np.asarray(masked).astype(bool),
            arrays.get("written"),
            prompt_length,
            causal,
            crossing,
            np.full(len(columns.sums), len(tokens)) if queries is None else queries,
            {group: arrays[name] for group in QUERY_GROUPS if arrays.get(name := f"column_sums_{group}") is not None},
            arrays.get("self_attention"),
            {name: one[:, None] if one.ndim == 2 else one for name, one in norms.items()},
        )

    def queries_of(
        self, members: Bool[np.ndarray, " key"], sums: Float[np.ndarray, "layer head key"]
    ) -> Int[np.ndarray, " layer"]:
        """Return how many of a group's tokens are queries of each layer: behind a cache those that were computed.

        Args:
            members: the group.
            sums: its column sums, which tell where nothing else does.
        """
        if (self.queries == self.length).all():
            return np.full(len(sums), int(members.sum()))
        hidden = self.norms.get("hidden_norms")
        if hidden is not None and not self.crossing:
            return (~np.isnan(hidden[:, 0]) & members).sum(axis=-1)
        return np.rint(sums.sum(axis=-1).max(axis=-1)).astype(np.int64)

    @property
    def length(self) -> int:
        """Tokens of the canvas."""
        return len(self.tokens)
