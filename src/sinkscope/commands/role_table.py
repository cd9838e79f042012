"""How `roles` prints what it found: a table of heads, and all the evidence of one head in words."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from sinkscope.counts import counted
from sinkscope.errors import CallError

COLUMNS = (
    ("takes", "% of the predicting queries' attention on the sink / on the control; !: see above"),
    ("adds", "change of the predictions without what the sink adds, in 1/1000 nat, 95 % interval"),
    ("hidden", "the same where its attention goes to other keys"),
    ("others", "the control: the same for random keys, no sinks, with as much attention"),
    ("random", "the same for one random key"),
    ("top-1", "predictions whose first choice stays when the sink is hidden, in %"),
    ("goes to", "where most of its attention goes then: substitutes, text, the query itself, a sink token"),
    ("to hide", "largest columns to hide until the predictions change; ? and ≥: the intervals leave it open"),
    ("can go", "whether hiding it in this head alone changes nothing; ?: the interval holds both"),
)
IN_WORDS = ("head", "role", "token")
SPARED = ("random", "goes to", "top-1", "others")
"""Columns that a narrow window does without, the first of them first."""
GAP = "  "
WIDTH = 100
"""Of running text, in characters."""
REMOVABLE = {True: "yes", False: "no", None: "?"}
GOES = {"to_substitutes": "subst.", "to_text": "text", "to_itself": "itself", "to_sink_token": "token"}
MATCHED = 0.75
"""A control that holds less than this share of the sink's attention is marked."""
UNMATCHED = "the control's keys hold much less attention than the sink, so that it says little"


def heading(found: Any) -> str:
    """Return whose heads were asked, how, and how many have each role."""
    from sinkscope.roles import ROLES

    shown = [name for name in ("length", "steps", "block", "canvases") if name in found.settings]
    used = ", ".join(f"{name} {found.settings[name]}" for name in shown)
    free, not_free = (sum(one.removable is wanted for one in found.heads) for wanted in (True, False))
    share = f"{len(found.heads)} of {found.layers * found.heads_in_layer}"
    chosen = counted(found.prompts - found.judged - len(found.failed), "prompt")
    lines = [
        f"{found.model}{f' ({used})' if used else ''}: {share} heads have a lasting sink "
        f"(Eq. 3, ε = {found.rules.excess:g})",
        f"chosen on {chosen}, judged on {found.judged} others{_canvases(found)}",
        "  " + ", ".join(f"{found.count(role)} {role}" for role in ROLES),
        f"  hidden in its head alone, {free} of them change the predictions by less than {found.rules.changed:g} nats, "
        f"{not_free} by more",
    ]
    return "\n".join(lines)


def _canvases(found: Any) -> str:
    """Return where the prompts came from and how long the canvases were, as far as that is known."""
    if found.canvas_tokens is None:
        return found.from_where
    return f"{found.from_where}, canvases of {' to '.join(map(str, sorted({*found.canvas_tokens})))} tokens"


def table(found: Any, width: int | None = None) -> str:
    """Return a line for each head, why heads are undecided, and what the columns mean.

    Args:
        width: of the window, in characters; where it is too narrow, the table leaves columns out and says so. All are
            shown when None.
    """
    from sinkscope.roles import ROLES

    rows = [["head", "role", "token", *(name for name, _ in COLUMNS)]]
    for one in sorted(found.heads, key=lambda one: (ROLES.index(one.role), one.layer, one.head)):
        rows.append(
            [
                *(f"{one.layer}.{one.head}", one.role, _token(one.token), _taken(one)),
                *(_with_interval(one, name) for name in ("kl.sink.zero", "kl.sink")),
                *(_thousandths(_mean(one, name)) for name in ("kl.rowmass", "kl.random")),
                *(_percent(_mean(one, "kept.sink")), _goes(one), one.to_hide, REMOVABLE[one.removable]),
            ]
        )
    columns = {name: [name, *cells] for name, *cells in zip(*rows, strict=True)}
    left_out = []
    while width is not None and len(left_out) < len(SPARED) and len(_in_columns(columns)[0]) > width:
        left_out.append(SPARED[len(left_out)])
        del columns[left_out[-1]]
    width = WIDTH if width is None else min(width, WIDTH)
    lines = [*_in_columns(columns), ""]
    if left_out:
        lines += [fill(f"left out here, as the window is narrow: {', '.join(left_out)}", width), ""]
    for reason in dict.fromkeys(one.reason for one in found.heads if one.role == "undecided"):
        mine = ", ".join(f"{one.layer}.{one.head}" for one in found.heads if one.reason == reason)
        lines.append(fill(f"undecided {mine}: {reason}", width, subsequent_indent="  "))
    if unmatched := [f"{one.layer}.{one.head}" for one in found.heads if _unmatched(one)]:
        lines.append(fill(f"! {', '.join(unmatched)}: {UNMATCHED}", width, subsequent_indent="  "))
    meanings = [
        fill(f"{name:>8}  {meaning}", width, subsequent_indent=" " * 10) for name, meaning in COLUMNS if name in columns
    ]
    at_once = [fill(line, width) for line in together(found).splitlines()]
    return "\n".join([*lines, "", *meanings, "", *at_once])


