"""A published config.json and published tensor names, translated to those of transformers' Llama and Qwen2.

For model types that transformers knows, transformers decides: a key that its config class ignores has no effect. For
the types that are translated here, an unknown key may change the network, unless its value switches nothing on; all
such keys are refused together.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models import any_causal
from sinkscope.models.families.a2d_family import ENCODER, ENCODERS
from sinkscope.models.family import Family
from sinkscope.models.layouts import BODIES, MARK, MARK_POSITIONS, MARK_ROTARY, ROPE_TYPES, STOCK, Layout

_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True)
class Converted:
    """A config.json in transformers' terms: ``module:Class`` of its network, and arguments of its config class.

    ``layout`` is None where transformers reads the folder itself; ``unread_keys`` are read by no network.
    """

    layout: Layout | None
    network: str
    fields: Mapping[str, Any]
    mask_id: int | None
    eos_ids: tuple[int, ...]
    unread_keys: tuple[str, ...]


def convert_config(config: Mapping[str, Any], family: Family, where: str) -> Converted:
    """Return the ``config.json`` of the folder ``where`` in transformers' terms.

    Raises:
        ModelError: an unknown key that may change the network, or a value of another network.
    """
    eos = config.get("eos_token_id")
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    if family.name == any_causal.NAME:
        network, made = f"transformers:{any_causal.network_name(config)}", any_causal.config_of(config, where)
        return Converted(None, network, config, None, eos_ids, any_causal.unread_keys(config, made))
    if family.name == ENCODER.name:  # dllm ends its answers by the tokenizer
        network, mask_id = f"sinkscope.models.encoders:{ENCODERS[config['model_type']]}", config["mask_token_id"]
        unread = any_causal.unread_keys(config, any_causal.config_of(config, where))
        return Converted(None, network, config, mask_id, (), tuple(key for key in unread if key != "mask_token_id"))
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
        if config.get(key) is None and key in layout.optional:
            continue
        if not isinstance(config.get(key), int | float) or not config[key] > 0:
            raise ModelError(f"{file}: {key}: expected a number above 0, found {config.get(key)!r}")
        fields[name] = float(config[key])
    for key, name in layout.flags.items():
        if fields.setdefault(name, config.get(key)) != config.get(key) and key in config:
            raise ModelError(f"{file}: {key}: expected {fields[name]} as the keys before it say, found {config[key]}")
        if fields[name] is None:
            del fields[name]
    if layout.body in ("qwen3_moe", "glm4_moe"):  # transformers would take 128
        fields.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    unread = _unread_keys(config, layout, fields, file)
    fields["rope_parameters"] = _rope(fields, file)
    for key in ("mask_token_id", "bos_token_id", "eos_token_id"):
        found = config.get(key) if key in layout.tokens else None
        for one in found if isinstance(found, list) else [] if found is None else [found]:
            if type(one) is not int or not 0 <= one < fields["vocab_size"]:
                rows = fields["vocab_size"]
                raise ModelError(
                    f"{file}: {key}: expected the id of one of the {rows} rows of its vocabulary, found {one!r}"
                )
    fields |= {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}
    fields["pad_token_id"] = None  # sinkscope pads with EOS behind a mask; transformers would freeze that embedding
    full_precision = config.get(layout.full_precision_rotary or MARK_ROTARY, layout.full_precision_rotary is not None)
    mask_id = None if family.causal else config.get("mask_token_id")
    if not family.causal:
        if mask_id is None:
            raise ModelError(f"{file}: mask_token_id: expected the id of the mask token, found None")
        fields |= {"is_causal": False, "mask_token_id": mask_id, MARK: family.name, MARK_ROTARY: full_precision}
    network = family.network or f"transformers:{BODIES[layout.body][1]}"
    if family.network is None and layout.body == "llama" and (full_precision or fields.get(MARK_POSITIONS)):
        variant = "FullPrecisionLlama" if full_precision else "LearnedPositionsLlama"
        network = f"sinkscope.models.networks:{variant}"
    return Converted(layout, network, fields, mask_id, eos_ids, unread)


def completed(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return a published ``config.json`` with what the published code takes for keys that it lacks."""
    layout = STOCK.get(str(config.get("model_type")), family.layout)
    absent = {} if layout is None else layout.absent
    return {**config, **{key: value for key, value in absent.items() if config.get(key) is None}}


def known_keys(layout: Layout) -> set[str]:
    """Return every key of a ``config.json`` whose meaning a layout gives."""
    known = {*layout.sizes, *layout.fallbacks.values(), *layout.numbers, *layout.flags, *layout.passed, *layout.tokens}
    known |= {*layout.fixed, *layout.ignored, *layout.repeated}
    return known | ({layout.full_precision_rotary} if layout.full_precision_rotary else set())


def _unread_keys(config: Mapping[str, Any], layout: Layout, fields: Mapping[str, Any], file: str) -> tuple[str, ...]:
    """Return the keys that the network does not read; raise ModelError for all that would make it another network.

    Of the keys that a published layout does not know, those are unread whose value switches nothing on, or repeats a
    field of transformers' config.
    """
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
    if kinds or kind not in ROPE_TYPES:
        name = "rope_scaling" if parameters is None else "rope_parameters"
        found = repr(parameters or scaling)
        raise ModelError(f"{file}: {name}: rope_type: expected one of {', '.join(ROPE_TYPES)}, found {found}")
    if record.pop("partial_rotary_factor", None) not in (None, 1):
        raise ModelError(f"{file}: partial_rotary_factor: expected 1 in the record of rotations, found another")
    record.pop("finetuned", None)
    numbers = {key: float(value) if type(value) is int and key != _ORIGINAL else value for key, value in record.items()}
    return {"rope_theta": base, "rope_type": kind} | {key: one for key, one in numbers.items() if one is not None}


def tensor_renamings(layout: Layout) -> dict[str, str]:
    """Return transformers' ``key_mapping``: regular expression → replacement. No published name matches two of them."""
    return {
        "^" + re.escape(theirs).replace(re.escape("{N}"), r"(\d+)"): ours.replace("{N}", r"\1")
        for theirs, ours in layout.tensors.items()
    }


def rename_tensor(name: str, names: Mapping[str, str]) -> str:
    """Return the other name of a tensor, or its own; ``{N}`` in the names stands for the number of a layer."""
    number = re.search(r"\.(\d+)\.", name)
    pattern = name if number is None else name[: number.start(1)] + "{N}" + name[number.end(1) :]
    return names.get(pattern, name).replace("{N}", number[1] if number else "")
