"""`load` reads a model from a bundled name, a folder, or a hub id. No code in a checkpoint is ever executed.

Only safetensors are read, remote code is never run, and every stored tensor must be a parameter of the network and the reverse.
"""

import hashlib
import importlib.util
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from sinkscope.argument_types import check_argument
from sinkscope.checksums import compare_sealed
from sinkscope.documents import exists, read_json_object, shown
from sinkscope.errors import CallError, ModelError, first_line
from sinkscope.models.conversion import Converted, completed, convert_config, rename_tensor, tensor_renamings
from sinkscope.models.devices import find_device, usable_devices
from sinkscope.models.family import Family
from sinkscope.models.fetched_files import check_text
from sinkscope.models.fingerprints import hash_stored
from sinkscope.models.folders import (
    LARGEST_CONFIG,
    check_files,
    find_folder,
    is_bundled,
    is_on_hub,
    read_config,
    refuse_place,
)
from sinkscope.models.hub import fetch_weights
from sinkscope.models.layouts import BODIES
from sinkscope.models.loaded_weights import note_loaded
from sinkscope.models.model import Model, ModelCard
from sinkscope.models.recognition import recognise
from sinkscope.models.shapes import parameter_shapes, stored_shapes_of
from sinkscope.models.sink_token import SinkToken, check_token_id, split_config, with_sink
from sinkscope.models.tokenization import load_tokenizer
from sinkscope.models.weights import (
    DTYPES,
    StoredTensor,
    UsedTensors,
    check_shape,
    match_tensors,
    read_headers,
    stored_shapes,
    weight_files,
)

GENERATION = "generation_config.json"
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    device_map: Any = None,
    revision: str | None = None,
) -> Model:
    """Load a model.

    In their stored dtype the weights on a CPU are read from the files when they are needed: while the model is in use, replace its files
    by renaming others over them, never by writing into them.

    Args:
        name: a bundled name, a local folder, or a hub id ``owner/name``.
        dtype: float type of the weights in memory; None keeps the stored one, and bundled models come as fp32.
        device: of the model.
        device_map: transformers' map for models larger than one device; instead of ``device``.
        revision: branch, tag or commit of a hub repository.

    Raises:
        CallError: there is nothing by this name, or a dtype or device cannot be used.
        ModelError: the folder holds no model, or its weights do not fit its config.json.
    """
    if not isinstance(name, str) or name:  # the empty text has a message of its own
        check_argument("name", name, str | Path)
    check_argument("revision", revision, str | None)
    hub = is_on_hub(str(name))
    folder = find_folder(str(name), revision, weights=False)
    if device_map is None:
        device = find_device(device)
    config, family, variant = read_identity(folder)
    converted = convert_config(config, family, str(folder))
    if hub:
        fetch_weights(str(name), folder)
    check_files(folder)
    files = weight_files(folder)
    tensors = read_headers(files)
    check_shape(converted.fields, tensors, converted.layout, folder)
    for file in files:
        compare_sealed(file, ModelError, "fetch the file again")
    stored = _stored_dtype(config, folder) or _widest(tensors)
    wanted = _dtype(dtype, "float32" if is_bundled(str(name)) else stored)
    with quiet():
        tokenizer = load_tokenizer(folder, family, config)
    _check_generation(folder)
    if variant is not None:
        check_token_id(tokenizer, variant, f"the tokenizer of {folder}", ModelError)
    _check_device_map(device_map)
    network, used = _network(folder, config, converted, variant, tensors, wanted, device_map)
    if device_map is None:
        network = _to_device(network, device)
    network.eval()
    if not family.causal:
        network.generate = _refuse_generate
    of_files = {"weight_hash": _hash(files), "stored_dtype": stored, "dtype": str(wanted).removeprefix("torch.")}
    model = assemble(str(name), folder, network, tokenizer, family, converted, variant, of_files)
    note_loaded(network, of_files["weight_hash"])
    return replace(model, tensors=used, commit=folder.name if hub else None)


def assemble(
    name: str,
    folder: Path,
    network: Any,
    tokenizer: Any,
    family: Family,
    converted: Converted,
    variant: SinkToken | None,
    of_files: Mapping[str, str],
) -> Model:
    """Return the model of a network and a tokenizer; ``of_files`` is what its card says of the files of the weights.

    Raises:
        ModelError: the tokenizer ends answers with a token that the network does not have.
    """
    eos_id = converted.eos_ids[0] if len(converted.eos_ids) == 1 else tokenizer.eos_token_id
    if eos_id is not None and not 0 <= eos_id < network.config.vocab_size:
        raise ModelError(
            f"{folder}/tokenizer_config.json: eos_token: expected one of the {network.config.vocab_size} tokens of the network, "
            f"found {shown(tokenizer.eos_token)}, which is token {eos_id}; the tokenizer belongs to another model"
        )
    card = ModelCard.of(
        network,
        **of_files,
        config_hash=hash_stored(read_config(folder)),
        name=name,
        family=family.name,
        mask_id=converted.mask_id,
        eos_id=eos_id,
        eos_ids=converted.eos_ids if len(converted.eos_ids) > 1 else (),
        sink_token=None if variant is None else variant.name,
    )
    longest = next(key for key, name in converted.layout.sizes.items() if name == "max_position_embeddings")
    return Model(network, tokenizer, family, card, positions_key=longest)


