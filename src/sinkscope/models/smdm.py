"""`convert`: a checkpoint of paper 2's models (SMDM, "One Token Is Enough") becomes a folder that `load` reads.

The checkpoints are state dicts of lit-gpt. Their network is Llama's under other names, with queries, keys and values in
one projection, one group of heads after the other, and with an output layer that has no row for the mask. The embedding
has rows beyond those of the output layer: the mask (32000) and, where the model has one, the sink token (32001), which
always stands in front. Source: skywalker0523/OneTokenIsEnough, lit_gpt/diffmodel.py, diffmodel_extratoken.py,
diffmodel_gate.py, config.py.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import CallError, ModelError
from sinkscope.models.folders import read_config
from sinkscope.models.layouts import MARK, STOCK
from sinkscope.models.loading import outline
from sinkscope.models.sink_token import KEY, SinkToken
from sinkscope.models.tokenization import ADDED, CORE, PIECES, SETTINGS, SPECIAL, copy_files, template_files
from sinkscope.models.weights import match_tensors, read_headers, weight_files
from sinkscope.runs.files import sealed, write_whole
from sinkscope.runs.folder import new_folder

HEADS = {256: 4, 384: 6, 512: 8, 576: 9, 640: 10, 768: 12, 896: 14, 1024: 16}
HEADS |= {1280: 10, 1408: 11, 1536: 12, 1792: 14, 2048: 16, 2176: 17}
"""Attention heads of the published shapes by their width; the 75M model has 8 heads on a width of 640."""
BLOCK = r"transformer\.h\.(\d{1,6})\."
PLAIN = {  # tensors of a block that only get another name
    "norm_1.weight": "input_layernorm.weight",
    "attn.proj.weight": "self_attn.o_proj.weight",
    "attn.gate.weight": "self_attn.sink_gate.weight",
    "norm_2.weight": "post_attention_layernorm.weight",
    "mlp.swiglu.w1.weight": "mlp.gate_proj.weight",
    "mlp.swiglu.w2.weight": "mlp.up_proj.weight",
    "mlp.swiglu.w3.weight": "mlp.down_proj.weight",
}
FUSED, PACKED, GATE = "attn.attn.weight", "mlp.swiglu.w12.weight", "mlp.swiglu.w1.weight"
ROOM = "make room or choose another folder"


def convert(file: Path, out: Path, *, tokenizer: Path | None, heads: int | None = None) -> Path:
    """Write a folder with safetensors and a config.json from one of paper 2's checkpoints, and return it.

    Args:
        file: a ``.pth`` that holds tensors only, or safetensors with the same names.
        out: a new or empty folder.
        tokenizer: folder of the tokenizer that the model was trained with (TinyLlama's, for the published ones).
        heads: attention heads, where the width is none of the published ones.

    Raises:
        CallError: arguments that do not fit.
        ModelError: the file does not hold exactly the tensors of such a model, or the tokenizer belongs to another one.
    """
    from safetensors.torch import save

    if tokenizer is None or not any((tokenizer / name).exists() for name in (CORE, PIECES)):
        raise CallError(f"--tokenizer {tokenizer}: expected a folder with tokenizer.json, found none")
    with new_folder(out, ModelError, "the converted model", "config.json") as place:
        config, tensors = convert_weights(read_tensors(file), str(file), heads)
        files = [path for name in (CORE, SETTINGS, SPECIAL, ADDED, PIECES) if (path := tokenizer / name).exists()]
        copy_files([*files, *template_files(tokenizer)], tokenizer, place)
        whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        write_whole(place / "model.safetensors", sealed(save(whole, {"format": "pt"})), ModelError, ROOM)
        write_whole(place / "config.json", f"{json.dumps(config, indent=2)}\n".encode(), ModelError, ROOM)
        try:
            network = outline(str(place)).network
        except ModelError as error:
            raise ModelError(f"{file} does not go with --tokenizer {tokenizer}: {error}") from error
        match_tensors(read_headers(weight_files(place)), network, STOCK["llama"], "paper 2's models", place)
    return out


def tokens_without_text(folder: Path) -> int:
    """Return how many tokens of a converted model its tokenizer lacks, besides the mask and the sink."""
    return max(0, read_config(folder)["mask_token_id"] - len(outline(str(folder)).tokenizer))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, at the top or under the one key ``model``; nothing in it is executed."""
    if not file.is_file():
        raise CallError(f"{file}: expected a .pth or .safetensors file, found none")
    try:
        if file.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no single exception for files that it refuses, and advises to run their code
        code = re.search(r"GLOBAL [\w.]+", str(error))
        why = f"{code[0]}, which could run code when read" if code else f"none ({type(error).__name__})"
        raise ModelError(f"{file}: expected a file of tensors only, found {why}; save its weights alone") from error
    if isinstance(found, Mapping) and set(found) == {"model"}:
        found = found["model"]
    others = [name for name, one in found.items() if not isinstance(one, Tensor)] if isinstance(found, Mapping) else [0]
    if others:
        found = ", ".join(map(str, others[:4]))
        raise ModelError(f"{file}: expected tensors only, by name, found {found}; save its weights alone")
    return dict(found)


def convert_weights(
    weights: Mapping[str, Tensor], where: str, heads: int | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a config.json and transformers' tensors for those of lit-gpt; others keep their names."""
    left = dict(weights)
    if not {"lm_head.weight", "transformer.wte.weight"} <= set(left):
        raise ModelError(f"{where}: expected lm_head.weight and transformer.wte.weight, found {sorted(left)[:3]} …")
    head, table = left.pop("lm_head.weight"), left.pop("transformer.wte.weight")
    vocabulary, width = head.shape
    extra = table.shape[0] - vocabulary
    layers = 1 + max((int(found[1]) for name in weights if (found := re.match(BLOCK, name))), default=-1)
    first = "transformer.h.0."
    gated = f"{first}attn.gate.weight" in left
    if extra not in (1, 2) or (gated and extra == 2):
        expected = f"a row for the mask, and one for a sink without a gate, beyond the head's {vocabulary}"
        raise ModelError(f"{where}: expected an embedding with {expected}, found {extra}")
    if heads is None and width not in HEADS:
        raise CallError(f"{where}: its width {width} is none of the published ones ({[*HEADS]}); pass --heads")
    heads = heads or (8 if (width, layers) == (640, 16) else HEADS[width])
    size, fused_rows = width // heads, weights.get(first + FUSED, head).shape[0]
    groups = (fused_rows // size - heads) // 2
    if width % heads or groups < 1 or heads % groups or (heads + 2 * groups) * size != fused_rows:
        expected = f"the rows of {heads} heads of {size} and their keys and values"
        raise ModelError(f"{where}: {FUSED}: expected {expected}, found {fused_rows}; see --heads")
    tensors = {"lm_head.weight": head, "model.embed_tokens.weight": table[: vocabulary + 1]}
    names = {"transformer.ln_f.weight": "model.norm.weight"}
    for number in range(layers):
        theirs, ours = f"transformer.h.{number}.", f"model.layers.{number}."
        names |= {theirs + name: ours + renamed for name, renamed in PLAIN.items()}
        if theirs + FUSED in left:
            for name, tensor in zip("qkv", split_fused(left.pop(theirs + FUSED), heads, groups), strict=True):
                tensors[f"{ours}self_attn.{name}_proj.weight"] = tensor
        if theirs + PACKED in left and theirs + GATE not in left:
            left[theirs + GATE], left[theirs + "mlp.swiglu.w2.weight"] = left.pop(theirs + PACKED).chunk(2)
    tensors |= {names.get(name, name): tensor for name, tensor in left.items()}
    variant = SinkToken(token_id=vocabulary + 1) if extra == 2 else SinkToken(kind="gate") if gated else None
    if extra == 2:
        tensors["model.sink_token.embedding"] = table[vocabulary + 1 :]
    inner = tensors.get("model.layers.0.mlp.gate_proj.weight", head).shape[0]
    shape = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": vocabulary + 1}
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    return _config(shape, variant, str(widest).removeprefix("torch.")), tensors


def split_fused(fused: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of a projection whose groups have their queries, then a key and a value."""
    shared = heads // groups
    parts = fused.view(groups, shared + 2, -1, fused.shape[-1])
    return parts[:, :shared].flatten(0, 2), parts[:, shared].flatten(0, 1), parts[:, shared + 1].flatten(0, 1)


def _config(shape: Mapping[str, int], variant: SinkToken | None, dtype: str) -> dict[str, Any]:
    prefix = "" if variant is None else "Sink"
    return {
        "architectures": [f"{prefix}MasklessHeadLlama"],
        "model_type": "llama" if variant is None else "sink_llama",
        "dtype": dtype,
        **shape,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "is_causal": False,
        "mask_token_id": shape["vocab_size"] - 1,
        MARK: "smdm",
        **({} if variant is None else {KEY: asdict(variant)}),
    }
