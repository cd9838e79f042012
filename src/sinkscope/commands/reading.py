"""`sinks`, `tracks`, `figures`: what a trace says."""

import dataclasses
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from sinkscope.commands.shown import Json, Unit, note, opened, print_json
from sinkscope.errors import CallError


def sinks(trace: Positional[Path], excess: float = 3.0, unit: Unit = "queries", as_json: Json = False) -> None:
    """Which tokens are sinks, where, and how strong.

    Args:
        trace: folder of a trace, of numbered traces, or of statistics (which have their own threshold).
        excess: how far a column must exceed the mean of the others (Eq. 3), in --unit.
        unit: of the excess: queries' worth of attention, percent of all attention, or mean (share).
    """
    from sinkscope.sinks import find_sinks
    from sinkscope.traces import is_statistics

    if is_statistics(trace):
        from sinkscope.commands.counting import show_statistics

        show_statistics(trace, as_json)
        return
    documents = []
    for one in opened(trace):
        found = find_sinks(one, excess, unit)
        steps, layers, heads, _ = found.shape
        document = {
            "trace": str(one.folder),
            "complete": one.complete,
            "excess": excess,
            "unit": unit,
            "steps": steps,
            "layers": layers,
            "heads": heads,
        }
        if as_json:
            documents.append({**document, "sinks": found.rows(), "selected_share": found.selected_share})
        else:
            _print_sinks(one, found)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def _print_sinks(trace: Any, found: Any) -> None:
    from collections import Counter

    steps, layers, heads, _ = found.shape
    print(f"{trace.folder}: {len(found)} sinks in {steps} steps, {layers} layers, {heads} heads")
    print(f"excess > {found.threshold:g} {found.unit}; {found.selected_share:.2%} of the tokens are sinks")
    places = Counter(zip(found.position.tolist(), found.token.tolist(), strict=True))
    print(f"\n{'position':>8}  {'token':<14}{'times a sink':>12}{'mean column':>13}")
    for (position, token), count in places.most_common(12):
        mean = found.column_sum[(found.position == position) & (found.token == token)].mean()
        print(f"{position:>8}  {trace.token_text(token)!r:<14}{count:>12}{mean:>13.1f}")


def tracks(trace: Positional[Path], excess: float = 3.0, unit: Unit = "queries", tolerance: int = 0, as_json: Json = False) -> None:
    """How sinks move: tracks, their kinds, moves and drift beside nulls of shuffled steps.

    Args:
        trace: folder of a trace, or of numbered traces.
        excess: how far a column must exceed the mean of the others (Eq. 3), in --unit.
        unit: of the excess: queries' worth of attention, percent of all attention, or mean (share).
        tolerance: steps below the threshold that do not end a track.
    """
    from sinkscope.sinks import find_sinks, movement_test, track

    documents = []
    for one in opened(trace):
        followed = track(find_sinks(one, excess, unit), tolerance)
        test = movement_test(followed.main)
        if as_json:
            documents.append({"trace": str(one.folder), "complete": one.complete, **followed.as_dict(), "null": dataclasses.asdict(test)})
            continue
        print(f"{one.folder}: {len(followed.tracks)} tracks, followed in {followed.source}")
        print("  " + ", ".join(f"{count} {kind}" for kind, count in followed.kinds.items()))
        mean, low, high = test.null_moves
        print(f"  moves per head {test.moves_per_head:.2f}; with steps shuffled {mean:.2f} ({low:.2f} to {high:.2f})")
        mean, low, high = test.null_drift
        told = f"with blocks of {test.block_steps} steps shuffled {mean:+.3f} ({low:+.3f} to {high:+.3f})"
        if test.block_steps >= one.steps:
            told = "its moving sinks stay too long for one trace to tell whether that is chance"
        print(f"  drift {test.drift_per_step:+.3f} positions a step; {told}")
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def figures(
    traces: Positional[tuple[Path, ...]],
    out: Path,
    excess: float = 3.0,
    compare: bool = False,
    only: str | None = None,
    model: str | None = None,
    device: str = "cpu",
) -> None:
    """Paper 1's Figures 1 to 10 and paper 2's norms from your own traces: PNG, PDF and CSV each.

    Args:
        traces: folders of traces, or of statistics, which draw Figures 3, 5, 9, 10 and norms. (required)
        out: folder for the files.
        excess: how far a column must exceed the mean of the others (Eq. 3), in queries' worth of attention.
        compare: puts the traces side by side, up to four.
        only: figures to draw, separated by commas: 1 to 10, norms. (default: all)
        model: what wrote the traces, where it has moved; recomputes the maps of Figures 4, 6 and 8. (default: the name in the trace)
        device: of that model: cpu, cuda …
    """
    from sinkscope.commands.mapping import maps_of
    from sinkscope.figures import draw_figures, open_counts
    from sinkscope.traces import is_statistics

    if not traces:
        raise CallError("expected at least one trace")
    names = None if only is None else [one.strip() for one in only.split(",")]
    opened_traces = [one for folder in traces for one in ([open_counts(folder)] if is_statistics(folder) else opened(folder))]
    for path in draw_figures(opened_traces, out, excess=excess, compare=compare, only=names, maps=maps_of(model, device), say=note):
        print(path)
