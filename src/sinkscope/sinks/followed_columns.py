"""The columns in which sinks are followed from step to step.

They are the column sums, except where old queries keep their rows from step to step (autoregressive models, block
diffusion): a sum over all of them can hardly move, so there only the newest queries count.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Float

from sinkscope.sinks.definition import last_query_window

WINDOW = 16
"""Newest queries whose columns are followed."""

FollowedTensor = Literal["column_sums", "last_query", "newest_columns"]


class Recorded(Protocol):
    """What must be known of a trace to find its sinks, beside ``steps`` and its tensors; `sinkscope.traces.Trace` is
    one.
    """

    @property
    def causal(self) -> bool: ...
    def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Followed:
    """Which tensor of a trace holds the columns in which its sinks are followed.

    Attributes:
        tensor: ``column_sums``; ``last_query`` of an autoregressive model, whose rows are added up over 16 steps;
            ``newest_columns`` of block diffusion, sums over the running block and the blocks before it.
    """

    tensor: FollowedTensor

    @classmethod
    def of(cls, recorded: Recorded) -> "Followed":
        """Return the tensor that is followed in a trace."""
        if recorded.causal:
            return cls("last_query")
        held = getattr(recorded, "tensors", ())
        return cls("newest_columns" if "newest_columns" in held or "top_newest_columns" in held else "column_sums")

    @classmethod
    def named(cls, name: str | None, causal: bool) -> "Followed":
        """Return the tensor that a manifest names; by the kind of model where it names none."""
        tensors: dict[str | None, FollowedTensor] = {"last_query": "last_query", "newest_columns": "newest_columns"}
        return cls(tensors.get(name, "last_query" if causal else "column_sums"))

    @property
    def newest(self) -> bool:
        """Whether only the newest queries count."""
        return self.tensor != "column_sums"

    @property
    def kind(self) -> str:
        """The kind of model: diffusion, block diffusion or autoregressive."""
        return {"column_sums": "diffusion", "newest_columns": "block diffusion", "last_query": "autoregressive"}[
            self.tensor
        ]

    @property
    def queries_text(self) -> str:
        """Words for the queries whose attention it holds."""
        newest = {
            "last_query": f"the {WINDOW} newest queries",
            "newest_columns": f"the newest blocks of {WINDOW} or more queries",
        }
        return newest.get(self.tensor, "all queries")

    @property
    def source(self) -> str:
        """Text that names it, as ``sinkscope tracks`` prints it."""
        how = {"last_query": f", window of {WINDOW}", "newest_columns": f", newest blocks of {WINDOW} or more queries"}
        return self.tensor + how.get(self.tensor, "")

    def columns(
        self, recorded: Recorded, layers: slice = slice(None), heads: slice = slice(None)
    ) -> Float[np.ndarray, "step layer head key"]:
        """Return the columns of a trace, or of some of its layers and heads, in queries' worth."""
        values = np.asarray(getattr(recorded, self.tensor)[:, layers, heads], dtype=np.float32)
        return last_query_window(values, WINDOW) if self.tensor == "last_query" else values

    def queries(self, recorded: Recorded) -> Float[np.ndarray, " step"]:
        """Return how many queries' attention the columns of each step hold."""
        if self.tensor == "last_query":
            return np.minimum(np.arange(recorded.steps) + 1.0, WINDOW)
        if self.tensor == "column_sums":
            return np.asarray(recorded.lengths[:], dtype=float)
        return np.nansum(self.columns(recorded, slice(1), slice(1))[:, 0, 0], axis=-1, dtype=float).round()
