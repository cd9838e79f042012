"""`load` reads a model from a bundled name, a folder, or a hub id. No code in a checkpoint is ever executed.

Only safetensors are read, remote code is never run, and every stored tensor must be a parameter of the network and the
reverse.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import CallError, ModelError, first_line
from sinkscope.models.adapters import BASE_HASH, merge
from sinkscope.models.adapters import WEIGHTS as ADAPTER_WEIGHTS
from sinkscope.models.any_causal import GGUF, config_of, forget_quantiser, reading_gguf
from sinkscope.models.conversion import Converted, completed, convert_config, rename_tensor, tensor_renamings
from sinkscope.models.devices import find_device
from sinkscope.models.family import Family
from sinkscope.models.fingerprints import hash_stored, note_loaded
from sinkscope.models.folders import (
    fetch_weights,
    find_folder,
    is_bundled,
    is_on_hub,
    read_config,
    tokenizer_folder,
    weight_folder,
)
from sinkscope.models.layouts import BODIES
from sinkscope.models.model import Model, ModelCard
from sinkscope.models.recognition import in_stock_terms, recognise
from sinkscope.models.sink_token import SinkToken, check_token_id, split_config, with_sink
from sinkscope.models.tokenization import load_tokenizer
from sinkscope.models.weights import (
    DTYPES,
    StoredTensor,
    UsedTensors,
    kept_tensors,
    match_tensors,
    on_meta,
    parameter_shapes,
    read_headers,
    stored_shapes,
    weight_files,
)
from sinkscope.runs.files import compare_sealed


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    device_map: Any = None,
    revision: str | None = None,
) -> Model:
    """Load a model.

    In their stored dtype the weights on a CPU are read from the files when they are needed: while the model is in use,
    replace its files by renaming others over them, never by writing into them.

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
    hub = is_on_hub(str(name))
    folder = find_folder(str(name), revision, weights=not hub)
    if device_map is None:
        device = find_device(device)
    config, family, variant = read_identity(folder)
    converted = convert_config(config, family, str(folder))
    if hub:
        fetch_weights(str(name), folder)
    whole = weight_folder(folder)
    files = weight_files(whole)
    of_gguf = whole.suffix == GGUF
    tensors = {} if of_gguf else read_headers(files)
    for file in [] if of_gguf else files:
        compare_sealed(file, ModelError, "fetch the file again")
    stored = "gguf" if of_gguf else _stored_dtype(config, folder) or _widest(tensors)
    wanted = dtype or ("float32" if is_bundled(str(name)) or of_gguf else stored)
    wanted = wanted if isinstance(wanted, torch.dtype) else getattr(torch, wanted, None)
    if wanted not in (torch.float32, torch.bfloat16, torch.float16):
        raise CallError(f"dtype: expected float32, bfloat16 or float16, found {dtype!r}")
    with quiet():
        tokenizer = load_tokenizer(tokenizer_folder(folder), family, config)
    if variant is not None:
        check_token_id(tokenizer, variant, f"the tokenizer of {folder}", ModelError)
    if converted.layout is None or of_gguf:
        network, used = _stock_network(whole, converted, wanted, device_map), None
    else:
        network, used = _network(whole, config, converted, variant, tensors, wanted, device_map)
    if whole != folder:
        if config.get(BASE_HASH) not in (None, _hash(files)):
            raise ModelError(f"{folder}: expected the base that it was trained on, found other weights in {whole}")
        network, used = merge(network, folder), None
        files += [folder / ADAPTER_WEIGHTS]
    if device_map is None:
        network = network.to(device)
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
            f"{folder}/tokenizer_config.json: eos_token: expected one of the {network.config.vocab_size} tokens of the "
            f"network, found {tokenizer.eos_token!r}, which is token {eos_id}; the tokenizer belongs to another model"
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
    sizes = {} if converted.layout is None else converted.layout.sizes
    longest = next((key for key, one in sizes.items() if one == "max_position_embeddings"), "max_position_embeddings")
    return Model(network, tokenizer, family, card, positions_key=longest, unread_keys=converted.unread_keys)


def identify(name: str) -> tuple[Family, SinkToken | None]:
    """Return the family of a checkpoint and its sink, None without one, from its config.json alone; ``name`` is as for
    `load`.

    Raises:
        CallError, ModelError: see `load`.
    """
    _, family, variant = read_identity(find_folder(name, weights=False))
    return family, variant


def describe(name: str) -> tuple[Family, Any, int]:
    """Return the family of a checkpoint, the transformers config of its network and its number of parameters, from
    config.json alone.

    Raises:
        CallError, ModelError: see `load`.
    """
    folder = find_folder(name, weights=False)
    config, family, variant = read_identity(folder)
    converted = convert_config(config, family, str(folder))
    with quiet():
        kind, asked = with_sink(network_class(converted), build_config(converted, str(folder)), variant)
        shapes = parameter_shapes(kind, asked)
    return family, asked, sum(math.prod(shape) for shape in shapes.values())


def outline(name: str) -> Model:
    """Return a model from its config.json and tokenizer alone: it encodes texts and knows its shape, but computes
    nothing.

    Work is planned with it before a machine that can hold the weights is asked for.

    Args:
        name: as for `load`; of a hub id only the small files are fetched.

    Raises:
        CallError, ModelError: see `load`.
    """
    folder = find_folder(name, weights=False)
    config, family, variant = read_identity(folder)
    converted = convert_config(config, family, str(folder))
    with quiet():
        tokenizer = load_tokenizer(tokenizer_folder(folder), family, config)
        network = on_meta(*with_sink(network_class(converted), build_config(converted, str(folder)), variant))
    of_files = {"weight_hash": "", "stored_dtype": "", "dtype": ""}
    return assemble(name, folder, network, tokenizer, family, converted, variant, of_files)


