"""`convert`: a bidirectional Llama, Qwen2 or Qwen3 becomes a folder that dllm loads as one of its A2D models.

dllm runs transformers 4, which reads other keys for rotations and other classes of tokenizers than transformers 5
writes; and it calls every mask token ``<|mask|>``. Source: ZHZisZZ/dllm, dllm/pipelines/a2d and dllm/utils/models.py.
"""

import json
from pathlib import Path

import torch

from sinkscope.errors import CallError, ModelError
from sinkscope.models.families.a2d_family import FAMILY
from sinkscope.models.layouts import BODIES, STOCK
from sinkscope.models.loading import load, quiet
from sinkscope.models.model import Model
from sinkscope.models.recognition import A2D
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
    config = model.network.config
    body = config.model_type
    if model.family.causal or body not in STOCK or type(model.network).__name__ != BODIES[body][1]:
        raise CallError(
            f"{name}: expected a bidirectional {', '.join(STOCK)} as dllm adapts them, found "
            f"{type(model.network).__name__} of {model.family.name}"
        )
    if (stored := getattr(torch, model.card.stored_dtype, None)) is not None:
        model.network.to(stored)
    with new_folder(out, ModelError, "the converted model", "config.json") as place, quiet():
        model.network.save_pretrained(place)
        _write_tokenizer(model, place)
        fields = json.loads((place / "config.json").read_text())
        rope = fields.pop("rope_parameters")
        theta, scaled = rope.pop("rope_theta"), rope["rope_type"] != "default"
        fields = {key: one for key, one in fields.items() if not key.startswith("sinkscope_") and key != "is_causal"}
        architecture = f"A2D{BODIES[body][1].removesuffix('ForCausalLM')}LMHeadModel"
        fields |= {"model_type": A2D + body, "architectures": [architecture]}
        fields |= {"rope_theta": theta, "rope_scaling": rope if scaled else None}
        (place / "config.json").write_text(f"{json.dumps(fields, indent=2)}\n")
    return out


def _write_tokenizer(model: Model, place: Path) -> None:
    """Write a tokenizer for any version of transformers, whose mask token has dllm's text."""
    model.tokenizer.save_pretrained(place)
    core = json.loads((place / CORE).read_text(encoding="utf-8"))
    masks = [one for one in core["added_tokens"] if one["id"] == model.card.mask_id]
    if not masks:
        raise CallError(f"{model.card.name}: expected a mask token that its tokenizer names, found none; name it there")
    text, masks[0]["content"] = masks[0]["content"], FAMILY.mask_text
    vocabulary = core["model"]["vocab"]
    if isinstance(vocabulary, dict) and text in vocabulary:
        vocabulary[FAMILY.mask_text] = vocabulary.pop(text)
    (place / CORE).write_text(json.dumps(core, ensure_ascii=False), encoding="utf-8")
    settings = json.loads((place / SETTINGS).read_text(encoding="utf-8"))
    of_the_library = ("backend", "is_local", "local_files_only", "extra_special_tokens", "added_tokens_decoder")
    settings = {key: one for key, one in settings.items() if key not in of_the_library}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": FAMILY.mask_text}
    (place / SETTINGS).write_text(f"{json.dumps(settings, indent=2)}\n", encoding="utf-8")
