"""`fold`: the keys and values that a model's sink tokens have in each layer, stored in place of their embedding.

They do not depend on the text, so a folded model computes no row for its sink tokens. Keys are stored before rotation,
because the position of a token at the end depends on the length of the text, and as fp32.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import CallError, ModelError
from sinkscope.models.devices import own_defaults
from sinkscope.models.folders import find_folder, read_config
from sinkscope.models.loading import load
from sinkscope.models.sink_token import KEY, SinkToken, constant_keys
from sinkscope.models.tokenization import copy_files, template_files
from sinkscope.models.weights import INDEX, SINGLE
from sinkscope.runs.files import sealed, write_whole
from sinkscope.runs.folder import new_folder

EMBEDDING, KEYS, VALUES = (f"model.sink_token.{name}" for name in ("embedding", "keys", "values"))


@own_defaults()
def fold(name: str, out: Path) -> Path:
    """Write a copy of a model whose sink tokens are constants, and return its folder; ``name`` is as for `load`."""
    from safetensors.torch import load_file, save

    with new_folder(out, ModelError, "the folded model", "config.json") as place:
        folder = find_folder(name)
        network = load(folder, dtype=torch.float32).network
        variant = _foldable(network, name)
        with torch.no_grad():
            keys, values = constant_keys(network.model)
        constants = {KEYS: keys} | ({} if values is None else {VALUES: values})
        index = json.loads((folder / INDEX).read_text()) if (folder / INDEX).exists() else None
        home = SINGLE if index is None else index["weight_map"].pop(EMBEDDING)
        weights = load_file(folder / home)
        removed = weights.pop(EMBEDDING)
        tensors = {key: tensor.contiguous() for key, tensor in (weights | constants).items()}
        written = {home: sealed(save(tensors, metadata={"format": "pt"}))}
        if index is not None:
            index["weight_map"] |= dict.fromkeys(constants, home)
            if "total_size" in index.get("metadata", {}):
                index["metadata"]["total_size"] += sum(one.nbytes for one in constants.values()) - removed.nbytes
            written[INDEX] = [f"{json.dumps(index, indent=2)}\n".encode()]
        config = read_config(folder) | {KEY: asdict(replace(variant, folded=True))}
        written["config.json"] = [f"{json.dumps(config, indent=2)}\n".encode()]
        files = {path for path in folder.iterdir() if path.is_file() and path.name not in written}
        copy_files({*files, *template_files(folder)}, folder, place)
        for file, pieces in written.items():
            write_whole(place / file, pieces, ModelError, "make room or choose another folder")
    return out


def _foldable(network: Any, name: str) -> SinkToken:
    variant: SinkToken | None = getattr(getattr(network.model, "sink_token", None), "variant", None)
    if variant is None or variant.kind != "token" or variant.folded:
        found = "none" if variant is None else repr(variant.name)
        raise CallError(f"{name}: expected a sink token that can be folded, found {found}")
    if not network.model.sink_token.trained:
        found = f"{variant.name!r} with its initial values of seed {variant.seed}"
        raise CallError(f"{name}: expected a trained sink token, found {found}; train the model first")
    return variant
