"""Loading a checkpoint: a bundled name, a folder, or a hub id. Nothing in a checkpoint is ever executed.

Only safetensors are read, remote code is never run, and every weight must be accounted for.
"""

import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import CallError, ModelError
from sinkscope.models.family import MARK, SMDM, recognise
from sinkscope.models.model import Model, ModelCard
from sinkscope.models.sink_token import SinkToken, check_token_id, split_config, with_sink

BUNDLED = ("lab-diffusion", "lab-autoregressive")


def bundled_folder(name: str) -> Path:
    """Where a bundled checkpoint lies in the installed package."""
    return Path(str(resources.files("sinkscope") / "checkpoints" / name))


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    device_map: Any = None,
    revision: str | None = None,
) -> Model:
    """Loads a model.

    Args:
        name: a bundled name, a local folder, or a hub id ``owner/name``.
        dtype: None keeps the stored one; bundled models come as fp32.
        device: where to put it.
        device_map: transformers' map for models larger than one device; instead of ``device``.
        revision: of a hub repository.

    Raises:
        CallError: nothing by this name.
        ModelError: a folder that is no model, or one whose weights do not fit.
    """
    folder = _find(str(name), revision)
    config, variant = split_config(_read_config(folder), str(folder))
    family = recognise(config, str(folder))
    files = _weight_files(folder)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    wanted = _dtype(dtype, "float32" if str(name) in BUNDLED else stored)
    network = _network(folder, config, variant, wanted, device_map)
    if device_map is None:
        network = _to_device(network, device)
    network.eval()
    tokenizer = _tokenizer(folder)
    _check_tokenizer(tokenizer, config, folder)
    if variant is not None:
        check_token_id(tokenizer, variant, f"the tokenizer of {folder}", ModelError)
    if not family.causal:
        network.generate = _refuse_generate
    shape = network.config
    eos = shape.eos_token_id if isinstance(shape.eos_token_id, int) else tokenizer.eos_token_id
    card = ModelCard(
        name=str(name),
        family=family.name,
        weight_hash=_hash(files),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        layers=shape.num_hidden_layers,
        heads=shape.num_attention_heads,
        kv_heads=shape.num_key_value_heads,
        hidden_size=shape.hidden_size,
        vocabulary=shape.vocab_size,
        stored_dtype=stored,
        dtype=str(wanted).removeprefix("torch."),
        mask_id=config.get("mask_token_id") if not family.causal else None,
        eos_id=eos,
        max_positions=shape.max_position_embeddings,
        sink_token=None if variant is None else variant.name,
    )
    return Model(network, tokenizer, family, card)


def _find(name: str, revision: str | None) -> Path:
    if name in BUNDLED:
        folder = bundled_folder(name)
        if not (folder / "config.json").exists():
            raise ModelError(
                f"{name} is a bundled model, but {folder} holds no config.json; reinstall sinkscope, or `sinkscope train {name} --out DIR`"
            )
        return folder
    folder = Path(name).expanduser()
    if name and folder.exists():
        if not folder.is_dir():
            raise CallError(f"{name} is a file; expected a folder with config.json and safetensors weights")
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        known = ", ".join(BUNDLED)
        raise CallError(f"no model {name!r}: expected a bundled name ({known}), an existing folder, or a hub id owner/name")
    return _from_hub(name, revision)


def _from_hub(name: str, revision: str | None) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{name}: no such folder here, and the hub did not give it ({reason}); download it and pass its folder") from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{folder} is no model: expected config.json in it, found {_listing(folder)}")
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: expected JSON, found something else ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(config).__name__}")
    return config


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") if names else "an empty folder"


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index}: expected JSON with a weight_map, found something else ({error!r})") from error
        if "model.safetensors" not in names and (folder / "model.safetensors").exists():
            raise ModelError(f"{folder}: found two sets of weights, model.safetensors and those of {index.name}; remove one of them")
        files = [folder / name for name in names]
    else:
        files = [folder / "model.safetensors"]
    missing = [path.name for path in files if not path.exists()]
    if missing:
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth"})
        advice = f"; {pickled[0]} is a pickle, which can run code: convert it to safetensors first" if pickled else ""
        raise ModelError(f"{folder}: expected weights in {', '.join(missing)}, found {_listing(folder)}{advice}")
    return files


