"""The record of a family of checkpoints: all data that loading and decoding need about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.models.layouts import Layout


@dataclass(frozen=True)
class PublishedShape:
    """The size of published checkpoints; a model with their layers, width and vocabulary is taken for one of them.

    `sinkscope check` compares its number of ``parameters``.
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
        name: in the literature; a folder that transformers saved again keeps it in its config.json.
        causal: whether a token attends only to the tokens before it.
        sampler: the module of `sinkscope.decoding` that writes with it.
        model_types: values of ``model_type`` in its config.json files. ``llama`` and ``qwen2`` are folders in
            transformers' own layout: a causal family claims the causal ones, another family those with ``is_causal``
            false.
        source: where its settings were read.
        layout: config keys and tensor names of its published folders; None where they are transformers' own.
        architectures: names of the network in its published config.json files; another name is refused.
        claims: whether a config.json with another family's ``model_type`` is of this one.
        network: ``module:Class``, where no network of transformers computes it.
        tokenizer_classes: names of Qwen2Tokenizer in its tokenizer_config.json.
        shift: whether the logits of a position predict the token after it, as in a causal model.
        mask_text: the text of the mask token in the published tokenizers.
        end_of_turn: the token that ends a turn of a conversation, beside EOS.
        chat_template, chat_tokens: Jinja for tokenizers without a template, and the control tokens that it needs; a
            base model's tokenizer lacks them.
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
