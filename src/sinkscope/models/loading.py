"""`load` reads a model by a built-in name, a folder, a GGUF file, or a hub id; an adapter is merged into its base.

No code of a checkpoint is run; every stored tensor must be a parameter of the network and the reverse.
"""

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import CallError, ModelError, first_line
from sinkscope.models import conversion, folders, weights
from sinkscope.models.any_causal import GGUF, config_of, reading_gguf
from sinkscope.models.conversion import convert_config, recognise
from sinkscope.models.devices import find_device
from sinkscope.models.family import BODIES, MARK, STOCK, Family
from sinkscope.models.fingerprints import hash_stored, note_loaded
from sinkscope.models.model import Model, ModelCard
from sinkscope.models.sink_token import (
    SinkToken,
    add_sink_token,
    check_token_id,
    sink_parameters,
    split_config,
    with_sink,
)
from sinkscope.models.tokenization import load_tokenizer
from sinkscope.runs.files import compare_sealed

IN_MEMORY = "in memory"  # weight hash of a network that was not read from files


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
    hub = folders.is_on_hub(str(name))
    plan = read_plan(folders.find_folder(str(name), revision, weights=False))
    folder = plan.folder
    if device_map is None:
        device = find_device(device)
    if hub:
        folders.fetch_weights(str(name), folder)
    whole = folders.find_folder(folders.base_name(folder)) if folders.is_adapter(folder) else folder
    files, of_gguf = weights.weight_files(whole), whole.suffix == GGUF
    tensors = {} if of_gguf else weights.read_headers(files)
    for file in [] if of_gguf else files:
        compare_sealed(file, ModelError, "fetch the file again")
    stored = plan.config.get("dtype") or plan.config.get("torch_dtype") or _widest(tensors)
    stored = "gguf" if of_gguf else str(stored).removeprefix("torch.")
    wanted = dtype or ("float32" if folders.is_bundled(str(name)) or of_gguf else stored)
    wanted = wanted if isinstance(wanted, torch.dtype) else getattr(torch, wanted, None)
    if wanted not in (torch.float32, torch.bfloat16, torch.float16):
        raise CallError(f"dtype of {folder}: expected float32, bfloat16 or float16, found {dtype or stored!r}")
    tokenizer = plan.tokenizer()
    alone = plan if whole == folder else replace(plan, variant=None)  # the sink is the adapter's
    network, used = _network(alone, whole, tensors, wanted, device_map)
    if whole != folder:
        folders.compare_base(folder, plan.config, _hash(files))
        network, used = _merge(network, folder, plan.variant), None
        files = [*files, folder / folders.ADAPTER_WEIGHTS]
    if device_map is None:
        network = network.to(device)
    network.eval()
    if not plan.family.causal:
        network.generate = _refuse_generate
    weight_hash = _hash(files)
    model = assemble(str(name), plan, network, tokenizer, weight_hash, stored, str(wanted).removeprefix("torch."))
    note_loaded(network, weight_hash)
    return replace(model, tensors=used, commit=folder.name if hub else None)


@dataclass(frozen=True)
class Plan:
    """A checkpoint folder as its config.json describes it; ``config`` is without the sink, and complete."""

    folder: Path
    config: Mapping[str, Any]
    family: Family
    variant: SinkToken | None
    converted: conversion.Converted
    config_hash: str = ""

    def network(self) -> tuple[Any, Any]:
        """Return the class of the network, which computes what the published code does, and its transformers config."""
        import transformers

        converted = self.converted
        if converted.layout is None:
            config = config_of(converted.fields, str(self.folder))
            if converted.mask_id is not None:
                config.mask_token_id = converted.mask_id
        else:
            config = getattr(transformers, BODIES[converted.layout.body][0])(**converted.fields)
        module, _, name = converted.network.partition(":")
        return with_sink(getattr(import_module(module), name), config, self.variant)

    def tokenizer(self) -> Any:
        """Return the tokenizer of the folder; raise ModelError where it belongs to another model."""
        folder = self.folder
        if folders.is_adapter(folder) and not (folder / "tokenizer_config.json").exists():  # it is with the base
            folder = folders.find_folder(folders.base_name(folder), weights=False)
        with quiet():
            tokenizer = load_tokenizer(folder, self.family, self.config)
        if self.variant is not None:
            check_token_id(tokenizer, self.variant, f"the tokenizer of {self.folder}", ModelError)
        return tokenizer


