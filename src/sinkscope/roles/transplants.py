"""Transplants: the key and value of a sink replaced by those of another sink, to see whether what it stores matters.

The predictions are those of `find_roles`. The key stays, and with it the attention that it gets, unless it is
transplanted too, turned to the position of the one that it replaces (rotary positions of Llama and Qwen2). A third
transplant is of the residual stream at a layer's input, of which the keys and values of all heads are made.
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
from sinkscope.roles.grafts import (
    Canvas,
    Graft,
    Transplanter,
    canvas_of,
    grafts_of,
    rotates,
    stream_divergences,
    stream_grafts_of,
)
from sinkscope.roles.head_roles import Estimate, Rules
from sinkscope.roles.probes import CANVASES, Probe, make_probes
from sinkscope.roles.removal import Rows, divergences, look
from sinkscope.runs.files import checksum_of
from sinkscope.runs.folder import Items
from sinkscope.statistics.intervals import LEAST_PROMPTS

DONORS = ("zero", "prompt", "step", "mean", "text")
WHATS = ("value", "value and key", "stream")
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
            (``text``); masks get from masks, written tokens from written ones.
        what: what is transplanted: the ``value``, ``value and key``, or the ``stream`` of the position at the layer's
            input, which all later layers and positions see.
        heads: mean number of heads on a canvas whose sink is replaced: those whose sink has the donor; of streams the
            number of layers and positions.
        sink: KL divergence of the predictions, in nats, over the canvases that have the donor.
        plain: the same for keys that are no sinks and hold as much of the readers' attention, in the same heads, from
            keys that are no sinks; of streams as many positions, each the nearest to a sink that is none in the layer.
        sink_over_plain: their difference, prompt by prompt.
        sink_over_zero: the sink's divergence less that of its value's removal, prompt by prompt; not of streams.
        sink_change: ‖v' − v‖ / ‖v‖ of the sinks, mean over heads; plain_change: of the plain keys.
        kept: share of the first choices that stay when the sinks are replaced.
    """

    group: str
    donor: str
    what: str
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

    def of(self, group: str, donor: str, what: str = "value") -> Transplant:
        """Return one row; StopIteration where there is none."""
        return next(one for one in self.rows if (one.group, one.donor, one.what) == (group, donor, what))

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


def _conditions(model: Model, mine: Canvas) -> list[tuple[str, str]]:
    value, both, stream = WHATS
    found = [*((donor, value) for donor in DONORS)]
    found += [("prompt", both), ("step", both)] if rotates(model) else []
    return found + ([(donor, stream) for donor in DONORS[1:]] if mine.streams else [])


@torch.no_grad()
def _measure(
    model: Model, canvases: Sequence[Sequence[Canvas]], prompt: int, number: int, by: str, rows: int, seed: int
) -> dict[str, float]:
    """Return the numbers of one canvas by name: number, group, donor, what, kind."""
    mine, count = canvases[prompt][number], len(canvases)
    behind = [canvases[(prompt + one) % count] for one in range(1, count)]
    others = {
        "prompt": [one[min(number, len(one) - 1)] for one in behind],
        "step": [canvases[prompt][(number + one) % len(canvases[prompt])] for one in range(1, len(canvases[prompt]))],
        "mean": [canvas for one in behind for canvas in one],
    }
    found, sets = dict[str, float](), list[tuple[str, list[Graft]]]()
    for donor, what in _conditions(model, mine):
        rng, donors = np.random.default_rng([seed, prompt, number, DONORS.index(donor)]), others.get(donor, ())
        stream = what == "stream"
        if stream:
            grafts = stream_grafts_of(mine, donor, donors)
        else:
            grafts = grafts_of(model, mine, donor, what == "value and key", donors, rng)
        for kind in ("sink", "plain"):
            groups: dict[str, list[Graft]] = {}
            for at, one in grafts.items():
                if at[2] == kind:
                    groups.setdefault("model", []).append(one)
                    single = what == "value" or (stream and by == "layer")
                    if (donor, kind) in IN_GROUPS and single and not number:
                        name = f"layer {at[0]}" if by == "layer" else f"{at[0]}.{at[1]}"
                        groups.setdefault(name, []).append(one)
            for group, some in groups.items():
                name = f"{group}|{donor}|{what}|{kind}"
                sets.append((name, some))
                before = [mine.content(one.layer, one.head, one.positions)[1] for one in some]
                changes = [(one.value - was).norm() / was.norm() for one, was in zip(some, before, strict=True)]
                if known := [float(one) for one in changes if one.isfinite()]:
                    found[f"change|{name}"] = float(np.mean(known))
                found[f"replaced|{name}"] = float(len(some))
                if donor == ("zero" if kind == "sink" else "prompt") and not stream:
                    shares = [mine.taken[one.layer, one.head, kind] for one in some]
                    found[f"taken|{group}|{kind}"] = float(np.mean(shares))
    sets.sort(key=lambda one: min(graft.layer for graft in one[1]))
    sight, of_streams = look(model, mine.probe), [one for one in sets if "|stream|" in one[0]]
    sets = [one for one in sets if one not in of_streams]
    kl, kept = divergences(model, mine.probe, sight, [one for _, one in sets], rows, by=Transplanter)
    also = stream_divergences(model, mine.probe, sight, [one for _, one in of_streams], rows)
    numbers = zip(sets + of_streams, [*kl.tolist(), *also[0]], [*kept.tolist(), *also[1]], strict=True)
    for (name, _), nats, share in numbers:
        if not np.isnan(nats):
            found |= {f"kl|{name}": nats, f"kept|{name}": share}
    for name in [one[3:-5] for one in found if one.startswith("kl|") and one.endswith("|sink")]:
        (group, _, what), nats = name.split("|"), found[f"kl|{name}|sink"]
        if f"kl|{name}|plain" in found:
            found[f"over plain|{name}"] = nats - found[f"kl|{name}|plain"]
        if what != "stream":
            found[f"over zero|{name}"] = nats - found[f"kl|{group}|zero|value|sink"]
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

    all_names = [one for row in measured for canvas in row for one in canvas]
    names = {(*one.split("|")[1:4],) for one in all_names if one.startswith("kl|") and one.endswith("|sink")}
    told = tuple(
        Transplant(
            group,
            donor,
            what,
            heads=of("replaced", group, donor, what, "sink").mean or 0.0,
            sink=of("kl", group, donor, what, "sink"),
            plain=of("kl", group, donor, what, "plain"),
            sink_over_plain=of("over plain", group, donor, what),
            sink_over_zero=of("over zero", group, donor, what),
            sink_change=of("change", group, donor, what, "sink"),
            plain_change=of("change", group, donor, what, "plain"),
            kept=of("kept", group, donor, what, "sink"),
        )
        for group, donor, what in sorted(names, key=_in_order)
    )
    groups = list(dict.fromkeys(one.group for one in told))
    changed = [(of("kl", one, "zero", "value", "sink"), of("kl", one, "prompt", "value", "sink")) for one in groups]
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
    group, donor, what = name
    places = [float("-inf")] if group == "model" else [float(one) for one in group.removeprefix("layer ").split(".")]
    return places, WHATS.index(what), DONORS.index(donor)
