"""Movement of main sinks over the steps of a prompt: moves, distances, residence, kinds of tracks, and drift."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int, Shaped

from sinkscope.sinks.drift import (
    FRONTIERS,
    KINDS,
    IsSink,
    MainMoves,
    block_edges,
    blocks_of,
    find_episodes,
    relative_positions,
    slopes,
)
from sinkscope.sinks.followed_columns import uncounted
from sinkscope.sinks.tracking import fill_dips
from sinkscope.statistics.intervals import depth_slope, layer_means, mean, quotient, ratio
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.prompt_canvas import PromptCanvas
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds, in_layers
from sinkscope.statistics.step import FollowedSinks, RecordedStep, SummedColumns
from sinkscope.statistics.thresholds import Threshold

HEAD_KINDS = (*KINDS, "none")
DEPTH = "deeper layers have fewer, stronger sinks (Fig. 5)"
FEW = "few tokens take most attention (Fig. 3, 9)"
PER = "per head with a sink in two steps or more"
SLOPE, SPEED = "least-squares slope of the main sink's position over the steps", "positions per step"
MOVING = "moving sinks: the position changes over steps, or the sink vanishes (§4.2, Fig. 7)"
DRIFT = "LLaDA drifts right as blocks are denoised, Dream left, MMaDA stays (§4.2, Fig. 1, 7, 8)"


class Movement(Statistic):
    """Movement of the main sinks of a prompt, and all its tracks."""

    order = 1
    definitions: ClassVar = {
        "movement.steps_with_sink": Definition("steps × heads with a sink", "share", FEW),
        "movement.moves_per_head": Definition(f"moves of the main sink, {PER}", "moves", MOVING),
        "movement.swaps_per_head": Definition(f"swaps of the main sink with another sink, {PER}", "swaps", "none"),
        "movement.swaps": Definition("swaps per head of one layer", "swaps", "none"),
        "movement.moves": Definition("moves per head of one layer", "moves", MOVING),
        "movement.distance": Definition("mean distance of a move", "positions", MOVING),
        "movement.rightward": Definition("moves to the right", "share of moves", DRIFT),
        "movement.residence": Definition("steps in a row that the main sink stays at one position", "steps", MOVING),
        "movement.track_steps": Definition("mean length of a track, over all sinks", "steps", MOVING),
        "movement.tracks": Definition("tracks of each kind", "share of tracks", MOVING),
        "movement.longest_track": Definition("heads by the kind of their longest track", "share of heads", MOVING),
        "movement.drift": Definition(f"{SLOPE}, mean over heads", SPEED, DRIFT),
        "movement.drift_median": Definition("the same, median over heads", SPEED, DRIFT),
        "movement.drift_right": Definition("heads whose main sink drifts to the right", "share of heads", DRIFT),
        "movement.drift_relative": Definition(f"{SLOPE}, minus that of a frontier of the masks", SPEED, DRIFT),
        "movement.drift_by_depth": Definition("slope of a layer's drift, first (0) to last layer (1)", SPEED, DRIFT),
        "movement.moves_by_depth": Definition("the same of a layer's moves per head", "moves", DEPTH),
    }

    def values(self, prompt: PromptSummary) -> Values:
        kinds = track_kinds(prompt)

        def values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
            main, is_sink = prompt.main_at(threshold), prompt.is_sink_at(threshold)
            number = prompt.thresholds.index(threshold)
            tracks, lived, heads = (kinds[name][number] for name in ("tracks", "lived", "heads"))
            values = main_sink_values(main, prompt.canvas, is_sink)
            values["movement.track_steps", ()] = quotient(lived.sum(), tracks.sum())
            for one, kind in enumerate(HEAD_KINDS):
                values["movement.longest_track", (("kind", kind),)] = float(heads[:, one].sum() / heads.sum())
                for layer, share in enumerate((heads[:, one] / heads.sum(axis=1)).tolist()):
                    values["movement.longest_track_in", (("layer", layer), ("kind", kind))] = share
                if kind != "none":
                    values["movement.tracks", (("kind", kind),)] = quotient(tracks[:, one].sum(), tracks.sum())
            if prompt.steps - prompt.uncounted < 2:  # too short to tell how long sinks last
                values |= {key: np.nan for key in values if "track" in key[0] or "residence" in key[0]}
            return values

        return at_thresholds(prompt, values_at)


def drift_values(family: str, found: MainMoves) -> Values:
    """Return mean and median of the drift over heads, and the share of heads that drift to the right."""
    counted = ~np.isnan(found.drift)
    return {
        (f"{family}.drift", ()): mean(found.drift),
        (f"{family}.drift_median", ()): float(np.median(found.drift[counted])) if counted.any() else float("nan"),
        (f"{family}.drift_right", ()): mean(np.where(counted, found.drift > 0, np.nan)),
    }


def main_sink_values(main: Int[np.ndarray, "step layer head"], canvas: PromptCanvas, is_sink: IsSink) -> Values:
    """Return the movement of main sinks, −1 where Eq. 3 does not hold."""
    there, found = main >= 0, MainMoves.of(main, is_sink)
    counted = there[uncounted(canvas.settings.causal, len(main)) :]
    begun = there[0].astype(np.int64) + (there[1:] & (main[1:] != main[:-1])).sum(axis=0)
    moves, swaps = (np.where(np.isnan(found.drift), np.nan, one) for one in (found.moves, found.swaps))
    travelled = np.abs(found.distance).sum(axis=0)
    distances = ratio(travelled.sum(axis=1), found.moves.sum(axis=1))
    stays = ratio(there.sum(axis=(0, 2)), begun.sum(axis=1))
    values: Values = {
        ("movement.steps_with_sink", ()): float(counted.mean()),
        ("movement.moves_per_head", ()): mean(moves),
        ("movement.swaps_per_head", ()): mean(swaps),
        ("movement.distance", ()): quotient(travelled.sum(), found.moves.sum()),
        ("movement.rightward", ()): quotient((found.distance > 0).sum(), found.moves.sum()),
        ("movement.residence", ()): quotient(there.sum(), begun.sum()),
        **drift_values("movement", found),
        ("movement.drift_by_depth", ()): depth_slope(layer_means(found.drift)),
        ("movement.moves_by_depth", ()): depth_slope(layer_means(moves)),
        **in_layers("movement.moves", map(mean, moves)),
        **in_layers("movement.swaps", map(mean, swaps)),
        **in_layers("movement.drift", map(mean, found.drift)),
        **in_layers("movement.distance", distances),
        **in_layers("movement.residence", stays),
    }
    edges, block, first = np.full(len(main), np.nan), canvas.settings.block, canvas.settings.first_block
    if block and canvas.written is not None:
        edges = block_edges(blocks_of(canvas.written, first, block), first, block)
    for frontier in FRONTIERS:
        relative, at = slopes(relative_positions(main, frontier, canvas.masked, edges)), ("frontier", frontier)
        values["movement.drift_relative", (at,)] = mean(relative)
        for layer, of_layer in enumerate(layer_means(relative).tolist()):
            values["movement.drift_relative_in", (("layer", layer), at)] = of_layer
    return values


def track_kinds(prompt: PromptSummary) -> dict[str, Int[np.ndarray, "threshold layer kind"]]:
    """Return all ``tracks`` of a prompt by kind, the steps they ``lived``, and ``heads`` by their longest track."""
    kinds, heads = len(HEAD_KINDS), prompt.heads
    tracks, lived, longest = (np.zeros((len(prompt.thresholds), prompt.layers, kinds), np.int64) for _ in range(3))
    for first, last in prompt.followed.groups_of_layers():
        candidates, layers = prompt.followed.of_layers(first, last), last - first
        for number, threshold in enumerate(prompt.thresholds):
            sinks, at = candidates.at(threshold), (number, slice(first, last))
            rows, steps = (sinks.step - prompt.uncounted, sinks.head, sinks.key), prompt.steps - prompt.uncounted
            found = find_episodes(*rows, steps, prompt.tolerance, short_too=False, ordered=True)
            place = found.head // heads * kinds + found.kind
            tracks[at] = np.bincount(place, minlength=layers * kinds).reshape(layers, kinds)
            durations = found.last - found.first + 1
            lived[at] = np.bincount(place, durations, layers * kinds).reshape(layers, kinds)
            rank = found.head * (steps + 1) - durations
            order = np.argsort(rank, kind="stable")  # ties to the track that comes first
            _, begins = np.unique(found.head[order], return_index=True)
            longest[at] = np.bincount(place[order][begins], minlength=layers * kinds).reshape(layers, kinds)
            longest[(*at, -1)] = heads - longest[at].sum(axis=1)
    return {"tracks": tracks, "lived": lived, "heads": longest}


@dataclass(frozen=True, eq=False)
class AnswerMain:
    """The largest column of the answer's queries in each head, its excess, and the `Candidates` among all (objects)."""

    position: Int[np.ndarray, "*step layer head"]
    queries: Float[np.ndarray, "*step layer head"]
    percent: Float[np.ndarray, "*step layer head"]
    sinks: Shaped[np.ndarray, "*step"]