def identify(name: str) -> tuple[Family, SinkToken | None]:
    """Return the family of a checkpoint and its sink, None without one, from its config.json alone; ``name`` is as for `load`.

    Raises:
        CallError, ModelError: see `load`.
    """
    _, family, variant = read_identity(find_folder(name, weights=False))
    return family, variant


def describe(name: str) -> tuple[Family, Any, int]:
    """Return the family of a checkpoint, the transformers config of its network and its number of parameters, from config.json alone.

    Raises:
        CallError, ModelError: see `load`.
    """
    folder = find_folder(name, weights=False)
    config, family, variant = read_identity(folder)
    converted = convert_config(config, family, str(folder))
    with quiet():
        kind, asked = with_sink(network_class(converted), build_config(converted), variant)
        shapes = parameter_shapes(kind, asked)
    return family, asked, sum(math.prod(shape) for shape in shapes.values())


def read_identity(folder: Path) -> tuple[dict[str, Any], Family, SinkToken | None]:
    """Return the config.json of a folder, its family and its sink token."""
    config, variant = split_config(read_config(folder), str(folder))
    family = recognise(config, str(folder))
    return completed(config, family), family, variant


def _check_generation(folder: Path) -> None:
    """Raise an error for settings of transformers' own generate() that it cannot read when it loads the network."""
    from transformers import GenerationConfig

    if not exists(folder / GENERATION):
        return
    check_text(folder / GENERATION)
    advice = "correct the file or remove it: only transformers' generate() uses it"
    read_json_object(folder / GENERATION, ModelError, advice, most=LARGEST_CONFIG, any_number=True)
    try:
        with quiet():
            GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # as many kinds as there are settings
        raise ModelError(
            f"{folder}/{GENERATION}: expected settings that transformers reads, found others; {advice}"
        ) from error


def _widest(tensors: Mapping[str, StoredTensor]) -> str:
    """Return the float type that holds every tensor of a folder; a config.json need not name one (LLaDA's does not)."""
    found = {DTYPES[tensor.dtype] for tensor in tensors.values()}
    return found.pop() if len(found) == 1 else "float32"


