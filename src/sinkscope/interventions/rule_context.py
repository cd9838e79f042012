"""What a rule may know when it chooses keys: the canvas, the running layer, and the attention observed so far."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import Columns, LayerCall, Session, StepContext, Watcher, upload
from sinkscope.errors import CallError
from sinkscope.interventions.step_canvas import StepCanvas, TokenClasses


@dataclass(frozen=True, eq=False)
class Observation:
    """The attention of one layer in one step. Its keys are those of the layer."""

    columns: Tensor  # [batch, head, key], column sums; in a causal model running sums over all queries so far
    last_row: Tensor  # [batch, head, key], the attention of the newest query
    keys: int  # how many keys there were

    def widened(self, keys: int) -> "Observation":
        """Return the same with zeros for keys that have been added since."""
        wide = (0, keys - self.keys)
        return Observation(pad(self.columns, wide), pad(self.last_row, wide), self.keys)


class AttentionMemory:
    """The attention of every layer in the step before and in the running one; ``causal`` columns are running sums."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all attention, as a generation begins."""
        self.causal = False
        self._before: dict[str, dict[str, Observation]] = {}  # layer → how it was measured → attention
        self._unhidden: dict[str, Observation] = {}
        self._unhidden_before: dict[str, Observation] = {}

    def run_unhidden(self, session: Session) -> None:
        """Run the canvas of the running step once more with nothing hidden, and keep the attention of every layer."""
        self._unhidden_before = self._unhidden
        session.unhidden_pass(watcher := _UnhiddenWatcher())
        self._unhidden = watcher.found

    def keep(self, call: LayerCall, columns: Columns) -> Observation:
        """Keep the attention of a layer that has run; return it as it is without the hiding."""
        local = columns.sums if columns.local is None else columns.local
        local = self._added_up(call, "local", local, columns.last_row)
        hidden = self._added_up(call, "hidden", columns.sums, columns.last_row_in_force)
        self._before[call.name] = {"local": local, "hidden": hidden}
        return local

    def previous(self, call: LayerCall, measured: str) -> Observation | None:
        """Return the attention of this layer in the step before; None in the first step."""
        if measured == "clean":
            return self._unhidden_before.get(call.name)
        return self._before.get(call.name, {}).get(measured)

    def current(self, call: LayerCall, measured: str) -> Observation:
        """Return the attention of this layer in the running step, before anything is hidden in it."""
        if measured == "clean":
            return self._unhidden[call.name]
        assert call.measure is not None
        columns = call.measure()
        return self._added_up(call, "local", columns.sums, columns.last_row)

    def _added_up(self, call: LayerCall, measured: str, sums: Tensor, last_row: Tensor) -> Observation:
        """Return a causal model's running sums: behind a cache the columns of the steps before are added."""
        columns, before = sums[:, :, call.groups.index("all")], self._before.get(call.name, {}).get(measured)
        if self.causal and before is not None and call.query.shape[2] != call.keys:
            columns = columns + before.widened(call.keys).columns
        return Observation(columns, last_row, call.keys)


class _UnhiddenWatcher(Watcher):
    def __init__(self) -> None:
        self.found: dict[str, Observation] = {}

    def watch(self, call: LayerCall, columns: Columns) -> None:
        self.found[call.name] = Observation(columns.sums[:, :, call.groups.index("all")], columns.last_row, call.keys)


