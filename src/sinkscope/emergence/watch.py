"""`TrainingWatch`: measures the sinks of a network while it is trained, from any training loop.

watch = TrainingWatch(network, canvases, out="watch", updates=(0, 100, 200, 400, 1000))
for update, batch in enumerate(batches, 1):
    ...
    watch(update)

With transformers' Trainer: ``Trainer(…, callbacks=[watch.trainer_callback()])``.
"""

import contextlib
import hashlib
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.emergence.history import DAMAGED, FORMAT, IN_MEMORY, MANIFEST, ROLES, WEIGHTS, write_moment
from sinkscope.emergence.moment import HeldOut, check_canvases, measure
from sinkscope.errors import CallError, TrainingError
from sinkscope.models.fingerprints import hash_memory
from sinkscope.models.loading import model_of
from sinkscope.roles.find import check_halves
from sinkscope.runs.files import compare_sealed
from sinkscope.runs.folder import run_folder


class _Checked(Exception):
    """Ends a check of a folder, so that one that was made for it is removed."""


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
        self._identity = {  # must be the same for a run to go on
            "format": FORMAT,
            "name": name,
            "causal": self._model.family.causal,
            "layers": self._model.card.layers,
            "heads": self._model.card.heads,
            "canvases": len(canvases),
            "canvases_sha256": digest.hexdigest(),
        }
        with contextlib.suppress(_Checked), self._opened():  # before the training begins
            raise _Checked

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
            if about is not None and in_memory is not None and about.get(IN_MEMORY, in_memory) != in_memory:
                again = f"{self._out} held update {update} of other weights, so it is measured again; moments of later "
                again += "updates there are of the other training until this one comes to them"
                warnings.warn(again, RuntimeWarning, stacklevel=2)
            elif about is not None and (not self._roles or about.get(ROLES) == "True"):
                return False
            moment = measure(self._model, self._canvases, roles=self._roles)
            write_moment(path, update, moment, {WEIGHTS: next(iter(self._weights), None), IN_MEMORY: in_memory})
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
