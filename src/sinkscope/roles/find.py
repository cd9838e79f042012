"""`find_roles`: what the sink of each head does, chosen on one half of the prompts and judged on the other."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
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
Measure = Callable[[list[Probe]], list[dict[str, Any]]]


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
    _check_rules(rules, model)
    resolved = resolve_settings(model.family, **settings)  # what does not fit is refused before anything is made
    rules = rules or Rules()
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
        "seed": control_seed,
        "settings": {name: repr(value) for name, value in asdict(resolved).items()},
    }
    folder = None if out is None else Path(out)
    with open_store(folder, identity) as store:
        found = _Run(model, prompts, store, rules, canvases, rows, control_seed, on_prompt, resolved).find()
        if folder is not None:
            found.save(folder)
        return found


def _check_rules(rules: Rules | None, model: Model) -> None:
    """Raise CallError for rules by which no head of a model could have a sink."""
    most = model.card.max_positions
    if rules is not None and rules.excess >= most:
        raise CallError(f"rules.excess: expected less than {most}, the longest canvas, found {rules.excess:g}")


class _Run:
    """One search: its prompts, and what could not be measured."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Any],
        store: PromptStore,
        rules: Rules,
        canvases: int,
        rows: int,
        seed: int,
        on_prompt: Callable[[int], object] | None,
        settings: Settings,
    ) -> None:
        self.model, self.prompts, self.store, self.rules, self.seed = model, prompts, store, rules, seed
        self.canvases, self.rows = 1 if model.family.causal else canvases, rows
        self.on_prompt, self.settings = on_prompt, settings
        self.failed: dict[int, str] = {}
        self.probes: dict[int, list[Probe]] = {}

    def find(self) -> Roles:
        model, rules, count, card = self.model, self.rules, len(self.prompts), self.model.card
        chosen = self._each(
            range(0, count, 2), "choose", (), lambda probes: [sinks_by_head(model, probe, rules) for probe in probes]
        )
        heads, layers, per_layer = _lasting([canvas for prompt in chosen.values() for canvas in prompt], rules)

        def judge(probes: list[Probe]) -> list[dict[str, Any]]:
            rows = [measure_heads(model, probe, heads, rules, self.rows, self.seed) for probe in probes]
            return [row for one in rows for row in one]

        judged = self._each(range(1, count, 2), "judge", heads, judge)
        found = tuple(conclude(model, head, [*judged.values()], rules) for head in heads)
        together = self._together([(one.layer, one.head) for one in found if one.removable], judged)
        settings = {**asdict(self.settings), "canvases": self.canvases}
        lengths = [
            len(model.encode(prompt)) + self.settings.length
            for at, prompt in enumerate(self.prompts)
            if at not in self.failed
        ]
        return Roles(
            *(card.name, weight_hash_of(model), layers, per_layer, rules, found, count, len(judged), self.failed),
            settings=settings,
            together=together,
            canvas_tokens=(min(lengths), max(lengths)),
            config_hash=card.config_hash,
        )

    def _each(
        self, numbers: Sequence[int], kind: str, heads: Heads, measure: Measure
    ) -> dict[int, list[dict[str, Any]]]:
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

    def _measured(self, number: int, kind: str, heads: Heads, measure: Measure) -> list[dict[str, Any]] | None:
        rows = self.store.read(kind, number, heads)
        if rows is not None:
            return rows
        try:
            rows = measure(self._probes_of(number))
        except (SinkscopeError, RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise EvaluationError(
                    f"prompt {number}: out of memory on {self.model.device} with a single canvas; shorter prompts, a "
                    f"smaller --length or --dtype bfloat16 take less ({error})"
                ) from error
            self.failed[number] = str(error)  # one prompt's failure must not lose the others
            return None
        self.store.write(kind, number, heads, len(self._probes_of(number)), rows)
        return rows

    def _probes_of(self, number: int) -> list[Probe]:
        if number not in self.probes:
            self.probes[number] = make_probes(
                self.model, [self.prompts[number]], number, self.canvases, **asdict(self.settings)
            )
        return self.probes[number]

    def _together(self, heads: Heads, judged: Mapping[int, Sequence[Any]]) -> Together | None:
        """Return the cost of hiding the sinks of several heads at once on the prompts that judged; None for fewer than
        two.
        """
        if len(heads) < 2:
            return None

        def measure(probes: list[Probe]) -> list[dict[str, Any]]:
            return [measure_together(self.model, probe, heads, self.rules, self.rows, self.seed) for probe in probes]

        rows = [self._measured(number, "together", heads, measure) for number in judged]
        return Together(tuple(heads), estimates([one for one in rows if one is not None]))


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
    _check_rules(rules, model)
    for number, probe in enumerate(probes):
        check_probe(model, probe, f"probe {number}")
    rules = rules or Rules()
    prompts = {
        number: [probe for probe in probes if probe.prompt == number]
        for number in sorted({probe.prompt for probe in probes})
    }
    check_halves(probes)
    seen = [sinks_by_head(model, probe, rules) for number, mine in prompts.items() if number % 2 == 0 for probe in mine]
    heads, layers, per_layer = _lasting(seen, rules)
    judging = [mine for number, mine in prompts.items() if number % 2]
    judged = [
        [row for probe in mine for row in measure_heads(model, probe, heads, rules, rows, control_seed)]
        for mine in judging
    ]
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


def _lasting(canvases: Sequence[Mapping[str, Any]], rules: Rules) -> tuple[list[tuple[int, int]], int, int]:
    """Return the heads that have a sink on enough canvases, and the number of layers and of heads in each."""
    lasting = np.mean([np.array(canvas["sink"]) for canvas in canvases], axis=0)
    return [(int(layer), int(head)) for layer, head in np.argwhere(lasting >= rules.lasting)], *lasting.shape


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

    Raises:
        CallError: a number below 1, or settings that do not fit.
    """
    steps = resolve_settings(family, **settings).most_calls
    canvases = 1 if family.causal else canvases
    heads, judged = layers * heads_in_layer, prompts // 2
    kinds = heads * (REMOVALS + len(MOST_HIDDEN))
    # The sinks taken together are looked at again.
    removed, looked = judged * canvases * kinds, (prompts + judged) * canvases
    batches = judged * canvases * (math.ceil(kinds / rows) + 1)
    removed += 2 * judged * canvases
    return {
        "heads": heads,
        "generation": prompts * steps,
        "rows": removed,
        "passes": removed + looked,
        "forwards": prompts * steps + looked + batches,
    }
