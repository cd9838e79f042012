"""The sinks of a trace: which tokens, where, how strong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.counts import counted
from sinkscope.errors import CallError
from sinkscope.notebook_card import MOST_ROWS, card
from sinkscope.sinks.definition import (
    RULE_TEXTS,
    Rule,
    Unit,
    check_excess,
    excess_in,
    last_query_window,
    reach_of,
    uniform_columns,
    uniform_rows,
)
from sinkscope.sinks.followed_columns import WINDOW, Followed, Recorded, query_means, uncounted
from sinkscope.traces.reading import as_trace, attends_elsewhere, expect_steps

ALL, EXCESS = slice(None), 3.0
"""ε of Eq. 3 in paper 1, in queries' worth of attention."""


@dataclass(frozen=True, eq=False)
class Sinks:
    """The sinks of one trace, a row each, ordered by step, layer, head, position; see `definition` for the ``rule``.

    column_sum is in queries' worth; visible_query_mean over the queries that see the key; selected_share: sinks over
    all step × layer × head × position. ``columns`` [step, layer, head, key] of ``source``, in which sinks are followed,
    ``moving`` where they are sinks, from ``uncounted`` steps on; by ``ranked`` the main sink is the largest.
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
    ranked: Float[np.ndarray, "step layer head key"] = field(repr=False)
    rule: Rule = "eq3"
    uncounted: int = 0
    vocabulary: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.step)

    def places(self) -> list[tuple[int, int, int, float, float]]:
        """Return (position, token, how often, mean column sum, visible_query_mean) of every place, by frequency."""
        places, at = np.unique(np.stack([self.position, self.token]), axis=1, return_inverse=True)
        count = np.bincount(at.ravel(), minlength=places.shape[1])
        means = [np.bincount(at.ravel(), one, len(count)) / count for one in (self.column_sum, self.visible_query_mean)]
        rows = list(zip(*places.tolist(), count.tolist(), *(one.tolist() for one in means), strict=True))
        return sorted(rows, key=lambda row: -row[2])

    def _repr_html_(self) -> str:
        (steps, layers, heads, _), places, rows = self.shape, self.places(), []
        for position, token, count, mean, seen in places[:MOST_ROWS]:
            text = self.vocabulary.get(str(token), f"<{token}>")
            rows.append((position, repr(text), count, f"{mean:.1f}", f"{seen:.3f}"))
        threshold = f"more than {self.threshold:g} {self.unit} above {RULE_TEXTS[self.rule]}"
        facts = {"threshold": threshold, "share of all columns": f"{self.selected_share:.2%}"}
        columns = ("position", "token", "times a sink", "mean column", "a query that sees it")
        shape = f"{counted(steps, 'step')}, {counted(layers, 'layer')} × {counted(heads, 'head')}"
        return card(f"{counted(len(self), 'sink', ',')} in {shape}", facts, columns, rows, len(places) - len(rows))

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain record for each sink, as ``sinkscope sinks --json`` prints them."""
        names = ("step", "layer", "head", "position", "token", "column_sum", "excess", "visible_query_mean")
        columns = [getattr(self, name) for name in names[:5]]
        columns += [getattr(self, name).astype(float).round(4) for name in names[5:]]
        return [dict(zip(names, row, strict=True)) for row in zip(*(one.tolist() for one in columns), strict=True)]


def rule_of(causal: bool, manifest: Mapping[str, Any] = {}, asked: Rule | None = None) -> Rule:
    """Return the rule asked for in causal self-attention (``uniform`` by default); else Eq. 3, which is the same."""
    return (asked or "uniform") if causal and not attends_elsewhere(manifest) else "eq3"


def followed_sinks(
    recorded: Recorded, excess: float, unit: Unit, rule: Rule | None, layers: slice = ALL, heads: slice = ALL
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the columns in which sinks are followed, where they are, and by what the main sink is the largest."""
    columns, expected, filled = Followed.of(recorded).columns(recorded, layers, heads), None, np.ones(1)
    if recorded.causal and unit == "queries":
        filled = np.minimum(np.arange(recorded.steps) + 1, WINDOW) / WINDOW
    if rule_of(recorded.causal, getattr(recorded, "manifest", None) or {}, rule) == "uniform":
        rows = np.asarray(recorded.last_query[:, layers], np.float32)
        expected = last_query_window(uniform_rows(rows), WINDOW)
    over = excess_in(columns, unit, expected) / filled[:, None, None, None]
    there = over > excess
    there[: uncounted(recorded.causal, recorded.steps)] = False
    return columns, there, columns if expected is None else over


def find_sinks(
    trace: Recorded | str | Path, excess: float = EXCESS, unit: Unit = "queries", rule: Rule | None = None
) -> Sinks:
    """Return the sinks of a trace, an open one or a path, in every step, layer and head.

    Args:
        excess: ε, in ``unit``: ``queries`` (column sums), ``percent`` of all attention, or ``mean``.
        rule: ``uniform`` or ``eq3``, see `rule_of`.

    Raises CallError for a threshold that cannot hold; SinkscopeError for a trace without a whole step, or none.
    """
    check_excess(excess, unit)
    recorded: Recorded = as_trace(trace)
    expect_steps(recorded, "find sinks in")
    columns = np.array(recorded.column_sums[:], dtype=np.float32)  # a copy, since a caller may fill arrays anew
    check_reach(excess, unit, np.nansum(columns, axis=-1), columns.shape[-1])
    tokens, followed = np.asarray(recorded.tokens[:]), Followed.of(recorded)
    manifest, uniform = getattr(recorded, "manifest", None) or {}, None
    rule = rule_of(recorded.causal, manifest, rule)
    if rule == "uniform":
        uniform = np.zeros((*columns.shape[:2], 1, columns.shape[-1]))
        for step, reach in enumerate(reach_of(np.asarray(recorded.last_query[:]))):
            length = int((~np.isnan(columns[step, 0, 0])).sum())
            uniform[step, ..., :length] = uniform_columns(length, reach)
    excesses = excess_in(columns, unit, uniform)
    selected = excesses > excess  # false for NaN
    followed_in = followed_sinks(recorded, excess, unit, rule) if followed.newest else (columns, selected, columns)
    step, layer, head, position = np.nonzero(selected)
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
        columns=followed_in[0],
        moving=followed_in[1],
        ranked=followed_in[2],
        rule=rule,
        uncounted=uncounted(recorded.causal, recorded.steps),
        vocabulary=manifest.get("vocabulary", {}),
    )


def check_reach(excess: float, unit: Unit, totals: Float[np.ndarray, "step layer head"], keys: int) -> None:
    """Raise CallError where no column of heads with these sums can exceed a threshold; the usual one always may."""
    most = {"queries": float(max(keys, round(float(totals.max())))), "percent": 100.0, "mean": 1.0}[unit]
    if excess >= most and not (unit == "queries" and excess <= EXCESS):
        reason = f"a key that received all attention would exceed the others by {most:g}"
        raise CallError(f"excess: {excess:g} in {unit} can never hold here: {reason}")