def _in_columns(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cell."""
    formats = [f"{'<' if name in IN_WORDS else '>'}{max(map(len, cells))}" for name, cells in columns.items()]
    return [GAP.join(map(format, row, formats)).rstrip() for row in zip(*columns.values(), strict=True)]


def together(found: Any) -> str:
    """Return what hiding all removable sinks at once costs, in words."""
    if found.together is None:
        return "Each sink was hidden in its head alone; what hiding several at once costs was not measured."
    both = {name: _in_nats(found.together.measured.get(f"kl.{name}")) for name in ("sink", "rowmass")}
    kept = _percent(_mean(found.together, "kept.sink"))
    estimate = found.together.measured.get("kl.sink")
    verdict = "Whether that is a change is open."
    if estimate is not None and estimate.low is not None:
        if estimate.high < found.rules.changed:
            verdict = "Together, too, they change nothing."
        elif estimate.low > found.rules.changed:
            verdict = "So each alone changes nothing, but together they do."
    return (
        f'All {len(found.together.heads)} that "can go", hidden together: {both["sink"]},\n'
        f"{kept} % of the first choices stay; the control in the same heads: {both['rowmass']}.\n"
        f"{verdict} Other sets of heads were not tried."
    )


def evidence(found: Any, layer: int, head: int) -> str:
    """Return all that was measured of one head, in words.

    Raises:
        CallError: the head has no lasting sink.
    """
    one = found.of_head(layer, head)
    if one is None:
        known = ", ".join(f"{one.layer}.{one.head}" for one in found.heads)
        expected = f"such as {known}" if known else "found none in this model; leave --head out"
        raise CallError(f"--head {layer}.{head}: expected a head with a lasting sink, {expected}")
    changes = [
        ("what the sink adds is lost", "sink.zero"),
        ("the sink is hidden", "sink"),
        ("what the control adds is lost", "rowmass.zero"),
        ("the control is hidden", "rowmass"),
        ("one random key is hidden", "random"),
        *((f"the {many} largest columns are hidden", f"top.{many}") for many in (2, 3, 4, 6, 8)),
    ]
    goes = [f"{word} {_percent(_mean(one, name))} %" for name, word in GOES.items() if name in one.measured]
    lines = [
        f"head {layer}.{head} is {one.role}: {one.reason}",
        f"  its sink: most often {one.token!r}, at {_percent(one.place)} % of the canvas, "
        f"in {_percent(one.lasting)} % of the canvases",
        f"  it takes {_share(one, 'taken.sink')} of the attention of the queries that predict,",
        f"  {_share(one, 'committed_share')} of those being committed, {_share(one, 'share')} of all",
        f"  the control takes {_share(one, 'taken.rowmass')} of those that predict"
        + (": much less, no match, so that it says little" if _unmatched(one) else ""),
        f"  its output norm is {_plain(one, 'norm_ratio')} times the median of its canvas",
        f"  evenness {_plain(one, 'evenness')}: 1 where all queries that predict attend to it alike",
        "  the predictions change, and so many first choices stay, where",
        *(
            f"    {what + ':':<38}{_in_nats(one.measured[f'kl.{name}']):>34}, "
            f"{_percent(_mean(one, f'kept.{name}')):>4} %"
            for what, name in changes
            if f"kl.{name}" in one.measured
        ),
        f"  hidden, its attention goes to: {', '.join(goes)}",
        f"  columns to hide until the predictions change by more than {found.rules.changed:g} nats: {one.to_hide}",
        f"  can it be hidden in this head alone: {REMOVABLE[one.removable]}",
    ]
    return "\n".join(lines)


def read_head(text: str) -> tuple[int, int]:
    """Return layer and head of a text such as ``4.2``."""
    try:
        layer, head = map(int, text.split("."))
    except ValueError as error:
        raise CallError(f"--head: expected LAYER.HEAD, such as 4.2, found {text!r}") from error
    return layer, head


def _mean(one: Any, name: str) -> float | None:
    estimate = one.measured.get(name)
    return None if estimate is None else estimate.mean


def _token(text: str | None) -> str:
    shown = repr(text)
    return shown if len(shown) < 8 else shown[:6] + "…"


def _thousandths(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1000 * value:.1f}" if 1000 * value < 9.95 else f"{1000 * value:.0f}"


def _with_interval(one: Any, name: str) -> str:
    estimate = one.measured.get(name)
    if estimate is None or estimate.low is None:
        return _thousandths(_mean(one, name))
    return f"{_thousandths(estimate.mean)} {_thousandths(estimate.low)}–{_thousandths(estimate.high)}"


def _percent(value: float | None, below_one: int = 0) -> str:
    """Return a share in percent, with so many digits behind the point where it is less than one."""
    return "–" if value is None else f"{100 * value:.{below_one if value < 0.00995 else 0}f}"


def _unmatched(one: Any) -> bool:
    sink, control = (_mean(one, f"taken.{name}") for name in ("sink", "rowmass"))
    return sink is not None and control is not None and control < MATCHED * sink


def _taken(one: Any) -> str:
    both = "/".join(_percent(_mean(one, f"taken.{name}"), below_one=1) for name in ("sink", "rowmass"))
    return both + "!" * _unmatched(one)


def _goes(one: Any) -> str:
    known = {word: mean for name, word in GOES.items() if (mean := _mean(one, name)) is not None}
    return max(known, key=lambda word: known[word]) if known else "–"


def _in_words(values: Sequence[float | None], digits: int, factor: float = 1.0) -> str:
    mean, low, high = ("–" if value is None else f"{factor * value:.{digits}f}" for value in values)
    return mean if low == "–" else f"{mean} ({low} to {high})"


def _in_nats(estimate: Any) -> str:
    return "–" if estimate is None else f"{_in_words((estimate.mean, estimate.low, estimate.high), 4)} nats"


def _plain(one: Any, name: str) -> str:
    estimate = one.measured.get(name)
    return "–" if estimate is None else _in_words((estimate.mean, estimate.low, estimate.high), 2)


def _share(one: Any, name: str) -> str:
    estimate = one.measured.get(name)
    return "–" if estimate is None else f"{_in_words((estimate.mean, estimate.low, estimate.high), 1, 100)} %"
