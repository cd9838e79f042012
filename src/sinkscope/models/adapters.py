"""Adapter folders of peft: a small change of a base model, which is merged into the base's weights when it is loaded."""

import warnings
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, ModelError, first_line
from sinkscope.runs.files import read_json_object

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_HASH = "sinkscope_base"
"""Key of config.json beside an adapter: `ModelCard.weight_hash` of the base that it was trained on."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter."""
    return (folder / CONFIG).exists()


def base_name(folder: Path) -> str:
    """Return the name of the model that an adapter changes, as `load` takes it.

    Raises:
        ModelError: its adapter_config.json names none.
    """
    name = read_json_object(folder / CONFIG, ModelError, "fetch the file again").get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{folder / CONFIG}: base_model_name_or_path: expected the model it changes, found {name!r}")
    beside = folder / name
    return str(beside) if beside.exists() and not Path(name).exists() else name


def merge(network: Any, folder: Path) -> Any:
    """Return a network with an adapter added to its weights.

    Raises:
        CallError: the package peft is not installed.
        ModelError: an adapter for another network, or of a kind that cannot be merged.
    """
    try:
        from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    except ImportError as error:
        raise CallError(
            f"{folder} is an adapter, which needs the package peft: pip install 'sinkscope[peft]'"
        ) from error
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = PeftConfig.from_pretrained(str(folder))
        config.inference_mode = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the base model was renamed, and deprecations of transformers
            changed = get_peft_model(network, config)
            found = set_peft_model_state_dict(changed, load_file(folder / WEIGHTS))
        missing = [name for name in found.missing_keys if ".lora_" in name]
        if missing or found.unexpected_keys:
            raise ValueError(f"missing {missing[:2]}, unused {found.unexpected_keys[:2]}")
        return changed.merge_and_unload()
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder}: the adapter does not fit its base model ({first_line(error)})") from error
