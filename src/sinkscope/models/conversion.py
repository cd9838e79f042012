"""The family to which a config.json belongs; its keys and tensor names, translated to those of transformers' networks.

A key has no effect where transformers' own config class ignores it. For the types that are translated here, an unknown
key may change the network, unless its value switches nothing on; all such keys are refused together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models import any_causal
from sinkscope.models.families import FAMILIES
from sinkscope.models.families.basic_family import ENCODER, ENCODERS
from sinkscope.models.families.qwen_family import OPEN_DLLM
from sinkscope.models.family import (
    BODIES,
    MARK,
    MARK_FIRST,
    MARK_POSITIONS,
    MARK_ROTARY,
    ROPE_TYPES,
    STOCK,
    Family,
    Layout,
)
from sinkscope.models.folders import OWN_NETWORK
from sinkscope.runs.files import read_json_object

A2D = "a2d-"
"""What dllm puts in front of the model_type of the model that was adapted."""
OPEN_DLLM_CODE = "modeling_qwen2.Qwen2ForCausalLM"
"""What ``auto_map`` names in Open-dLLM's folders; nothing else in their config.json tells them from a causal Qwen2."""


def recognise(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of a ``config.json`` in the folder ``where``; raise ModelError for another network."""
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
        _check_architecture(config, where, family.architectures)
        return family
    if is_encoder(config) and config.get("mask_token_id") is not None:
        return ENCODER
    if any_causal.is_any_causal(config):
        return FAMILIES[any_causal.NAME]
    names = ", ".join(name for family in published for name in family.model_types if name not in STOCK)
    code = " Its config.json names remote code (auto_map), which sinkscope never runs." if "auto_map" in config else ""
    raise ModelError(
        f"{where}/config.json: expected a causal model of transformers, model_type {names}, "
        f"{' or '.join(ENCODERS)} for masked tokens with a mask in the tokenizer, or {' or '.join(STOCK)} with "
        f"is_causal false and a mask_token_id; found model_type {model_type!r}, is_causal "
        f"{config.get('is_causal', True)}, architectures {found or None}.{code} "
        f"{OWN_NETWORK[0].upper()}{OWN_NETWORK[1:]}"
    )


def _check_architecture(config: Mapping[str, Any], where: str, allowed: Sequence[str]) -> None:
    if not set(found := config.get("architectures") or []) <= set(allowed):
        raise ModelError(
            f"{where}/config.json: architectures: expected {' or '.join(allowed)} for model_type "
            f"{config.get('model_type')!r}, found {found}; another network; sinkscope never runs remote code"
        )


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of an encoder which predicts masked tokens."""
    network = ENCODERS.get(str(config.get("model_type")))
    return network is not None and not config.get("is_decoder") and set(config.get("architectures") or []) <= {network}


def in_stock_terms(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a config.json of A2D as that of a bidirectional stock network, of others with their tokenizer's mask."""
    if is_encoder(config):
        return {"mask_token_id": _mask_of_tokenizer(folder, ENCODER.mask_text), **config}
    if config.get("model_type") == "qwen2" and OPEN_DLLM_CODE in (config.get("auto_map") or {}).values():
        mask = config.get("mask_token_id", _mask_of_tokenizer(folder))
        return {**config, "is_causal": False, MARK: OPEN_DLLM.name, "mask_token_id": mask}
    body = str(config.get("model_type")).removeprefix(A2D)
    if body == config.get("model_type") or body not in STOCK:
        return dict(config)
    _check_architecture(config, str(folder), (architecture_of(body),))
    stock = {key: value for key, value in config.items() if key not in ("auto_map", "architectures")}
    mask = config.get("mask_token_id", _mask_of_tokenizer(folder))
    return stock | {"model_type": body, "is_causal": False, MARK: "a2d", "mask_token_id": mask}


def architecture_of(body: str) -> str:
    """Return dllm's name of the network that it adapted."""
    return f"A2D{BODIES[body][1].removesuffix('ForCausalLM')}LMHeadModel"


def _mask_of_tokenizer(folder: Path, usual: str | None = None) -> int | None:
    """Return the mask token that the tokenizer in a folder names, else the one with the usual text."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists() and (folder / "tokenizer.json").exists():
            text = read_json_object(folder / name, ModelError, "fetch the file again").get("mask_token", usual)
            text = text.get("content") if isinstance(text, dict) else text
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
        allowed += ["FullPrecisionLlama", "FirstAloneLlama"]
    _check_architecture(config, where, allowed)
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


@dataclass(frozen=True)
class Converted:
    """A config.json in transformers' terms: ``module:Class`` of its network, and arguments of its config class."""

    layout: Layout | None  # None where transformers reads the folder itself
    network: str
    fields: Mapping[str, Any]
    mask_id: int | None
    eos_ids: tuple[int, ...]
    unread_keys: tuple[str, ...]  # by any network


def convert_config(config: Mapping[str, Any], family: Family, where: str) -> Converted:
    """Return a ``config.json`` of the folder ``where`` in transformers' terms; raise ModelError for other networks."""
    eos = config.get("eos_token_id")
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    if family.name == any_causal.NAME:
        name = (config.get("architectures") or any_causal.causal_networks(config["model_type"]))[0]
        return Converted(None, f"transformers:{name}", config, None, eos_ids, any_causal.unread_keys(config, where))
    if family.name == ENCODER.name:  # dllm ends its answers by the tokenizer
        network, mask_id = f"sinkscope.models.networks:{ENCODERS[config['model_type']]}", config["mask_token_id"]
        unread = tuple(key for key in any_causal.unread_keys(config, where) if key != "mask_token_id")
        return Converted(None, network, config, mask_id, (), unread)
    layout = STOCK.get(str(config.get("model_type")), family.layout)
    assert layout is not None  # a family without a layout is recognised in stock folders only
    file = f"{where}/config.json"
    fields: dict[str, Any] = {**layout.given, **{key: config[key] for key in layout.passed & set(config)}}
    for key, name in layout.sizes.items():
        size = config.get(key)
        while size is None and key in layout.fallbacks:
            key = layout.fallbacks[key]
            size = config.get(key)
        if type(size) is int and size > 0:
            fields[name] = size
        elif size is not None or key not in layout.optional:
            raise ModelError(f"{file}: {key}: expected a whole number above 0, found {size!r}")
    for key, name in layout.numbers.items():
        if config.get(key) is not None or key not in layout.optional:
            fields[name] = float(config[key])
    for key, name in layout.flags.items():
        if config.get(key) is not None:
            fields.setdefault(name, config[key])
    if layout.body in ("qwen3_moe", "glm4_moe"):  # transformers would take 128
        fields.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    unread = _unread_keys(config, layout, fields, file)
    fields["rope_parameters"] = _rope(fields, file)
    fields |= {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}
    fields["pad_token_id"] = None  # sinkscope pads with EOS behind a mask; transformers would freeze that embedding
    full_precision = config.get(layout.full_precision_rotary or MARK_ROTARY, layout.full_precision_rotary is not None)
    mask_id = None if family.causal else config.get("mask_token_id")
    if not family.causal:
        if mask_id is None:
            raise ModelError(f"{file}: mask_token_id: expected it or mask_token in tokenizer_config.json, found none")
        fields |= {"is_causal": False, "mask_token_id": mask_id, MARK: family.name, MARK_ROTARY: full_precision}
    network = family.network or f"transformers:{BODIES[layout.body][1]}"
    variants = {"FullPrecision": full_precision, "LearnedPositions": fields.get(MARK_POSITIONS)}
    variants |= {"FirstAlone": fields.get(MARK_FIRST)}
    if family.network is None and layout.body == "llama" and any(variants.values()):
        variant = next(name for name, given in variants.items() if given)
        network = f"sinkscope.models.networks:{variant}Llama"
    return Converted(layout, network, fields, mask_id, eos_ids, unread)


def completed(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return a published ``config.json`` with what the published code takes for keys that it lacks."""
    layout = STOCK.get(str(config.get("model_type")), family.layout)
    absent = {} if layout is None else layout.absent
    return {**config, **{key: value for key, value in absent.items() if config.get(key) is None}}


def known_keys(layout: Layout) -> set[str]:
    """Return every key of a ``config.json`` whose meaning a layout gives."""
    known = {*layout.sizes, *layout.fallbacks.values(), *layout.numbers, *layout.flags, *layout.passed}
    known |= {*layout.fixed, *layout.ignored, *layout.repeated}
    known |= {"mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id"}
    return known | ({layout.full_precision_rotary} if layout.full_precision_rotary else set())


def _unread_keys(config: Mapping[str, Any], layout: Layout, fields: Mapping[str, Any], file: str) -> tuple[str, ...]:
    """Return the keys that the network does not read; raise ModelError for all that would make it another network."""
    wrong = []
    for key, rule in layout.fixed.items():
        found = config.get(key, rule.default)
        if not any(type(found) is type(one) and found == one for one in rule.allowed):
            absent = "" if key in config else " (the key is missing, and the published code takes this)"
            wrong.append(f"{key}: expected {' or '.join(map(repr, rule.allowed))}, found {found!r}{absent}")
    layers = fields["num_hidden_layers"]
    for key, value in layout.repeated.items():
        if config.get(key, [value] * layers) not in ([value] * layers, None):
            wrong.append(f"{key}: expected {value!r} for each of {layers} layers, found {config[key]!r}")
    dim = fields.get("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    has = {**fields, "head_dim": dim, "rotary_dim": int(dim * fields.get("partial_rotary_factor", 1))}
    unread = [key for key in config if key not in known_keys(layout)]
    stock = layout in STOCK.values()
    read: set[str] = set()
    if stock and unread:
        import transformers

        read = {one.name for one in fields_of(getattr(transformers, BODIES[layout.body][0]))}
    for key in unread:
        found = config[key]
        if key in read if stock else found and has.get(key) != found:
            wrong.append(f"{key}: expected a key known for model_type {config.get('model_type')!r}, found {found!r}")
    if wrong:
        raise ModelError(f"{file}: {'; '.join(wrong)}; sinkscope does not model that network")
    return tuple(unread)


def _rope(fields: dict[str, Any], file: str) -> dict[str, Any]:
    """Return one record of rotations from both forms that transformers writes, whose keys leave ``fields``."""
    theta, scaling, parameters = (fields.pop(key, None) for key in ("rope_theta", "rope_scaling", "rope_parameters"))
    record = dict((scaling if parameters is None else parameters) or {})
    if (scaling and parameters and scaling != parameters) or (theta and record.get("rope_theta", theta) != theta):
        said = f"rope_theta {theta}, rope_scaling {scaling} and rope_parameters {parameters}"
        raise ModelError(f"{file}: rope_parameters: expected one record of rotations, found {said}, which differ")
    base = float(record.pop("rope_theta", theta) or 10000.0)
    kinds = {record.pop(key) for key in ("rope_type", "type") if key in record} or {None if record else "default"}
    kind = kinds.pop()
    if kinds or kind not in ROPE_TYPES or record.pop("partial_rotary_factor", None) not in (None, 1):
        name, known = "rope_scaling" if parameters is None else "rope_parameters", ", ".join(ROPE_TYPES)
        raise ModelError(f"{file}: {name}: expected rope_type {known} and whole heads, found {parameters or scaling!r}")
    record.pop("finetuned", None)
    numbers = {
        key: float(value) if type(value) is int and key != "original_max_position_embeddings" else value
        for key, value in record.items()
    }
    return {"rope_theta": base, "rope_type": kind} | {key: one for key, one in numbers.items() if one is not None}