def _stored_dtype(config: Mapping[str, Any], folder: Path) -> str | None:
    """Return the float type that config.json names; None where it names none."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    found = config.get(key)
    name = found.removeprefix("torch.") if isinstance(found, str) else found
    if name is not None and not (isinstance(name, str) and name in DTYPES.values()):
        raise ModelError(
            f"{folder}/config.json: {key}: expected float32, bfloat16, float16 or null, found {shown(found)}; mend it"
        )
    return name


def _dtype(dtype: torch.dtype | str | None, stored: str) -> torch.dtype:
    """Return the float type that is asked for, else the stored one."""
    asked = stored if dtype is None or (isinstance(dtype, str) and not dtype) else dtype
    wanted = (
        asked if isinstance(asked, torch.dtype) else getattr(torch, asked, None) if isinstance(asked, str) else None
    )
    if wanted not in (torch.float32, torch.bfloat16, torch.float16):
        raise CallError(f"dtype: expected float32, bfloat16 or float16, found {shown(asked)}")
    return wanted


def _network(
    folder: Path,
    config: Mapping[str, Any],
    converted: Converted,
    variant: SinkToken | None,
    tensors: Mapping[str, StoredTensor],
    dtype: torch.dtype,
    device_map: Any,
) -> tuple[Any, UsedTensors]:
    """Return the network with its weights, and which stored tensors went into it."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    layout, used = converted.layout, None
    try:
        with quiet(), torch.device("cpu"):  # whatever torch's default is, such as meta
            kind, asked = with_sink(network_class(converted), build_config(converted), variant)
            used = match_tensors(tensors, stored_shapes_of(kind, asked), layout, config["model_type"], folder)
            network, report = kind.from_pretrained(
                folder,
                config=asked,
                key_mapping=tensor_renamings(layout) or None,
                dtype=dtype if device_map is not None else getattr(torch, _widest(tensors)),
                device_map=device_map,
                attn_implementation="sdpa",
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except SafetensorError as error:
        raise ModelError(
            f"{folder}: its weights cannot be read ({error}); the file is damaged or cut short, fetch it again"
        ) from error
    except StrictDataclassError as error:
        raise ModelError(
            f"{folder}/config.json: expected the shape of a model, found a value that does not fit ({str(error).splitlines()[-1].strip()})"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        refuse_place(error, folder)
        if device_map is not None and used is not None:  # the headers of the files say that the weights fit
            expected = "device_map: expected a map that gives every part of the network a device"
            raise CallError(f"{expected}, found {shown(device_map)} ({first_line(error)})") from error
        raise ModelError(f"{folder}: its weights do not fit its config.json ({first_line(error)})") from error
    left = {
        what: sorted(map(str, report[what]))
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if report[what]
    }
    if left:
        raise ModelError(f"{folder}: expected every stored tensor in its place, found {left}")
    if hasattr(network, "_weight_conversions"):
        del (
            network._weight_conversions
        )  # so that save_pretrained writes transformers' names, which go with the converted config
    if device_map is None:
        _cast(network, dtype, {rename_tensor(name, layout): tensor.file for name, tensor in tensors.items()})
    return network, used


def _cast(network: Any, dtype: torch.dtype, files: Mapping[str, Path]) -> None:
    """Cast the parameters file by file, so that the memory of each file is freed before the next one is read.

    Buffers stay as they are: the frequencies of the rotations are fp32 whatever the dtype.

    Raises:
        ModelError: weights that are not finite, or not in this dtype; kernels may turn NaN into finite attention that means nothing.
    """

    def file_of(named: tuple[str, Any]) -> Path:
        name, parameter = named
        return files[next(iter(stored_shapes({name: tuple(parameter.shape)})))]

    for name, parameter in sorted(network.named_parameters(), key=file_of):
        parameter.data = parameter.data.to(dtype)
        if not parameter.data.isfinite().all():
            raise ModelError(
                f"{file_of((name, parameter))}: {name}: expected finite numbers in {str(dtype).removeprefix('torch.')}, found NaN or "
                "infinite ones; fetch the file again, or choose another dtype"
            )
    network.config.dtype = dtype


def network_class(converted: Converted) -> Any:
    """Return the class that computes what a checkpoint's published code does."""
    module, _, name = converted.network.partition(":")
    return getattr(import_module(module), name)


def build_config(converted: Converted) -> Any:
    """Return a transformers config with the converted fields."""
    import transformers

    return getattr(transformers, BODIES[converted.layout.body][0])(**converted.fields)


def _check_device_map(device_map: Any) -> None:
    """Raise an error for a device map that is neither one of transformers' words, nor a device, nor module → device."""
    if device_map is None:
        return
    if isinstance(device_map, Mapping) and device_map and all(isinstance(name, str) for name in device_map):
        devices = set(device_map.values())
    else:
        devices = (
            {device_map}
            if isinstance(device_map, str | int | torch.device) and device_map not in DEVICE_MAPS
            else set()
        )
        if not devices and not (isinstance(device_map, str) and device_map in DEVICE_MAPS):
            raise CallError(
                f"device_map: expected {', '.join(DEVICE_MAPS)}, a device, or module → device, found {shown(device_map)}"
            )
    for device in devices:
        try:
            if not isinstance(device, str | int | torch.device):
                raise TypeError("a device is a name, a number or a torch.device")
            if torch.empty(0, device=device).is_meta:
                raise ValueError("tensors there have no values")
        except (RuntimeError, AssertionError, TypeError, ValueError) as error:
            expected = "device_map: expected devices that can be used here"
            raise CallError(
                f"{expected}, found {shown(device)} (there are: {', '.join(usable_devices())}); try 'auto'"
            ) from error
    if importlib.util.find_spec("accelerate") is None:
        raise CallError(
            f"device_map {device_map!r} needs accelerate, which is not installed: pip install 'sinkscope[spread]'"
        )


def _to_device(network: Any, device: str | torch.device) -> Any:
    """Return the network on a device."""
    try:
        return network.to(device)
    except RuntimeError as error:  # as a rule, no memory is left
        raise CallError(
            f"device: the model cannot be moved to {device} ({first_line(error)}); pass device='cpu'"
        ) from error


def hash_of_files(name: str) -> str:
    """Return what `ModelCard.weight_hash` of a model is, without loading it.

    Raises:
        CallError, ModelError: as in `load`, where it is not there or has no weights.
    """
    return _hash(weight_files(find_folder(name)))


def _hash(files: list[Path]) -> str:
    """Return the sha256 over files, in their order."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def _refuse_generate(*_: Any, **__: Any) -> None:
    raise CallError(
        "this network attends in both directions; its own generate() would write nonsense. Use sinkscope.generate(model, prompt)"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and warnings off the terminal while the body runs; errors still show."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of HF_HUB_DISABLE_PROGRESS_BARS, which wins
        logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                logging.enable_progress_bar()