class AnswerQueries(Statistic):
    """Changes of the main sink of the answer's queries; only where sums of the prompt's queries were recorded."""

    order = 2
    definitions: ClassVar = {
        "answer_queries.steps_with_sink": Definition("steps × heads with a sink for these queries", "share", "none"),
        "answer_queries.moves_per_head": Definition(f"moves of their main sink, {PER}", "moves", "Fig. 4 and 7"),
        "answer_queries.swaps_per_head": Definition(f"swaps of their main sink, {PER}", "swaps", "none"),
        "answer_queries.changes_per_head": Definition("moves and swaps together", "changes", "none"),
        "answer_queries.changes_of_all": Definition("the same for the main sink of all queries", "changes", "none"),
        "answer_queries.drift": Definition(f"{SLOPE}, mean over heads", SPEED, DRIFT),
        "answer_queries.drift_median": Definition("the same, median over heads", SPEED, DRIFT),
        "answer_queries.drift_right": Definition("heads whose main sink drifts to the right", "share of heads", DRIFT),
    }

    def keep(self, step: RecordedStep) -> AnswerMain | None:
        prompt = step.group_sums.get("prompt")
        prompt_length = step.settings.prompt_length
        if prompt is None or step.settings.causal or step.length <= prompt_length:
            return None
        in_prompt = np.arange(step.length) < prompt_length
        queries = np.maximum(step.queries - step.queries_of(in_prompt, prompt), 1).astype(np.float32)  # the answer's
        sums = (step.columns.sums - prompt) * (step.length / queries)[:, None, None]
        columns = SummedColumns.of(sums, step.columns.candidates.thresholds)
        sinks = np.empty((), object)
        sinks[()] = columns.candidates
        return AnswerMain(columns.top, columns.at_top(columns.excess), columns.at_top(columns.percent), sinks)

    def values(self, prompt: PromptSummary) -> Values:
        if AnswerMain not in prompt.kept_records:
            return {}
        found = prompt.kept(AnswerMain)
        followed = FollowedSinks(tuple(found.sinks), prompt.layers, prompt.heads)

        def values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
            there = getattr(found, threshold.unit) > threshold.excess
            main = fill_dips(np.where(there, found.position, -1), prompt.tolerance)
            moved = MainMoves.of(main, partial(followed.contain, threshold))
            of_all = MainMoves.of(prompt.main_at(threshold))
            return {
                ("answer_queries.steps_with_sink", ()): float((main >= 0).mean()),
                ("answer_queries.moves_per_head", ()): _per_head(moved, moved.moves),
                ("answer_queries.swaps_per_head", ()): _per_head(moved, moved.swaps),
                ("answer_queries.changes_per_head", ()): _per_head(moved, moved.moves + moved.swaps),
                ("answer_queries.changes_of_all", ()): _per_head(of_all, of_all.moves),
                **drift_values("answer_queries", moved),
            }

        return at_thresholds(prompt, values_at)


def _per_head(found: MainMoves, counts: Int[np.ndarray, "layer head"]) -> float:
    """Return a count's mean over the heads that have a main sink in at least two steps; NaN where none has."""
    return mean(np.where(np.isnan(found.drift), np.nan, counts))
