"""`convert`: a checkpoint of paper 2's models (SMDM, "One Token Is Enough") becomes a folder that `load` reads.

The checkpoints are state dicts of lit-gpt. Their network is Llama's under other names, with queries, keys and values in
one projection, one group of heads after the other, and with an output layer that has no row for the mask. The embedding
has rows beyond those of the output layer: the mask (32000) and, where the model has one, the sink token (32001), which
always stands in front. Source: skywalker0523/OneTokenIsEnough, lit_gpt/diffmodel.py, diffmodel_extratoken.py,
diffmodel_gate.py, config.py.
"""

import json
import re
import shutil
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import CallError, ModelError
from sinkscope.models.families import FAMILIES
from sinkscope.models.folders import read_config
from sinkscope.models.layouts import MARK
from sinkscope.models.loading import quiet
from sinkscope.models.sink_token import KEY, SinkToken, check_token_id, split_config
from sinkscope.models.tokenization import ADDED, CORE, PIECES, SETTINGS, SPECIAL, load_tokenizer, template_files
from sinkscope.models.weights import DTYPES
from sinkscope.runs.files import sealed, write_whole
from sinkscope.runs.folder import new_folder

HEADS = {256: 4, 384: 6, 512: 8, 576: 9, 640: 10, 768: 12, 896: 14, 1024: 16}
HEADS |= {1280: 10, 1408: 11, 1536: 12, 1792: 14, 2048: 16, 2176: 17}
"""Attention heads of the published shapes by their width; the 75M model has 8 heads on a width of 640."""
POSITIONS, ROPE_THETA, NORM_EPS = 2048, 10000.0, 1e-5
BLOCK = r"transformer\.h\.(\d{1,6})\."
PLAIN = {
    "norm_1.weight": "input_layernorm.weight",
    "attn.proj.weight": "self_attn.o_proj.weight",
    "attn.gate.weight": "self_attn.sink_gate.weight",
    "norm_2.weight": "post_attention_layernorm.weight",
    "mlp.swiglu.w1.weight": "mlp.gate_proj.weight",
    "mlp.swiglu.w2.weight": "mlp.up_proj.weight",
    "mlp.swiglu.w3.weight": "mlp.down_proj.weight",
}
"""Tensors of a block that only get another name."""
FUSED, PACKED = "attn.attn.weight", "mlp.swiglu.w12.weight"
TOKENIZER_FILES = (CORE, SETTINGS, SPECIAL, ADDED, PIECES)


def convert(file: Path, out: Path, *, tokenizer: Path, heads: int | None = None) -> Path:
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
    if not (tokenizer / CORE).exists() and not (tokenizer / PIECES).exists():
        raise CallError(f"--tokenizer {tokenizer}: expected a folder with tokenizer.json, found none")
    with new_folder(out, ModelError, "the converted model", "config.json") as place:
        config, tensors = convert_weights(read_tensors(file), str(file), heads)
        _check_tokenizer(tokenizer, config, file)
        _write(place, config, tensors, tokenizer)
    return out


