"""Traces that keep only the largest columns: reducing a step to them, and reading them as complete columns again."""

from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.axes import KEY, TRACE_AXES
from sinkscope.traces.trace_array import LazyArray, TraceArray, full_index

TOPPED = ("column_sums", "last_query", "newest_columns")
KEPT = ("tokens", "masked", "written", "predicted", "confidence", "lengths", "sink_token_columns")


def keep_top(step: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Return the canvas of a step, and each head's ``count`` largest columns, their positions and the mean of the
    others; ties go to the lower position.
    """
    kept = {name: step[name] for name in KEPT if name in step}
    for name in TOPPED:
        if name in step:
            columns, keys = step[name], min(count, step[name].shape[-1])
            order = np.argsort(-columns, axis=-1, kind="stable")[..., :keys]
            values = np.take_along_axis(columns, order, axis=-1)
            others = columns.shape[-1] - keys
            rest = columns.sum(axis=-1, dtype=np.float64) - values.sum(axis=-1, dtype=np.float64)
            room = [(0, 0)] * (columns.ndim - 1) + [(0, count - keys)]
            kept[f"top_{name}"] = np.pad(values, room, constant_values=np.nan)
            kept[f"top_{name}_key"] = np.pad(order.astype(np.int32), room, constant_values=-1)
            kept[f"rest_{name}"] = np.where(others > 0, np.maximum(rest, 0) / max(1, others), np.nan).astype(np.float32)
    return kept


def kept_columns(trace: Any, name: str = "column_sums") -> Any:
    """Return columns as they were kept: all of them, or the largest with NaN at all others."""
    return getattr(trace, name) if name in trace.tensors else TopArray(name, trace, spread=False)


class TopArray(LazyArray):
    """Columns of which only the largest were kept; all others have the mean of the others. It is indexed like a
    `TraceArray`.

    The mean over the other keys is therefore exact for every key, and so is Eq. 3 for every key that was kept.

    Args:
        spread: False leaves NaN at the keys that were not kept.
    """

    def __init__(self, name: str, trace: Any, spread: bool = True) -> None:
        self.name, self.spread = name, spread
        self._values: TraceArray = getattr(trace, f"top_{name}")
        self._keys: TraceArray = getattr(trace, f"top_{name}_key")
        self._rest: TraceArray = getattr(trace, f"rest_{name}")
        self._lengths = trace.lengths[:]
        self.axes = (*TRACE_AXES[name][:-1], KEY)
        self.shape = (*self._values.shape[:-1], int(self._lengths.max(initial=0)))
        self.dtype = self._values.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        index = full_index(index, self.name, self.axes)
        leading, last = index[:3], index[3:]
        values, keys, rest = self._values[leading], self._keys[leading], self._rest[leading]
        lengths = np.asarray(self._lengths[index[0]])
        return self._whole(values, keys, rest, lengths.reshape((*lengths.shape, *[1] * (rest.ndim - lengths.ndim))))[
            (..., *last)
        ]

    def _whole(
        self, values: np.ndarray, keys: np.ndarray, rest: np.ndarray, lengths: np.ndarray
    ) -> Float[np.ndarray, "... key"]:
        width = self.shape[-1]
        fill = rest if self.spread else np.full_like(rest, np.nan)
        whole = np.repeat(fill[..., None], width + 1, axis=-1)
        np.put_along_axis(
            whole, np.where(keys < 0, width, keys).astype(np.intp), values, axis=-1
        )  # empty places go behind the end
        whole = whole[..., :width]
        whole[np.broadcast_to(np.arange(width) >= lengths[..., None], whole.shape)] = np.nan
        return whole
