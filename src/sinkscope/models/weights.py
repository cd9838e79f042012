"""The weights of a folder by the headers of its files, so that one that does not fit is refused before it is loaded."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sinkscope.errors import ModelError
from sinkscope.models.family import Layout
from sinkscope.runs.files import read_json_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the header of a file describes it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class UsedTensors:
    """Counts that show that a network's weights are those of a folder: tensors, parameters, and renamed ones."""

    files: tuple[str, ...]
    stored: int
    used: int
    renamed: int


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights: those that its index names, else ``model.safetensors``."""
    if folder.is_file():
        return [folder]
    names = index_files(folder)
    files = [folder / name for name in names or [SINGLE]]
    if names and (folder / SINGLE).exists() and SINGLE not in names:
        raise ModelError(f"{folder}: found two sets of weights, {SINGLE} and those of {INDEX}; remove one of them")
    if missing := [path.name for path in files if not path.is_file()]:
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".ckpt"})
        advice = f"; {pickled[0]} is a pickle, which can run code: convert it to safetensors first" if pickled else ""
        raise ModelError(f"{folder}: expected weights in {', '.join(missing)}, found {listing(folder)}{advice}")
    return files


def index_files(folder: Path) -> list[str]:
    """Return the names of the files that the index of a folder lists, in order; none where there is no index."""
    if not (folder / INDEX).exists():
        return []
    names: dict[str, str] = read_json_object(folder / INDEX, ModelError, "fetch the file again").get("weight_map", {})
    outside = [file for file in names.values() if Path(file).name != file or not file.endswith(".safetensors")]
    if outside or not names:
        raise ModelError(f"{folder / INDEX}: weight_map: expected safetensors of this folder, found {outside[:1]}")
    return sorted(set(names.values()))


def listing(folder: Path) -> str:
    """Return the names of the files in a folder, for an error message."""
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") if names else "an empty folder"


def read_headers(files: list[Path]) -> dict[str, StoredTensor]:
    """Return every tensor of the files by its stored name; raise ModelError for a damaged file or a tensor in two."""
    stored: dict[str, StoredTensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="np") as header:
                slices = {name: header.get_slice(name) for name in header.keys()}  # noqa: SIM118 - no dict
                found = {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
        except (SafetensorError, OSError) as error:
            advice = "fetch the file again, after a git clone by `git lfs pull`"
            raise ModelError(f"{file}: expected whole safetensors, found damage ({error}); {advice}") from error
        for name, (dtype, shape) in found.items():
            if dtype not in DTYPES:
                kinds = ", ".join(DTYPES)
                raise ModelError(f"{file}: {name}: expected {kinds}, found {dtype}; quantised weights are not read")
            if name in stored:
                raise ModelError(f"{file}: {name}: expected once, found it in {stored[name].file.name} as well")
            stored[name] = StoredTensor(file, dtype, shape)
    return stored


def kept_tensors(network: Any) -> dict[str, Any]:
    """Return the parameters of a network, tied ones once, and the buffers that are saved, by name."""
    saved = network.state_dict()
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in saved}
    return {**dict(network.named_parameters()), **buffers}


def stored_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a network's parameters as they are stored: experts, which transformers joins, one by one."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        front, experts, part = name.rpartition(".experts.")
        if not experts or len(shape) != 3:
            found[name] = shape
            continue
        parts = {"down_proj": shape[1:]}
        if part != "down_proj":
            parts = dict.fromkeys(("gate_proj", "up_proj"), (shape[1] // 2, shape[2]))
        for number in range(shape[0]):
            found |= {f"{front}.experts.{number}.{one}.weight": size for one, size in parts.items()}
    return found


def match_tensors(
    stored: Mapping[str, StoredTensor], network: Any, layout: Layout, model_type: Any, folder: Path
) -> UsedTensors:
    """Count the stored tensors; raise ModelError for one that is missing, unused or of another shape in the network."""
    shapes = stored_shapes({name: tuple(tensor.shape) for name, tensor in kept_tensors(network).items()})
    ours = {name: rename_tensor(name, layout.tensors) for name in stored}
    published = {name: theirs for theirs, name in layout.tensors.items()}
    held = {name: theirs for theirs, name in ours.items()}
    problems = {
        "missing": [f"{rename_tensor(name, published)} {shapes[name]}" for name in shapes if name not in held],
        "unused": [
            f"{name} {one.shape} in {one.file.name}"
            for name, one in sorted(stored.items(), key=lambda named: named[0])
            if ours[name] not in shapes or held[ours[name]] != name
        ],
        "of another shape": [
            f"{held[name]} {one.shape} instead of {shape} in {one.file.name}"
            for name, shape in shapes.items()
            if name in held and (one := stored[held[name]]).shape != shape
        ],
    }
    found = "; ".join(f"{len(names)} {what}: {', '.join(names[:3])}" for what, names in problems.items() if names)
    if found:
        if "lm_head.weight" in held and "lm_head.weight" not in shapes:
            found += "; config.json says that the embedding is its output layer: correct that, or remove the tensor"
        raise ModelError(
            f"{folder}: expected exactly the weights of {model_type} in the shapes of config.json, found {found}"
        )
    renamed = sum(name != theirs for theirs, name in ours.items())
    files = tuple(dict.fromkeys(one.file.name for one in stored.values()))
    return UsedTensors(files, len(stored), len(shapes), renamed)


def on_meta(kind: Any, config: Any) -> Any:
    """Return a network without memory."""
    with torch.device("meta"):
        network = kind(config)
    network.tie_weights()
    return network


def rename_tensor(name: str, names: Mapping[str, str]) -> str:
    """Return the other name of a tensor, or its own; ``{N}`` in the names stands for the number of a layer."""
    number = re.search(r"\.(\d+)\.", name)
    pattern = name if number is None else name[: number.start(1)] + "{N}" + name[number.end(1) :]
    return names.get(pattern, name).replace("{N}", number[1] if number else "")
