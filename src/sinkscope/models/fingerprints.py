"""Fingerprints of a model: hashes of its weights, its tokenizer and its shape, by which a run is known again."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.errors import CallError
from sinkscope.models.model import Model
from sinkscope.runs.folder import CONFIG, TOKENIZER, WEIGHTS

_PIECE = 1 << 22
SAMPLE = 256  # numbers of each tensor, evenly spaced, that are compared to see whether weights were changed
_LOADED = "_sinkscope_loaded_weights"  # attribute of a loaded network with these numbers, so that copies have them too
_VOLATILE = ("_name_or_path", "transformers_version", "use_cache", "output_attentions", "output_hidden_states")
"""Keys of a configuration that change no logits."""


def fingerprints(model: Model) -> dict[str, str]:
    """Return the sha256 of a model's weights, of its tokenizer with the chat template, and of its configuration."""
    tokenizer, config = model.tokenizer, model.network.config
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:  # in Python, or the caller's own
        parts = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else None
    else:  # but how its last call was asked to cut and fill texts
        parts = {name: one for name, one in json.loads(fast.to_str()).items() if name not in ("truncation", "padding")}
    return {
        WEIGHTS: hash_memory(model.network),
        TOKENIZER: _hash([parts, getattr(tokenizer, "chat_template", None)]),
        CONFIG: _hash({name: value for name, value in config.to_dict().items() if name not in _VOLATILE}),
    }


def weight_hash_of(model: Model) -> str:
    """Return the hash of a model's weights: of its files, or `hash_memory` where they were changed after loading."""
    return hash_memory(model.network) if were_changed(model.network, model.card.weight_hash) else model.card.weight_hash


def hash_memory(network: torch.nn.Module) -> str:
    """Return a hash of the weights in memory, the same on every device; of sums, so that it takes seconds."""
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


def hash_stored(config: Mapping[str, Any]) -> str:
    """Return the sha256 of a config.json, the same in whatever float type the network is loaded."""
    return _hash({name: one for name, one in config.items() if name not in (*_VOLATILE, "dtype", "torch_dtype")})


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def note_loaded(network: nn.Module, weight_hash: str) -> None:
    """Note the weights of a network that has just been loaded, and the hash of their files."""
    setattr(network, _LOADED, (weight_hash, _sample(network)))


def were_changed(network: nn.Module, weight_hash: str | None = None) -> bool:
    """Return whether weights of a loaded network, a copy of one or an adapter around one were replaced, added or
    written into, or are not of the files with this ``weight_hash``; a cast changes none.
    """
    noted = next((one for module in network.modules() if (one := getattr(module, _LOADED, None)) is not None), None)
    if noted is None:
        return False
    of_files, before = noted
    if weight_hash not in (None, of_files):
        return True
    now = _sample(network)
    same = (torch.equal(one.to(two.dtype), two) for one, two in zip(before, now, strict=False))
    return len(before) != len(now) or not all(same)


@torch.no_grad()
def _sample(network: nn.Module) -> list[Tensor]:
    weights = [one.detach() for one in network.parameters() if not one.is_meta]
    return [one.flatten()[:: max(1, one.numel() // SAMPLE)].clone().cpu() for one in weights]


class SameWeights:
    """Compares the weights of a network with those at the first call of `check`."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._first: list[Tensor] = []

    def check(self, what: str) -> None:
        """Raise CallError where weights were changed, or cast, since the first call; ``what`` needs the same ones."""
        now = _sample(self._network)
        self._first = self._first or now
        same = (one.dtype == two.dtype and torch.equal(one, two) for one, two in zip(now, self._first, strict=False))
        if len(now) != len(self._first) or not all(same):
            raise CallError(f"{what}: expected the weights of the first prompt, found others; record each in a folder")
