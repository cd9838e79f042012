"""`TrainingWatch`: measures the sinks of a network while it is trained, from any training loop.

watch = TrainingWatch(network, canvases, out="watch", updates=(0, 100, 200, 400, 1000))
for update, batch in enumerate(batches, 1):
    ...
    watch(update)

With transformers' Trainer: ``Trainer(…, callbacks=[watch.trainer_callback()])``.
"""

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sinkscope.emergence.held_out import HeldOut, fingerprint
from sinkscope.emergence.moment import check_canvases, measure
from sinkscope.emergence.storage import FORMAT, IN_MEMORY, ROLES, WEIGHTS, check_watch, open_watch
from sinkscope.errors import CallError
from sinkscope.models.fingerprints import hash_memory
from sinkscope.models.loading import model_of
from sinkscope.roles.find import check_halves


class TrainingWatch:
    """Measures a network at chosen updates and keeps each moment in a folder.

    A moment of the same weights is not measured again; one of other weights is, with a warning.

    Args:
        network: a transformers Llama or Qwen2, causal or with ``is_causal`` False.
        canvases: of `hold_out`; the same for every moment.
        out: the folder; `open_emergence` reads it, and ``sinkscope watch-training`` draws it.
        every: measures after each so many updates; or
        updates: the updates that are measured, 0 for the untrained network.
        roles: also find the role of each sink; a moment that was measured without it is measured again.
        name: of the run, in figures.
        weights: checksums of the files of the weights; moments of others in the folder are refused.

    Raises:
        CallError: neither ``every`` nor ``updates``, canvases for another kind of network or too few for roles, or a
            folder of another run.
        ModelError: the network belongs to no family.
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
        self._identity = {  # must be the same for a run to go on
            "format": FORMAT,
            "name": name,
            "causal": self._model.family.causal,
            "layers": self._model.card.layers,
            "heads": self._model.card.heads,
            "canvases": len(canvases),
            "canvases_sha256": fingerprint(canvases),
        }
        check_canvases(self._model, canvases)
        if roles:
            check_halves([one.probe for one in canvases])
        check_watch(self._out, self._identity)  # before the training begins

    def __call__(self, update: int) -> bool:
        """Measure the network after so many updates if it is to be and has not been; return whether it was."""
        wanted = update % self._every == 0 if self._every is not None else update in self._updates
        if not wanted:
            return False
        in_memory = None if self._weights else hash_memory(self._model.network)
        with open_watch(self._out, self._identity) as store:
            about = store.about(update, self._weights)
            if about is not None and in_memory is not None and about.get(IN_MEMORY, in_memory) != in_memory:
                warnings.warn(
                    f"{self._out} held update {update} of other weights, so it is measured again; moments of later "
                    "updates there are of the other training until this one comes to them. Choose another folder to "
                    "keep both",
                    RuntimeWarning,
                    stacklevel=2,
                )
            elif about is not None and (not self._roles or about.get(ROLES) == "True"):
                return False
            moment = measure(self._model, self._canvases, roles=self._roles)
            store.write(update, moment, {WEIGHTS: next(iter(self._weights), None), IN_MEMORY: in_memory})
        return True

    def trainer_callback(self) -> Any:
        """Return a callback for transformers' Trainer: it measures before the first step and after each chosen one."""
        from transformers import TrainerCallback

        watch = self

        class Callback(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
                watch(state.global_step)

            def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
                watch(state.global_step)

        return Callback()
