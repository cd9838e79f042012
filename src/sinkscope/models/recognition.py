"""Finds the family to which a config.json belongs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models.any_causal import NAME, is_any_causal
from sinkscope.models.families import FAMILIES
from sinkscope.models.families.a2d_family import ENCODER, ENCODERS
from sinkscope.models.families.qwen_family import OPEN_DLLM
from sinkscope.models.family import Family
from sinkscope.models.folders import OWN_NETWORK
from sinkscope.models.layouts import BODIES, MARK, MARK_POSITIONS, STOCK
from sinkscope.runs.files import read_json_object

A2D = "a2d-"
"""What dllm puts in front of the model_type of the model that was adapted."""
OPEN_DLLM_CODE = "modeling_qwen2.Qwen2ForCausalLM"
"""What ``auto_map`` names in Open-dLLM's folders; nothing else in their config.json tells them from a causal Qwen2."""


def recognise(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of a ``config.json``, which lies in the folder ``where``.

    Raises:
        ModelError: no family claims it, or its network is another one than the family's.
    """
    if config.get("quantization_config") is not None:
        raise ModelError(
            f"{where}: expected plain weights, found quantization_config in its config.json; convert them to bf16 first"
        )
    model_type, found = config.get("model_type"), config.get("architectures") or []
    if model_type in STOCK:
        return _stock_family(config, where)
    published = [family for family in FAMILIES.values() if family.layout is not None]
    claiming = [family for family in published if family.claims is not None and family.claims(config)]
    for family in [*claiming, *(family for family in published if model_type in family.model_types)]:
        if not set(found) <= set(family.architectures):
            raise ModelError(
                f"{where}/config.json: expected architectures {sorted(family.architectures)} for model_type "
                f"{model_type!r}, found {found}; that network is another one, and sinkscope never runs remote code"
            )
        return family
    if is_encoder(config) and config.get("mask_token_id") is not None:
        return ENCODER
    if is_any_causal(config):
        return FAMILIES[NAME]
    names = ", ".join(name for family in published for name in family.model_types if name not in STOCK)
    code = " Its config.json names remote code (auto_map), which sinkscope never runs." if "auto_map" in config else ""
    raise ModelError(
        f"{where}/config.json: expected a causal model of transformers, model_type {names}, "
        f"{' or '.join(ENCODERS)} for masked tokens with a mask in the tokenizer, or {' or '.join(STOCK)} with "
        f"is_causal false and a mask_token_id; found model_type {model_type!r}, is_causal "
        f"{config.get('is_causal', True)}, architectures {found or None}.{code} "
        f"{OWN_NETWORK[0].upper()}{OWN_NETWORK[1:]}"
    )


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of an encoder which predicts masked tokens."""
    network = ENCODERS.get(str(config.get("model_type")))
    return network is not None and not config.get("is_decoder") and set(config.get("architectures") or []) <= {network}


def in_stock_terms(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a config.json of dllm's A2D models as that of a bidirectional Llama, Qwen2 or Qwen3, that of Open-dLLM or
    of an encoder with its mask token; any other as it is.

    Their config.json names no mask token; the tokenizer does.

    Raises:
        ModelError: another network than dllm's, or no mask token in the tokenizer.
    """
    if is_encoder(config):
        return {"mask_token_id": _mask_of_tokenizer(folder, ENCODER.mask_text), **config}
    if config.get("model_type") == "qwen2" and OPEN_DLLM_CODE in (config.get("auto_map") or {}).values():
        mask = config.get("mask_token_id", _mask_of_tokenizer(folder))
        return {**config, "is_causal": False, MARK: OPEN_DLLM.name, "mask_token_id": mask}
    front, body = A2D, str(config.get("model_type")).removeprefix(A2D)
    if body == config.get("model_type") or body not in STOCK:
        return dict(config)
    expected = architecture_of(body)
    if not set(config.get("architectures") or []) <= {expected}:
        raise ModelError(
            f"{folder}/config.json: architectures: expected {expected} for model_type {front + body}, found "
            f"{config['architectures']}; that network is another one"
        )
    stock = {key: value for key, value in config.items() if key not in ("auto_map", "architectures")}
    mask = config.get("mask_token_id", _mask_of_tokenizer(folder))
    if mask is None:
        raise ModelError(f"{folder}: expected the mask token in mask_token of tokenizer_config.json, found none")
    return stock | {"model_type": body, "is_causal": False, MARK: "a2d", "mask_token_id": mask}


def architecture_of(body: str) -> str:
    """Return dllm's name of the network that it adapted."""
    return f"A2D{BODIES[body][1].removesuffix('ForCausalLM')}LMHeadModel"


def _mask_of_tokenizer(folder: Path, usual: str | None = None) -> int | None:
    """Return the mask token that the tokenizer in a folder names, else the one with the usual text."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists() and (folder / "tokenizer.json").exists():
            named = read_json_object(folder / name, ModelError, "fetch the file again").get("mask_token", usual)
            text = named.get("content") if isinstance(named, dict) else named
            core = read_json_object(folder / "tokenizer.json", ModelError, "fetch the file again")
            for one in core.get("added_tokens", []):
                if text is not None and one["content"] == text:
                    return int(one["id"])
    return None


def _stock_family(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of a folder in transformers' own layout: a causal model, the lab's, or one saved again."""
    model_type, causal = config["model_type"], config.get("is_causal", True)
    marked = FAMILIES.get(str(config.get(MARK)))
    allowed = [BODIES[model_type][1]]
    if model_type == "llama" and config.get(MARK_POSITIONS):
        allowed = ["LearnedPositionsLlama"]
    elif marked is not None and marked.network is not None:
        allowed = [marked.network.partition(":")[2]]
    elif model_type == "llama" and MARK in config:  # saved again by transformers
        allowed += ["FullPrecisionLlama"]
    found = config.get("architectures") or []
    if not set(found) <= set(allowed):
        raise ModelError(
            f"{where}/config.json: architectures: expected {' or '.join(allowed)} for model_type {model_type!r}, "
            f"found {found}; that network is another one, and sinkscope never runs remote code"
        )
    claiming = [one.name for one in FAMILIES.values() if one.causal == causal and model_type in one.model_types]
    if causal is True:
        return FAMILIES[claiming[0]]
    known = [family.name for family in FAMILIES.values() if not family.causal]
    name = config.get(MARK, claiming[0] if claiming else None)
    if causal is not False or name not in known:
        raise ModelError(
            f"{where}/config.json: expected {MARK} to be one of {', '.join(known)} in a bidirectional {model_type}, "
            f"found {name!r} with model_type {model_type!r}, is_causal {causal}"
        )
    return FAMILIES[name]
