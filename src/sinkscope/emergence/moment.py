"""Held-out canvases, and the sinks of a network on them at one moment, or while it is trained (`TrainingWatch`)."""

import hashlib
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from sinkscope.emergence import history
from sinkscope.emergence.history import DAMAGED, FORMAT, MANIFEST, WEIGHTS, Moment, write_moment
from sinkscope.errors import CallError, ModelError, TrainingError
from sinkscope.interventions import parse_rule
from sinkscope.models import Model, expect_model
from sinkscope.models.devices import own_defaults
from sinkscope.models.fingerprints import hash_memory
from sinkscope.models.loading import IN_MEMORY, model_of
from sinkscope.roles import ROLES, Probe, find_roles_on
from sinkscope.roles.find import check_halves
from sinkscope.roles.head_roles import Rules
from sinkscope.roles.probes import check_probe, predictions
from sinkscope.roles.removal import look
from sinkscope.runs.files import compare_sealed
from sinkscope.runs.folder import run_folder

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
            kind = "an autoregressive model" if causal else "a diffusion model"
            expected = f"expected one of hold_out(…, {needed}), because {model.card.name} is {kind}"
            raise CallError(f"canvas {number}: {expected}, found one of other masks or another shift")


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


class TrainingWatch:
    """Measures a network at chosen updates and keeps each moment in a folder; one of other weights is measured again.

    Args:
        network: a transformers Llama or Qwen2, causal or with ``is_causal`` False.
        canvases: of `hold_out`; the same for every moment.
        out: the folder; `open_emergence` reads it. CallError for that of another run.
        every: measures after each so many updates; or at ``updates``, 0 for the untrained network.
        weights: checksums of the files of the weights; moments of others in the folder are refused.
    """

    def __init__(
        self,
        network: Any,
        canvases: Sequence[HeldOut],
        out: str | Path,
        *,
        every: int | None = None,
        updates: Collection[int] = (),
        roles: bool = False,
        name: str = "network",
        weights: tuple[str, ...] = (),
    ) -> None:
        if (every is None) == (not updates):
            raise CallError(f"expected every or updates, found every={every} and {len(updates)} updates")
        self._model, self._canvases, self._out = model_of(network, name=name), canvases, Path(out)
        self._every, self._updates, self._roles, self._weights = every, frozenset(updates), roles, weights
        check_canvases(self._model, canvases)
        if roles:
            check_halves([one.probe for one in canvases])
        arrays = (array for one in canvases for array in (one.probe.tokens, one.probe.readers, one.targets))
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() + b"|" for array in arrays))
        card = self._model.card
        about = {"name": name, "causal": self._model.family.causal, "layers": card.layers, "heads": card.heads}
        sizes = {"canvases": len(canvases), "canvases_sha256": digest.hexdigest()}
        self._identity = {"format": FORMAT, **about, **sizes}  # must be the same for a run to go on
        with self._opened():  # before the training begins
            pass

    def _opened(self) -> Any:
        return run_folder(self._out, MANIFEST, self._identity, TrainingError, "another run")

    def __call__(self, update: int) -> bool:
        """Measure the network after so many updates if it is to be and has not been; return whether it was."""
        if update % self._every if self._every is not None else update not in self._updates:
            return False
        in_memory = None if self._weights else hash_memory(self._model.network)
        with self._opened():
            path = self._out / f"update-{update:06d}.safetensors"
            about = compare_sealed(path, TrainingError, DAMAGED) if path.exists() else None
            if about is not None and self._weights and about.get(WEIGHTS) not in self._weights:
                raise CallError(f"{path}: expected the moment of these weights, found others; choose another folder")
            if about is not None and in_memory is not None and about.get(history.IN_MEMORY, in_memory) != in_memory:
                again = f"{self._out} held update {update} of other weights, so it is measured again; moments of later "
                again += "updates there are of the other training until this one comes to them"
                warnings.warn(again, RuntimeWarning, stacklevel=2)
            elif about is not None and (not self._roles or about.get(history.ROLES) == "True"):
                return False
            moment = measure(self._model, self._canvases, roles=self._roles)
            write_moment(path, update, moment, {WEIGHTS: next(iter(self._weights), None), history.IN_MEMORY: in_memory})
        return True

    def trainer_callback(self) -> Any:
        """Return a callback for transformers' Trainer: it measures before the first step and after each chosen one."""
        from transformers import TrainerCallback

        watch = self

        class Callback(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
                watch(state.global_step)

            on_step_end = on_train_begin

        return Callback()
