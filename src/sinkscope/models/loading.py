"""`load` reads a model by a built-in name, a folder, a GGUF file, or a hub id; an adapter is merged into its base.

No code in a checkpoint is ever executed. Only safetensors and GGUF are read, remote code is never run, and every stored tensor must be a parameter of the network and the
reverse.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
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
        name: a built-in name, a local folder (of a model or of an adapter), a ``.gguf`` file, or a hub id.
        dtype: float type of the weights in memory; None keeps the stored one, and bundled models come as fp32.
        device: of the model.
        device_map: transformers' map for models larger than one device; instead of ``device``.
        revision: branch, tag or commit of a hub repository.

    Raises:
        CallError: there is nothing by this name, or a dtype or device cannot be used.
        ModelError: the folder holds no model, or its weights do not fit its config.json.
    """
    hub = is_on_hub(str(name))
    plan = read_plan(find_folder(str(name), revision, weights=False))
    folder = plan.folder
    if device_map is None:
        device = find_device(device)
    if hub:
        fetch_weights(str(name), folder)
    whole = weight_folder(folder)
    files, of_gguf = weight_files(whole), whole.suffix == GGUF
    tensors = {} if of_gguf else read_headers(files)
    for file in [] if of_gguf else files:
        compare_sealed(file, ModelError, "fetch the file again")
    stored = plan.config.get("dtype") or plan.config.get("torch_dtype") or _widest(tensors)
    stored = "gguf" if of_gguf else str(stored).removeprefix("torch.")
    if stored not in ("gguf", *DTYPES.values()):
        raise ModelError(f"{folder}/config.json: dtype: expected float32, bfloat16, float16 or null, found {stored!r}")
    wanted = dtype or ("float32" if is_bundled(str(name)) or of_gguf else stored)
    wanted = wanted if isinstance(wanted, torch.dtype) else getattr(torch, wanted, None)
    if wanted not in (torch.float32, torch.bfloat16, torch.float16):
        raise CallError(f"dtype: expected float32, bfloat16 or float16, found {dtype!r}")
    tokenizer = plan.tokenizer()
    if plan.converted.layout is None or of_gguf:
        network, used = _stock_network(plan, whole, wanted, device_map), None
    else:
        network, used = _network(plan, whole, tensors, wanted, device_map)
    if whole != folder:
        if plan.config.get(BASE_HASH) not in (None, _hash(files)):
            raise ModelError(f"{folder}: expected the base that it was trained on, found other weights in {whole}")
        network, used = merge(network, folder), None
        files = [*files, folder / ADAPTER_WEIGHTS]
    if device_map is None:
        network = network.to(device)
    network.eval()
    if not plan.family.causal:
        network.generate = _refuse_generate
    of_files = {"weight_hash": _hash(files), "stored_dtype": stored, "dtype": str(wanted).removeprefix("torch.")}
    model = assemble(str(name), plan, network, tokenizer, of_files)
    note_loaded(network, of_files["weight_hash"])
    return replace(model, tensors=used, commit=folder.name if hub else None)


@dataclass(frozen=True)
class Plan:
    """A checkpoint folder as its config.json describes it, before any weight is read.

    Attributes:
        config: its config.json, without the sink, completed by what the published code takes.
        variant: of its sink token.
    """

    folder: Path
    config: Mapping[str, Any]
    family: Family
    variant: SinkToken | None
    converted: Converted

    def network(self) -> tuple[Any, Any]:
        """Return the class of the network and its transformers config."""
        config = build_config(self.converted, str(self.folder))
        return with_sink(network_class(self.converted), config, self.variant)

    def tokenizer(self) -> Any:
        """Return the tokenizer of the folder.

        Raises:
            ModelError: it belongs to another model.
        """
        with quiet():
            tokenizer = load_tokenizer(tokenizer_folder(self.folder), self.family, self.config)
        if self.variant is not None:
            check_token_id(tokenizer, self.variant, f"the tokenizer of {self.folder}", ModelError)
        return tokenizer


def read_plan(folder: Path) -> Plan:
    """Read the config.json of a folder.

    Raises:
        ModelError: no family claims it, or it describes another network.
    """
    config, variant = split_config(in_stock_terms(read_config(folder), folder), str(folder))
    family = recognise(config, str(folder))
    config = completed(config, family)
    return Plan(folder, config, family, variant, convert_config(config, family, str(folder)))


