"""Each result compared with the unhidden run and with its controls, as frozen rows that tables print."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sinkscope.counts import counted
from sinkscope.errors import CallError
from sinkscope.evaluation.paired_tests import Difference, against_controls, holm, paired_difference
from sinkscope.evaluation.papers import published_accuracy
from sinkscope.evaluation.results import Result, cell_of, hides_k, rule_of, takes_seed

SEEDS = 3
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
        control: its rule, without the seed, over whose runs outcomes and removed shares are averaged.
        difference: see `against_controls`.
        adjusted: p-value after Holm, over all contrasts of the table.
    """

    control: str
    seeds: int
    difference: Difference
    adjusted: float
    removed_share: float | None
    removed_share_committed: float | None

    @property
    def word(self) -> str:
        """The kind of the control."""
        return self.control.partition(":")[0]


@dataclass(frozen=True)
class Row:
    """A result with its comparisons.

    Attributes:
        published: accuracy and standard error in paper 1; None where the paper has no such run.
        change: accuracy minus that of the unhidden run of the same weights, settings, dtype, device and problems; None
            without one.
        adjusted: p-value of the change after Holm, over all models, tasks and rules; controls are a family of their own.
        contrasts: for ``top:K`` each kind of control with the same K and options; for another rule that hides K keys
            ``random:K`` alone.
    """

    result: Result
    published: tuple[float, float] | None
    change: Difference | None
    adjusted: float | None
    contrasts: tuple[Contrast, ...]


def compare(results: Sequence[Result]) -> list[Row]:
    """Return a row for each result, in order; runs are paired over the problems that both have.

    Raises:
        CallError: two results of the same model, task, rule and settings, which would count as two tests.
    """
    cells: dict[str, Result] = {}  # a rule that is written in two ways counts once
    for one in results:
        other = cells.setdefault(cell_of(one), one)
        if other is not one and (other.hide == one.hide or other.outcomes != one.outcomes):
            raise CallError(f"expected each model, task and rule once, found {one.model}, {one.task}, {one.hide} twice")
    changes = {cell: _change(one, results) for cell, one in cells.items()}
    contrasts = {cell: list(_contrasts(one, results)) for cell, one in cells.items()}
    adjusted: dict[str, float] = {}
    for control in (True, False):  # claims on sinks do not depend on how many controls were run
        members = {
            cell: change.p_value
            for cell, change in changes.items()
            if change is not None and (takes_seed(cells[cell].hide.partition(":")[0]) is not None) is control
        }
        adjusted |= zip(members, holm(list(members.values())), strict=True)
    tests = [(cell, one.control, one.difference.p_value) for cell, found in contrasts.items() for one in found]
    against = {test[:2]: p for test, p in zip(tests, holm([test[2] for test in tests]), strict=True)}
    return [
        Row(
            one,
            published_accuracy(one.model, one.task, one.hide),
            changes[cell],
            adjusted.get(cell),
            tuple(replace(contrast, adjusted=against[cell, contrast.control]) for contrast in contrasts[cell]),
        )
        for one, cell in ((one, cell_of(one)) for one in results)
    ]


def _change(result: Result, results: Sequence[Result]) -> Difference | None:
    bases = [one for one in results if one.hide == "none" and _comparable(one, result)]
    if result.hide == "none" or not bases:
        return None
    return paired_difference(*_common([result, max(bases, key=lambda one: one.n)]))


def _contrasts(result: Result, results: Sequence[Result]) -> Iterator[Contrast]:
    """Yield the contrast with each kind of control, not adjusted yet."""
    word, *rest = rule_of(result)
    if not rest or not hides_k(word):
        return
    k, _, *options = rest
    kinds: dict[str, dict[str, Result]] = {}
    for one in results:
        kind, *other = rule_of(one)
        # controls but random stand in for the top K
        if takes_seed(kind) is None or (word != "top" and kind != "random") or not _comparable(one, result):
            continue
        if (other[0], other[2:]) == (k, options):
            runs = kinds.setdefault(kind, {})
            runs[other[1]] = max(one, runs.get(other[1], one), key=lambda run: run.n)
    for kind, by_seed in kinds.items():
        runs = list(by_seed.values())
        sink, *controls = _common([result, *runs])
        name = f"{kind}:{k}" + (f"@{','.join(options)}" if options else "")
        shares = _mean([run.removed_share for run in runs]), _mean([run.removed_share_committed for run in runs])
        yield Contrast(name, len(runs), against_controls(sink, controls), 1.0, *shares)


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def arranged(results: Sequence[Result]) -> list[Result]:
    """Return results sorted by model, task, and rule with its controls, each in the order in which it first occurs."""
    places = []
    for one in results:
        _, *rest = rule = rule_of(one)
        place = ((one.model,), (one.model, one.task), (one.model, one.task, *((rest[0], *rest[2:]) if rest else rule)))
        places.append(place)
    order = {start: number for number, start in enumerate(dict.fromkeys(start for place in places for start in place))}
    numbers = sorted(range(len(results)), key=lambda number: [order[start] for start in places[number]])
    return [results[number] for number in numbers]


def _comparable(one: Result, other: Result) -> bool:
    keys = "model task weight_hash settings dtype device".split()  # the last two alone move accuracies by points
    same = all(getattr(one, key) == getattr(other, key) for key in keys)
    older = ("data", "config_hash")  # empty in older results
    same = same and all(len({getattr(one, key), getattr(other, key)} - {""}) < 2 for key in older)
    return same and bool(one.outcomes and other.outcomes)


def _common(results: Sequence[Result]) -> list[list[int]]:
    """Return the outcomes of the problems that all results have."""
    shortest = min(len(one.outcomes) for one in results)
    return [list(map(int, one.outcomes[:shortest])) for one in results]


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
            same = "weights, problems, settings, dtype and device"
            said.append(f"{where}: no unhidden run of the same {same} to compare with")
        for one in row.contrasts:
            if one.seeds < SEEDS and takes_seed(one.word):
                said.append(f"{where}: {one.seeds} of at least {SEEDS} seeds of {one.control}")
            if one.word in _MATCHED_IN:
                name, of_what = _MATCHED_IN[one.word]
                mine, theirs = getattr(result, name), getattr(one, name)
                if mine and theirs and not 1 / _MATCHED <= theirs / mine <= _MATCHED:
                    took = f"{one.control} took away {100 * theirs:.1f} % of the attention{of_what}"
                    said.append(f"{where}: {took}, the sinks' rule {100 * mine:.1f} %; they do not match in mass")
        for n in sorted({one.difference.n for one in row.contrasts} - {result.n}):
            some = ", ".join(one.control for one in row.contrasts if one.difference.n == n)
            said.append(f"{where}: set against {some} over the {counted(n, 'problem')} that both have")
        if hides_k(result.hide.partition(":")[0]) and not any(takes_seed(one.word) for one in row.contrasts):
            said.append(f"{where}: no random control with its K and options; hiding any keys may hurt as much")
    for (model, task, n), rules in small.items():
        some = f"for a verdict on these rules (in brackets how many would do): {', '.join(rules)}"
        said.append(f"{model}, {task}: {counted(n, 'problem')} {'is' if n == 1 else 'are'} too few {some}")
    return said
