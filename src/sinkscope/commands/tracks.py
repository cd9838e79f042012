"""`tracks`: shows how the sinks of a trace move."""

import dataclasses
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from sinkscope.commands.command import Command, Excess, Json, RolesFile, Rule, Unit
from sinkscope.commands.output import cut, open_and_check, print_json, print_table, roles_for_traces, say, say_wrapped
from sinkscope.counts import counted


@dataclass(frozen=True, kw_only=True)
class Tracks(Command):
    """Show how sinks move: tracks, moves and drift, compared with the same steps in random order, and moves at an equal
    share of attention.

    Attributes:
        trace: folder of a trace, or of numbered traces.
        tolerance: how many steps in a row a sink may be below the threshold without ending its track.
    """

    trace: Positional[Path]
    excess: Excess = 3.0
    unit: Unit = "queries"
    rule: Rule = None
    tolerance: int = 0
    roles: RolesFile = None
    json: Json = False

    def run(self) -> None:
        from sinkscope.sinks import averaged_moves, find_sinks, movement_test, track
        from sinkscope.sinks.tracking import place_of

        documents, traces = [], open_and_check(self.trace)
        roles = roles_for_traces(self.roles, traces)
        for trace in traces:
            sinks = find_sinks(trace, self.excess, self.unit, self.rule)
            tracks = track(sinks, self.tolerance)
            test = movement_test(tracks.main, tracks.is_sink, uncounted=tracks.uncounted)
            place, averaged = place_of(sinks, trace.tokens[:]), averaged_moves(trace)
            if not self.json:
                _print(trace, tracks, test, roles, place, averaged)
                continue
            document = {"trace": str(trace.folder), "complete": trace.complete, **tracks.as_dict()}
            document |= {"rule": sinks.rule, "main_sink": None if place is None else vars(place)}
            document["moves_at_equal_share"] = [vars(one) for one in averaged]
            document["null"] = dataclasses.asdict(test) if test.heads else None
            documents.append({**document, "roles": None if roles is None else roles.by_head()})
        if self.json:
            print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def _print(trace: Any, tracks: Any, test: Any, roles: Any, place: Any, averaged: Any) -> None:
    from sinkscope.sinks.followed_columns import Followed
    from sinkscope.sinks.tracking import FEW_BLOCKS, KIND_MEANINGS

    queries, count = Followed.of(trace).words(trace.steps), trace.steps - tracks.uncounted
    text = f"no head has a main sink in the attention of {queries}"
    if place is not None:
        static = sum(one.kind == "static" and one.position == place.position for one in tracks.tracks)
        kind = f"; a static sink in {static}" if count > 1 else ""
        text = f"{place.text(trace.token_text(place.token), queries)}{kind}"
    say_wrapped(f"{trace.folder}: {text}", "bold")
    say_wrapped(f"{counted(len(tracks.tracks), 'track')}, followed in {tracks.source}, over {counted(count, 'step')}\n")
    if count < 2:
        return say("too short to tell how long sinks last, or whether they move")
    kinds = [(str(many), kind, KIND_MEANINGS[kind]) for kind, many in tracks.kinds.items()]
    print_table(("tracks", "kind", "meaning"), kinds, ("kind", "meaning"))
    chance = "with blocks of {} shuffled {:+.3f} ({:+.3f} to {:+.3f})".format(test.block_steps, *test.null_drift)
    if test.blocks <= 1:
        chance = "sinks stay too long to test this with one trace"
    elif test.blocks < FEW_BLOCKS:
        chance += f"; {test.blocks:.1f} blocks are too few to tell chance (expected {FEW_BLOCKS})"
    shuffled = "with steps shuffled {:.2f} ({:.2f} to {:.2f})".format(*test.null_moves)
    right = f"{test.drift_right:.0%} of {test.heads} heads drift to the right"
    rows = [
        ("moves", f"{test.moves_per_head:.2f}", shuffled),
        ("swaps", f"{test.swaps_per_head:.2f}", "the places only exchange ranks"),
        ("drift, positions a step", f"{test.drift_per_step:+.3f}", chance),
        ("drift of the median head", f"{test.drift_median:+.3f}", right),
    ]
    rows = rows if test.heads else [("no head has a main sink in two steps", "–", "")]
    for one in averaged:
        queries = "query" if one.queries == 1 else "queries"
        mean = "–" if one.moves_per_head is None else f"{one.moves_per_head:.2f}"
        rows.append((f"moves at {one.share:.0%} of the attention", mean, f"of {one.queries} {queries}"))
    say()
    print_table(("movement of a head", "mean", ""), rows, ("movement of a head", ""))
    say("compare moves at equal numbers of queries only\n")
    _print_heads(trace, tracks)
    moves = {f"{one.layer}.{one.head}": one.moves for one in tracks.heads}
    for verdict, judged in groupby(roles.ordered if roles else (), key=lambda one: one.verdict):
        mine = [f"{one.layer}.{one.head}" for one in judged]
        each = sum(moves[one] for one in mine) / len(mine)
        say_wrapped(f"{verdict}: {counted(len(mine), 'head')}, {each:.2f} moves each: {', '.join(mine)}")


def _print_heads(trace: Any, tracks: Any) -> None:
    if not (moving := tracks.moving):
        return say("no main sink moves or swaps")
    say(f"main sinks that move most ({min(8, len(moving))} of the {len(moving)} that move or swap)")
    tokens, rows = trace.tokens[-1], []
    if "written" in trace.tensors:
        last = trace.written[-1][: len(tokens)]
        tokens[: len(last)] = [new if new >= 0 else old for new, old in zip(last, tokens, strict=False)]
    for one in moving[:8]:
        drift = "–" if one.drift_per_step is None else f"{one.drift_per_step:+.2f}"
        there = [int(place) for place in tracks.main[:, one.layer, one.head] if place >= 0]
        stays = [place for at, place in enumerate(there) if at == 0 or place != there[at - 1]]
        places = ", ".join(f"{place} {cut(repr(trace.token_text(tokens[place])), 12)}" for place in stays)
        rows.append((f"{one.layer}.{one.head}", str(one.moves), str(one.swaps), drift, cut(places, 54)))
    print_table(("head", "moves", "swaps", "drift", "main sink goes through"), rows, ("main sink goes through",))
    say_wrapped("move: the main sink changes place, and the old place stops being a sink or the new one was none")
