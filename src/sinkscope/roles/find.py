"""`find_roles`: what the sink of each head does, chosen on one half of the prompts and judged on the other."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.decoding import Settings, resolve_settings
from sinkscope.errors import CallError, EvaluationError, SinkscopeError
from sinkscope.models import Family, Model, expect_model
from sinkscope.models.devices import is_out_of_memory, own_defaults
from sinkscope.models.fingerprints import fingerprints, weight_hash_of
from sinkscope.roles.conclusion import conclude, estimates
from sinkscope.roles.head_roles import Roles, Together
from sinkscope.roles.measurement import measure_heads, measure_together, sinks_by_head
from sinkscope.roles.probes import CANVASES, Probe, check_probe, make_probes
from sinkscope.roles.prompt_store import Heads, PromptStore, open_store
from sinkscope.roles.removal import MOST_HIDDEN, REMOVALS
from sinkscope.roles.verdict import Rules
from sinkscope.statistics.intervals import LEAST_PROMPTS

LEAST = 2 * LEAST_PROMPTS
"""Prompts that a verdict needs: half of them choose, half of them judge."""
MEASURED = 3
"""Changes with what is measured of a prompt, so that a folder of an earlier version is not gone on with."""
Rows = list[dict[str, Any]]
Measure = Callable[[list[Probe]], Rows]


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
    on_prompt: Callable[[int], object] | None = None,
    **settings: Any,
) -> Roles:
    """Return the role of every head that has a lasting sink.

    Even prompts choose the heads, odd ones judge them. Each head's sink is the key with its largest column on that
    canvas, which must be a sink by Eq. 3; it is taken from that head alone. At the end those that can be hidden are
    hidden together.

    Args:
        prompts: texts or token ids, at least ten.
        out: a folder in which finished prompts are kept, and at the end the roles (`read_roles`); the same call goes on
            after a kill.
        rules: of the verdict; `Rules()` when None.
        canvases: of each prompt of a diffusion model.
        rows: canvases in one forward call, fewer where memory does not suffice.
        control_seed: of the random keys.
        on_prompt: called with the number of each prompt that is done, or has failed.
        settings: of the model's sampler.

    Raises:
        CallError: fewer prompts than a verdict needs, one given twice, settings that do not fit, or a folder of another
            run.
        EvaluationError: memory does not suffice for one canvas.
    """
    expect_model(model, unwatched=True)
    if len(prompts) < LEAST:
        raise CallError(f"expected at least {LEAST} prompts, half to choose and half to judge, found {len(prompts)}")
    rules = _rules(rules, model)
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
    canvases = 1 if model.family.causal else canvases
    with open_store(folder, identity) as store:
        found = _Run(model, prompts, resolved, store, rules, canvases, rows, control_seed, on_prompt).find()
        if folder is not None:
            found.save(folder)
        return found


def _rules(rules: Rules | None, model: Model) -> Rules:
    most = model.card.max_positions
    if rules is not None and rules.excess >= most:  # no head could have a sink
        raise CallError(f"rules.excess: expected less than {most}, the longest canvas, found {rules.excess:g}")
    return rules or Rules()


@dataclass
class _Run:
    """One search, and what could not be measured."""

    model: Model
    prompts: Sequence[Any]
    settings: Settings
    store: PromptStore
    rules: Rules
    canvases: int
    rows: int
    seed: int
    on_prompt: Callable[[int], object] | None
    failed: dict[int, str] = field(default_factory=dict)
    probes: dict[int, list[Probe]] = field(default_factory=dict)

    def find(self) -> Roles:
        model, count, measured = self.model, len(self.prompts), (self.model, self.rules, self.rows, self.seed)
        chosen = self._each(range(0, count, 2), "choose", (), lambda probes: _sinks(model, probes, self.rules))
        heads, layers, per_layer = _lasting((canvas for prompt in chosen.values() for canvas in prompt), self.rules)
        judged = self._each(range(1, count, 2), "judge", heads, lambda probes: _judge(probes, heads, *measured))
        found = tuple(conclude(model, head, [*judged.values()], self.rules) for head in heads)
        removable, together = [(one.layer, one.head) for one in found if one.removable], None
        if len(removable) > 1:

            def hide(probes: list[Probe]) -> Rows:
                return [measure_together(model, probe, removable, *measured[1:]) for probe in probes]

            costs = [self._measured(number, "together", removable, hide) for number in judged]
            together = Together(tuple(removable), estimates([one for one in costs if one is not None]))
        asked = [model.encode(prompt) for at, prompt in enumerate(self.prompts) if at not in self.failed]
        lengths = [len(one) + self.settings.length for one in asked]
        return Roles(
            *(model.card.name, weight_hash_of(model), layers, per_layer, self.rules, found, count, len(judged)),
            self.failed,
            settings={**asdict(self.settings), "canvases": self.canvases},
            together=together,
            canvas_tokens=(min(lengths), max(lengths)),
            config_hash=model.card.config_hash,
        )

    def _each(self, numbers: Sequence[int], kind: str, heads: Heads, measure: Measure) -> dict[int, Rows]:
        """Return the rows of every prompt that could be measured, of which there must be enough."""
        found = {}
        for number in numbers:
            rows = self._measured(number, kind, heads, measure)
            if self.on_prompt is not None:
                self.on_prompt(number)
            if rows is not None:
                found[number] = rows
        if len(found) < LEAST_PROMPTS:
            number, why = next(iter((number, self.failed[number]) for number in numbers if number in self.failed))
            raise CallError(
                f"expected at least {LEAST_PROMPTS} prompts that {kind} heads, found {len(found)} that could be "
                f"measured, of {len(numbers)}; prompt {number} failed with: {why}"
            )
        return found

    def _measured(self, number: int, kind: str, heads: Heads, measure: Measure) -> Rows | None:
        rows = self.store.read(kind, number, heads)
        if rows is not None:
            return rows
        try:
            if number not in self.probes:
                asked, settings = [self.prompts[number]], asdict(self.settings)
                self.probes[number] = make_probes(self.model, asked, number, self.canvases, **settings)
            rows = measure(self.probes[number])
        except (SinkscopeError, RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise EvaluationError(
                    f"prompt {number}: out of memory on {self.model.device} with a single canvas; shorter prompts, a "
                    f"smaller --length or --dtype bfloat16 take less ({error})"
                ) from error
            self.failed[number] = str(error)  # one prompt's failure must not lose the others
            return None
        self.store.write(kind, number, heads, len(self.probes[number]), rows)
        return rows


def _sinks(model: Model, probes: Iterable[Probe], rules: Rules) -> Rows:
    return [sinks_by_head(model, probe, rules) for probe in probes]


def _judge(probes: Iterable[Probe], heads: Heads, model: Model, rules: Rules, rows: int, seed: int) -> Rows:
    return [row for probe in probes for row in measure_heads(model, probe, heads, rules, rows, seed)]


def _lasting(canvases: Iterable[Mapping[str, Any]], rules: Rules) -> tuple[list[tuple[int, int]], int, int]:
    """Return the heads that have a sink on enough canvases, and the number of layers and of heads in each."""
    lasting = np.mean([np.array(canvas["sink"]) for canvas in canvases], axis=0)
    return [(int(layer), int(head)) for layer, head in np.argwhere(lasting >= rules.lasting)], *lasting.shape


@own_defaults()
def find_roles_on(
    model: Model, probes: Sequence[Probe], *, rules: Rules | None = None, rows: int = 32, control_seed: int = 0
) -> Roles:
    """Return the role of every head that has a lasting sink on given canvases, such as held-out text.

    Probes of even prompts choose the heads, those of odd ones judge them; the rest is as in `find_roles`.

    Raises:
        CallError: probes of fewer prompts of either kind than a verdict needs, or canvases that the network cannot
            read.
    """
    expect_model(model, unwatched=True)
    rules = _rules(rules, model)
    for number, probe in enumerate(probes):
        check_probe(model, probe, f"probe {number}")
    check_halves(probes)
    prompts: dict[int, list[Probe]] = {number: [] for number in sorted({probe.prompt for probe in probes})}
    for probe in probes:
        prompts[probe.prompt].append(probe)
    choosing = (probe for number, mine in prompts.items() if number % 2 == 0 for probe in mine)
    heads, layers, per_layer = _lasting(_sinks(model, choosing, rules), rules)
    judging = (mine for number, mine in prompts.items() if number % 2)
    judged = [_judge(mine, heads, model, rules, rows, control_seed) for mine in judging]
    found = tuple(conclude(model, head, judged, rules) for head in heads)
    lengths = [len(probe.tokens) for probe in probes]
    known = (model.card.name, weight_hash_of(model), layers, per_layer, rules, found, len(prompts), len(judged), {})
    return Roles(*known, canvas_tokens=(min(lengths), max(lengths)), config_hash=model.card.config_hash)


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
    family: Family,
    layers: int,
    heads_in_layer: int,
    prompts: int,
    canvases: int = CANVASES,
    rows: int = 32,
    **settings: Any,
) -> dict[str, int]:
    """Return how many forward calls `find_roles` makes at most, where every head has a lasting sink.

    Returns:
        ``generation``: calls that write the answers. ``rows``: canvases from which a sink is taken; they share calls.
        ``forwards``: all calls. ``passes``: all canvases that are read, beside the writing.
    """
    generation = prompts * resolve_settings(family, **settings).most_calls
    canvases = 1 if family.causal else canvases
    heads, judged = layers * heads_in_layer, prompts // 2 * canvases
    kinds = heads * (REMOVALS + len(MOST_HIDDEN))
    removed, looked = judged * (kinds + 2), prompts * canvases + judged  # the sinks taken together are looked at again
    return {
        "heads": heads,
        "generation": generation,
        "rows": removed,
        "passes": removed + looked,
        "forwards": generation + looked + judged * (math.ceil(kinds / rows) + 1),
    }
