"""`find_roles`: the role of each head's sink, chosen on one half of the prompts and judged on the other.

A run's folder has one JSON file for each prompt that is done, so that a killed run loses one prompt:

run.json                   the settings that decide the results; another run is refused
choose/000000.json         of a prompt that chooses heads, which of them have a sink on each canvas
judge/000001.json          of a prompt that judges them, a row for each head and canvas
top/, fewer/, more/        the same with four, with 2 and 3, with 6 and 8 keys hidden
together/000001.json       of the same prompt, the cost of hiding the sinks of each class of heads at once
roles.json                 the verdicts, written at the end
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.decoding import resolve_settings
from sinkscope.errors import CallError, EvaluationError, SinkscopeError
from sinkscope.models import Family, Model, expect_model
from sinkscope.models.devices import is_out_of_memory, own_defaults
from sinkscope.models.fingerprints import fingerprints, weight_hash_of
from sinkscope.roles.head_roles import ROLES, Estimate, HeadRole, Need, Roles, Rules, decide
from sinkscope.roles.probes import CANVASES, Probe, check_probe, make_probes
from sinkscope.roles.removal import (
    MOST_HIDDEN,
    REMOVALS,
    Heads,
    Rows,
    Sights,
    measure_heads,
    measure_together,
    sinks_by_head,
)
from sinkscope.runs.files import checksum_of
from sinkscope.runs.folder import Items, run_folder
from sinkscope.sinks.definition import text_of
from sinkscope.sinks.finding import rule_of
from sinkscope.statistics.intervals import LEAST_PROMPTS, interval_of_means, known

LEAST = 2 * LEAST_PROMPTS
MEASURED = 8
"""Changes with the measurements of a prompt, so that a folder of an earlier version is not resumed."""
MATCHED_OVER = "kl.rowmass.zero over kl.sink.zero"
KINDS = {"judge": REMOVALS, "top": ("top.4",), "fewer": ("top.2", "top.3"), "more": ("top.6", "top.8")}
LATER = {"judge": 5, "top": 6, "fewer": 2, "more": 0}
"""How many removals later kinds are expected to make of each head left open, half of all where it is not known."""
Asked = Heads | Mapping[str, Heads]
Measure = Callable[[str, Heads], dict[int, Rows]]
"""Measures the prompts that judge: ``judge``, or with more keys hidden where the sink alone settles nothing."""


@own_defaults()
def find_roles(
    model: Model,
    prompts: Sequence[Any],
    *,
    out: str | Path | None = None,
    rules: Rules | None = None,
    canvases: int = CANVASES,
    rows: int = 32,
    control_seed: int = 0,
    on_progress: Callable[[str, int, int], object] | None = None,
    **settings: Any,
) -> Roles:
    """Return the role of every head that has a lasting sink (causal: by the rule ``uniform``, else Eq. 3).

    Even prompts choose the heads, odd ones judge them, in which the sink is taken from that head alone; at the end
    those that can be hidden are hidden together.

    Args:
        prompts: texts or token ids, at least ten.
        out: a folder of finished prompts, and at the end of the roles (`read_roles`); the same call resumes.
        rules: of the verdict; `Rules()` when None.
        canvases: of each prompt of a diffusion model.
        rows: canvases in one forward call, fewer where memory does not suffice.
        control_seed: of the random keys.
        on_progress: called with a unit (``prompts``, then ``layers`` of a removal), how many are done, and expected.
        settings: of the model's sampler.

    Raises CallError for prompts, settings or a folder that do not fit; EvaluationError for too little memory.
    """
    expect_model(model, unwatched=True)
    if len(prompts) < LEAST:
        raise CallError(f"expected at least {LEAST} prompts, half to choose and half to judge, found {len(prompts)}")
    rules = rules or Rules()
    resolved = resolve_settings(model.family, **settings)
    texts = [one if isinstance(one, str) else str(model.encode(one)) for one in prompts]
    for number, text in enumerate(texts):
        if (first := texts.index(text)) != number:
            raise CallError(
                "prompts: expected each prompt once, as some choose the heads that others judge, found prompt "
                f"{first} again as prompt {number}; leave one of them out"
            )
    identity = {
        "weight_hash": model.card.weight_hash,
        **({} if out is None else fingerprints(model)),
        "dtype": model.card.dtype,
        "prompts_sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        "rules": asdict(rules),
        "control": "keys that are no sinks",
        "measured": MEASURED,
        "canvases": canvases,
        "control_seed": control_seed,
        "settings": {name: repr(value) for name, value in asdict(resolved).items()},
    }
    folder = None if out is None else Path(out)
    numbers, failed, probes = range(len(prompts)), dict[int, str](), dict[int, list[Probe]]()
    settings = asdict(resolved)
    canvases = 1 if model.family.causal else canvases
    progress = _Progress(model, canvases, rules.changed, on_progress)
    how: dict[str, Any] = {"rows": rows, "on_row": progress.count}
    see = Sights(model)

    def measured(number: int, kind: str, heads: Asked) -> Rows | None:
        asked = heads if isinstance(heads, Mapping) else {"": heads}
        heads_of = {name: [list(one) for one in some] for name, some in asked.items()}
        stored = folder and Items(folder / kind, checksum_of({"run": run, "heads": heads_of}))
        if stored and (known := stored.read(number)) is not None:
            return known["rows"]
        try:
            if number not in probes:
                probes[number] = make_probes(model, prompts[number], number, canvases, **settings)
            found = _measure(kind, probes[number], heads, see, rules, control_seed, how)
        except (SinkscopeError, RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise
            failed[number] = str(error)  # one prompt's failure must not lose the others
            return None
        if stored:
            stored.commit(number, {"canvases": len(probes[number]), "rows": found})
        return found

    def each(asked: Sequence[int], kind: str, heads: Heads) -> dict[int, Rows]:
        """Return the rows of every prompt that could be measured, of which there must be enough."""
        found = {}
        for done, number in enumerate(asked):
            progress.begin(kind, heads, len(asked), done, found)
            if (of_prompt := measured(number, kind, heads)) is not None:
                found[number] = of_prompt
        if len(found) < LEAST_PROMPTS:
            why = next(f"prompt {number} failed with: {failed[number]}" for number in asked if number in failed)
            many = f"at least {LEAST_PROMPTS} prompts that {kind} heads"
            raise CallError(f"expected {many}, found {len(found)} that could be measured, of {len(asked)}; {why}")
        return found

    what = "the roles of another run"
    with run_folder(folder, "run.json", identity, EvaluationError, what) if folder else nullcontext("") as run:
        heads, shape = _lasting([*each(numbers[::2], "choose", ()).values()], rules)
        found, judged = _judge(
            model, heads, rules, lambda *of: each([one for one in numbers[1::2] if one not in failed], *of)
        )
        classes = {
            name: some
            for name in ("dispensable", *ROLES)
            if len(some := [(one.layer, one.head) for one in found if name in (one.need, one.role)]) > 1
        }
        costs = [one for number in judged if classes and (one := measured(number, "together", classes)) is not None]
        together = {
            name: estimates([[row for row in one if row["class"] == name] for one in costs])
            for name in classes
            if costs
        }
        lengths = [len(model.encode(prompts[at])) + resolved.length for at in numbers if at not in failed]
        known = {"settings": {**settings, "canvases": canvases}, "together": together, "lengths": lengths}
        roles = _roles(model, shape, rules, found, len(prompts), len(judged), failed, **known)
        if folder is not None:
            roles.save(folder)
        return roles


def _measure(
    kind: str, probes: Sequence[Probe], heads: Asked, see: Sights, rules: Rules, seed: int, how: dict[str, Any]
) -> Rows:
    if kind == "choose":
        return sinks_by_head(probes, see.model, rules)
    if isinstance(heads, Mapping):
        return measure_together(probes, heads, see, rules, seed, rows=how["rows"])
    return measure_heads(probes, heads, see, rules, KINDS[kind], seed, **how)


def _judge(model: Model, heads: Heads, rules: Rules, measure: Measure) -> tuple[tuple[HeadRole, ...], dict[int, Rows]]:
    """Return the role of each head and the rows that judge it; where one key settles nothing, more are hidden."""
    judged = measure("judge", heads)
    found = {head: _conclude(model, head, [*judged.values()], rules) for head in heads}
    asked = [head for head in heads if found[head].substitutes is None]
    for kind in ("top", "fewer", "more"):
        if some := [head for head in asked if _unsettled(found[head], kind)]:
            for number, rows in measure(kind, some).items():
                judged[number] = judged[number] + rows
            found |= {head: _conclude(model, head, [*judged.values()], rules) for head in some}
    return tuple(found.values()), judged


def _unsettled(one: HeadRole, kind: str) -> bool:
    """Return whether more hidden keys would say more: fewer where four change the predictions or may, or more."""
    return one.substitutes_at_least <= 4 if kind == "fewer" else one.substitutes is None


class _Progress:
    """Counts the layers that removals compute; predictions count as the layers that compute as much."""

    def __init__(self, model: Model, canvases: int, changed: float, report: Callable[[str, int, int], object] | None):
        self.canvases, self.changed, self.report = canvases, changed, report or (lambda *numbers: None)
        table = model.card.vocabulary * model.card.hidden_size
        predicted = 1 if model.family.causal else 0.5  # share of the tokens that are computed
        inner = max(1, sum(one.numel() for one in model.network.parameters()) - table)
        self.layers = round(model.card.layers * (1 + predicted * table / inner))
        self.done = self.now = self.later = 0

    def begin(self, kind: str, heads: Heads, prompts: int, done: int, found: Mapping[int, Rows]) -> None:
        """Estimate the work of one prompt, and of those behind it."""
        if kind == "choose":
            self.report("prompts", done, prompts)
            return
        rows = [row["kl.sink"] for prompt in found.values() for row in prompt if "kl.sink" in row]
        open_ones = float(np.mean([one <= self.changed for one in rows])) if rows else 0.5
        removal = self.canvases * sum(self.layers - layer for layer, _ in heads)
        more = int(LATER[kind] * prompts * removal * open_ones)
        self.now = removal * len(KINDS[kind])
        self.later = (prompts - done - 1) * self.now + more

    def count(self, layer: int) -> None:
        self.done, self.now = self.done + self.layers - layer, max(0, self.now - self.layers + layer)
        self.report("layers", self.done, self.done + self.now + self.later)


def _roles(model: Model, shape: Any, *found: Any, lengths: Sequence[int], **more: Any) -> Roles:
    known: Any = {"config_hash": model.card.config_hash, "dtype": model.card.dtype}
    known["rule"] = rule_of(model.family.causal)
    ends = (min(lengths), max(lengths))
    return Roles(model.card.name, weight_hash_of(model), *shape, *found, canvas_tokens=ends, **known, **more)


def _lasting(chosen: Sequence[Rows], rules: Rules) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Return the heads that have a sink on enough canvases, and the number of layers and of heads in each."""
    lasting = np.mean([np.array(canvas["sink"]) for rows in chosen for canvas in rows], axis=0)
    return [(int(layer), int(head)) for layer, head in np.argwhere(lasting >= rules.lasting)], lasting.shape


