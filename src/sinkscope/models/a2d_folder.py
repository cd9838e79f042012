"""`convert`: a bidirectional Llama, Qwen2 or Qwen3 becomes a folder that dllm loads as one of its A2D models.

dllm runs transformers 4, which reads other keys for rotations and other classes of tokenizers than transformers 5
writes; and it calls every mask token ``<|mask|>``. Source: ZHZisZZ/dllm, dllm/pipelines/a2d and dllm/utils/models.py.
"""

import json
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import CallError, ModelError
from sinkscope.models.families.a2d_family import A2D
from sinkscope.models.layouts import BODIES, STOCK
from sinkscope.models.loading import load, quiet
from sinkscope.models.model import Model
from sinkscope.models.recognition import architecture_of
from sinkscope.models.tokenization import CORE, SETTINGS
from sinkscope.runs.folder import new_folder


def convert(name: str, out: Path) -> Path:
    """Write a folder that dllm loads, and return it; weights keep the dtype in which they are stored.

    Args:
        name: as for `load`.
        out: a new or empty folder.

    Raises:
        CallError: another network than dllm's, or a mask token without a text.
        ModelError: see `load`.
    """
    model = load(name)
    network, body = model.network, model.network.config.model_type
    if model.family.causal or body not in STOCK or type(network).__name__ != BODIES[body][1]:
        raise CallError(
            f"{name}: expected a bidirectional {', '.join(STOCK)} as dllm adapts them, found "
            f"{type(network).__name__} of {model.family.name}"
        )
    if (stored := getattr(torch, model.card.stored_dtype, None)) is not None:
        network.to(stored)
    with new_folder(out, ModelError, "the converted model", "config.json") as place, quiet():
        network.save_pretrained(place)
        _write_tokenizer(model, place)
        fields = _read(place / "config.json")
        rope = fields.pop("rope_parameters")
        theta, scaled = rope.pop("rope_theta"), rope["rope_type"] != "default"
        fields = {key: one for key, one in fields.items() if not key.startswith("sinkscope_") and key != "is_causal"}
        fields |= {"model_type": f"a2d-{body}", "architectures": [architecture_of(body)]}
        _write(place / "config.json", fields | {"rope_theta": theta, "rope_scaling": rope if scaled else None})
    return out


def _write_tokenizer(model: Model, place: Path) -> None:
    """Write a tokenizer for any version of transformers, whose mask token has dllm's text."""
    model.tokenizer.save_pretrained(place)
    core, settings, text = _read(place / CORE), _read(place / SETTINGS), A2D.mask_text
    masks = [one for one in core["added_tokens"] if one["id"] == model.card.mask_id]
    if not masks:
        raise CallError(f"{model.card.name}: expected a mask token that its tokenizer names, found none; name it there")
    vocabulary = core["model"]["vocab"]
    if isinstance(vocabulary, dict) and masks[0]["content"] in vocabulary:
        vocabulary[text] = vocabulary.pop(masks[0]["content"])
    masks[0]["content"] = text
    _write(place / CORE, core)
    for key in ("backend", "is_local", "local_files_only", "extra_special_tokens", "added_tokens_decoder"):
        settings.pop(key, None)  # of transformers 5
    _write(place / SETTINGS, settings | {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": text})


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _write(file: Path, fields: Any) -> None:
    file.write_text(f"{json.dumps(fields, indent=2, ensure_ascii=False)}\n", encoding="utf-8")
