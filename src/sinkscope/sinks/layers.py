"""A trace a layer at a time: one layer over all steps is small (17 MB of a trace of 537), whatever the number of layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.errors import SinkscopeError
from sinkscope.sinks.definition import excess_of, last_query_window
from sinkscope.sinks.finding import WINDOW, Recorded

NORMS = ("value_norms", "key_norms", "hidden_norms")
Record = TypeVar("Record")


@dataclass(frozen=True)
class Canvas:
    """What was on the canvas of a trace, and what was committed.

    Attributes:
        tokens: −1 beyond ``lengths``; masked: False there.
        written: token committed in the step, −1 where none; None where not recorded.
        block: tokens of a sampler's block; None for samplers without blocks.
        vocabulary: {token: text}, as far as the trace says.
    """

    tokens: Int[np.ndarray, "step position"]
    masked: Bool[np.ndarray, "step position"]
    lengths: Int[np.ndarray, " step"]
    written: np.ndarray | None
    causal: bool
    prompt_length: int
    block: int | None
    mask_id: int | None
    special_ids: tuple[int, ...]
    vocabulary: dict[int, str] = field(repr=False)


@dataclass(frozen=True)
class Layer:
    """One layer of a trace over all steps; axes step, head, key.

    Attributes:
        sums: column sums in queries' worth, NaN beyond the lengths; excess: over the mean of the others (Eq. 3).
        total: [step, head], what the columns add up to.
        followed, followed_excess, followed_total: what movement is read from: the same, or for autoregressive traces
            the rows of the 16 newest queries.
        group_sums: {group of queries: column sums}, the groups that were recorded.
        norms: {name: [step, kv head, position]}, as recorded; hidden norms have one kv head.
    """

    sums: Float[np.ndarray, "step head key"]
    excess: Float[np.ndarray, "step head key"]
    total: Float[np.ndarray, "step head"]
    followed: Float[np.ndarray, "step head key"]
    followed_excess: Float[np.ndarray, "step head key"]
    followed_total: Float[np.ndarray, "step head"]
    group_sums: dict[str, np.ndarray]
    self_attention: np.ndarray | None
    norms: dict[str, np.ndarray]


def held(trace: Any, name: str) -> Any:
    """A tensor of a trace, None where it was not recorded."""
    try:
        return getattr(trace, name)
    except (AttributeError, SinkscopeError):
        return None


def canvas_of(trace: Recorded) -> Canvas:
    """The canvas of a trace, all of it: it is small.

    Raises:
        SinkscopeError: a trace without a whole step.
    """
    if not trace.steps:
        raise SinkscopeError("the trace holds no whole step yet; there is nothing to analyse")
    manifest = held(trace, "manifest") or {}
    tokens = np.asarray(trace.tokens[:])
    masked, written, lengths = (held(trace, name) for name in ("masked", "written", "lengths"))
    special = [manifest.get("eos_id"), *(manifest.get("special_ids") or ())]
    return Canvas(
        tokens=tokens,
        masked=np.zeros(tokens.shape, bool) if masked is None else np.asarray(masked[:]).astype(bool) & (tokens >= 0),
        lengths=(tokens >= 0).sum(axis=1) if lengths is None else np.asarray(lengths[:]).astype(np.int64),
        written=None if written is None else np.asarray(written[:]),
        causal=bool(trace.causal),
        prompt_length=int(manifest.get("prompt_length") or 0),
        block=(manifest.get("sampler") or {}).get("block"),
        mask_id=manifest.get("mask_id"),
        special_ids=tuple(int(one) for one in special if one is not None),
        vocabulary={int(token): text for token, text in (manifest.get("vocabulary") or {}).items()},
    )


def read_layers(trace: Recorded) -> Iterator[Layer]:
    """Every layer in order; only one is in memory."""
    sums = trace.column_sums
    groups = {group: held(trace, f"column_sums_{group}") for group in ("masked", "prompt")}
    norms = {name: held(trace, name) for name in NORMS}
    own = held(trace, "self_attention")
    for layer in range(sums.shape[1]):
        columns = np.asarray(sums[:, layer], dtype=np.float32)
        excess, total = excess_of(columns), np.nansum(columns, axis=-1)
        followed, followed_excess, followed_total = columns, excess, total
        if trace.causal:
            followed = last_query_window(np.asarray(trace.last_query[:, layer])[:, None], WINDOW)[:, 0]
            followed_excess, followed_total = excess_of(followed), np.nansum(followed, axis=-1)
        yield Layer(
            columns,
            excess,
            total,
            followed,
            followed_excess,
            followed_total,
            {group: np.asarray(one[:, layer]) for group, one in groups.items() if one is not None},
            None if own is None else np.asarray(own[:, layer]),
            {name: _by_head(np.asarray(one[:, layer])) for name, one in norms.items() if one is not None},
        )


def _by_head(norms: np.ndarray) -> np.ndarray:
    return norms[:, None] if norms.ndim == 2 else norms


def stack_layers(records: Sequence[Record]) -> Record:
    """Records of single layers side by side: every array gets an axis ``layer`` before its last."""
    names = [one.name for one in fields(records[0])]  # type: ignore[arg-type]
    return type(records[0])(**{name: np.stack([getattr(one, name) for one in records], axis=-2) for name in names})