def _conclude(model: Model, head: tuple[int, int], judged: Sequence[Rows], rules: Rules) -> HeadRole:
    """Return the role of a head from the rows of the prompts that judge."""
    mine = [[dict(row) for row in prompt if (row["layer"], row["head"]) == head] for prompt in judged]
    rows = [row for prompt in mine for row in prompt if "sink" in row]
    lasting = float(np.mean([row["sink"] for row in rows])) if rows else 0.0
    for row in rows:
        if "kl.sink.zero" in row:
            row[MATCHED_OVER] = row["kl.rowmass.zero"] - row["kl.sink.zero"]
    measured, nothing = estimates(mine), Estimate(None, None, None)
    names = ("kl.sink.zero", "kl.rowmass.zero", MATCHED_OVER, "norm_ratio", "evenness", "taken.sink")
    role, reason = decide(lasting, *(measured.get(name, nothing) for name in names), rules)  # type: ignore[call-arg]
    hidden = measured.get("kl.sink", nothing)
    need: Need = "open"
    if hidden.low is not None and hidden.high is not None and not hidden.low <= rules.changed <= hidden.high:
        need = "dispensable" if hidden.high < rules.changed else "needed"
    (tokens, places), text = ([row[name] for row in rows if name in row] for name in ("token", "position")), None
    token: Any
    (token, most), (_, second) = (*Counter(tokens).most_common(2), (None, 0), (None, 0))[:2]
    if most > second:
        text = str(token) if model.tokenizer is None else text_of(model.tokenizer, token) or f"<{token}>"
    where = (measured.get("place", nothing).mean, max(places, key=places.count, default=None), text)
    return HeadRole(*head, need, role, reason, lasting, *where, measured, *count_to_hide(measured, rules))


