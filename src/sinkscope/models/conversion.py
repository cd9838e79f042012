"""A published config.json and published tensor names, translated to those of transformers' Llama and Qwen2.

Every key of the config.json is translated, known to have no effect, or refused by an error that names the file, the key, its value and
the values that are possible.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models.family import Family
from sinkscope.models.layouts import BODIES, MARK, MARK_POSITIONS, MARK_ROTARY, STOCK, Fixed, Layout

LARGEST_SIZE = 1 << 40
LARGEST = 1e300  # a number in JSON has no bound, a float has


@dataclass(frozen=True)
class Scaling:
    """Keys that a record of rotations of one ``rope_type`` may hold.

    Attributes:
        needed, optional: keys of numbers.
        flags: keys that are true or false.
        ignored: keys without effect.
    """

    needed: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()


_ORIGINAL = "original_max_position_embeddings"
ROPE_TYPES = {
    "default": Scaling(),
    "linear": Scaling(frozenset({"factor"})),
    "llama3": Scaling(frozenset({"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL})),
    "yarn": Scaling(
        frozenset({"factor"}),
        frozenset({_ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}),
        flags=frozenset({"truncate"}),
        ignored=frozenset({"finetuned"}),
    ),
}
"""The kinds of rotation that do not change with the length of the text, by transformers' names."""


@dataclass(frozen=True)
class Converted:
    """A config.json in transformers' terms.

    Attributes:
        layout: how the folder is written.
        network: ``module:Class`` of the network that computes the checkpoint.
        fields: arguments of transformers' config class.
        full_precision_rotary: whether queries and keys are rotated in fp32 whatever the dtype of the weights.
        mask_id, eos_ids: special tokens of the config.
    """

    layout: Layout
    network: str
    fields: Mapping[str, Any]
    full_precision_rotary: bool
    mask_id: int | None
    eos_ids: tuple[int, ...]


def convert_config(config: Mapping[str, Any], family: Family, where: str) -> Converted:
    """Return a ``config.json`` in transformers' terms; ``where`` names its folder in errors.

    Raises:
        ModelError: an unknown key, or a value of another network.
    """
    model_type = config.get("model_type")
    layout = STOCK.get(str(model_type), family.layout)
    assert layout is not None  # a family without a layout is recognised in stock folders only
    file = f"{where}/config.json"
    _refuse_unknown(config, layout, file)
    for key, rule in layout.fixed.items():
        _check_fixed(key, config, rule, file)
    fields: dict[str, Any] = {**layout.given, **{key: config[key] for key in layout.passed & set(config)}}
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
    _check_experts(fields, file)
    _check_repeated(config, layout, fields["num_hidden_layers"], file)
    fields["rope_parameters"] = _rope(fields, file)
    tokens = {key: _token(key, config, fields["vocab_size"], file) for key in layout.tokens}
    fields |= {key: tokens[key] for key in ("bos_token_id", "eos_token_id")}
    fields["pad_token_id"] = None  # sinkscope pads with EOS behind a mask; transformers would freeze that embedding
    full_precision = config.get(layout.full_precision_rotary or MARK_ROTARY, layout.full_precision_rotary is not None)
    if not isinstance(full_precision, bool):
        raise ModelError(
            f"{file}: {layout.full_precision_rotary or MARK_ROTARY}: expected true or false, found {full_precision!r}"
        )
    if not isinstance(fields.get(MARK_POSITIONS, False), bool):
        raise ModelError(f"{file}: {MARK_POSITIONS}: expected true or false, found {fields[MARK_POSITIONS]!r}")
    if not family.causal:
        if not isinstance(tokens["mask_token_id"], int):
            raise ModelError(
                f"{file}: mask_token_id: expected the id of the mask token, found {tokens['mask_token_id']!r}"
            )
        fields |= {
            "is_causal": False,
            "mask_token_id": tokens["mask_token_id"],
            MARK: family.name,
            MARK_ROTARY: full_precision,
        }
    eos = tokens["eos_token_id"]
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    network = _network(layout, family, fields, full_precision)
    return Converted(
        layout, network, fields, full_precision, tokens["mask_token_id"] if not family.causal else None, eos_ids
    )