def read_plan(folder: Path) -> Plan:
    """Read the config.json of a folder; raise ModelError where no family claims it, or it describes another network."""
    stored = folders.read_config(folder)
    config, variant = split_config(conversion.in_stock_terms(stored, folder), str(folder))
    family = recognise(config, str(folder))
    config = conversion.completed(config, family)
    return Plan(folder, config, family, variant, convert_config(config, family, str(folder)), hash_stored(stored))


def assemble(
    name: str, plan: Plan, network: Any, tokenizer: Any, weight_hash: str = "", stored: str = "", dtype: str = ""
) -> Model:
    """Return the model of a network and a tokenizer, which may be None; raise ModelError for an end beyond its rows."""
    ends, rows = plan.converted.eos_ids, network.config.vocab_size
    eos_id = tokenizer.eos_token_id if len(ends) != 1 and tokenizer is not None else next(iter(ends), None)
    if eos_id is not None and not 0 <= eos_id < rows:
        raise ModelError(
            f"{plan.folder}/tokenizer_config.json: eos_token: expected one of the {rows} tokens of the network, found "
            f"{getattr(tokenizer, 'eos_token', None)!r}, which is token {eos_id}; the tokenizer is of another model"
        )
    card = ModelCard.of(
        network,
        name=name,
        family=plan.family.name,
        weight_hash=weight_hash,
        stored_dtype=stored,
        dtype=dtype,
        mask_id=plan.converted.mask_id,
        eos_id=eos_id,
        eos_ids=ends if len(ends) > 1 else (),
        sink_token=None if plan.variant is None else plan.variant.name,
        config_hash=plan.config_hash,
    )
    layout, longest = plan.converted.layout, "max_position_embeddings"
    longest = longest if layout is None else next(key for key, one in layout.sizes.items() if one == longest)
    return Model(network, tokenizer, plan.family, card, positions_key=longest, unread_keys=plan.converted.unread_keys)


def model_of(network: Any, tokenizer: Any = None, *, name: str = "network") -> Model:
    """Return a model around a Llama or Qwen2 in memory, whose weights are shared; a bidirectional one has ``is_causal``
    False and a ``mask_token_id``. Without a tokenizer only token ids can be used.
    """
    config, variant = split_config(network.config.to_dict() | {"architectures": None}, name)
    if config.get("is_causal") is False and config.get("model_type") in STOCK:
        config = {MARK: "llada", **config}  # reads each masked token at its own place, unless the config says otherwise
    family = recognise(config, name)
    plan = Plan(Path(name), config, family, variant, convert_config(config, family, name))
    dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
    return assemble(name, plan, network, tokenizer, IN_MEMORY, dtype, dtype)


def describe(name: str) -> tuple[Family, SinkToken | None, Any]:
    """Return family, sink and network without memory of a checkpoint from its config.json alone; see `load`."""
    plan = read_plan(folders.find_folder(name, weights=False))
    with quiet():
        return plan.family, plan.variant, weights.on_meta(*plan.network())


def outline(name: str) -> Model:
    """Return a model from its config.json and tokenizer alone, which computes nothing; see `load`."""
    plan = read_plan(folders.find_folder(name, weights=False))
    tokenizer = plan.tokenizer()
    with quiet():
        network = weights.on_meta(*plan.network())
    return assemble(name, plan, network, tokenizer)


def _widest(tensors: Mapping[str, weights.StoredTensor]) -> str:
    """Return the float type that holds every tensor of a folder; a config.json need not name one (LLaDA's does not)."""
    found = {weights.DTYPES[tensor.dtype] for tensor in tensors.values()}
    return found.pop() if len(found) == 1 else "float32"


