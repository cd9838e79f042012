"""The records that cross the seam: what decoding publishes, and what a layer's attention shows to who watches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sinkscope.attention.sweep import Columns, Prefix


@dataclass(frozen=True)
class GenerationStart:
    """A generation begins; state from an earlier one is void.

    Attributes:
        prompt_lengths: tokens of each prompt, without padding; one entry per recorded row.
        final_length: positions of the longest canvas once it is written.
        causal: columns are running sums over the queries so far.
        sampler: name of the sampler, and its settings as plain values.
        prompts: the texts, where the prompts came as text.
        mask_id: the mask token, None for autoregressive models.
    """

    prompt_lengths: tuple[int, ...]
    final_length: int
    causal: bool
    sampler: Mapping[str, Any]
    prompts: tuple[str | None, ...]
    mask_id: int | None = None


@dataclass(frozen=True)
class StepContext:
    """What goes into one forward call.

    Attributes:
        tokens: int64 [batch, position], the canvas, left padding included; behind a cache all tokens so far.
        masked: bool [batch, position], where the canvas holds the mask token.
        lengths: int64 [batch], real tokens of each row; they stand at the right end. On the host: asking a GPU would wait.
        rows: which rows of the batch are to be recorded, one per prompt still being written.
        prompts: for each of these rows, the number of its prompt in `GenerationStart`.
        stack: module path of the stack that is called, None where a sampler published the step.
        causal: whether queries see only what stands before them; None is as `GenerationStart` says.
        prompt_lengths: of this stack, where it reads other prompts than the generation (a decoder beside an encoder).
    """

    tokens: Tensor
    masked: Tensor
    lengths: Tensor
    rows: tuple[int, ...]
    prompts: tuple[int, ...]
    stack: str | None = None
    causal: bool | None = None
    prompt_lengths: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StepResult:
    """What one step led to, in the coordinates of `StepContext.tokens` (left padding included), all rows of it.

    An autoregressive step writes one position beyond the tokens it read.

    Attributes:
        written: int64 [batch, position], the token committed in this step, −1 elsewhere.
        predicted: int64 [batch, position], what would be committed, −1 where not computed.
        confidence: float32 [batch, position], NaN where not computed.
    """

    written: Tensor
    predicted: Tensor | None = None
    confidence: Tensor | None = None


@dataclass(frozen=True)
class LayerCall:
    """One call of the attention of one layer.

    Keys stand at `first_key`, `first_key` + 1 …: a layer with a sliding window holds the newest tokens only. Columns
    and hidden keys go over all tokens so far, `keys` of them.

    Attributes:
        name: module path of the attention module.
        index: its place among the layers of its stack.
        query: [batch, head, query, dim], after rotation.
        key: [batch, kv_head, key, dim], after rotation.
        value: [batch, kv_head, key, dim].
        hidden_states: [batch, query, width], what entered the layer; None where the model does not show it.
        groups: names of the query groups, in the order of `Columns.sums`.
        membership: float32 [batch, group, query].
        stack: module path of the stack the layer belongs to.
        first_key: place of the first of these keys among the tokens so far.
        crossing: whether the keys are another stack's tokens (cross-attention).
        measure: the columns of this layer with nothing hidden, by a sweep of their own; for who needs them before
            the layer has run.
        own: constant keys in front that the network itself brings (a sink token, a learned logit).
    """

    name: str
    index: int
    query: Tensor
    key: Tensor
    value: Tensor
    hidden_states: Tensor | None
    groups: tuple[str, ...] = ()
    membership: Tensor | None = field(default=None)
    stack: str = ""
    first_key: int = 0
    crossing: bool = False
    measure: Callable[[], Columns] | None = None
    own: Prefix | None = None

    @property
    def keys(self) -> int:
        """How many tokens columns go over, those no longer held included."""
        return self.first_key + self.key.shape[2]
