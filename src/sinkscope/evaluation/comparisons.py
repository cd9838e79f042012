"""Each result compared with the unhidden run and with its controls, as frozen rows that tables print."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sinkscope.counts import counted
from sinkscope.errors import CallError
from sinkscope.evaluation.paired_tests import Difference, against_controls, holm, paired_difference
from sinkscope.evaluation.papers.published import published_accuracy
from sinkscope.evaluation.results import (
    Result,
    cell_of,
    comparable_rule,
    expect_agreement,
    options_of,
    rule_of,
    seed_of,
)

SEEDS = 3
_RULES = {
    "none": None,
    "top": None,
    "random": True,
    "ranks": False,
    "mass": True,
    "rowmass": True,
    "persistent": True,
    "class": True,
}
"""What `takes_seed` returns for common rules, so that most tables load no torch; a test compares it with the rules."""
_MATCHED = 1.5
"""Largest ratio between the attention that a rule and its control of equal mass take away."""
_MATCHED_IN = {
    "mass": ("removed_share", ""),
    "rowmass": ("removed_share_committed", " at the positions being committed"),
}
"""For each control of equal mass the share that it is to match, and its name in a sentence."""


@dataclass(frozen=True)
class Contrast:
    """The difference between a rule that hides K keys and a control that hides as many others.

    Attributes:
        control: rule of the control, its seed left out.
        seeds: how many runs of the control were averaged.
        difference: see `against_controls`.
        adjusted: p-value after Holm, over all contrasts of the table.
        removed_share: share of all attention that the control took away, mean over its runs.
        removed_share_committed: the same of the queries whose tokens were committed.
    """

    control: str
    seeds: int
    difference: Difference
    adjusted: float
    removed_share: float | None
    removed_share_committed: float | None


@dataclass(frozen=True)
class Row:
    """A result with its comparisons.

    Attributes:
        result: of one model on one task under one rule.
        published: accuracy and standard error in paper 1; None where the paper has no such run.
        change: accuracy minus that of the unhidden run of the same weights, settings, dtype, device and problems; None
            without one.
        adjusted: p-value of the change after Holm, over all models, tasks and rules of the table; controls are adjusted
            separately.
        contrasts: for ``top:K`` each kind of control with the same K and the same options; for another rule that hides
            K keys, such as one that somebody added, ``random:K`` alone.
    """

    result: Result
    published: tuple[float, float] | None
    change: Difference | None
    adjusted: float | None
    contrasts: tuple[Contrast, ...]


def compare(results: Sequence[Result]) -> list[Row]:
    """Return a row for each result, in order; runs are paired over the problems that both have."""
    rows = []
    for result in results:
        published = published_accuracy(result.model, result.task, comparable_rule(result.hide))
        found = (
            Contrast(control, seeds, one, 1.0, *removed) for control, seeds, one, removed in _contrasts(result, results)
        )
        rows.append(Row(result, published, _change(result, results), None, tuple(found)))
    return adjust(rows)


def adjust(rows: Sequence[Row]) -> list[Row]:
    """Return rows with the p-values of all their changes and contrasts adjusted together, after Holm."""
    adjusted: dict[str, float] = {}
    cells = [cell_of(row.result) for row in rows]  # a rule that is written in two ways is tested once
    for family in (True, False):  # what is claimed of sinks does not depend on how many controls were run
        members = {
            cell: row.change.p_value
            for cell, row in zip(cells, rows, strict=True)
            if row.change is not None and _is_control(row.result) is family
        }
        adjusted |= zip(members, holm(list(members.values())), strict=True)
    tests = {
        (cell, one.control): one.difference.p_value
        for cell, row in zip(cells, rows, strict=True)
        for one in row.contrasts
    }
    against = dict(zip(tests, holm(list(tests.values())), strict=True))
    return [
        replace(
            row,
            adjusted=adjusted.get(cell),
            contrasts=tuple(replace(one, adjusted=against[cell, one.control]) for one in row.contrasts),
        )
        for cell, row in zip(cells, rows, strict=True)
    ]


def check_results(results: Sequence[Result]) -> Sequence[Result]:
    """Return results, each of which is there once.

    Raises:
        CallError: numbers that contradict one another, two results of the same model, task, rule and settings, or two
            spellings of a rule whose outcomes differ.
    """
    found: dict[tuple[str, str], int] = {}
    longest: dict[str, int] = {}
    for number, one in enumerate(results):
        where = f"results[{number}]"
        expect_agreement(one, where, CallError)
        cell = cell_of(replace(one, n=0))
        earlier, same = found.setdefault((one.hide, cell_of(one)), number), longest.setdefault(cell, number)
        if earlier != number or _contradict(one, results[same]):
            than = f"other outcomes than {results[same].hide} in results[{same}]"
            raise CallError(
                f"{where}: expected each model, task and rule once, found {one.model}, {one.task}, {one.hide} with "
                f"{than if earlier == number else f'the settings of results[{earlier}]'}; leave one of them out"
            )
        if one.n > results[same].n:
            longest[cell] = number
    return results


def _contradict(one: Result, other: Result) -> bool:
    """Return whether two results of one cell, perhaps of different lengths, differ over the problems that both have."""
    if not (one.outcomes and other.outcomes):
        return one.n == other.n and one.correct != other.correct
    shortest = min(len(one.outcomes), len(other.outcomes))
    return one.outcomes[:shortest] != other.outcomes[:shortest]


def _change(result: Result, results: Sequence[Result]) -> Difference | None:
    if result.hide == "none":
        return None
    base = max(
        (one for one in results if one.hide == "none" and _comparable(one, result)), key=lambda one: one.n, default=None
    )
    return None if base is None else paired_difference(*_common([_outcomes(result), _outcomes(base)]))


def _contrasts(
    result: Result, results: Sequence[Result]
) -> list[tuple[str, int, Difference, tuple[float | None, float | None]]]:
    """Return name, number of seeds, difference and both removed shares for each kind of control."""
    rule = rule_of(result)
    if rule is None or not hides_k(rule[1]):
        return []
    kinds: dict[str, dict[int, Result]] = {}
    for one in results:
        other = rule_of(one)
        if other is None or takes_seed(other[1]) is None or not _comparable(one, result):
            continue
        if rule[1] != "top" and other[1] != "random":
            continue  # the other controls stand in for the top K
        if other[2] == rule[2] and options_of(other[3]) == options_of(rule[3]):
            runs = kinds.setdefault(other[1], {})
            runs[seed_of(other[3])] = max(one, runs.get(seed_of(other[3]), one), key=lambda run: run.n)
    found = []
    for kind, by_seed in kinds.items():
        runs = list(by_seed.values())
        sink, *controls = _common([_outcomes(result), *map(_outcomes, runs)])
        removed = _mean([run.removed_share for run in runs]), _mean([run.removed_share_committed for run in runs])
        name = f"{kind}:{rule[2]}" + (f"@{','.join(options_of(rule[3]))}" if options_of(rule[3]) else "")
        found.append((name, len(runs), against_controls(sink, controls), removed))
    return found


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def takes_seed(word: str) -> bool | None:
    """Return whether the control of a word draws at random, and so takes a seed; None where the word is no control."""
    if word in _RULES:
        return _RULES[word]
    from sinkscope.interventions import known_controls  # here, as it loads torch

    return known_controls().get(word)


def hides_k(word: str) -> bool:
    """Return whether a rule hides K keys of every head and is no control."""
    if word in _RULES:
        return word == "top"
    from sinkscope.interventions import known_rules  # here, as it loads torch

    kind = known_rules().get(word)
    return kind is not None and not kind.control and kind.rule == f"{word}:K"


def _is_control(result: Result) -> bool:
    return takes_seed(result.hide.partition(":")[0]) is not None


def arranged(results: Sequence[Result]) -> list[Result]:
    """Return results sorted by model, task, and rule with its controls, each in the order in which it first occurs."""

    def place(result: Result) -> tuple[str, ...]:
        rule = rule_of(result)
        return (
            result.model,
            result.task,
            *((comparable_rule(result.hide),) if rule is None else (rule[2], *options_of(rule[3]))),
        )

    places = list(map(place, results))
    order = {
        start: number
        for number, start in enumerate(dict.fromkeys(one[:length] for one in places for length in (1, 2, len(one))))
    }
    keys = [tuple(order[one[:length]] for length in (1, 2, len(one))) for one in places]
    return [results[number] for number in sorted(range(len(results)), key=keys.__getitem__)]


def _comparable(one: Result, other: Result) -> bool:
    keys = (
        "model",
        "task",
        "weight_hash",
        "settings",
        "dtype",
        "device",
    )  # the last two alone move accuracies by points
    known = ("data", "config_hash")  # empty in older results
    same = all(getattr(one, key) == getattr(other, key) for key in keys)
    same = same and all(len({getattr(one, key), getattr(other, key)} - {""}) < 2 for key in known)
    return same and bool(one.outcomes and other.outcomes)


def _outcomes(result: Result) -> list[int]:
    return [int(outcome) for outcome in result.outcomes]


def _common(outcomes: Sequence[list[int]]) -> list[list[int]]:
    shortest = min(map(len, outcomes))
    return [one[:shortest] for one in outcomes]


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return warnings about rows: too few problems or seeds, no comparison, controls that do not match."""
    said: list[str] = []
    small: dict[tuple[str, str, int], list[str]] = {}
    for row in rows:
        result, change = row.result, row.change
        where = f"{result.model}, {result.task}, {result.hide}"
        if change is not None and change.too_small:
            small.setdefault((result.model, result.task, change.n), []).append(f"{result.hide} ({change.needed})")
        elif result.hide != "none" and change is None:
            said.append(
                f"{where}: no unhidden run of the same weights, problems, settings, dtype and device to compare with"
            )
        for contrast in row.contrasts:
            if contrast.seeds < SEEDS and takes_seed(contrast.control.partition(":")[0]):
                said.append(f"{where}: {contrast.seeds} of at least {SEEDS} seeds of {contrast.control}")
            matched = _MATCHED_IN.get(contrast.control.partition(":")[0])
            if matched is None:
                continue
            name, of_what = matched
            mine, theirs = getattr(result, name), getattr(contrast, name)
            if mine and theirs and not 1 / _MATCHED <= theirs / mine <= _MATCHED:
                shares = (
                    f"{contrast.control} took away {100 * theirs:.1f} % of the attention{of_what}, "
                    f"the sinks' rule {100 * mine:.1f} %"
                )
                said.append(f"{where}: {shares}; they do not match in mass")
        for n in sorted({one.difference.n for one in row.contrasts} - {result.n}):
            some = ", ".join(one.control for one in row.contrasts if one.difference.n == n)
            said.append(f"{where}: set against {some} over the {counted(n, 'problem')} that both have")
        if hides_k(result.hide.partition(":")[0]) and not any(
            takes_seed(one.control.partition(":")[0]) for one in row.contrasts
        ):
            said.append(f"{where}: no random control with its K and options; hiding any keys may hurt as much")
    for (model, task, n), rules in small.items():
        few = f"{counted(n, 'problem')} {'is' if n == 1 else 'are'} too few"
        said.append(
            f"{model}, {task}: {few} for a verdict on these rules (in brackets how many would do): {', '.join(rules)}"
        )
    return said