def _network(
    plan: Plan, path: Path, tensors: Mapping[str, weights.StoredTensor], dtype: torch.dtype, device_map: Any
) -> tuple[Any, weights.UsedTensors | None]:
    """Return the network with its weights, and its stored tensors; None where transformers itself matches them."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    layout, gguf, used = plan.converted.layout, path.suffix == GGUF, None
    options: dict[str, Any] = {"dtype": dtype} | ({"gguf_file": path.name} if gguf else {"use_safetensors": True})
    try:
        with quiet(), torch.device("cpu"), reading_gguf(path) if gguf else nullcontext():  # whatever torch's default is
            kind, asked = plan.network()
            if layout is not None and not gguf:
                expected = weights.on_meta(kind, asked)
                used = weights.match_tensors(tensors, expected, layout, plan.config["model_type"], path)
                names = {  # regular expression → replacement; no published name matches two of them
                    "^" + re.escape(theirs).replace(re.escape("{N}"), r"(\d+)"): ours.replace("{N}", r"\1")
                    for theirs, ours in layout.tensors.items()
                }
                options |= {"key_mapping": names or None, "attn_implementation": "sdpa"}
                if device_map is None:
                    options["dtype"] = getattr(torch, _widest(tensors))
            network, report = kind.from_pretrained(
                path.parent if gguf else path,
                config=asked,
                device_map=device_map,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
    except (SafetensorError, StrictDataclassError, OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise ModelError(f"{path}: its config.json and weights make no network ({first_line(error)})") from error
    if left := {what: sorted(map(str, keys)) for what, keys in report.items() if keys}:
        raise ModelError(f"{path}: expected every stored tensor in its place, found {left}")
    if gguf:  # its weights were dequantised when they were read
        network.hf_quantizer, network.is_quantized = None, False
        del network.config.quantization_config
    if used is not None and hasattr(network, "_weight_conversions"):
        del network._weight_conversions  # save_pretrained would write names that do not go with the config
    names = {} if layout is None else layout.tensors
    files = {weights.rename_tensor(name, names): one.file for name, one in tensors.items()}
    _cast(network, dtype if used is not None and device_map is None else None, files, path)
    return network, used


def _merge(network: Any, folder: Path, variant: SinkToken | None) -> Any:
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = PeftConfig.from_pretrained(str(folder))
        config.inference_mode = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the base model was renamed, and deprecations of transformers
            changed = get_peft_model(network, config)
            tensors = load_file(folder / folders.ADAPTER_WEIGHTS)
            merged = {name: one for name, one in tensors.items() if "sink_" not in name}
            found = set_peft_model_state_dict(changed, merged)
        missing = [name for name in found.missing_keys if ".lora_" in name]
        if missing or found.unexpected_keys:
            raise ValueError(f"missing {missing[:2]}, unused {found.unexpected_keys[:2]}")
        network = changed.merge_and_unload()
        if variant is not None:
            names = [name for name, _ in sink_parameters(add_sink_token(network, variant))]
            network.load_state_dict({name: tensors[f"base_model.model.{name}"] for name in names}, strict=False)
        return network
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder}: the adapter does not fit its base model ({first_line(error)})") from error


def _cast(network: Any, dtype: torch.dtype | None, files: Mapping[str, Path], path: Path) -> None:
    """Cast the parameters file by file, to free the memory of one before the next is read; raise ModelError for weights
    that are not finite, as kernels may turn NaN into finite attention.
    """

    def file_of(named: tuple[str, Any]) -> Path:
        name, parameter = named
        return files.get(next(iter(weights.stored_shapes({name: tuple(parameter.shape)}))), path)

    for name, parameter in sorted(network.named_parameters(), key=file_of):
        if parameter.is_meta:  # on another device, by its map
            continue
        if dtype is not None:
            parameter.data = parameter.data.to(dtype)
        if not parameter.data.isfinite().all():
            kind, file = str(parameter.dtype).removeprefix("torch."), file_of((name, parameter))
            raise ModelError(
                f"{file}: {name}: expected finite numbers in {kind}, "
                "found NaN or infinite ones; fetch the file again, or choose another dtype"
            )
    if dtype is not None:
        network.config.dtype = dtype


def _hash(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
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
