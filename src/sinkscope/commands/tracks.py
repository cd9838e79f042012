"""`tracks`: shows how the sinks of a trace move."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from sinkscope.commands.command import Command, Excess, Json, RolesFile, Rule, Unit
from sinkscope.commands.output import open_and_check, print_one_or_all, roles_for_traces, say
from sinkscope.counts import counted

MOVING_HEADS = 8
"""How many of the heads whose main sinks move are listed."""


@dataclass(frozen=True, kw_only=True)
class Tracks(Command):
    """Show how sinks move: tracks, moves and drift, compared with the same steps in random order, and moves at an equal
    share of attention.

    Attributes:
        trace: folder of a trace, or of numbered traces.
        tolerance: how many steps in a row a sink may be below the threshold without ending its track.
        share: of the attention by which a sink exceeds others where moves are compared between models.
    """

    trace: Positional[Path]
    excess: Excess = 3.0
    unit: Unit = "queries"
    rule: Rule = None
    tolerance: int = 0
    share: float = 0.1875
    roles: RolesFile = None
    json: Json = False

    def run(self) -> None:
        from sinkscope.roles import roles_for
        from sinkscope.sinks import averaged_moves, find_sinks, movement_test, track
        from sinkscope.sinks.tracking import place_of

        documents, traces = [], open_and_check(self.trace)
        given = roles_for_traces(self.roles, traces)
        for trace in traces:
            sinks = find_sinks(trace, self.excess, self.unit, self.rule)
            tracks = track(sinks, self.tolerance)
            test = movement_test(tracks.main, tracks.is_sink, uncounted=tracks.uncounted)
            place, averaged = place_of(sinks, trace.tokens[:]), averaged_moves(trace, share=self.share)
            model = trace.manifest.get("model", {})
            roles = roles_for(model.get("weight_hash"), given, model.get("config_hash"))
            if not self.json:
                _print(trace, tracks, test, roles, place, averaged)
                continue
            document = {"trace": str(trace.folder), "complete": trace.complete, **tracks.as_dict()}
            document |= {"rule": sinks.rule, "main_sink": None if place is None else vars(place)}
            document["moves_at_equal_share"] = [vars(one) for one in averaged]
            document["null"] = dataclasses.asdict(test) if test.heads else None
            documents.append({**document, "roles": None if roles is None else roles.by_head()})
        if self.json:
            print_one_or_all(documents)


def _print(trace: Any, tracks: Any, test: Any, roles: Any, place: Any, averaged: Any) -> None:
    from sinkscope.sinks.followed_columns import Followed
    from sinkscope.sinks.tracking import KIND_MEANINGS

    queries, count = Followed.of(trace).words(trace.steps), trace.steps - tracks.uncounted
    if place is None:
        say(f"{trace.folder}: no head has a main sink in the attention of {queries}")
    else:
        static = sum(one.kind == "static" and one.position == place.position for one in tracks.tracks)
        kind = f"; a static sink in {static}" if count > 1 else ""
        say(f"{trace.folder}: {place.text(trace.token_text(place.token), queries)}{kind}")
    say(f"{counted(len(tracks.tracks), 'track')}, followed in {tracks.source}, over {counted(count, 'step')}")
    if count < 2:
        return say("  too short to tell how long sinks last, or whether they move")
    for kind, count in tracks.kinds.items():
        say(f"  {count:>5} {kind:<11}{KIND_MEANINGS[kind]}")
    if test.heads:
        _print_movement(trace, test)
    else:
        say("  no head has a main sink in two steps, so there is no movement to tell")
    known = [one for one in averaged if one.moves_per_head is not None]
    moves = ", ".join(f"{one.moves_per_head:.2f}" for one in known) or "no head has a sink in two steps"
    sizes = ", ".join(str(one.queries) for one in (known or averaged))
    say(f"  moves per head at {averaged[0].share:.0%} of the attention of {sizes} queries: {moves}")
    say("  (compare models at equal numbers of queries only)")
    _print_heads(trace, tracks)
    judged = roles.ordered if roles else []
    for verdict in dict.fromkeys(one.verdict for one in judged):
        known = {(one.layer, one.head) for one in judged if one.verdict == verdict}
        if mine := [one for one in tracks.heads if (one.layer, one.head) in known]:
            moves = sum(one.moves for one in mine) / len(mine)
            places = ", ".join(f"{one.layer}.{one.head}" for one in mine)
            say(f"  {verdict}: {counted(len(mine), 'head')}, {moves:.2f} moves each: {places}")


def _print_movement(trace: Any, test: Any) -> None:
    from sinkscope.sinks.tracking import FEW_BLOCKS

    say(
        "  moves per head {:.2f}; with steps shuffled {:.2f} ({:.2f} to {:.2f})".format(
            test.moves_per_head, *test.null_moves
        )
    )
    swaps = "the main sink changes place, but both places are sinks before and after"
    say(f"  swaps per head {test.swaps_per_head:.2f}: {swaps}")
    chance = "with blocks of {} steps shuffled {:+.3f} ({:+.3f} to {:+.3f})".format(test.block_steps, *test.null_drift)
    if test.blocks <= 1:
        chance = "sinks stay in place too long to test this with one trace"
    elif test.blocks < FEW_BLOCKS:
        chance += f"; {test.blocks:.1f} blocks are too few to tell chance (expected {FEW_BLOCKS})"
    say(f"  drift {test.drift_per_step:+.3f} positions per step; {chance}")
    right = f"{test.drift_right:.0%} of {test.heads} heads drift to the right"
    say(f"  drift of the median head {test.drift_median:+.3f}; {right}")


def _print_heads(trace: Any, tracks: Any) -> None:
    """Print the heads whose main sink moves most, with the kinds of their tracks, and the tokens it goes through."""
    moving = tracks.moving
    if not moving:
        say("  no main sink moves or swaps")
        return
    say(f"\n  main sinks that move most ({min(MOVING_HEADS, len(moving))} of the {len(moving)} that move or swap):")
    numbers = f"  {'layer':>5} {'head':>4} {'moves':>6} {'swaps':>6} {'drift':>7}"
    say(f"{numbers}  {'tracks of the head':<34} its main sink goes through")
    tokens = trace.tokens[-1]
    if "written" in trace.tensors:
        last = trace.written[-1][: len(tokens)]
        tokens[: len(last)] = [new if new >= 0 else old for new, old in zip(last, tokens, strict=False)]
    for one in moving[:MOVING_HEADS]:
        drift = "–" if one.drift_per_step is None else f"{one.drift_per_step:+.2f}"
        kinds = Counter(each.kind for each in tracks.tracks if (each.layer, each.head) == (one.layer, one.head))
        of_kinds = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        there = [int(place) for place in tracks.main[:, one.layer, one.head] if place >= 0]
        stays = [place for at, place in enumerate(there) if at == 0 or place != there[at - 1]]
        named = [f"{place} {trace.token_text(tokens[place])!r}" for place in stays]
        places = ", ".join(named if len(named) <= 6 else [*named[:4], "…", *named[-1:]])
        say(f"  {one.layer:>5} {one.head:>4} {one.moves:>6} {one.swaps:>6} {drift:>7}  {of_kinds:<34} {places}")
    say("  move: the main sink changes place, and the old place stops being a sink or the new one was none")
