"""The numbers of one trace that the page shows, as plain values."""

import math
from typing import Any

from sinkscope.figures.style import token_label
from sinkscope.figures.subject import Subject, subject_of
from sinkscope.traces import Trace

SINK_TOKENS = 8


def summarise(trace: Trace, excess: float = 3.0) -> dict[str, Any]:
    """Return the sinks, tracks, moves and most frequent sink tokens of a trace.

    Args:
        excess: ε of Eq. 3, in queries' worth.

    Returns:
        Plain values that `json.dumps` takes; None where a number does not exist.

    Raises:
        TraceError: a trace without a whole step.
        CallError: a threshold that cannot hold.
    """
    return page_numbers(subject_of(trace, excess))


def page_numbers(subject: Subject) -> dict[str, Any]:
    """Return the same, of a trace that has been read already."""
    one, manifest = subject.prompt, subject.manifest
    movement = one.movement
    return _plain(
        {
            "model": subject.label,
            "family": manifest["model"].get("family"),
            "weight_hash": manifest["model"].get("weight_hash"),
            "complete": subject.trace.complete,
            "causal": one.causal,
            "steps": one.steps,
            "layers": one.main.shape[1],
            "heads": one.main.shape[2],
            "prompt_length": subject.prompt_length,
            "canvas_length": int(one.lengths.max()),
            "excess": one.excess,
            "unit": "queries",
            "threshold_column_sum": subject.threshold,
            "sinks": one.sinks,
            "selected_share": one.sinks / max(1, one.columns),
            "sinks_in_percent_unit": one.sinks_percent,
            "selected_share_in_percent_unit": one.sinks_percent / max(1, one.columns),
            "sink_rate_over_0.3": one.over_third,
            "followed": "last_query, window of 16" if one.causal else "column_sums",
            "heads_with_sink": int((one.sink_steps > 0).sum()),
            "heads_with_main_sink": sum(head.steps_with_sink > 0 for head in one.heads),
            "tracks": one.kinds,
            "movement": {
                "heads": movement.heads,
                "moves_per_head": movement.moves_per_head,
                "null_moves": _interval(movement.null_moves),
                "p_moves": movement.p_moves,
                "drift_per_step": movement.drift_per_step,
                "null_drift": _interval(movement.null_drift),
                "p_drift": movement.p_drift,
                "shuffles": movement.shuffles,
                "block_steps": movement.block_steps,
            }
            if movement.heads and one.steps > 1
            else None,
            "sink_tokens": _sink_tokens(subject),
            "text": manifest.get("text"),
        }
    )


def _interval(values: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), values, strict=True))


def _sink_tokens(subject: Subject) -> list[dict[str, Any]]:
    """Return the most frequent sink tokens, each beside its share of the canvas: a frequent token is often a sink by chance."""
    one = subject.prompt
    canvas = one.canvas_tokens.total()
    ranked = sorted(one.sink_tokens.items(), key=lambda item: (-item[1], item[0]))[:SINK_TOKENS]
    rows = []
    for token, count in ranked:
        share, of_canvas = count / one.sinks, one.canvas_tokens[token] / canvas
        label = token_label(subject.trace, token)
        rows.append(
            {
                "token": token,
                "text": label,
                "sinks": count,
                "share_of_sinks": share,
                "share_of_canvas": of_canvas,
                "times_expected": share / of_canvas,
            }
        )
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
