"""`model_of`: a `Model` around a network that is in memory, such as one that is being trained."""

from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models.conversion import convert_config
from sinkscope.models.layouts import MARK, STOCK
from sinkscope.models.model import Model, ModelCard
from sinkscope.models.recognition import recognise
from sinkscope.models.sink_token import split_config

PLAIN = "llada"
"""The family of a bidirectional network in transformers' own layout that names none: each masked token is read at its
own place.
"""
IN_MEMORY = "in memory"
"""The weight hash of a network that was not read from files."""


def model_of(network: Any, tokenizer: Any = None, *, name: str = "network") -> Model:
    """Return a model around a network, whose weights are shared, not copied.

    Args:
        network: a transformers Llama or Qwen2; a bidirectional one has ``is_causal`` False and a ``mask_token_id``.
        tokenizer: gives tokens their texts; None where only token ids are used.

    Raises:
        ModelError: its config belongs to no family, or it predicts no tokens.
    """
    head = getattr(network, "get_output_embeddings", lambda: None)()
    if head is None:
        raise ModelError(
            f"{name}: expected a network that predicts tokens, such as LlamaForCausalLM, found {type(network).__name__}"
        )
    config, variant = split_config(network.config.to_dict() | {"architectures": None}, name)
    if config.get("is_causal") is False and config.get("model_type") in STOCK:
        config = {MARK: PLAIN, **config}
    family = recognise(config, name)
    converted = convert_config(config, family, name)
    weights = next(network.parameters())
    dtype = str(weights.dtype).removeprefix("torch.")
    card = ModelCard.of(
        network,
        name=name,
        family=family.name,
        weight_hash=IN_MEMORY,
        stored_dtype=dtype,
        dtype=dtype,
        mask_id=converted.mask_id,
        eos_id=converted.eos_ids[0] if converted.eos_ids else None,
        eos_ids=converted.eos_ids if len(converted.eos_ids) > 1 else (),
        sink_token=None if variant is None else variant.name,
    )
    return Model(network, tokenizer, family, card)
