"""The numbers of one trace that the page shows, as plain values."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from sinkscope.figures.style import token_label
from sinkscope.figures.subject import Subject, subject_of
from sinkscope.sinks import movement_test
from sinkscope.sinks.episodes import KINDS
from sinkscope.statistics import Threshold
from sinkscope.statistics.averages import mean
from sinkscope.statistics.composition import expected_shares
from sinkscope.statistics.concentration import Evenness
from sinkscope.statistics.movement import track_kinds
from sinkscope.traces import Trace

SINK_TOKENS = 8


def page_numbers(trace: Trace, excess: float = 3.0) -> dict[str, Any]:
    """Return the sinks, tracks, moves and most frequent sink tokens of a trace.

    Args:
        excess: ε of Eq. 3, in queries' worth.

    Returns:
        Plain values that `json.dumps` takes; None where a number does not exist.

    Raises:
        TraceError: the trace holds no complete step.
        CallError: a threshold that no column can exceed.
    """
    return numbers_of(subject_of(trace, excess))


def numbers_of(subject: Subject) -> dict[str, Any]:
    """Return the numbers of `page_numbers` for a subject."""
    manifest, prompt, summary, threshold = subject.manifest, subject.prompt, subject.summary, subject.threshold
    in_percent = prompt.sinks(Threshold(threshold.excess, "percent")) if threshold.excess < 100 else 0
    tracks = track_kinds(replace(prompt, thresholds=(threshold,))).tracks[0].sum(axis=0).tolist()
    return _plain(
        {
            "model": subject.label,
            "family": manifest["model"].get("family"),
            "weight_hash": manifest["model"].get("weight_hash"),
            "complete": subject.trace.complete,
            "causal": summary.causal,
            "steps": summary.steps,
            "layers": summary.layers,
            "heads": summary.heads,
            "prompt_length": subject.prompt_length,
            "canvas_length": subject.positions,
            "excess": threshold.excess,
            "unit": threshold.unit,
            "threshold_column_sum": subject.threshold_column_sum,
            "newest": subject.followed.queries_text,
            "sinks": summary.sinks,
            "selected_share": summary.sinks / summary.columns,
            "sinks_in_percent_unit": in_percent,
            "selected_share_in_percent_unit": in_percent / summary.columns,
            "sink_rate_over_0.3": mean(prompt.kept(Evenness).over_third),
            "sink_rate_of_first_token": mean(prompt.kept(Evenness).first_over_third),
            "followed": subject.followed.source,
            "newest_queries_only": subject.followed.newest,
            "heads_with_sink": int(prompt.has_sink(threshold).any(axis=0).sum()),
            "heads_with_main_sink": int((prompt.main_at(threshold) >= 0).any(axis=0).sum()),
            "tracks": dict(zip(KINDS, tracks, strict=False)),
            "movement": _movement(subject),
            "sink_tokens": _sink_tokens(subject),
            "text": manifest.get("text"),
        }
    )


def _movement(subject: Subject) -> dict[str, Any] | None:
    """Return moves and drift, and the same with the steps shuffled; None where no head has a main sink in two steps."""
    found = movement_test(subject.main, subject.prompt.is_sink_at(subject.threshold))
    if not found.heads or subject.summary.steps < 2:
        return None
    return {
        "heads": found.heads,
        "moves_per_head": found.moves_per_head,
        "swaps_per_head": found.swaps_per_head,
        "null_moves": _interval(found.null_moves),
        "p_moves": found.p_moves,
        "drift_per_step": found.drift_per_step,
        "drift_median": found.drift_median,
        "drift_right": found.drift_right,
        "null_drift": _interval(found.null_drift),
        "p_drift": found.p_drift,
        "shuffles": found.shuffles,
        "block_steps": found.block_steps,
        "blocks": found.blocks,
    }


def _interval(values: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), values, strict=True))


def _sink_tokens(subject: Subject) -> list[dict[str, Any]]:
    """Return the most frequent sink tokens, each with its share by chance: a frequent token is often a sink."""
    canvas = subject.prompt.canvas
    sinks, expected = (
        subject.prompt.sinks_by_token(subject.threshold),
        expected_shares(subject.prompt, subject.threshold),
    )
    shares, of_canvas = sinks / max(1, sinks.sum()), canvas.token_counts / canvas.token_counts.sum()
    return [
        {
            "token": int(canvas.token_ids[at]),
            "text": token_label(subject.trace, int(canvas.token_ids[at])),
            "sinks": int(sinks[at]),
            "share_of_sinks": float(shares[at]),
            "share_of_canvas": float(of_canvas[at]),
            "expected_share": float(expected[at]),
            "times_expected": float(shares[at] / expected[at]),
        }
        for at in np.argsort(-sinks, kind="stable")[:SINK_TOKENS].tolist()
        if sinks[at]
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
