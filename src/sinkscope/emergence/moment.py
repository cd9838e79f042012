"""What the sinks of a network look like at one moment of its training."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sinkscope.emergence.held_out import HeldOut
from sinkscope.emergence.history import NO_ROLE, Moment
from sinkscope.errors import CallError, ModelError
from sinkscope.interventions import parse_rule
from sinkscope.models import Model, expect_model
from sinkscope.models.devices import own_defaults
from sinkscope.models.in_memory import IN_MEMORY
from sinkscope.roles import ROLES, find_roles_on
from sinkscope.roles.probes import check_probe, predictions
from sinkscope.roles.sight import look
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
            found = None
            if roles:
                found = np.full((model.card.layers, model.card.heads), NO_ROLE, np.int8)
                for one in find_roles_on(model, [one.probe for one in canvases]).heads:
                    found[one.layer, one.head] = ROLES.index(one.role)
    finally:
        for part, training in modes.items():
            part.training = training
    return Moment(**{name: np.stack([row[name] for row in rows]) for name in rows[0]}, role=found)


def check_canvases(model: Model, canvases: Sequence[HeldOut]) -> None:
    """Raise CallError for canvases that are too long for a network, or made for another kind."""
    mask, causal, known = model.card.mask_id, model.family.causal, model.card.weight_hash != IN_MEMORY
    shifts = (model.family.shift,) if known else (False, True)  # which memory does not say
    for number, one in enumerate(canvases):
        check_probe(model, one.probe, f"canvas {number}")
        if any(_holds(one, one.targets, 1) if causal else _holds(one, mask, int(shift)) for shift in shifts):
            continue
        needed = "mask_id=None" if causal else f"mask_id={mask}" + (f", shift={shifts[0]}" if known else "")
        other = not causal and _holds(one, mask, int(not shifts[0]))
        found = f"of shift={not shifts[0]}" if other else "with other masks"
        kind = "an autoregressive model" if causal else "a diffusion model"
        expected = f"canvas {number}: expected one of hold_out(…, {needed}), because {model.card.name} is {kind}"
        raise CallError(f"{expected}, found one {found}")


def _holds(one: HeldOut, tokens: Any, right: int) -> bool:
    """Return whether a canvas holds these tokens so many places to the right of its readers."""
    places = np.flatnonzero(one.probe.readers) + right
    return bool(places.max() < len(one.probe.tokens) and (one.probe.tokens[places] == tokens).all())


def _of_canvas(model: Model, one: HeldOut) -> dict[str, Any]:
    sight, masks = look(model, one.probe), one.probe.tokens == model.card.mask_id
    main = sight.order[..., :1]
    tokens = torch.from_numpy(one.probe.tokens.astype(np.int64)).to(model.device)[None]
    wanted = torch.from_numpy(one.targets).to(sight.log_probabilities.device)[:, None]
    if not torch.isfinite(sight.log_probabilities).all():
        raise ModelError(
            f"{model.card.name}: expected finite log-probabilities, found others; the training has diverged"
        )
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
