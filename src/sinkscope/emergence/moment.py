"""What the sinks of a network look like at one moment of its training."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from sinkscope.emergence.held_out import HeldOut
from sinkscope.emergence.history import NO_ROLE, Moment
from sinkscope.errors import CallError, ModelError
from sinkscope.interventions import parse_rule
from sinkscope.models import Model, expect_model
from sinkscope.models.devices import own_defaults
from sinkscope.models.in_memory import IN_MEMORY
from sinkscope.roles import ROLES, Probe, find_roles_on
from sinkscope.roles.probes import check_probe, predictions
from sinkscope.roles.sight import look, sinks_of
from sinkscope.roles.verdict import Rules


@own_defaults()
@torch.no_grad()
def measure(
    model: Model, canvases: Sequence[HeldOut], *, roles: bool = False, on_canvas: Callable[[int], object] | None = None
) -> Moment:
    """Measure the sinks of a network on held-out canvases; its weights, its mode and torch's random state stay as they
    are.

    Args:
        roles: also find what each sink does, which costs about a hundred times as much.
        on_canvas: called with the number of each canvas that is done.

    Raises:
        CallError: fewer canvases than roles need, or one that is too long or for another kind of network.
        ModelError: the network says something that is not finite.
    """
    expect_model(model, unwatched=True)
    check_canvases(model, canvases)
    modes = {part: part.training for part in model.network.modules()}
    model.network.eval()
    try:
        with torch.random.fork_rng():
            rows = []
            for number, one in enumerate(canvases):
                rows.append(_of_canvas(model, one))
                if on_canvas is not None:
                    on_canvas(number)
            found = _roles(model, [one.probe for one in canvases]) if roles else None
    finally:
        for part, training in modes.items():
            part.training = training
    return Moment(**{name: np.stack([row[name] for row in rows]) for name in rows[0]}, role=found)


def check_canvases(model: Model, canvases: Sequence[HeldOut]) -> None:
    """Raise an error for canvases on which a network does not predict what they ask for.

    Raises:
        CallError: a canvas that is too long for it, or for another kind of network.
    """
    mask, causal = model.card.mask_id, model.family.causal
    shifts = (
        (model.family.shift,) if model.card.weight_hash != IN_MEMORY else (False, True)
    )  # which memory does not say
    for number, one in enumerate(canvases):
        check_probe(model, one.probe, f"canvas {number}")
        if any(_holds(one, one.targets, 1) if causal else _holds(one, mask, int(shift)) for shift in shifts):
            continue
        needed = "mask_id=None" if causal else f"mask_id={mask}" + (f", shift={shifts[0]}" if len(shifts) == 1 else "")
        found = (
            f"of shift={not shifts[0]}" if not causal and _holds(one, mask, int(not shifts[0])) else "with other masks"
        )
        kind = "an autoregressive model" if causal else "a diffusion model"
        expected = f"canvas {number}: expected one of hold_out(…, {needed}), because {model.card.name} is {kind}"
        raise CallError(f"{expected}, found one {found}")


def _holds(one: HeldOut, tokens: Any, right: int) -> bool:
    """Return whether a canvas holds these tokens so many places to the right of its readers."""
    places = np.flatnonzero(one.probe.readers) + right
    return bool(places.max() < len(one.probe.tokens) and (one.probe.tokens[places] == tokens).all())


def _of_canvas(model: Model, one: HeldOut) -> dict[str, Any]:
    sight = look(model, one.probe)
    main = sight.order[..., :1]

    def at_main(values: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values, main, -1)[..., 0]

    def over_median(norms: np.ndarray) -> np.ndarray:
        median = np.median(norms, axis=-1)
        return np.divide(at_main(norms), median, out=np.full(median.shape, np.nan), where=median > 0)

    masks = one.probe.tokens == model.card.mask_id
    if not torch.isfinite(sight.log_probabilities).all():
        raise ModelError(
            f"{model.card.name}: expected finite log-probabilities, found others; the training has diverged"
        )
    losses = {"loss": _loss(sight.log_probabilities, one.targets)}
    for rule in ("top", "rowmass"):
        with parse_rule(f"{rule}:1@current,queries={one.queries}")(model):
            losses[f"loss_without_{rule}"] = _loss(_said(model, one.probe), one.targets)
    return {
        **{name: np.float32(loss) for name, loss in losses.items()},
        "place": main[..., 0].astype(np.int32),
        "share": at_main(sight.reader_rows).astype(np.float32),
        "first_share": sight.reader_rows[..., 0].astype(np.float32),
        "masks_share": sight.reader_rows[..., masks].sum(-1).astype(np.float32),
        "value_ratio": over_median(sight.value_norms).astype(np.float32),
        "output_ratio": over_median(sight.output_norms).astype(np.float32),
        "sinks": sinks_of(sight, Rules().excess).sum(-1).astype(np.int32),
    }


def _said(model: Model, probe: Probe) -> torch.Tensor:
    """Return the log-probabilities of the readers, [reader, vocabulary]."""
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    return predictions(model, tokens, torch.from_numpy(probe.readers))[0]


def _loss(said: torch.Tensor, targets: np.ndarray) -> float:
    wanted = torch.from_numpy(targets).to(said.device)
    return float(-said.gather(-1, wanted[:, None]).mean())


def _roles(model: Model, probes: Sequence[Probe]) -> Int[np.ndarray, "layer head"]:
    found = np.full((model.card.layers, model.card.heads), NO_ROLE, np.int8)
    for one in find_roles_on(model, probes).heads:
        found[one.layer, one.head] = ROLES.index(one.role)
    return found