def _write(out: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizer: Path) -> None:
    """Write the converted model.

    Raises:
        ModelError, OSError: no permission, no space.
    """
    from safetensors.torch import save

    for path in _tokenizer_files(tokenizer):
        copy = out / path.relative_to(tokenizer)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    content = sealed(
        save({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, metadata={"format": "pt"})
    )
    for name, pieces in (
        ("model.safetensors", content),
        ("config.json", [f"{json.dumps(config, indent=2)}\n".encode()]),
    ):
        write_whole(out / name, pieces, ModelError, "make room or choose another folder")


def _tokenizer_files(folder: Path) -> list[Path]:
    """Return the files that a tokenizer is read from."""
    return [*(folder / name for name in TOKENIZER_FILES if (folder / name).exists()), *template_files(folder)]


def _check_tokenizer(folder: Path, config: Mapping[str, Any], file: Path) -> None:
    """Raise an error, before anything is written, where the tokenizer uses the ids of the mask or of the sink for other
    tokens.
    """
    body, variant = split_config(config, str(file))
    try:
        with quiet():
            tokenizer = load_tokenizer(folder, FAMILIES["smdm"], body)
        if variant is not None:
            check_token_id(tokenizer, variant, "the tokenizer", ModelError)
    except ModelError as error:
        mask = config["mask_token_id"]
        raise ModelError(
            f"{file}, whose mask is token {mask}, does not go with --tokenizer {folder}: {error}"
        ) from error


def tokens_without_text(folder: Path) -> int:
    """Return how many tokens of a converted model its tokenizer lacks, besides the mask and the sink, which have no
    text.
    """
    config = read_config(folder)
    with quiet():
        tokenizer = load_tokenizer(folder, FAMILIES["smdm"], split_config(config, str(folder))[0])
    return max(0, config["mask_token_id"] - len(tokenizer))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint file by name; nothing in it is executed.

    Raises:
        CallError: there is no such file.
        ModelError: the file holds anything but tensors by name, at the top or under the one key ``model``.
    """
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
        raise ModelError(
            f"{file}: expected a whole file of tensors only, found {why}; where you trust it, save its weights anew: "
            'torch.save(state["model"], FILE)'
        ) from error
    if isinstance(found, Mapping) and set(found) == {"model"}:
        found = found["model"]
    if not isinstance(found, Mapping) or not all(isinstance(one, Tensor) for one in found.values()):
        others = (
            [name for name, one in found.items() if not isinstance(one, Tensor)] if isinstance(found, Mapping) else []
        )
        raise ModelError(
            f"{file}: expected tensors only, by name, found "
            f"{', '.join(map(str, others[:4])) or type(found).__name__}; keep its "
            "weights alone: torch.save({name: one for name, one in state.items() if torch.is_tensor(one)}, FILE)"
        )
    return dict(found)


def convert_weights(
    weights: Mapping[str, Tensor], where: str, heads: int | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a config.json and transformers' tensors for those of lit-gpt.

    Raises:
        CallError: the width is none of the published ones, and ``heads`` is missing.
        ModelError: a tensor is missing, unknown, or of a shape that does not fit.
    """
    left = dict(weights)
    for name, tensor in weights.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES.values() or not tensor.isfinite().all():
            found = dtype if dtype not in DTYPES.values() else "NaN or infinite ones"
            raise ModelError(f"{where}: {name}: expected finite numbers of {', '.join(DTYPES.values())}, found {found}")

    def take(name: str, *shape: int | None) -> Tensor:
        tensor = left.pop(name, None)
        if tensor is None:
            raise ModelError(f"{where}: expected a tensor {name}, found none; it holds {_few(weights)} …")
        fits = len(shape) == tensor.ndim and all(map(lambda asked, has: asked in (None, has), shape, tensor.shape))
        if not fits:
            asked = str(tuple("any" if size is None else size for size in shape)).replace("'", "")
            raise ModelError(f"{where}: {name}: expected shape {asked}, found {tuple(tensor.shape)}")
        return tensor

    head = take("lm_head.weight", None, None)
    vocabulary, width = head.shape
    table = take("transformer.wte.weight", None, width)
    extra = table.shape[0] - vocabulary
    layers = 1 + max((int(found[1]) for name in weights if (found := re.match(BLOCK, name))), default=-1)
    gated = "transformer.h.0.attn.gate.weight" in left
    if extra not in (1, 2) or (gated and extra == 2):
        raise ModelError(
            f"{where}: expected an embedding with a row for the mask, and one for a sink in a model without a "
            "gate, beyond the head's "
            f"{vocabulary}, found {extra}"
        )
    if heads is None and width not in HEADS:
        published = ", ".join(map(str, HEADS))
        raise CallError(f"{where}: its width {width} is none of the published ones ({published}); pass --heads")
    heads = heads or (8 if (width, layers) == (640, 16) else HEADS[width])
    size, fused_rows = width // heads, (weights.get(f"transformer.h.0.{FUSED}", head)).shape[0]
    groups = (fused_rows // size - heads) // 2
    if width % heads or groups < 1 or heads % groups or (heads + 2 * groups) * size != fused_rows:
        raise ModelError(
            f"{where}: {FUSED}: expected the rows of {heads} heads of {size} and their keys and values, found "
            f"{fused_rows}; see --heads"
        )
    tensors = {"lm_head.weight": head, "model.embed_tokens.weight": table[: vocabulary + 1]}
    tensors["model.norm.weight"] = take("transformer.ln_f.weight", width)
    inner = 0
    for number in range(layers):
        theirs, ours = f"transformer.h.{number}.", f"model.layers.{number}."
        queries, keys, values = split_fused(take(theirs + FUSED, fused_rows, width), heads, groups)
        for name, tensor in (("q", queries), ("k", keys), ("v", values)):
            tensors[f"{ours}self_attn.{name}_proj.weight"] = tensor
        if theirs + PACKED in left and theirs + "mlp.swiglu.w1.weight" not in left:
            first, second = take(theirs + PACKED, None, width).chunk(2)
            left |= {theirs + "mlp.swiglu.w1.weight": first, theirs + "mlp.swiglu.w2.weight": second}
        inner = inner or left.get(theirs + "mlp.swiglu.w1.weight", head).shape[0]
        shapes = {"norm": (width,), "w3": (width, inner), "w1": (inner, width), "w2": (inner, width)}
        for name, renamed in PLAIN.items():
            if name != "attn.gate.weight" or gated:
                shape = next((shape for part, shape in shapes.items() if part in name), (width, width))
                tensors[ours + renamed] = take(theirs + name, *shape)
    if left:
        raise ModelError(f"{where}: expected only the tensors of paper 2's models, found {_few(left)} beside them")
    variant = SinkToken(token_id=vocabulary + 1) if extra == 2 else SinkToken(kind="gate") if gated else None
    if extra == 2:
        tensors["model.sink_token.embedding"] = table[vocabulary + 1 :]
    shape = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": vocabulary + 1}
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    return _config(shape, variant, str(widest).removeprefix("torch.")), tensors


def _few(names: Mapping[str, Tensor]) -> str:
    return ", ".join(sorted(names)[:3])


def split_fused(fused: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of one projection, in which each group has its queries, then its key, then its
    value.
    """
    shared = heads // groups
    parts = fused.view(groups, shared + 2, -1, fused.shape[-1])
    return parts[:, :shared].flatten(0, 2), parts[:, shared].flatten(0, 1), parts[:, shared + 1].flatten(0, 1)


def _config(shape: Mapping[str, int], variant: SinkToken | None, dtype: str) -> dict[str, Any]:
    """Return the config.json of a converted model."""
    prefix = "" if variant is None else "Sink"
    return {
        "architectures": [f"{prefix}MasklessHeadLlama"],
        "model_type": "llama" if variant is None else "sink_llama",
        "dtype": dtype,
        **shape,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "is_causal": False,
        "mask_token_id": shape["vocab_size"] - 1,
        MARK: "smdm",
        **({} if variant is None else {KEY: variant.as_config()}),
    }
