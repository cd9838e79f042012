"""What decides a model's answers beside its name: hashes of its weights in memory, its tokenizer and its shape, to know a run again by."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from sinkscope.models.loaded_weights import were_changed
from sinkscope.models.model import Model
from sinkscope.work_items import CONFIG, TOKENIZER, WEIGHTS

_PIECE = 1 << 22
_VOLATILE = ("_name_or_path", "transformers_version", "use_cache", "output_attentions", "output_hidden_states")
"""Keys of a configuration that change no logits."""
_FLOAT_TYPE = ("dtype", "torch_dtype")
_STATE = ("truncation", "padding")
"""Of a tokenizer: how its last call was asked to cut and fill texts."""


def fingerprints(model: Model) -> dict[str, str]:
    """Return a sha256 by the name of what it is of: weights, tokenizer and chat template, configuration."""
    return {
        WEIGHTS: hash_memory(model.network),
        TOKENIZER: hash_tokenizer(model.tokenizer),
        CONFIG: hash_config(model.network.config),
    }


def weight_hash_of(model: Model) -> str:
    """Return the hash of a model's weights: that of its files, or `hash_memory` where they were changed after they were loaded."""
    return hash_memory(model.network) if were_changed(model.network, model.card.weight_hash) else model.card.weight_hash


def hash_memory(network: torch.nn.Module) -> str:
    """Return a hash of the weights as they are in memory, the same on every device; it is made of sums, so that it takes seconds."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        width = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(tensor.element_size(), torch.int64)
        bits = tensor.detach().contiguous().reshape(-1).view(width)
        for piece in bits.split(_PIECE):
            places = torch.arange(1, len(piece) + 1, device=piece.device)
            digest.update(f" {int((piece * places).sum())}".encode())
    return digest.hexdigest()


def hash_tokenizer(tokenizer: Any) -> str:
    """Return the sha256 of a tokenizer and its chat template."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:  # in Python, or the caller's own
        parts = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else None
    else:
        parts = {name: part for name, part in json.loads(fast.to_str()).items() if name not in _STATE}
    return _hash([parts, getattr(tokenizer, "chat_template", None)])


def hash_config(config: Any) -> str:
    """Return the sha256 of what a network was built by."""
    return _hash({name: value for name, value in config.to_dict().items() if name not in _VOLATILE})


def hash_stored(config: Mapping[str, Any]) -> str:
    """Return the sha256 of a config.json, the same in whatever float type the network is loaded."""
    return _hash({name: value for name, value in config.items() if name not in (*_VOLATILE, *_FLOAT_TYPE)})


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
