"""What sinkscope knows about a family of checkpoints, as one frozen record each; nothing here runs.

The records themselves are in `families`, how their folders are written is in `layouts`.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the published checkpoints; None where there is none. A checkpoint's own config.json decides.

    Attributes:
        mask, eos, pad, bos: ids.
        end_of_turn: token that ends a turn of a conversation.
        mask_text: text of the mask token in the tokenizer.
    """

    mask: int | None = None
    eos: int | None = None
    pad: int | None = None
    bos: int | None = None
    end_of_turn: int | None = None
    mask_text: str | None = None


@dataclass(frozen=True)
class PublishedShape:
    """Size of a published checkpoint: the table that `sinkscope check` counts against.

    Attributes:
        checkpoints: hub ids.
        parameters: how many numbers.
        layers, hidden_size, vocabulary: by which a loaded model is known to be one of them.
    """

    checkpoints: tuple[str, ...]
    parameters: int
    layers: int
    hidden_size: int
    vocabulary: int


@dataclass(frozen=True)
class Family:
    """A family of checkpoints.

    Attributes:
        name: as the field calls it.
        causal: each token sees only those before it.
        sampler: which loop of `sinkscope.decoding` writes with it.
        recognised: ``model_type`` of the config.json files it claims.
        source: where its settings were read.
        shift: the logits of a position predict the token after it, as in a causal model (Dream).
        architectures: of its published config.json files; another one is refused.
        tokens: special tokens of the published checkpoints.
        chat_template: Jinja, used where the tokenizer brings none.
        chat_tokens: control tokens the template needs; a tokenizer without them belongs to a base model.
        shapes: sizes of the published checkpoints.
    """

    name: str
    causal: bool
    sampler: Literal["llada", "mmada", "dream", "autoregressive"]
    recognised: tuple[str, ...]
    source: str
    shift: bool = False
    architectures: tuple[str, ...] = ()
    tokens: SpecialTokens = SpecialTokens()
    chat_template: str | None = None
    chat_tokens: tuple[str, ...] = ()
    shapes: tuple[PublishedShape, ...] = ()
