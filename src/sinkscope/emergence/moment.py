"""Held-out canvases, always the same ones, and what the sinks of a network look like on them at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from sinkscope.emergence.history import Moment
from sinkscope.errors import CallError, ModelError
from sinkscope.interventions import parse_rule
from sinkscope.models import Model, expect_model
from sinkscope.models.devices import own_defaults
from sinkscope.models.loading import IN_MEMORY
from sinkscope.roles import ROLES, Probe, find_roles_on
from sinkscope.roles.probes import check_probe, predictions
from sinkscope.roles.sight import look
from sinkscope.roles.verdict import Rules

FIRST_READ = 64  # queries of an autoregressive model that are not judged: they see few keys, which take much of each
MASKED = 0.5  # share of the tokens of a canvas that are masked for a diffusion model


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One canvas with its readers, the tokens that they predict, and the readers in a rule, such as ``8-10+12``."""

    probe: Probe
    targets: Int[np.ndarray, " reader"]
    queries: str


def hold_out(
    tokens: Sequence[Any],
    predictable: Sequence[Any] | None = None,
    *,
    mask_id: int | None,
    shift: bool = False,
    seed: int = 0,
) -> list[HeldOut]:
    """Return canvases with their readers: with half of what is ``predictable`` masked; without a ``mask_id`` queries
    from the 64th on, or the last three quarters; with ``shift`` one place to the left. CallError without a reader.
    """
    found = []
    free_places = predictable if predictable is not None else [np.ones(len(canvas), bool) for canvas in tokens]
    for number, (canvas, free) in enumerate(zip(tokens, free_places, strict=True)):
        canvas, free = np.array(canvas, np.int64), np.array(free, bool)
        if mask_id is None:
            seen, chosen = canvas, free & (np.arange(len(canvas)) > min(FIRST_READ, len(canvas) // 4))
        else:
            if (canvas == mask_id).any():
                at = int((canvas == mask_id).argmax())
                raise CallError(f"canvas {number}: expected no masks, found the mask token {mask_id} at position {at}")
            free[0] &= not shift
            drawn = np.where(free, np.random.default_rng([seed % (1 << 64), number]).random(len(canvas)), 1)
            chosen = free & (drawn <= max(MASKED, drawn.min()))  # one of them at least
            seen = np.where(chosen, mask_id, canvas)
        if not chosen.any():
            raise CallError(f"canvas {number} has {len(canvas)} tokens and nothing to predict; choose longer canvases")
        readers, queries = chosen, "masked"
        if mask_id is None or shift:
            readers = np.append(chosen[1:], False)
            places = np.flatnonzero(readers)
            runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
            queries = "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
        found.append(HeldOut(Probe(number, 0, seen, readers, readers), canvas[chosen], queries))
    return found


def check_canvases(model: Model, canvases: Sequence[HeldOut]) -> None:
    """Raise CallError for canvases that are too long for a network, or made for another kind."""
    mask, causal, known = model.card.mask_id, model.family.causal, model.card.weight_hash != IN_MEMORY
    shifts = (model.family.shift,) if known else (False, True)  # which memory does not say

    def holds(one: HeldOut, shift: bool) -> bool:
        places = np.flatnonzero(one.probe.readers) + int(causal or shift)
        wanted: Any = one.targets if causal else mask
        return bool(places.max() < len(one.probe.tokens) and (one.probe.tokens[places] == wanted).all())

    for number, one in enumerate(canvases):
        check_probe(model, one.probe, f"canvas {number}")
        if not any(holds(one, shift) for shift in shifts):
            needed = "mask_id=None" if causal else f"mask_id={mask}" + (f", shift={shifts[0]}" if known else "")
            found = f"of shift={not shifts[0]}" if not causal and holds(one, not shifts[0]) else "with other masks"
            kind = "an autoregressive model" if causal else "a diffusion model"
            expected = f"canvas {number}: expected one of hold_out(…, {needed}), because {model.card.name} is {kind}"
            raise CallError(f"{expected}, found one {found}")


@own_defaults()
@torch.no_grad()
def measure(model: Model, canvases: Sequence[HeldOut], *, roles: bool = False) -> Moment:
    """Measure the sinks of a network on held-out canvases, with ``roles`` also what each does, at a hundred times the
    cost; leaves network and random state as they are. ModelError where training has diverged.
    """
    expect_model(model, unwatched=True)
    check_canvases(model, canvases)
    modes = {part: part.training for part in model.network.modules()}
    model.network.eval()
    try:
        with torch.random.fork_rng():
            rows, found = [_of_canvas(model, one) for one in canvases], None
            if roles:
                found = np.full((model.card.layers, model.card.heads), -1, np.int8)
                for head in find_roles_on(model, [one.probe for one in canvases]).heads:
                    found[head.layer, head.head] = ROLES.index(head.role)
    finally:
        for part, training in modes.items():
            part.training = training
    return Moment(**{name: np.stack([row[name] for row in rows]) for name in rows[0]}, role=found)


def _of_canvas(model: Model, one: HeldOut) -> dict[str, Any]:
    sight, masks = look(model, one.probe), one.probe.tokens == model.card.mask_id
    main = sight.order[..., :1]
    tokens = torch.from_numpy(one.probe.tokens.astype(np.int64)).to(model.device)[None]
    wanted = torch.from_numpy(one.targets).to(sight.log_probabilities.device)[:, None]
    if not torch.isfinite(sight.log_probabilities).all():
        raise ModelError(f"{model.card.name}: found log-probabilities that are not finite; the training has diverged")
    losses = {"loss": float(-sight.log_probabilities.gather(-1, wanted).mean())}
    for rule in ("top", "rowmass"):
        with parse_rule(f"{rule}:1@current,queries={one.queries}")(model):
            said = predictions(model, tokens, torch.from_numpy(one.probe.readers))[0]
            losses[f"loss_without_{rule}"] = float(-said.gather(-1, wanted).mean())

    def over_median(norms: np.ndarray) -> np.ndarray:
        median, at_main = np.median(norms, axis=-1), np.take_along_axis(norms, main, -1)[..., 0]
        return np.divide(at_main, median, out=np.full(median.shape, np.nan), where=median > 0).astype(np.float32)

    return {
        **{name: np.float32(loss) for name, loss in losses.items()},
        "place": main[..., 0].astype(np.int32),
        "share": np.take_along_axis(sight.reader_rows, main, -1)[..., 0].astype(np.float32),
        "first_share": sight.reader_rows[..., 0].astype(np.float32),
        "masks_share": sight.reader_rows[..., masks].sum(-1).astype(np.float32),
        "value_ratio": over_median(sight.value_norms),
        "output_ratio": over_median(sight.output_norms),
        "sinks": sight.sinks(Rules().excess).sum(-1).astype(np.int32),
    }