class PromptDraws:
    """Random numbers that belong to a prompt, whatever stands beside it in the batch of a generation's first step."""

    def __init__(self, context: StepContext) -> None:
        tokens, lengths = context.tokens.cpu(), context.lengths.tolist()
        self._digests = [
            blake2b(row[len(row) - own :].numpy().tobytes()).digest() for row, own in zip(tokens, lengths, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._digests)

    def draw(self, call: LayerCall, lengths: list[int], step: int, seed: int, groups: int) -> Tensor:
        """Return numbers from 0 to 1, [batch, group, key]; ``lengths`` are those of the rows."""
        on_host: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
        drawn = torch.zeros(len(self._digests), groups, call.keys, **on_host)
        for row, (digest, length) in enumerate(zip(self._digests, lengths, strict=True)):
            key = blake2b(digest + f"{seed} {step} {call.index}".encode(), digest_size=7).digest()
            source = torch.Generator("cpu").manual_seed(int.from_bytes(key, "big"))
            drawn[row, :, call.keys - length :] = torch.rand(groups, length, generator=source, **on_host)
        return upload(drawn, call.key.device)


Rule = Any
"""An `Intervention`, whose module imports this one."""


@dataclass(frozen=True, eq=False)
class RuleContext:
    """The knowledge with which a ``rule`` chooses the keys of one layer's ``call`` in one ``step`` of a canvas.

    Attributes:
        candidates: bool [batch, key], the keys that may be chosen; behind a sliding window those that it still holds.
        memory: values that the rule kept for this layer since the generation began; empty at first.
        attention, draws, token_classes: read by `seen`, `draw` and `classes`.
    """

    rule: Rule
    step: int
    call: LayerCall
    canvas: StepCanvas
    candidates: Tensor
    memory: dict[str, Any]
    attention: AttentionMemory
    draws: PromptDraws
    token_classes: TokenClasses

    @property
    def tokens(self) -> Tensor:
        """Token ids, int64 [batch, key]."""
        return self.canvas.tokens(self.call.key.device)

    @property
    def real(self) -> Tensor:
        """Bool [batch, key], False on padding."""
        return self.canvas.real(self.call.key.device)

    @property
    def causal(self) -> bool:
        """Whether columns are running sums over the queries so far."""
        return self.attention.causal

    def seen(self, observe: str, measured: str) -> Observation | None:
        """Return the attention of this layer as ``measured`` (`Observed`); None in the first step for ``previous``."""
        keys = self.call.keys
        look = {"previous": self.attention.previous, "current": self.attention.current}[observe]
        found = look(self.call, measured)
        if found is not None and found.keys > keys:
            what = f"expected no shorter canvas than then, found {keys} tokens behind {found.keys}"
            raise CallError(f"{self.rule} decides by the step before, {what}; decide by current")
        return None if found is None else found.widened(keys)

    @property
    def committing(self) -> Tensor | None:
        """Queries whose outputs may be committed in this step, bool [batch, query]; None where none will be: masked
        ones of the running block (one place to the left with a logit shift), in autoregressive models the newest.
        """
        readers = self.canvas.readers(self.call.key.device)
        return None if readers is None else readers[:, -self.call.query.shape[2] :]

    def received_from(self, queries: Tensor) -> Tensor:
        """Return the attention, [batch, head, key], that queries, bool [batch, query], give without hiding; a sweep."""
        queries = queries if queries.device == self.call.key.device else upload(queries, self.call.key.device)
        assert self.call.measure is not None
        return self.call.measure(queries.float()).sums[:, :, 0]

    def draw(self, seed: int, groups: int) -> Tensor:
        """Return random numbers [batch, group, key]: a function of seed, prompt, step and layer alone."""
        return self.draws.draw(self.call, self.canvas.lengths, self.step, seed, groups)

    def among(self, where: str | Collection[int]) -> Tensor:
        """Return a group of keys, or the keys at positions of the canvas (padding not counted), bool [batch, key]."""
        return self.canvas.among(where, self.call.key.device)

    def classes(self, classify: Callable[[int], str] | None) -> dict[str, Tensor]:
        """Return where the tokens of each class stand, bool [batch, key]; the first call in a step waits for a GPU."""
        return self.token_classes.places(self.canvas, self.call.key.device, classify)

    def of_class(self, name: str, classify: Callable[[int], str] | None = None) -> Tensor:
        """Return where tokens stand whose class (of `sinks.token_classes.CLASSES`, or of ``classify``) has this name."""
        places = self.classes(classify)
        return self.real & places[name] if name in places else torch.zeros_like(self.real)