def completed(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return a published ``config.json`` with what the published code takes for keys that it lacks."""
    layout = STOCK.get(str(config.get("model_type")), family.layout)
    absent = {} if layout is None else layout.absent
    return {**config, **{key: value for key, value in absent.items() if config.get(key) is None}}


def _network(layout: Layout, family: Family, fields: Mapping[str, Any], full_precision_rotary: bool) -> str:
    """Return where the class is that computes what a checkpoint's published code does, as ``module:Class``."""
    if family.network is not None:
        return family.network
    if layout.body != "llama":
        return f"transformers:{BODIES[layout.body][1]}"
    if full_precision_rotary:
        return "sinkscope.models.llama_variants:FullPrecisionLlama"
    if fields.get(MARK_POSITIONS):
        return "sinkscope.models.llama_variants:LearnedPositionsLlama"
    return "transformers:LlamaForCausalLM"


def known_keys(layout: Layout) -> set[str]:
    """Return every key that a ``config.json`` of a layout may have."""
    known = {*layout.sizes, *layout.fallbacks.values(), *layout.numbers, *layout.flags, *layout.passed, *layout.tokens}
    return known | {
        *layout.fixed,
        *layout.ignored,
        *layout.repeated,
        *([layout.full_precision_rotary] if layout.full_precision_rotary else []),
    }


def _refuse_unknown(config: Mapping[str, Any], layout: Layout, file: str) -> None:
    """Raise an error for a key that the layout does not name."""
    known = known_keys(layout)
    for key, value in config.items():
        if key not in known:
            raise ModelError(
                f"{file}: {key}: expected a key known for model_type {config.get('model_type')!r}, found {key} = {value!r}; "
                "if it has no effect on the network, remove it from the file"
            )


def _check_fixed(key: str, config: Mapping[str, Any], rule: Fixed, file: str) -> None:
    """Raise an error where a key has a value of a network that is not modelled."""
    found = config.get(key, rule.default)
    if not any(type(found) is type(one) and found == one for one in rule.allowed):
        absent = "" if key in config else " (the key is missing, and the published code takes this)"
        expected = " or ".join(repr(one) for one in rule.allowed)
        raise ModelError(
            f"{file}: {key}: expected {expected}, found {found!r}{absent}; sinkscope does not model that network"
        )


def _size(key: str, config: Mapping[str, Any], layout: Layout, file: str) -> int | None:
    """Return a whole number above 0, by the key itself or by the key that stands in for it."""
    found = config.get(key)
    if found is None and key in layout.fallbacks:
        return _size(layout.fallbacks[key], config, layout, file)
    if found is None and key in layout.optional:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < LARGEST_SIZE:
        raise ModelError(
            f"{file}: {key}: expected {_range('a whole number', found, LARGEST_SIZE)}, found {_short(found)}"
        )
    return found


def _number(key: str, config: Mapping[str, Any], file: str) -> float:
    """Return a finite number above 0."""
    found = config.get(key)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < LARGEST:
        raise ModelError(f"{file}: {key}: expected {_range('a number', found, LARGEST)}, found {_short(found)}")
    return float(found)


def _range(kind: str, found: Any, end: float) -> str:
    """Return in words what a number should be that is not above 0 and below ``end``."""
    too_large = isinstance(found, int | float) and not isinstance(found, bool) and found >= end
    return f"{kind} below {end:g}" if too_large else f"{kind} above 0"


def _short(found: Any) -> str:
    """Return a value as text of at most 80 characters, for an error message."""
    text = repr(found)
    return text if len(text) <= 80 else f"{text[:80]} …"


def _check_repeated(config: Mapping[str, Any], layout: Layout, layers: int, file: str) -> None:
    """Raise an error where a list over the layers holds anything but the number that is modelled."""
    for key, value in layout.repeated.items():
        if config.get(key) != [value] * layers:
            raise ModelError(
                f"{file}: {key}: expected {value} for each of {layers} layers, found {_short(config.get(key))}"
            )


def _check_heads(fields: dict[str, Any], layout: Layout, file: str) -> None:
    theirs = {ours: key for key, ours in layout.sizes.items()}
    heads, groups, width = (fields[name] for name in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    if "head_dim" not in fields and width % heads:
        raise ModelError(
            f"{file}: {theirs['num_attention_heads']}: expected a divisor of {theirs['hidden_size']} {width}, found {heads}"
        )
    head = fields.get("head_dim", width // heads)
    if layout.body in ("qwen3_moe", "glm4_moe"):
        fields["head_dim"] = head  # transformers would take 128
    if head % 2:
        key = "head_dim" if "head_dim" in fields else theirs["num_attention_heads"]
        found = head if "head_dim" in fields else f"{heads}, which makes heads of {head}"
        raise ModelError(f"{file}: {key}: expected heads of an even size, whose halves can be rotated, found {found}")
    factor = fields.get("partial_rotary_factor", 1)
    if factor > 1 or (rotated := int(head * factor)) < 2 or rotated % 2:
        raise ModelError(
            f"{file}: partial_rotary_factor: expected an even part of the {head} dimensions of a head, found {factor}"
        )
    if heads % groups:
        key, whole = theirs["num_key_value_heads"], theirs["num_attention_heads"]
        raise ModelError(f"{file}: {key}: expected a divisor of {whole} {heads}, found {groups}")
    if layout.body == "llama" and width % heads:  # transformers' Llama wants it also where head_dim is given
        raise ModelError(
            f"{file}: {theirs['num_attention_heads']}: expected a divisor of {theirs['hidden_size']} {width}, found {heads}"
        )


def _check_experts(fields: Mapping[str, Any], file: str) -> None:
    """Raise an error where the router of a mixture cannot choose as many experts as a token is to go through."""
    total = next((name for name in ("num_experts", "n_routed_experts") if name in fields), None)
    if total is None:
        return
    experts, groups, chosen = fields[total], fields.get("n_group", 1), fields.get("topk_group", 1)
    if groups > 1 and (experts % groups or experts // groups < 2):  # a group is judged by its two best experts
        raise ModelError(
            f"{file}: n_group: expected groups of two or more of the {experts} experts, all of one size, found {groups}"
        )
    if chosen > groups:
        raise ModelError(f"{file}: topk_group: expected at most n_group {groups}, found {chosen}")
    open_ = chosen * (experts // groups)
    if (found := fields["num_experts_per_tok"]) > open_:
        raise ModelError(
            f"{file}: num_experts_per_tok: expected at most the {open_} experts of the chosen groups, found {found}"
        )


def _rope(fields: dict[str, Any], file: str) -> dict[str, Any]:
    """Return one record of rotations from either of the two forms that transformers writes; remove the keys it reads from ``fields``."""
    theta, scaling, parameters = (fields.pop(key, None) for key in ("rope_theta", "rope_scaling", "rope_parameters"))
    for key, value in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{file}: {key}: expected an object or null, found {value!r}")
    if scaling is not None and parameters is not None and scaling != parameters:
        raise ModelError(
            f"{file}: rope_scaling: expected it missing beside rope_parameters, found {_short(scaling)}; remove one of them"
        )
    name = "rope_scaling" if parameters is None else "rope_parameters"
    chosen: Mapping[str, Any] | None = scaling if parameters is None else parameters
    record = dict(chosen or {})
    where = f"{file}: {name}"
    if theta is not None and "rope_theta" in record and record["rope_theta"] != theta:
        raise ModelError(
            f"{where}: rope_theta: expected {theta!r} as rope_theta beside it says, found {record['rope_theta']!r}"
        )
    rope: dict[str, Any] = {"rope_theta": record.pop("rope_theta", 10000.0 if theta is None else theta)}
    kinds = [record.pop(key) for key in ("rope_type", "type") if key in record]
    if not kinds and record:
        raise ModelError(
            f"{where}: rope_type: expected one of {', '.join(ROPE_TYPES)}, found only {', '.join(map(repr, record))}"
        )
    rope["rope_type"] = kinds[0] if kinds else "default"
    for kind in kinds:
        if not isinstance(kind, str) or kind not in ROPE_TYPES or kind != kinds[0]:
            expected = repr(kinds[0]) if kind != kinds[0] else f"one of {', '.join(ROPE_TYPES)}"
            raise ModelError(f"{where}: rope_type: expected {expected}, found {_short(kind)}")
    rope["rope_theta"] = _number("rope_theta", rope, file)
    if rope["rope_theta"] <= 1:
        raise ModelError(
            f"{file}: rope_theta: expected a number above 1, the base of the rotations, found {rope['rope_theta']:g}"
        )
    return rope | _scaling(record, rope["rope_type"], where)


def _scaling(record: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    """Return what a record of rotations holds besides its type and its base, after a check of every key."""
    rule = ROPE_TYPES[kind]
    if record.get("partial_rotary_factor") in (None, 1.0):
        record = {key: value for key, value in record.items() if key != "partial_rotary_factor"}
    missing = sorted(rule.needed - set(record))
    if missing:
        raise ModelError(f"{where}: {missing[0]}: expected a number above 0 for rope_type {kind!r}, found none")
    for key in record:
        if key not in rule.needed | rule.optional | rule.flags | rule.ignored:
            known = ", ".join(sorted(rule.needed | rule.optional | rule.flags)) or "none"
            raise ModelError(
                f"{where}: {key}: expected a key known for rope_type {kind!r} ({known}), found {key} = {_short(record[key])}; "
                "if it has no effect on the network, remove it from the file"
            )
    kept = {
        key: value
        for key, value in record.items()
        if key not in rule.ignored and (key in rule.needed or value is not None)
    }
    for key, value in kept.items():
        if key in rule.flags:
            if not isinstance(value, bool):
                raise ModelError(f"{where}: {key}: expected true or false, found {_short(value)}")
        elif key == _ORIGINAL:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < LARGEST:
                raise ModelError(
                    f"{where}: {key}: expected {_range('a whole number', value, LARGEST)}, found {_short(value)}"
                )
        else:
            kept[key] = _number(key, kept, where)
    if kind == "llama3" and kept["high_freq_factor"] <= kept["low_freq_factor"]:
        low, high = kept["low_freq_factor"], kept["high_freq_factor"]
        raise ModelError(f"{where}: high_freq_factor: expected a number above low_freq_factor {low}, found {high}")
    return kept


def _token(key: str, config: Mapping[str, Any], rows: int, file: str) -> Any:
    """Return the id of a special token, None, or for EOS a list of ids; ``rows`` is the size of the vocabulary."""
    found = config.get(key)
    if found is None:
        return None
    ids = found if isinstance(found, list) and key == "eos_token_id" else [found]
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool):
            raise ModelError(f"{file}: {key}: expected the id of a token, found {found!r}")
        if key != "pad_token_id" and not 0 <= one < rows:  # the published padding is not used, and often −1
            raise ModelError(
                f"{file}: {key}: expected the id of one of the {rows} rows of its vocabulary, found {_short(one)}"
            )
    return found


def tensor_renamings(layout: Layout) -> dict[str, str]:
    """Return transformers' ``key_mapping``: regular expression → replacement. No published name matches two of them."""
    return {
        "^" + re.escape(theirs).replace(re.escape("{N}"), r"(\d+)"): ours.replace("{N}", r"\1")
        for theirs, ours in layout.tensors.items()
    }


def rename_tensor(name: str, layout: Layout) -> str:
    """Return transformers' name of a published tensor; a name that is not in the layout stays as it is."""
    return _rename(name, layout.tensors)


def published_name(name: str, layout: Layout) -> str:
    """Return the published name of one of transformers' tensors."""
    return _rename(name, {ours: theirs for theirs, ours in layout.tensors.items()})


def _rename(name: str, names: Mapping[str, str]) -> str:
    """Return the new name of a tensor; ``{N}`` in the names stands for the number of a layer."""
    number = re.search(r"\.(\d+)\.", name)
    pattern = name if number is None else name[: number.start(1)] + "{N}" + name[number.end(1) :]
    return names.get(pattern, name).replace("{N}", number[1] if number else "")