def estimates(by_prompt: Sequence[Rows]) -> dict[str, Estimate]:
    """Return the mean of every number over prompts, with its interval; the canvases of a prompt are averaged first."""
    names = sorted({name for prompt in by_prompt for row in prompt for name in row if isinstance(row[name], float)})
    if not names:
        return {}
    table = np.full((len(by_prompt), len(names)), np.nan)
    for number, prompt in enumerate(by_prompt):
        for column, name in enumerate(names):
            values = [row[name] for row in prompt if name in row]
            if values:
                table[number, column] = np.mean(values)
    means = interval_of_means(table)
    numbers = zip(means.mean.tolist(), means.low.tolist(), means.high.tolist(), strict=True)
    return {name: Estimate(*map(known, one)) for name, one in zip(names, numbers, strict=True)}


def count_to_hide(measured: Mapping[str, Estimate], rules: Rules) -> tuple[int | None, int]:
    """Return ``substitutes`` and ``substitutes_at_least`` of a `HeadRole`."""
    at_least, unchanged = 1, True
    for many in (1, *MOST_HIDDEN):
        found = measured.get("kl.sink" if many == 1 else f"kl.top.{many}")
        if found is None:
            continue
        if found.low is None or found.high is None:
            unchanged = False
            continue
        if found.low > rules.changed:
            return many, at_least
        unchanged = unchanged and found.high < rules.changed
        at_least = many + 1 if unchanged else at_least
    return None, at_least


