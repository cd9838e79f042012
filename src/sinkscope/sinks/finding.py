"""The sinks of a trace: which tokens, where, how strong."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.counts import counted
from sinkscope.errors import CallError
from sinkscope.notebook_card import MOST_ROWS, card
from sinkscope.sinks.definition import Unit, check_excess, excess_of, in_unit, is_sink
from sinkscope.sinks.followed_columns import Followed, Recorded, query_means
from sinkscope.traces.reading import as_trace, expect_steps

EXCESS = 3.0
"""ε of Eq. 3 in paper 1, in queries' worth of attention."""


@dataclass(frozen=True, eq=False)
class Sinks:
    """The sinks of one trace by Eq. 3, a row each, ordered by step, layer, head, position.

    Attributes:
        column_sum: in queries' worth of attention, whatever the unit of the threshold.
        visible_query_mean: the column over the number of queries that may see the key (see
            `followed_columns.query_means`); for causal models, whose early keys more queries see, the fairer number.
        excess: over the mean of the other columns, in ``unit``.
        shape: (steps, layers, heads, positions) of the trace.
        selected_share: sinks over all step × layer × head × position within ``lengths``.
        columns: [step, layer, head, key], in which sinks are followed (see `followed_columns`), and ``source`` their
            name; ``moving``: bool [step, layer, head, key], Eq. 3 on them.
        vocabulary: texts of tokens by their number as text, as far as the trace has them.
    """

    step: Int[np.ndarray, " sink"]
    layer: Int[np.ndarray, " sink"]
    head: Int[np.ndarray, " sink"]
    position: Int[np.ndarray, " sink"]
    token: Int[np.ndarray, " sink"]
    column_sum: Float[np.ndarray, " sink"]
    visible_query_mean: Float[np.ndarray, " sink"]
    excess: Float[np.ndarray, " sink"]
    threshold: float
    unit: Unit
    shape: tuple[int, int, int, int]
    selected_share: float
    source: str
    columns: Float[np.ndarray, "step layer head key"] = field(repr=False)
    moving: Bool[np.ndarray, "step layer head key"] = field(repr=False)
    vocabulary: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.step)

    def places(self) -> list[tuple[int, int, int, float]]:
        """Return (position, token, how often, mean column sum) of every place with a sink, the most frequent first."""
        found = Counter(zip(self.position.tolist(), self.token.tolist(), strict=True))
        sums: Counter[tuple[int, int]] = Counter()
        for position, token, column in zip(self.position, self.token, self.column_sum.tolist(), strict=True):
            sums[int(position), int(token)] += column
        return [(*place, count, sums[place] / count) for place, count in found.most_common()]

    def _repr_html_(self) -> str:
        steps, layers, heads, _ = self.shape
        places = self.places()
        rows = [
            (position, repr(self.vocabulary.get(str(token), f"<{token}>")), count, f"{mean:.1f}")
            for position, token, count, mean in places[:MOST_ROWS]
        ]
        facts = {
            "threshold": f"more than {self.threshold:g} {self.unit} above the mean of the other columns (Eq. 3)",
            "share of all tokens": f"{self.selected_share:.2%}",
        }
        columns = ("position", "token", "times a sink", "mean column")
        shape = f"{counted(steps, 'step')}, {counted(layers, 'layer')} × {counted(heads, 'head')}"
        return card(f"{counted(len(self), 'sink', ',')} in {shape}", facts, columns, rows, len(places) - len(rows))

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain record for each sink, as ``sinkscope sinks --json`` prints them."""
        whole, rounded = ("step", "layer", "head", "position", "token"), ("column_sum", "excess", "visible_query_mean")
        columns = [getattr(self, name) for name in whole]
        columns += [getattr(self, name).astype(float).round(4) for name in rounded]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [dict(zip((*whole, *rounded), row, strict=True)) for row in rows]


def find_sinks(trace: Recorded | str | Path, excess: float = EXCESS, unit: Unit = "queries") -> Sinks:
    """Return the sinks of a trace: Eq. 3 on every step, layer and head.

    Args:
        trace: an open trace, or the path of one.
        excess: ε, in ``unit``: ``queries`` (column sums), ``percent`` of all attention, or ``mean``.

    Raises:
        CallError: a threshold that cannot hold in that unit or on that canvas.
        SinkscopeError: a trace without a whole step, or none at the path.
    """
    check_excess(excess, unit)
    recorded: Recorded = as_trace(trace)
    expect_steps(recorded, "find sinks in")
    columns = np.array(recorded.column_sums[:], dtype=np.float32)  # a copy, since a caller may fill arrays anew
    check_reach(excess, unit, np.nansum(columns, axis=-1), columns.shape[-1])
    tokens = np.asarray(recorded.tokens[:])
    selected = is_sink(columns, excess, unit)
    step, layer, head, position = np.nonzero(selected)
    followed = Followed.of(recorded)
    moving_columns = followed.columns(recorded) if followed.newest else columns
    excesses = excess_of(in_unit(columns, unit))
    return Sinks(
        step=step,
        layer=layer,
        head=head,
        position=position,
        token=tokens[step, position],
        column_sum=columns[selected],
        visible_query_mean=query_means(recorded, columns)[selected],
        excess=excesses[selected],
        threshold=excess,
        unit=unit,
        shape=columns.shape,  # type: ignore[arg-type]
        selected_share=float(selected.sum() / max(1, (~np.isnan(columns)).sum())),
        source=followed.source,
        columns=moving_columns,
        moving=selected if moving_columns is columns else is_sink(moving_columns, excess, unit),
        vocabulary=(getattr(recorded, "manifest", None) or {}).get("vocabulary", {}),
    )


def check_reach(excess: float, unit: Unit, totals: Float[np.ndarray, "step layer head"], keys: int) -> None:
    """Raise CallError where no column of a trace can exceed a threshold; the usual one is taken for every trace.

    Args:
        totals: sums of the columns of a head, in queries' worth.
        keys: tokens of the longest canvas.
    """
    most = {"queries": float(max(keys, round(float(totals.max())))), "percent": 100.0, "mean": 1.0}[unit]
    if excess >= most and not (unit == "queries" and excess <= EXCESS):
        reason = f"a key that received all attention would exceed the others by {most:g}"
        raise CallError(f"excess: {excess:g} in {unit} can never hold here: {reason}")
