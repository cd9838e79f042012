"""Folders made of other models: `convert` reads paper 2's checkpoints (SMDM, "One Token Is Enough"), `convert_to_dllm`
writes for dllm, and `fold` puts the keys and values of a model's sink tokens in place of their embedding.

Paper 2's checkpoints are state dicts of lit-gpt. Their network is Llama's under other names, with queries, keys and
values in one projection, one group of heads after the other, and an output layer without a row for the mask. The
embedding has rows beyond those of the output layer: the mask (32000) and, where the model has one, the sink token
(32001), which always stands in front. Source: skywalker0523/OneTokenIsEnough, lit_gpt/diffmodel.py,
diffmodel_extratoken.py, diffmodel_gate.py, config.py.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import CallError, ModelError
from sinkscope.models.conversion import architecture_of
from sinkscope.models.devices import own_defaults
from sinkscope.models.families.basic_family import A2D
from sinkscope.models.family import BODIES, MARK, STOCK
from sinkscope.models.folders import find_folder, read_config
from sinkscope.models.loading import load, outline, quiet
from sinkscope.models.sink_token import KEY, SinkToken, constant_keys
from sinkscope.models.tokenization import ADDED, CORE, PIECES, SETTINGS, SPECIAL, copy_files
from sinkscope.models.weights import INDEX, SINGLE, match_tensors, read_headers, weight_files
from sinkscope.runs.files import read_json_object, sealed, write_whole
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
EMBEDDING, KEYS, VALUES = (f"model.sink_token.{name}" for name in ("embedding", "keys", "values"))


def convert(file: Path, out: Path, *, tokenizer: Path | None, heads: int | None = None) -> Path:
    """Write a folder with safetensors and a config.json from one of paper 2's checkpoints, and return it.

    The file is a ``.pth`` that holds tensors only, or safetensors; ``tokenizer`` the folder of the one that it was
    trained with (TinyLlama's, for the published ones). ``heads`` are needed where the width is none of the published.
    """
    from safetensors.torch import save

    if tokenizer is None or not any((tokenizer / name).exists() for name in (CORE, PIECES)):
        raise CallError(f"--tokenizer {tokenizer}: expected a folder with tokenizer.json, found none")
    with new_folder(out, ModelError, "the converted model", "config.json") as place:
        config, tensors = convert_weights(read_tensors(file), str(file), heads)
        files = [path for name in (CORE, SETTINGS, SPECIAL, ADDED, PIECES) if (path := tokenizer / name).exists()]
        copy_files(files, tokenizer, place)
        whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        write_whole(place / SINGLE, sealed(save(whole, {"format": "pt"})), ModelError, ROOM)
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
            # Each group has its queries, then a key and a value.
            parts = left.pop(theirs + FUSED).view(groups, heads // groups + 2, size, width)
            for name, part in zip("qkv", (parts[:, :-2], parts[:, -2:-1], parts[:, -1:]), strict=True):
                tensors[f"{ours}self_attn.{name}_proj.weight"] = part.flatten(0, 2)
        if theirs + PACKED in left and theirs + GATE not in left:
            left[theirs + GATE], left[theirs + "mlp.swiglu.w2.weight"] = left.pop(theirs + PACKED).chunk(2)
    tensors |= {names.get(name, name): tensor for name, tensor in left.items()}
    variant = SinkToken(token_id=vocabulary + 1) if extra == 2 else SinkToken(kind="gate") if gated else None
    if extra == 2:
        tensors["model.sink_token.embedding"] = table[vocabulary + 1 :]
    inner = tensors.get("model.layers.0.mlp.gate_proj.weight", head).shape[0]
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    config = {
        "architectures": [f"{'' if variant is None else 'Sink'}MasklessHeadLlama"],
        "model_type": "llama" if variant is None else "sink_llama",
        "dtype": str(widest).removeprefix("torch."),
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocabulary + 1,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "is_causal": False,
        "mask_token_id": vocabulary,
        MARK: "smdm",
        **({} if variant is None else {KEY: asdict(variant)}),
    }
    return config, tensors


def convert_to_dllm(name: str, out: Path) -> Path:
    """Write a folder that dllm loads from a bidirectional Llama, Qwen2 or Qwen3; weights keep their stored dtype.

    dllm runs transformers 4, which reads other keys for rotations and other classes of tokenizers than transformers 5
    writes; and it calls every mask token ``<|mask|>``. Source: ZHZisZZ/dllm, dllm/pipelines/a2d, dllm/utils/models.py.
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
        model.tokenizer.save_pretrained(place)
        core, settings = (read_json_object(place / one, ModelError) for one in (CORE, SETTINGS))
        masks = [one for one in core["added_tokens"] if one["id"] == model.card.mask_id]
        vocabulary = core["model"]["vocab"]
        if isinstance(vocabulary, dict) and masks[0]["content"] in vocabulary:
            vocabulary[A2D.mask_text] = vocabulary.pop(masks[0]["content"])
        masks[0]["content"] = A2D.mask_text
        _write(place / CORE, core)
        for key in ("backend", "is_local", "local_files_only", "extra_special_tokens", "added_tokens_decoder"):
            settings.pop(key, None)  # of transformers 5
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": A2D.mask_text}
        _write(place / SETTINGS, settings)
        fields = read_json_object(place / "config.json", ModelError)
        rope = fields.pop("rope_parameters")
        theta, scaled = rope.pop("rope_theta"), rope["rope_type"] != "default"
        fields = {key: one for key, one in fields.items() if not key.startswith("sinkscope_") and key != "is_causal"}
        fields |= {"model_type": f"a2d-{body}", "architectures": [architecture_of(body)]}
        _write(place / "config.json", fields | {"rope_theta": theta, "rope_scaling": rope if scaled else None})
    return out


def _write(file: Path, fields: Any) -> None:
    file.write_text(f"{json.dumps(fields, indent=2, ensure_ascii=False)}\n", encoding="utf-8")


@own_defaults()
def fold(name: str, out: Path) -> Path:
    """Write a copy of a model whose sink tokens are constants, and return its folder; ``name`` is as for `load`.

    The keys and values of each layer, which do not depend on the text, are stored in place of the embedding: keys
    before rotation, because the position of a token at the end depends on the length of the text, and as fp32.
    """
    from safetensors.torch import load_file, save

    with new_folder(out, ModelError, "the folded model", "config.json") as place:
        folder = find_folder(name)
        network = load(folder, dtype=torch.float32).network
        sink = getattr(network.model, "sink_token", None)
        if sink is None or sink.variant.kind != "token" or sink.variant.folded or not sink.trained:
            found = "none" if sink is None else repr(sink.variant.name) + " as it was drawn" * (not sink.trained)
            raise CallError(f"{name}: expected a trained sink token that is not folded yet, found {found}")
        with torch.no_grad():
            keys, values = constant_keys(network.model)
        constants = {KEYS: keys} | ({} if values is None else {VALUES: values})
        index = json.loads((folder / INDEX).read_text()) if (folder / INDEX).exists() else None
        home = SINGLE if index is None else index["weight_map"].pop(EMBEDDING)
        weights = load_file(folder / home)
        removed = weights.pop(EMBEDDING)
        tensors = {key: tensor.contiguous() for key, tensor in (weights | constants).items()}
        written = {home: sealed(save(tensors, metadata={"format": "pt"}))}
        if index is not None:
            index["weight_map"] |= dict.fromkeys(constants, home)
            if "total_size" in index.get("metadata", {}):
                index["metadata"]["total_size"] += sum(one.nbytes for one in constants.values()) - removed.nbytes
            written[INDEX] = [f"{json.dumps(index, indent=2)}\n".encode()]
        config = read_config(folder) | {KEY: asdict(replace(sink.variant, folded=True))}
        written["config.json"] = [f"{json.dumps(config, indent=2)}\n".encode()]
        files = [path for path in folder.iterdir() if path.is_file() and path.name not in written]
        copy_files(files, folder, place)
        for file, pieces in written.items():
            write_whole(place / file, pieces, ModelError, ROOM)
    return out
