"""The record of a family of checkpoints: all data that loading and decoding need about it. It contains no code that
runs.

The records are in `sinkscope.models.families`, one file each. A new file there is a new family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.models.layouts import Layout


@dataclass(frozen=True)
class PublishedShape:
    """The size of a published checkpoint; `sinkscope check` compares a loaded model with it.

    Attributes:
        checkpoints: hub ids.
        parameters: the number of parameters.
        layers, hidden_size, vocabulary: a loaded model with these three is taken for one of the checkpoints.
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
        name: the family's name in the literature. A folder that was saved again in transformers' layout keeps it in its
            config.json.
        causal: whether a token attends only to the tokens before it.
        sampler: the module of `sinkscope.decoding` that writes with it.
        model_types: values of ``model_type`` in the config.json files of the family. ``llama`` and ``qwen2`` stand for
            folders in transformers' own layout: a causal family claims the causal ones, another family those with
            ``is_causal`` false.
        source: where its settings were read.
        layout: how its published folders are written: config keys and tensor names. None where they are in
            transformers' layout only.
        architectures: what its published config.json files may call the network; another name is refused.
        claims: returns whether a config.json is of this family although its ``model_type`` is that of another family.
        network: ``module:Class`` of the network, where neither Llama nor Qwen2 of transformers computes it.
        tokenizer_classes: names that its tokenizer_config.json may give to byte pairs in vocab.json and merges.txt.
            They are read by transformers' Qwen2Tokenizer; a class of such a name in the folder is never run.
        shift: whether the logits of a position predict the token after it, as in a causal model.
        mask_text: the text of the mask token in the published tokenizers.
        end_of_turn: the token that ends a turn of a conversation in the published checkpoints.
        chat_template: Jinja, used where the tokenizer has no template of its own.
        chat_tokens: control tokens that the template needs; a tokenizer without them belongs to a base model.
        shapes: sizes of the published checkpoints.
    """

    name: str
    causal: bool
    sampler: str
    model_types: tuple[str, ...]
    source: str
    layout: Layout | None = None
    architectures: tuple[str, ...] = ()
    claims: Callable[[Mapping[str, Any]], bool] | None = None
    network: str | None = None
    tokenizer_classes: tuple[str, ...] = ()
    shift: bool = False
    mask_text: str | None = None
    end_of_turn: int | None = None
    chat_template: str | None = None
    chat_tokens: tuple[str, ...] = ()
    shapes: tuple[PublishedShape, ...] = ()
