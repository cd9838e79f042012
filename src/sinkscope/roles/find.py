"""`find_roles`: what the sink of each head does, chosen on one half of the prompts and judged on the other."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from sinkscope.decoding import resolve_settings, step_count
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.models import Model, expect_model
from sinkscope.roles.head_roles import HeadRole, Roles
from sinkscope.roles.probes import CANVASES, Probe, make_probes
from sinkscope.roles.prompt_store import PromptStore, open_store
from sinkscope.roles.removal import Removal, divergences
from sinkscope.roles.sight import Sight, look, sinks_of
from sinkscope.roles.verdict import Estimate, Rules, decide
from sinkscope.statistics.intervals import LEAST_PROMPTS, interval_of_means

REMOVALS = 5
"""Removals of `removals_of` beside those of several keys."""

MATCHED_OVER = "kl.rowmass.zero over kl.sink.zero"
"""How much more the control changes than the sink where both lose what they add, prompt by prompt."""

MOST_HIDDEN = (2, 3, 4, 6, 8)
"""How many of a head's largest columns are hidden together, besides one."""

LEAST = 2 * LEAST_PROMPTS
"""Prompts that a verdict needs: half of them choose, half of them judge."""


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

    Even prompts choose the heads, odd ones judge them. Each head's sink is the key with its largest column on that canvas,
    which must be a sink by Eq. 3; it is taken from that head alone.

    Args:
        prompts: texts or token ids, at least ten.
        out: a folder in which finished prompts are kept; the same call goes on after a kill.
        rules: of the verdict; `Rules()` when None.
        canvases: of each prompt of a diffusion model.
        rows: canvases in one forward call.
        control_seed: of the random keys.
        on_prompt: called with the number of each prompt that is done, or has failed.
        settings: of the model's sampler.

    Raises:
        CallError: fewer prompts than a verdict needs, settings that do not fit, or a folder of another run.
    """
    expect_model(model)
    if len(prompts) < LEAST:
        raise CallError(f"expected at least {LEAST} prompts, half to choose heads and half to judge them, found {len(prompts)}")
    for name, value in (("canvases", canvases), ("rows", rows)):
        if value < 1:
            raise CallError(f"{name}: expected at least 1, found {value}")
    resolve_settings(model.family, **settings)  # what does not fit is refused before anything is made
    rules = rules or Rules()
    identity = {
        "weight_hash": model.card.weight_hash,
        "prompts_sha256": hashlib.sha256(json.dumps([_plain(model, one) for one in prompts]).encode()).hexdigest(),
        "rules": asdict(rules),
        "control": "keys that are no sinks",
        "canvases": canvases,
        "seed": control_seed,
        "settings": {name: repr(value) for name, value in settings.items()},
    }
    with open_store(None if out is None else Path(out), identity) as store:
        return _find(model, prompts, store, rules, canvases, rows, control_seed, on_prompt, settings)


def _plain(model: Model, prompt: Any) -> str:
    """Return a prompt as text that no other prompt has; that of a long tensor would leave out most of it."""
    return prompt if isinstance(prompt, str) else str(model.encode(prompt))


def _find(
    model: Model,
    prompts: Sequence[Any],
    store: PromptStore,
    rules: Rules,
    canvases: int,
    rows: int,
    seed: int,
    on_prompt: Callable[[int], object] | None,
    settings: Mapping[str, Any],
) -> Roles:
    failed: dict[int, str] = {}

    def each(numbers: Sequence[int], kind: str, measure: Callable[[list[Probe]], list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        rows_of_prompts = []
        for number in numbers:
            found = store.read(kind, number)
            if found is None:
                try:
                    found = measure(make_probes(model, [prompts[number]], number, canvases, **settings))
                except (SinkscopeError, RuntimeError) as error:  # one prompt's failure must not lose the others
                    failed[number] = str(error)
                else:
                    store.write(kind, number, found)
            if on_prompt is not None:
                on_prompt(number)
            if found is not None:
                rows_of_prompts.append(found)
        return rows_of_prompts

    chosen = each(range(0, len(prompts), 2), "choose", lambda probes: [_sinks_by_head(model, probe, rules) for probe in probes])
    canvases_seen = [canvas for prompt in chosen for canvas in prompt]
    if not canvases_seen:
        raise CallError(f"no prompt could be measured; the first failed with: {next(iter(failed.values()), 'nothing')}")
    heads, layers, per_layer = _lasting(canvases_seen, rules)
    judged = each(
        range(1, len(prompts), 2),
        "judge",
        lambda probes: [row for probe in probes for row in _measure(model, probe, heads, rules, rows, seed)],
    )
    found = tuple(_conclude(model, head, judged, rules) for head in heads)
    return Roles(model.card.name, model.card.weight_hash, layers, per_layer, rules, found, len(prompts), len(judged), failed)


def find_roles_on(model: Model, probes: Sequence[Probe], *, rules: Rules | None = None, rows: int = 32, control_seed: int = 0) -> Roles:
    """Return the role of every head that has a lasting sink on given canvases, such as held-out text.

    Probes of even prompts choose the heads, those of odd ones judge them; the rest is as in `find_roles`.

    Raises:
        CallError: probes of fewer prompts than a verdict needs.
    """
    rules = rules or Rules()
    prompts = {number: [probe for probe in probes if probe.prompt == number] for number in sorted({probe.prompt for probe in probes})}
    if len(prompts) < LEAST:
        raise CallError(f"expected probes of at least {LEAST} prompts, half to choose heads and half to judge them, found {len(prompts)}")
    seen = [_sinks_by_head(model, probe, rules) for number, mine in prompts.items() if number % 2 == 0 for probe in mine]
    heads, layers, per_layer = _lasting(seen, rules)
    judging = [mine for number, mine in prompts.items() if number % 2]
    judged = [[row for probe in mine for row in _measure(model, probe, heads, rules, rows, control_seed)] for mine in judging]
    found = tuple(_conclude(model, head, judged, rules) for head in heads)
    return Roles(model.card.name, model.card.weight_hash, layers, per_layer, rules, found, len(prompts), len(judged), {})


def _lasting(canvases: Sequence[Mapping[str, Any]], rules: Rules) -> tuple[list[tuple[int, int]], int, int]:
    """Return the heads that have a sink on enough canvases, and the number of layers and of heads in each."""
    lasting = np.mean([np.array(canvas["sink"]) for canvas in canvases], axis=0)
    return [(int(layer), int(head)) for layer, head in np.argwhere(lasting >= rules.lasting)], *lasting.shape


def cost_of_roles(model: Model, prompts: int, canvases: int = CANVASES, rows: int = 32, **settings: Any) -> dict[str, int]:
    """Return how many forward calls `find_roles` makes at most, where every head has a lasting sink."""
    steps = step_count(resolve_settings(model.family, **settings))
    canvases = 1 if model.family.causal else canvases
    heads, judged = model.card.layers * model.card.heads, prompts // 2
    removed = judged * canvases * heads * (REMOVALS + len(MOST_HIDDEN))
    batches = judged * canvases * math.ceil(heads * (REMOVALS + len(MOST_HIDDEN)) / rows)
    return {"heads": heads, "generation": prompts * steps, "rows": removed, "forwards": prompts * (steps + canvases) + batches}


def removals_of(sight: Sight, sinks: Bool[np.ndarray, " key"], layer: int, head: int, seed: int) -> list[Removal]:
    """Return what is taken from one head on one canvas.

    ``sink``: the key with the largest column. ``sink.zero``: what it adds, its attention lost. ``rowmass``: keys drawn at
    random that are no sinks, until they hold as much of the readers' attention, or all of them where they hold less; another
    sink would be no control, as it may be a substitute. ``rowmass.zero`` likewise. ``random``: one key drawn at random.
    ``top.K``: the K largest columns.

    Args:
        sinks: of this head by Eq. 3.
    """
    keys = sight.columns.shape[-1]
    order = sight.order[layer, head]
    top = order[0]
    rng = np.random.default_rng([seed, layer, head, keys])
    others = rng.permutation(np.delete(np.arange(keys), top))
    held = sight.reader_rows[layer, head]
    plain = others[~sinks[others]]
    before = np.cumsum(held[plain]) - held[plain] / 2
    matched = plain[before < held[top]]
    matched = matched[: keys - 2]  # so that the head keeps a second key

    def of(*positions: Any) -> np.ndarray:
        chosen = np.zeros(keys, bool)
        chosen[list(positions)] = True
        return chosen

    found = [
        Removal("sink", layer, head, of(top)),
        Removal("sink.zero", layer, head, of(top), zeroed=True),
        Removal("rowmass", layer, head, of(*matched)),
        Removal("rowmass.zero", layer, head, of(*matched), zeroed=True),
        Removal("random", layer, head, of(others[0])),
    ]
    return found + [Removal(f"top.{many}", layer, head, of(*order[:many])) for many in MOST_HIDDEN if many < keys]


def _sinks_by_head(model: Model, probe: Probe, rules: Rules) -> dict[str, Any]:
    return {"sink": sinks_of(look(model, probe), rules.excess).any(-1).tolist()}


def _measure(model: Model, probe: Probe, heads: Sequence[tuple[int, int]], rules: Rules, rows: int, seed: int) -> list[dict[str, Any]]:
    """One row for each head on one canvas."""
    sight = look(model, probe)
    sinks = sinks_of(sight, rules.excess)
    with_sink = [(layer, head) for layer, head in heads if sinks[layer, head].any()]
    removals = [one for layer, head in with_sink for one in removals_of(sight, sinks[layer, head], layer, head, seed + probe.prompt)]
    kl, kept = divergences(model, probe, sight.log_probabilities, removals, rows)
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for layer, head in heads:
        found[layer, head] = {"prompt": probe.prompt, "layer": layer, "head": head, "sink": bool(sinks[layer, head].any())}
    for one, divergence, share in zip(removals, kl.tolist(), kept.tolist(), strict=True):
        row = found[one.layer, one.head]
        row[f"kl.{one.name}"], row[f"kept.{one.name}"] = divergence, share
        if not one.zeroed and one.name in ("sink", "rowmass"):
            row[f"taken.{one.name}"] = float(sight.reader_rows[one.layer, one.head][one.keys].sum())
    for layer, head in with_sink:
        found[layer, head] |= _described(sight, probe, layer, head, sinks[layer, head], rules)
    return list(found.values())


def _described(sight: Sight, probe: Probe, layer: int, head: int, sinks: np.ndarray, rules: Rules) -> dict[str, Any]:
    columns, norms = sight.columns[layer, head], sight.output_norms[layer, head]
    top = int(sight.order[layer, head, 0])
    median = float(np.median(norms))
    ratios = norms / median if median > 0 else np.full_like(norms, np.nan)
    moved = sight.moved[layer, head]
    substitutes = sinks & (ratios < rules.small)
    substitutes[top] = False
    return {
        "position": top,
        "token": int(probe.tokens[top]),
        "place": top / max(1, len(columns) - 1),
        "share": float(columns[top] / columns.sum()),
        "committed_share": float(sight.committed_rows[layer, head, top]),
        "norm_ratio": float(ratios[top]),
        "evenness": float(sight.evenness[layer, head]),
        "to_substitutes": float(moved[substitutes].sum()),
        "to_itself": float(sight.itself[layer, head]),
        "to_text": float(moved[~substitutes].sum() - sight.itself[layer, head]),
    }


def _conclude(model: Model, head: tuple[int, int], judged: Sequence[Sequence[Mapping[str, Any]]], rules: Rules) -> HeadRole:
    """The prompt is the unit: its canvases are averaged first."""
    mine = [[dict(row) for row in prompt if (row["layer"], row["head"]) == head] for prompt in judged]
    rows = [row for prompt in mine for row in prompt]
    lasting = float(np.mean([row["sink"] for row in rows])) if rows else 0.0
    for row in rows:
        if "kl.sink.zero" in row:
            row[MATCHED_OVER] = row["kl.rowmass.zero"] - row["kl.sink.zero"]
    names = sorted({name for row in rows for name in row if isinstance(row[name], float)})
    table = np.full((len(mine), len(names)), np.nan)
    for number, prompt in enumerate(mine):
        for column, name in enumerate(names):
            values = [row[name] for row in prompt if name in row]
            if values:
                table[number, column] = np.mean(values)
    means = interval_of_means(table) if names and len(mine) else None
    measured = {}
    for column, name in enumerate(names):
        assert means is not None
        measured[name] = Estimate(*(None if np.isnan(one[column]) else float(one[column]) for one in (means.mean, means.low, means.high)))
    nothing = Estimate(None, None, None)
    role, reason = decide(
        lasting,
        measured.get("kl.sink.zero", nothing),
        measured.get("kl.rowmass.zero", nothing),
        measured.get(MATCHED_OVER, nothing),
        measured.get("norm_ratio", nothing),
        measured.get("evenness", nothing),
        rules,
    )
    place = measured.get("place", nothing).mean
    token, substitutes, removable = _most_frequent(model, rows), _substitutes(measured, rules), _removable(measured, rules)
    return HeadRole(*head, role, reason, lasting, place, token, measured, substitutes, removable)


def _removable(measured: Mapping[str, Estimate], rules: Rules) -> bool | None:
    found = measured.get("kl.sink")
    if found is None or found.low is None or found.high is None or found.low <= rules.changed <= found.high:
        return None
    return found.high < rules.changed


def _substitutes(measured: Mapping[str, Estimate], rules: Rules) -> int | None:
    for many in (1, *MOST_HIDDEN):
        found = measured.get("kl.sink" if many == 1 else f"kl.top.{many}")
        if found is not None and found.low is not None and found.low > rules.changed:
            return many
    return None


def _most_frequent(model: Model, rows: Sequence[Mapping[str, Any]]) -> str | None:
    tokens = [row["token"] for row in rows if "token" in row]
    if not tokens:
        return None
    token = max(sorted(set(tokens)), key=tokens.count)
    if model.tokenizer is None:
        return str(token)
    return model.tokenizer.decode([token]) or str(model.tokenizer.convert_ids_to_tokens(token))