def assemble(name: str, plan: Plan, network: Any, tokenizer: Any, of_files: Mapping[str, str]) -> Model:
    """Return the model of a network and a tokenizer; ``of_files`` are the fields of its card about the weights' files.

    Raises:
        ModelError: the tokenizer ends answers with a token that the network does not have.
    """
    ends, rows = plan.converted.eos_ids, network.config.vocab_size
    eos_id = ends[0] if len(ends) == 1 else tokenizer.eos_token_id
    if eos_id is not None and not 0 <= eos_id < rows:
        raise ModelError(
            f"{plan.folder}/tokenizer_config.json: eos_token: expected one of the {rows} tokens of the network, found "
            f"{tokenizer.eos_token!r}, which is token {eos_id}; the tokenizer belongs to another model"
        )
    card = ModelCard.of(
        network,
        **of_files,
        config_hash=hash_stored(read_config(plan.folder)),
        name=name,
        family=plan.family.name,
        mask_id=plan.converted.mask_id,
        eos_id=eos_id,
        eos_ids=ends if len(ends) > 1 else (),
        sink_token=None if plan.variant is None else plan.variant.name,
    )
    layout, longest = plan.converted.layout, "max_position_embeddings"
    longest = longest if layout is None else next(key for key, one in layout.sizes.items() if one == longest)
    return Model(network, tokenizer, plan.family, card, positions_key=longest, unread_keys=plan.converted.unread_keys)


def identify(name: str) -> tuple[Family, SinkToken | None]:
    """Return the family of a checkpoint and its sink, None without one, from its config.json alone; ``name`` is as for
    `load`.

    Raises:
        CallError, ModelError: see `load`.
    """
    plan = read_plan(find_folder(name, weights=False))
    return plan.family, plan.variant


def describe(name: str) -> tuple[Family, Any, int]:
    """Return the family of a checkpoint, the transformers config of its network and its number of parameters, from
    config.json alone.

    Raises:
        CallError, ModelError: see `load`.
    """
    plan = read_plan(find_folder(name, weights=False))
    with quiet():
        network = on_meta(*plan.network())
    return plan.family, network.config, sum(parameter.numel() for parameter in network.parameters())


def outline(name: str) -> Model:
    """Return a model from its config.json and tokenizer alone: it encodes texts and knows its shape, but computes
    nothing.

    Args:
        name: as for `load`; of a hub id only the small files are fetched.

    Raises:
        CallError, ModelError: see `load`.
    """
    plan = read_plan(find_folder(name, weights=False))
    tokenizer = plan.tokenizer()
    with quiet():
        network = on_meta(*plan.network())
    return assemble(name, plan, network, tokenizer, {"weight_hash": "", "stored_dtype": "", "dtype": ""})


def _widest(tensors: Mapping[str, StoredTensor]) -> str:
    """Return the float type that holds every tensor of a folder; a config.json need not name one (LLaDA's does not)."""
    found = {DTYPES[tensor.dtype] for tensor in tensors.values()}
    return found.pop() if len(found) == 1 else "float32"


def _network(
    plan: Plan, folder: Path, tensors: Mapping[str, StoredTensor], dtype: torch.dtype, device_map: Any
) -> tuple[Any, UsedTensors]:
    """Return the network with its weights, and which stored tensors went into it."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    layout, used = plan.converted.layout, None
    assert layout is not None
    try:
        with quiet(), torch.device("cpu"):  # whatever torch's default is, such as meta
            kind, asked = plan.network()
            shapes = {name: tuple(tensor.shape) for name, tensor in kept_tensors(on_meta(kind, asked)).items()}
            used = match_tensors(tensors, shapes, layout, plan.config["model_type"], folder)
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
    left = {kind: sorted(map(str, keys)) for kind, keys in report.items() if kind.endswith("_keys") and keys}
    if left:
        raise ModelError(f"{folder}: expected every stored tensor in its place, found {left}")
    if hasattr(network, "_weight_conversions"):  # save_pretrained would write names that do not go with the config
        del network._weight_conversions
    if device_map is None:
        _cast(network, dtype, {rename_tensor(name, layout): tensor.file for name, tensor in tensors.items()})
    return network, used


def _stock_network(plan: Plan, path: Path, dtype: torch.dtype, device_map: Any) -> Any:
    """Return a network as transformers itself reads it, from a folder or a GGUF file."""
    from safetensors import SafetensorError

    source = {"gguf_file": path.name} if path.suffix == GGUF else {"use_safetensors": True}
    kind, asked = plan.network()
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
            kind, file = str(dtype).removeprefix("torch."), file_of((name, parameter))
            raise ModelError(
                f"{file}: {name}: expected finite numbers in {kind}, "
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
        config = config_of(converted.fields, where)
        if converted.mask_id is not None:
            config.mask_token_id = converted.mask_id
        return config
    return getattr(transformers, BODIES[converted.layout.body][0])(**converted.fields)


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