def read_identity(folder: Path) -> tuple[dict[str, Any], Family, SinkToken | None]:
    """Return the config.json of a folder, its family and its sink token."""
    config, variant = split_config(in_stock_terms(read_config(folder), folder), str(folder))
    family = recognise(config, str(folder))
    return completed(config, family), family, variant


def _widest(tensors: Mapping[str, StoredTensor]) -> str:
    """Return the float type that holds every tensor of a folder; a config.json need not name one (LLaDA's does not)."""
    found = {DTYPES[tensor.dtype] for tensor in tensors.values()}
    return found.pop() if len(found) == 1 else "float32"


def _stored_dtype(config: Mapping[str, Any], folder: Path) -> str | None:
    """Return the float type that config.json names; None where it names none."""
    found = config.get("dtype") or config.get("torch_dtype")
    name = str(found).removeprefix("torch.") if found else None
    if name not in (None, *DTYPES.values()):
        raise ModelError(f"{folder}/config.json: dtype: expected float32, bfloat16, float16 or null, found {found!r}")
    return name


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
            kind, asked = with_sink(network_class(converted), build_config(converted, str(folder)), variant)
            shapes = {name: tuple(tensor.shape) for name, tensor in kept_tensors(on_meta(kind, asked)).items()}
            used = match_tensors(tensors, shapes, layout, config["model_type"], folder)
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
    except (SafetensorError, StrictDataclassError, OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        if device_map is not None and used is not None:  # the headers of the files say that the weights fit
            raise CallError(f"device_map: found {device_map!r}, which cannot be used ({first_line(error)})") from error
        raise ModelError(f"{folder}: its config.json and weights make no network ({error})") from error
    left = {what: sorted(map(str, keys)) for what, keys in report.items() if what.endswith("_keys") and keys}
    if left:
        raise ModelError(f"{folder}: expected every stored tensor in its place, found {left}")
    if hasattr(
        network, "_weight_conversions"
    ):  # so that save_pretrained writes names that go with the converted config
        del network._weight_conversions
    if device_map is None:
        _cast(network, dtype, {rename_tensor(name, layout): tensor.file for name, tensor in tensors.items()})
    return network, used


def _stock_network(path: Path, converted: Converted, dtype: torch.dtype, device_map: Any) -> Any:
    """Return a network as transformers itself reads it, from a folder or a GGUF file."""
    from safetensors import SafetensorError

    source = {"gguf_file": path.name} if path.suffix == GGUF else {"use_safetensors": True}
    kind, asked = network_class(converted), build_config(converted, str(path))
    with quiet(), torch.device("cpu"), reading_gguf(path) if path.suffix == GGUF else nullcontext():
        try:
            network, report = kind.from_pretrained(
                path.parent if path.suffix == GGUF else path,
                config=asked,
                dtype=dtype,
                device_map=device_map,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **source,
            )
        except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelError(f"{path}: its config.json and weights make no network ({first_line(error)})") from error
    if left := {what: sorted(map(str, keys)) for what, keys in report.items() if keys}:
        raise ModelError(f"{path}: expected every stored tensor in its place, found {left}")
    if path.suffix == GGUF:
        forget_quantiser(network)
    for name, parameter in network.named_parameters():
        if not parameter.data.isfinite().all():
            raise ModelError(f"{path}: {name}: expected finite numbers, found NaN or infinite ones")
    return network


def _cast(network: Any, dtype: torch.dtype, files: Mapping[str, Path]) -> None:
    """Cast the parameters file by file, so that the memory of each file is freed before the next one is read.

    Buffers stay as they are: the frequencies of the rotations are fp32 whatever the dtype.

    Raises:
        ModelError: weights that are not finite, or not in this dtype; kernels may turn NaN into finite attention that
            means nothing.
    """

    def file_of(named: tuple[str, Any]) -> Path:
        name, parameter = named
        return files[next(iter(stored_shapes({name: tuple(parameter.shape)})))]

    for name, parameter in sorted(network.named_parameters(), key=file_of):
        parameter.data = parameter.data.to(dtype)
        if not parameter.data.isfinite().all():
            raise ModelError(
                f"{file_of((name, parameter))}: {name}: expected finite numbers in "
                f"{str(dtype).removeprefix('torch.')}, "
                "found NaN or infinite ones; fetch the file again, or choose another dtype"
            )
    network.config.dtype = dtype


def network_class(converted: Converted) -> Any:
    """Return the class that computes what a checkpoint's published code does."""
    module, _, name = converted.network.partition(":")
    return getattr(import_module(module), name)


def build_config(converted: Converted, where: str) -> Any:
    """Return the transformers config of a folder."""
    import transformers

    if converted.layout is None:
        return config_of(converted.fields, where)
    return getattr(transformers, BODIES[converted.layout.body][0])(**converted.fields)


def hash_of_files(name: str) -> str:
    """Return `ModelCard.weight_hash` of a model without loading it.

    Raises:
        CallError, ModelError: as in `load`, where it is not there or has no weights.
    """
    folder = find_folder(name)
    whole = weight_folder(folder)
    return _hash([*weight_files(whole), *([folder / ADAPTER_WEIGHTS] if whole != folder else [])])


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
        "this network attends in both directions; its own generate() would write nonsense. "
        "Use sinkscope.generate(model, prompt)"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and warnings off the terminal while the body runs; errors still show."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