@own_defaults()
def find_roles_on(
    model: Model, probes: Sequence[Probe], *, rules: Rules | None = None, rows: int = 32, control_seed: int = 0
) -> Roles:
    """Return the role of every head that has a lasting sink on given canvases, such as held-out text.

    Probes of even prompts choose the heads, of odd ones judge them. CallError for too few, or unreadable canvases.
    """
    expect_model(model, unwatched=True)
    rules = rules or Rules()
    for number, probe in enumerate(probes):
        check_probe(model, probe, f"probe {number}")
    check_halves(probes)
    prompts = {number: [one for one in probes if one.prompt == number] for number in sorted({p.prompt for p in probes})}
    chosen = [sinks_by_head(mine, model, rules) for number, mine in prompts.items() if number % 2 == 0]
    heads, shape = _lasting(chosen, rules)
    see = Sights(model)
    judges = {number: mine for number, mine in prompts.items() if number % 2}

    def measure(kind: str, some: Heads) -> dict[int, Rows]:
        how = (some, see, rules, control_seed, {"rows": rows})
        return {number: _measure(kind, mine, *how) for number, mine in judges.items()}

    found, judged = _judge(model, heads, rules, measure)
    lengths = [len(probe.tokens) for probe in probes]
    return _roles(model, shape, rules, found, len(prompts), len(judged), {}, lengths=lengths)


def check_halves(probes: Sequence[Probe]) -> None:
    """Raise CallError where fewer prompts than a verdict needs choose heads, or judge them."""
    numbers = {probe.prompt for probe in probes}
    odd = sum(number % 2 for number in numbers)
    if min(odd, len(numbers) - odd) < LEAST_PROMPTS:
        raise CallError(
            f"expected canvases of at least {LEAST} prompts, {LEAST_PROMPTS} of even numbers to choose heads and "
            f"{LEAST_PROMPTS} of odd ones to judge them, found {len(numbers) - odd} and {odd}"
        )


def cost_of_roles(
    family: Family, shape: tuple[int, int], prompts: int, canvases: int = CANVASES, rows: int = 32, **settings: Any
) -> dict[str, int]:
    """Return how many ``forwards`` `find_roles` makes at most, ``generation`` of them for answers; ``rows`` are
    canvases without sinks, as much work as ``passes`` through all layers.
    """
    generation, heads = prompts * resolve_settings(family, **settings).most_calls, shape[0] * shape[1]
    canvases = 1 if family.causal else canvases
    judged, kinds = prompts // 2 * canvases, heads * (len(REMOVALS) + len(MOST_HIDDEN))
    groups, looked = judged * 4 * (1 + len(ROLES)), 2 * (prompts * canvases + judged * (2 + len(ROLES)))
    passes = math.ceil(judged * kinds * (shape[0] + 1) / (2 * shape[0])) + groups + looked
    forwards = generation + looked + judged * (math.ceil(kinds / rows) + 1 + len(ROLES))
    found = {"heads": heads, "generation": generation, "rows": judged * kinds + groups}
    return {**found, "passes": passes, "forwards": forwards}
