"""Records of attention (calls, steps, layers), and the subscribers that watch, hide, prepend or replace."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Prefix:
    """Constant keys in front of all others, seen by every query (a folded sink token, or a learned logit).

    Attributes:
        keys: [kv_head, count, dim], or with a batch axis in front, already rotated.
        values: in the shape of the keys; None for values of zero.
        logits: [head, count], scores that do not depend on the query, in place of ``keys``.
    """

    keys: Tensor | None = None
    values: Tensor | None = None
    logits: Tensor | None = None

    @property
    def count(self) -> int:
        if self.keys is None:
            return 0 if self.logits is None else self.logits.shape[-1]
        return self.keys.shape[-2]


@dataclass(frozen=True, eq=False)
class Hidden:
    """Keys taken away in one layer.

    Attributes:
        keys: bool [1 or batch, 1 or head, 1 or query, key], True where a key is taken away.
        queries: bool [1 or batch, query], which queries lose them; all of them when None.
        zeroed: whether the output loses their share, as weights become 0 after the softmax; else the other keys get it.
        front: whether the constant keys in front (`Prefix`) are taken away too.
        heads: bool [head], which heads lose them, those in front included; all of them when None.
    """

    keys: Tensor
    queries: Tensor | None = None
    zeroed: bool = False
    front: bool = False
    heads: Tensor | None = None


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The inputs of one call of attention, as `attend` describes them; query and key after rotation."""

    query: Float[Tensor, "batch head query dim"]
    key: Float[Tensor, "batch kv_head key dim"]
    value: Float[Tensor, "batch kv_head key value_dim"]
    groups: Float32[Tensor, "batch group query"]
    scale: float
    mask: Tensor | None = None
    causal: bool = False
    hidden: Sequence[Hidden] = ()
    prefix: Prefix | None = None

    @property
    def own_key(self) -> int:
        """The key of query 0 itself, which may be none of the keys; that of query i is ``own_key`` + i."""
        return 0 if self.causal else self.key.shape[2] - self.query.shape[2]

    @property
    def needs_gradient(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        constants = () if self.prefix is None else (self.prefix.keys, self.prefix.values, self.prefix.logits)
        given = (self.query, self.key, self.value, self.mask, *constants)
        return any(one is not None and one.requires_grad for one in given)

    def seen(self) -> Tensor:
        """Return the keys that each query sees by mask and flag, bool [1 or batch, 1 or head, query, key]."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        found = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=self.query.device)
        found = found.tril(keys - queries) if self.causal else found
        return found if self.mask is None else found & visible(self.mask)


@dataclass(frozen=True, eq=False)
class Columns:
    """The results of attention besides its output; float32, in queries' worth of attention (each query gives 1).

    Attributes:
        sums: [batch, head, group, key], column sums as they took effect.
        local: [batch, head, group, key], the same queries and keys without the hiding; None when nothing was hidden.
        diagonal: [batch, head, query], each query's attention on itself.
        last_row: [batch, head, key], the newest query's own attention, without the hiding.
        last_row_in_force: the same as it took effect.
        removed: [batch, head, query], the share, without the hiding, of the keys that a query lost; None as `local`.
        prefix: [batch, head, group, count], column sums of the constant keys in front.
        path: the implementation that ran, see `dispatch`.
    """

    sums: Tensor
    local: Tensor | None
    diagonal: Tensor
    last_row: Tensor
    last_row_in_force: Tensor
    removed: Tensor | None
    prefix: Tensor | None
    path: Literal["sweep", "triton", "flash", "cudnn"]


class KernelError(Exception):
    """The kernels cannot be compiled or launched on this device; nothing was computed."""


@dataclass(frozen=True)
class GenerationStart:
    """The start of a generation.

    Attributes:
        prompt_lengths: tokens of each prompt, without padding; one entry per recorded row.
        causal: columns are running sums over the queries so far.
        sampler: name of the sampler, and its settings as plain values.
        prompts: the texts, where the prompts came as text.
        mask_id: the mask token, None for autoregressive models.
    """

    prompt_lengths: tuple[int, ...]
    causal: bool
    sampler: Mapping[str, Any]
    prompts: tuple[str | None, ...]
    mask_id: int | None = None


@dataclass(frozen=True, eq=False)
class StepContext:
    """The input of one forward call.

    Attributes:
        tokens: int64 [batch, position], the canvas, left padding included; with a cache all tokens so far.
        masked: bool [batch, position], where the canvas holds the mask token.
        lengths: int64 [batch], real tokens of each row, which are at its right end; on the host: reading a GPU waits.
        rows: which rows of the batch are to be recorded, one per prompt still being written.
        prompts: for each of these rows, the number of its prompt in `GenerationStart`.
        stack: module path of the stack that is called, None where a sampler published the step.
        causal: whether queries see only earlier tokens; if None, `GenerationStart` decides.
        prompt_lengths: of this stack, where it reads other prompts than the generation (a decoder beside an encoder).
        readers: bool [batch, position], the queries from whose outputs a token may be committed in this step, if known.
        final_queries: in block diffusion behind a cache, whether later steps read the keys and values of these queries
            instead of computing them again; None for any other sampler.
    """

    tokens: Tensor
    masked: Tensor
    lengths: Tensor
    rows: tuple[int, ...]
    prompts: tuple[int, ...]
    stack: str | None = None
    causal: bool | None = None
    prompt_lengths: tuple[int, ...] | None = None
    readers: Tensor | None = None
    final_queries: bool | None = None


@dataclass(frozen=True, eq=False)
class CallPart:
    """The part of a step's canvas that a call computes, where keys and values of the rest are stored.

    Attributes:
        rows: int64 [row], numbers of its rows in the batch.
        queries: int64 [row, query], positions of its queries, padding counted; −1 for a query that only fills up a row.
        whole: whether they are the newest positions, in order, with all tokens of these rows among them.
    """

    rows: Tensor
    queries: Tensor
    whole: bool = False

    def of(self, members: Tensor) -> Tensor:
        """Return memberships of the whole canvas [batch, group, position] for its queries, [row, group, query]."""
        places = self.queries[:, None].expand(-1, members.shape[1], -1)
        return members[self.rows].gather(-1, places.clamp(min=0)) * (places >= 0)

    def spread(self, values: Tensor, length: int) -> Tensor:
        """Return values [row, …, query] over the whole canvas, [row, …, position], NaN where nothing was computed."""
        whole = values.new_full((*values.shape[:-1], length + 1), torch.nan)
        places = torch.where(self.queries < 0, length, self.queries)
        places = places.view(len(places), *[1] * (values.ndim - 2), -1).expand_as(values)
        return whole.scatter(-1, places, values)[..., :length]


@dataclass(frozen=True, eq=False)
class StepResult:
    """The result of one step, [batch, position] as `StepContext.tokens`; an autoregressive step writes one more.

    Attributes:
        written: int64, the token committed in this step, −1 elsewhere.
        predicted: int64, the token that would be committed, −1 where not computed.
        confidence: float32, NaN where not computed.
        readers: bool, the queries from whose outputs the committed tokens were read.
    """

    written: Tensor
    predicted: Tensor | None = None
    confidence: Tensor | None = None
    readers: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One call of the attention of one layer; columns and hidden keys cover all tokens so far, `keys` of them.

    Attributes:
        name: module path of the attention module.
        index: of the layer in its stack.
        query: [batch, head, query, dim], after rotation.
        key, value: [batch, kv_head, key, dim], the key after rotation.
        hidden_states: [batch, query, width], the input of the layer; None where it is not visible.
        groups: names of the query groups, in the order of `Columns.sums`.
        membership: float32 [batch, group, query].
        stack: module path of the stack the layer belongs to.
        first_key: index of the first of these keys among the tokens so far; a sliding window holds only the newest.
        crossing: whether the keys are tokens of another stack (cross-attention).
        measure: computes the columns of this layer with nothing hidden, in a separate pass before the layer runs; of
            one query group if given its members, float32 [batch, query].
        own: the network's own constant keys in front (a sink token, a learned logit).
        part: the part of the canvas that is computed, under a cache that holds the rest; None for all of it.
        seen: gives bool [1 or batch, 1 or head, query, key], the keys that each query sees, those included that rules
            hide; like ``scale``, of the scores, None before the layer has run.
    """

    name: str
    index: int
    query: Tensor
    key: Tensor
    value: Tensor
    hidden_states: Tensor | None
    groups: tuple[str, ...] = ()
    membership: Tensor | None = None
    stack: str = ""
    first_key: int = 0
    crossing: bool = False
    measure: Callable[..., Columns] | None = None
    own: Prefix | None = None
    part: CallPart | None = None
    seen: Callable[[], Tensor] | None = None
    scale: float | None = None

    @property
    def keys(self) -> int:
        """Number of tokens that columns cover, those that the layer no longer holds included."""
        return self.first_key + self.key.shape[2]


class Subscriber(ABC):  # noqa: B024 - the verbs are on the kinds below
    """Events of a generation, in this order: its begin, each step with all its layers, its end."""

    def begin_generation(self, start: GenerationStart) -> None:  # noqa: B027
        """A generation begins."""

    def begin_step(self, context: StepContext) -> None:  # noqa: B027
        """A forward call is about to run."""

    def end_step(self, result: StepResult | None) -> None:  # noqa: B027
        """The step is over; None where nobody published its result (a foreign ``generate``)."""

    def end_generation(self, failed: bool) -> None:  # noqa: B027
        """The generation is over, or was given up."""

    def layer_state(self) -> Any:
        """Return what the layers of the running step read and write: tensors, and all else that they go by, in tuples,
        lists and dictionaries. None where they do more than queue work on these tensors: the step is not captured.
        """
        return None

    def set_layer_state(self, state: Any, context: StepContext) -> None:  # noqa: B027
        """Go on as if the layers had left what `layer_state` gave, of the same step or of one laid out as it."""


class Watcher(Subscriber):
    """Sees the columns of every layer."""

    groups: tuple[str, ...] = ("all",)

    @abstractmethod
    def watch(self, call: LayerCall, columns: Columns) -> None:
        """One layer has run. All subscribers get the same columns, so none may change them."""


class Hider(Subscriber):
    """Takes keys away, before the softmax unless `Hidden` says otherwise."""

    @abstractmethod
    def hide(self, call: LayerCall) -> Tensor | Sequence[Hidden] | None:
        """Bool [1 or batch, 1 or head, key], True where a key is taken away; several `Hidden`; or None."""

    def observes(self, call: LayerCall) -> bool:
        """Whether the columns of this layer are needed even if nothing is hidden in it."""
        return False

    def observe(self, call: LayerCall, columns: Columns) -> None:
        """One layer has run, with something hidden in it or with columns that somebody needs."""

    def describe(self, prompt: int) -> dict[str, Any]:
        """Plain values for the manifest of a trace: the rule, and its effect on this prompt so far."""
        return {"rule": type(self).__name__}


class Prepender(Subscriber):
    """Puts constant keys in front; at most one per model."""

    @abstractmethod
    def prepend(self, call: LayerCall) -> Prefix | None:
        """The constant keys of this layer."""


class Replacer(Subscriber):
    """Gives keys and values other contents; several of them in turn."""

    @abstractmethod
    def replace(self, call: LayerCall) -> tuple[Tensor, Tensor] | None:
        """Rotated keys and values [batch, kv_head or head, key, dim] in the place of the call's, or None."""


def visible(mask: Tensor) -> Tensor:
    """Return where a boolean or additive mask lets queries see keys, bool of its shape."""
    return mask if mask.dtype == torch.bool else ~(mask <= torch.finfo(mask.dtype).min / 2)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a small tensor of the host on a device; a GPU gets it from pinned memory, without a wait."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
