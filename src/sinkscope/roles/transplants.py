"""Transplants: the key and value of a sink replaced by those of another sink, to see whether what it stores matters.

The predictions are those of `find_roles`. The key stays, and with it the attention that it gets, unless it is
transplanted too, turned to the position of the one that it replaces (rotary positions of Llama and Qwen2).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sinkscope.errors import CallError
from sinkscope.models import Model, expect_model
from sinkscope.models.devices import own_defaults
from sinkscope.models.fingerprints import weight_hash_of
from sinkscope.roles.find import estimates
from sinkscope.roles.grafts import Canvas, Graft, Transplanter, canvas_of, grafts_of, rotates
from sinkscope.roles.head_roles import Estimate, Rules
from sinkscope.roles.probes import CANVASES, Probe, make_probes
from sinkscope.roles.removal import Rows, divergences, look
from sinkscope.runs.files import checksum_of
from sinkscope.runs.folder import Items
from sinkscope.statistics.intervals import LEAST_PROMPTS

DONORS = ("zero", "prompt", "step", "mean", "text")
IN_GROUPS = {("zero", "sink"), ("prompt", "sink"), ("prompt", "plain")}
"""What is measured in groups smaller than the model."""
Stores = Literal["nothing", "constant", "content", "open"]


@dataclass(frozen=True, eq=False)
class Transplant:
    """What the predictions make of one donor in one group of heads.

    Attributes:
        group: ``model``, ``layer 3``, or a head such as ``3.2``.
        donor: ``zero`` (no value at all), the same head's sink in another ``prompt`` or another ``step`` of the same
            one, the ``mean`` of that sink over the other prompts, or a random key of the same canvas that is no sink
            (``text``).
        with_key: whether the key is transplanted too.
        heads: mean number of heads on a canvas whose sink is replaced: those whose sink has the donor.
        sink: KL divergence of the predictions, in nats, over the canvases that have the donor.
        plain: the same for keys that are no sinks and hold as much of the readers' attention, in the same heads, from
            keys that are no sinks.
        sink_over_plain: their difference, prompt by prompt.
        sink_over_zero: the sink's divergence less that of its value's removal, prompt by prompt.
        sink_change: ‖v' − v‖ / ‖v‖ of the sinks, mean over heads; plain_change: of the plain keys.
        kept: share of the first choices that stay when the sinks are replaced.
    """

    group: str
    donor: str
    with_key: bool
    heads: float
    sink: Estimate
    plain: Estimate
    sink_over_plain: Estimate
    sink_over_zero: Estimate
    sink_change: Estimate
    plain_change: Estimate
    kept: Estimate


@dataclass(frozen=True, eq=False)
class Transplants:
    """All transplants of one model.

    Attributes:
        taken: of each group, share of the readers' attention on the sinks, and on the plain keys.
        stores: of each group: ``nothing`` (its value can go), ``constant`` (it cannot, and another prompt's does as
            well), ``content`` (another prompt's does not), ``open`` (an interval holds the threshold of `Rules`).
    """

    model: str
    prompts: int
    canvases: int
    rows: tuple[Transplant, ...]
    taken: dict[str, tuple[Estimate, Estimate]]
    stores: dict[str, Stores]

    def of(self, group: str, donor: str, with_key: bool = False) -> Transplant:
        """Return one row; StopIteration where there is none."""
        return next(one for one in self.rows if (one.group, one.donor, one.with_key) == (group, donor, with_key))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def what_it_stores(zero: Estimate, prompt: Estimate, changed: float) -> Stores:
    """Return the verdict from the changes that no value makes, and another prompt's."""
    if zero.low is None or zero.high is None or prompt.low is None or prompt.high is None:
        return "open"
    if prompt.low > changed:
        return "content"
    if prompt.high >= changed or zero.low <= changed <= zero.high:
        return "open"
    return "constant" if zero.low > changed else "nothing"


def _conditions(model: Model) -> list[tuple[str, bool]]:
    both = [("prompt", True), ("step", True)] if rotates(model) else []
    return [*((donor, False) for donor in DONORS), *both]


@torch.no_grad()
def _measure(
    model: Model, canvases: Sequence[Sequence[Canvas]], prompt: int, number: int, by: str, rows: int, seed: int
) -> dict[str, float]:
    """Return the numbers of one canvas by name: what, group, donor, with key, kind."""
    mine, count = canvases[prompt][number], len(canvases)
    behind = [canvases[(prompt + one) % count] for one in range(1, count)]
    others = {
        "prompt": [one[min(number, len(one) - 1)] for one in behind],
        "step": [canvases[prompt][(number + one) % len(canvases[prompt])] for one in range(1, len(canvases[prompt]))],
        "mean": [canvas for one in behind for canvas in one],
    }
    found, sets = dict[str, float](), list[tuple[str, list[Graft]]]()
    for donor, with_key in _conditions(model):
        rng = np.random.default_rng([seed, prompt, number, DONORS.index(donor)])
        grafts = grafts_of(model, mine, donor, with_key, others.get(donor, ()), rng)
        for kind in ("sink", "plain"):
            groups: dict[str, list[Graft]] = {}
            for at, one in grafts.items():
                if at[2] == kind:
                    groups.setdefault("model", []).append(one)
                    if (donor, kind) in IN_GROUPS and not with_key and not number:
                        name = f"layer {at[0]}" if by == "layer" else f"{at[0]}.{at[1]}"
                        groups.setdefault(name, []).append(one)
            for group, some in groups.items():
                name = f"{group}|{donor}|{with_key}|{kind}"
                sets.append((name, some))
                before = [mine.content(one.layer, one.head, one.positions)[1] for one in some]
                changes = [(one.value - was).norm() / was.norm() for one, was in zip(some, before, strict=True)]
                if known := [float(one) for one in changes if one.isfinite()]:
                    found[f"change|{name}"] = float(np.mean(known))
                at = [(one.layer, one.head, kind) for one in some]
                found[f"replaced|{name}"] = float(len(at))
                if donor == ("zero" if kind == "sink" else "prompt"):
                    found[f"taken|{group}|{kind}"] = float(np.mean([mine.taken[one] for one in at]))
    sets.sort(key=lambda one: min(graft.layer for graft in one[1]))
    sight = look(model, mine.probe)
    kl, kept = divergences(model, mine.probe, sight, [one for _, one in sets], rows, by=Transplanter)
    for (name, _), nats, share in zip(sets, kl.tolist(), kept.tolist(), strict=True):
        found |= {f"kl|{name}": nats, f"kept|{name}": share}
    for name in [one.removesuffix("|sink") for one, _ in sets if one.endswith("|sink")]:
        group, nats = name.split("|")[0], found[f"kl|{name}|sink"]
        if f"kl|{name}|plain" in found:
            found[f"over plain|{name}"] = nats - found[f"kl|{name}|plain"]
        found[f"over zero|{name}"] = nats - found[f"kl|{group}|zero|False|sink"]
    return found


@own_defaults()
def transplant(
    model: Model,
    prompts: Sequence[Any],
    *,
    by: Literal["layer", "head"] = "layer",
    rules: Rules | None = None,
    canvases: int = CANVASES,
    rows: int = 32,
    control_seed: int = 0,
    **settings: Any,
) -> Transplants:
    """Return how the predictions change when sinks get the content of other sinks, in all heads at once and by layer or
    head, beside keys that are no sinks.

    Args:
        prompts: texts or token ids, at least five. In a causal model the first token's content depends on nothing but
            that token, so that prompts with one beginning give it one content.
        by: groups of heads besides the whole model; on the first canvas of each prompt they get the donors ``zero`` and
            ``prompt``.
        rules: of what a sink is and which change counts; `Rules()` when None.
        canvases: of each prompt of a diffusion model.
        rows: canvases in one forward call, fewer where memory does not suffice.
        control_seed: of keys that are drawn at random.
        settings: of the model's sampler.

    Raises CallError for too few prompts, or a causal model whose layers store more than keys and values.
    """
    expect_model(model, unwatched=True)
    _check_number(len(prompts))
    probes = [make_probes(model, prompt, number, canvases, **settings) for number, prompt in enumerate(prompts)]
    return transplant_on(model, probes, by=by, rules=rules, rows=rows, control_seed=control_seed)


@own_defaults()
def transplant_on(
    model: Model,
    probes: Sequence[Sequence[Probe]],
    *,
    by: Literal["layer", "head"] = "layer",
    rules: Rules | None = None,
    rows: int = 32,
    control_seed: int = 0,
    out: Path | None = None,
    on_prompt: Callable[[], object] = lambda: None,
) -> Transplants:
    """Return the same for canvases at hand, by prompt; ``out``: a folder of finished prompts, from which the same call
    resumes; ``on_prompt`` is called when a prompt has been looked at or measured.

    CallError: see `transplant`.
    """
    expect_model(model, unwatched=True)
    _check_number(len(probes))
    rules, seen = rules or Rules(), list[list[Canvas]]()
    for number, of_prompt in enumerate(probes):
        seen.append([canvas_of(model, one, rules, control_seed + number) for one in of_prompt])
        on_prompt()
    tokens = [[one.tokens.tolist() for one in of_prompt] for of_prompt in probes]
    settings = {"by": by, "rules": asdict(rules), "control_seed": control_seed, "tokens": tokens}
    run = checksum_of({"weights": weight_hash_of(model), **settings})
    items, measured = None if out is None else Items(out, run), list[Rows]()
    for number, mine in enumerate(seen):
        known = items.read(number) if items else None
        found: Rows | None = None if known is None else known["rows"]
        if found is None:
            found = [_measure(model, seen, number, at, by, rows, control_seed) for at in range(len(mine))]
            if items:
                items.commit(number, {"rows": found})
        measured.append(found)
        on_prompt()
    told_of, nothing = estimates(measured), Estimate(None, None, None)

    def of(*names: Any) -> Estimate:
        return told_of.get("|".join(map(str, names)), nothing)

    names = [one.split("|")[1:4] for row in measured for canvas in row for one in canvas if one.startswith("over zero")]
    told = tuple(
        Transplant(
            group,
            donor,
            with_key == "True",
            heads=of("replaced", group, donor, with_key, "sink").mean or 0.0,
            sink=of("kl", group, donor, with_key, "sink"),
            plain=of("kl", group, donor, with_key, "plain"),
            sink_over_plain=of("over plain", group, donor, with_key),
            sink_over_zero=of("over zero", group, donor, with_key),
            sink_change=of("change", group, donor, with_key, "sink"),
            plain_change=of("change", group, donor, with_key, "plain"),
            kept=of("kept", group, donor, with_key, "sink"),
        )
        for group, donor, with_key in sorted({(*one,) for one in names}, key=_in_order)
    )
    groups = list(dict.fromkeys(one.group for one in told))
    changed = [(of("kl", one, "zero", False, "sink"), of("kl", one, "prompt", False, "sink")) for one in groups]
    return Transplants(
        model.card.name,
        len(probes),
        sum(map(len, seen)),
        told,
        {one: (of("taken", one, "sink"), of("taken", one, "plain")) for one in groups},
        {one: what_it_stores(*pair, rules.changed) for one, pair in zip(groups, changed, strict=True)},
    )


def _check_number(prompts: int) -> None:
    if prompts < LEAST_PROMPTS:
        raise CallError(f"expected at least {LEAST_PROMPTS} prompts, found {prompts}")


def _in_order(name: tuple[str, ...]) -> tuple[Any, ...]:
    group, donor, with_key = name
    places = [float("-inf")] if group == "model" else [float(one) for one in group.removeprefix("layer ").split(".")]
    return places, with_key, DONORS.index(donor)