def _dtype(dtype: torch.dtype | str | None, stored: str) -> torch.dtype:
    wanted = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype or stored), None)
    if wanted not in (torch.float32, torch.bfloat16, torch.float16):
        raise CallError(f"dtype: expected float32, bfloat16 or float16, found {dtype or stored!r}")
    return wanted


def _network(folder: Path, config: dict[str, Any], variant: SinkToken | None, dtype: torch.dtype, device_map: Any) -> Any:
    import transformers
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    classes = {"llama": transformers.LlamaForCausalLM, "qwen2": transformers.Qwen2ForCausalLM}
    if config.get(MARK) == SMDM.name:
        from sinkscope.models.smdm_network import MasklessHeadLlama

        classes["llama"] = MasklessHeadLlama
    try:
        with _quiet():
            body = classes[config["model_type"]]
            network_class, asked = with_sink(body, body.config_class.from_dict(config), variant)
            network, report = network_class.from_pretrained(
                folder,
                config=asked,
                dtype=dtype,
                device_map=device_map,
                attn_implementation="sdpa",
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
            )
    except SafetensorError as error:
        raise ModelError(f"{folder}: its weights cannot be read ({error}); the file is damaged or cut short, fetch it again") from error
    except StrictDataclassError as error:
        raise ModelError(
            f"{folder}/config.json: expected the shape of a model, found a value that does not fit ({str(error).splitlines()[-1].strip()})"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise ModelError(f"{folder}: its weights do not fit its config.json ({str(error).splitlines()[0]})") from error
    problems = {
        "missing": sorted(report["missing_keys"]),
        "unused": sorted(report["unexpected_keys"]),
        "of another shape": sorted(f"{key} {tuple(stored)} instead of {tuple(asked)}" for key, stored, asked in report["mismatched_keys"]),
    }
    found = "; ".join(f"{len(keys)} {what}: {', '.join(keys[:3])}" for what, keys in problems.items() if keys)
    if found:
        raise ModelError(f"{folder}: expected exactly the weights of {config['model_type']}, found {found}")
    return network


def _quiet() -> Any:
    """Keeps transformers' loading bar off the terminal, for the duration."""
    from contextlib import contextmanager

    from transformers.utils import logging

    @contextmanager
    def quiet() -> Any:
        shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if shown:
                logging.enable_progress_bar()

    return quiet()


def _to_device(network: Any, device: str | torch.device) -> Any:
    try:
        return network.to(device)
    except (RuntimeError, AssertionError) as error:
        raise CallError(f"device {device!r} cannot be used here ({str(error).splitlines()[0]}); pass device='cpu'") from error


def _tokenizer(folder: Path) -> Any:
    import transformers

    try:
        with _quiet():  # it wonders at a model_type that is not transformers' own
            return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{folder}: expected tokenizer.json and tokenizer_config.json, found no tokenizer that loads ({str(error).splitlines()[0]})"
        ) from error


def _check_tokenizer(tokenizer: Any, config: dict[str, Any], folder: Path) -> None:
    mask, theirs, rows = config.get("mask_token_id"), getattr(tokenizer, "mask_token_id", None), config.get("vocab_size")
    if mask is not None and isinstance(rows, int) and not 0 <= mask < rows:
        raise ModelError(f"{folder}: config.json says mask_token_id {mask}, but its vocabulary has {rows} rows")
    if mask is not None and theirs is not None and mask != theirs:
        raise ModelError(
            f"{folder}: config.json says mask_token_id {mask}, its tokenizer says {theirs}; one of them belongs to another model"
        )


def _hash(files: list[Path]) -> str:
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
