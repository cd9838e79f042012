"""From a published config.json and its tensor names to those of transformers' Llama and Qwen2.

Every key is handled, knowingly ignored, or refused with its file, its value and what was expected.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models.family import Family
from sinkscope.models.layouts import MARK, MARK_ROTARY, PUBLISHED, STOCK, Fixed, Layout

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Converted:
    """A config.json in transformers' words.

    Attributes:
        layout: how its folder is written.
        fields: keywords of transformers' config.
        full_precision_rotary: queries and keys are rotated in fp32 whatever the dtype.
        mask_id, eos_ids: special tokens of the config.
    """

    layout: Layout
    fields: Mapping[str, Any]
    full_precision_rotary: bool
    mask_id: int | None
    eos_ids: tuple[int, ...]


def convert_config(config: Mapping[str, Any], family: Family, where: str) -> Converted:
    """Converts a ``config.json``; ``where`` names its folder in errors.

    Raises:
        ModelError: a key nobody knows, or a value that is not modelled.
    """
    model_type = config.get("model_type")
    layout = STOCK[model_type] if model_type in STOCK else PUBLISHED[family.name]
    file = f"{where}/config.json"
    _refuse_unknown(config, layout, file)
    for key, rule in layout.fixed.items():
        _check_fixed(key, config, rule, file)
    fields: dict[str, Any] = {key: config[key] for key in layout.passed & set(config)}
    for key, name in layout.sizes.items():
        size = _size(key, config, layout, file)
        if size is not None:
            fields[name] = size
    for key, name in layout.numbers.items():
        fields[name] = _number(key, config, file)
    for key, name in layout.flags.items():
        if key not in config:
            continue
        if not isinstance(config[key], bool):
            raise ModelError(f"{file}: {key}: expected true or false, found {config[key]!r}")
        if fields.get(name, config[key]) != config[key]:
            raise ModelError(f"{file}: {key}: expected {fields[name]} as the keys before it say, found {config[key]}")
        fields[name] = config[key]
    if layout.bidirectional and not set(layout.flags) & set(config):
        raise ModelError(f"{file}: expected {' or '.join(layout.flags)} to be true or false, found none of them")
    _check_heads(fields, layout, file)
    fields["rope_parameters"] = _rope(fields, file)
    tokens = {key: _token(key, config, fields["vocab_size"], file) for key in layout.tokens}
    fields |= {key: tokens[key] for key in ("bos_token_id", "eos_token_id")}
    fields["pad_token_id"] = None  # sinkscope pads with EOS behind a mask; transformers would freeze that embedding
    full_precision = config.get(layout.full_precision_rotary or MARK_ROTARY, layout.full_precision_rotary is not None)
    if not isinstance(full_precision, bool):
        raise ModelError(f"{file}: {layout.full_precision_rotary or MARK_ROTARY}: expected true or false, found {full_precision!r}")
    if not family.causal:
        if not isinstance(tokens["mask_token_id"], int):
            raise ModelError(f"{file}: mask_token_id: expected the id of the mask token, found {tokens['mask_token_id']!r}")
        fields |= {"is_causal": False, "mask_token_id": tokens["mask_token_id"], MARK: family.name, MARK_ROTARY: full_precision}
    eos = tokens["eos_token_id"]
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    return Converted(layout, fields, full_precision, tokens["mask_token_id"] if not family.causal else None, eos_ids)


def _refuse_unknown(config: Mapping[str, Any], layout: Layout, file: str) -> None:
    known = {*layout.sizes, *layout.fallbacks.values(), *layout.numbers, *layout.flags, *layout.passed, *layout.tokens}
    known |= {*layout.fixed, *layout.ignored, *([layout.full_precision_rotary] if layout.full_precision_rotary else [])}
    for key, value in config.items():
        if key not in known:
            raise ModelError(
                f"{file}: {key}: expected a key known for model_type {config.get('model_type')!r}, found {key} = {value!r}; "
                "if it has no effect on the network, remove it from the file"
            )


def _check_fixed(key: str, config: Mapping[str, Any], rule: Fixed, file: str) -> None:
    found = config.get(key, rule.default)
    if not any(type(found) is type(one) and found == one for one in rule.allowed):
        absent = "" if key in config else " (the key is missing, and the published code takes this)"
        expected = " or ".join(repr(one) for one in rule.allowed)
        raise ModelError(f"{file}: {key}: expected {expected}, found {found!r}{absent}; sinkscope does not model that network")


def _size(key: str, config: Mapping[str, Any], layout: Layout, file: str) -> int | None:
    found = config.get(key)
    if found is None and key in layout.fallbacks:
        return _size(layout.fallbacks[key], config, layout, file)
    if found is None and key == "head_dim":
        return None
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ModelError(f"{file}: {key}: expected a whole number above 0, found {found!r}")
    return found


def _number(key: str, config: Mapping[str, Any], file: str) -> float:
    found = config.get(key)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < math.inf:
        raise ModelError(f"{file}: {key}: expected a number above 0, found {found!r}")
    return float(found)


def _check_heads(fields: Mapping[str, Any], layout: Layout, file: str) -> None:
    theirs = {ours: key for key, ours in layout.sizes.items()}
    heads, groups, width = (fields[name] for name in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    if "head_dim" not in fields and width % heads:
        raise ModelError(f"{file}: {theirs['num_attention_heads']}: expected a divisor of {theirs['hidden_size']} {width}, found {heads}")
    if heads % groups:
        key, whole = theirs["num_key_value_heads"], theirs["num_attention_heads"]
        raise ModelError(f"{file}: {key}: expected a divisor of {whole} {heads}, found {groups}")


def _rope(fields: dict[str, Any], file: str) -> dict[str, Any]:
    """One record from the two ways in which transformers has written rotations; takes the keys it has read out of ``fields``."""
    theta, scaling, parameters = (fields.pop(key, None) for key in ("rope_theta", "rope_scaling", "rope_parameters"))
    for key, value in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{file}: {key}: expected an object or null, found {value!r}")
    rope = {"rope_theta": 10000.0 if theta is None else theta, **(scaling or {}), **(parameters or {})}
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    if rope["rope_type"] not in ROPE_TYPES:
        raise ModelError(f"{file}: rope_type: expected one of {', '.join(ROPE_TYPES)}, found {rope['rope_type']!r}")
    _number("rope_theta", rope, file)
    return rope


def _token(key: str, config: Mapping[str, Any], rows: int, file: str) -> Any:
    found = config.get(key)
    if found is None:
        return None
    ids = found if isinstance(found, list) and key == "eos_token_id" else [found]
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool):
            raise ModelError(f"{file}: {key}: expected the id of a token, found {found!r}")
        if key == "mask_token_id" and not 0 <= one < rows:
            raise ModelError(f"{file}: config.json says mask_token_id {one}, but its vocabulary has {rows} rows")
    return found


def tensor_renamings(layout: Layout) -> dict[str, str]:
    """Regular expression → replacement, as transformers' ``key_mapping``; no published name is matched by two of them."""
    return {
        "^" + re.escape(theirs).replace(re.escape("{N}"), r"(\d+)"): ours.replace("{N}", r"\1") for theirs, ours in layout.tensors.items()
    }


def rename_tensor(name: str, layout: Layout) -> str:
    """Transformers' name of a published tensor; a name that is not in the layout stays as it is."""
    return _rename(name, layout.tensors)


def published_name(name: str, layout: Layout) -> str:
    """The published name of one of transformers' tensors."""
    return _rename(name, {ours: theirs for theirs, ours in layout.tensors.items()})


def _rename(name: str, names: Mapping[str, str]) -> str:
    number = re.search(r"\.(\d+)\.", name)
    pattern = name if number is None else name[: number.start(1)] + "{N}" + name[number.end(1) :]
    return names.get(pattern, name).replace("{N}", number[1] if number else "")
