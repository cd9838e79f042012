"""`convert`: a checkpoint of paper 2's models (SMDM, "One Token Is Enough") becomes a folder that `load` reads.

The checkpoints are state dicts of lit-gpt. Their network is Llama's under other names, with queries, keys and values in one projection,
one group of heads after the other, and with an output layer that has no row for the mask. The embedding has rows beyond those of the
output layer: the mask (32000) and, where the model has one, the sink token (32001), which always stands in front.
Source: skywalker0523/OneTokenIsEnough, lit_gpt/diffmodel.py, diffmodel_extratoken.py, diffmodel_gate.py, config.py.
"""

import json
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.checksums import sealed
from sinkscope.documents import check_regular, exists
from sinkscope.errors import CallError, ModelError
from sinkscope.locks import new_folder
from sinkscope.models.families import FAMILIES
from sinkscope.models.fetched_files import NOT_FETCHED, is_pointer
from sinkscope.models.folders import read_config
from sinkscope.models.layouts import MARK
from sinkscope.models.loading import quiet
from sinkscope.models.sink_token import KEY, SinkToken, check_token_id, split_config
from sinkscope.models.tokenization import ADDED, CORE, PIECES, SETTINGS, SPECIAL, load_tokenizer, template_files
from sinkscope.models.weights import DTYPES
from sinkscope.work_items import write_whole

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
ZIP, MAGIC = b"PK\x03\x04", bytes.fromhex("6cfc9c46f9206aa85019")
"""How files of torch.save begin: today's zip archives, and the number that stands first in the older pickles."""
CUT = "expected a whole torch file, found one that is damaged or cut short"
MOST_PROTOCOL = 3  # of pickles that torch reads without running them
AT_ONCE = 16 << 20  # bytes of an archive to read at a time
LARGEST_LIST = 8 << 20
"""Bytes of the pickle that lists the tensors of an archive; one takes about 200."""
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
    if not (tokenizer / "tokenizer.json").exists() and not (tokenizer / "tokenizer.model").exists():
        raise CallError(f"--tokenizer {tokenizer}: expected a folder with tokenizer.json, found none")
    for path in _tokenizer_files(tokenizer):
        check_regular(path, ModelError, "fetch the tokenizer again")
    if heads is not None and heads < 1:
        raise CallError(f"--heads: expected a whole number from 1 upwards, found {heads}")
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
    return [*(folder / name for name in TOKENIZER_FILES if exists(folder / name)), *template_files(folder)]


def _check_tokenizer(folder: Path, config: Mapping[str, Any], file: Path) -> None:
    """Raise an error, before anything is written, where the tokenizer uses the ids of the mask or of the sink for other tokens."""
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
    """Return how many tokens of a converted model its tokenizer lacks, besides the mask and the sink, which have no text."""
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
        raise CallError(
            f"{file}: expected a .pth or .safetensors file, found {'a folder' if file.is_dir() else 'nothing'}"
        )
    check_regular(file, ModelError)
    if file.suffix.lower() == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(file)
        except SafetensorError as error:
            raise ModelError(
                f"{file}: expected safetensors, found something else: {_beginning(file)}; fetch it again"
            ) from error
    _check_archive(file)
    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # torch warns of pickles that it did not write; they are refused below
            found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no single exception for files that it refuses
        raise ModelError(f"{file}: {_refused(file, error)}") from error
    _check_sums(file)
    if isinstance(found, Mapping) and set(found) == {"model"} and isinstance(found["model"], Mapping):
        found = found["model"]
    if not isinstance(found, Mapping) or not found:
        raise ModelError(f"{file}: expected tensors by name, found {'none' if found == {} else type(found).__name__}")
    if unnamed := [name for name in found if not isinstance(name, str)]:
        raise ModelError(
            f"{file}: expected tensors by name, found one under {repr(unnamed[0])[:60]}; name it as lit-gpt does"
        )
    others = {name: type(value).__name__ for name, value in found.items() if not isinstance(value, Tensor)}
    if others:
        shown = ", ".join(f"{name} ({kind})" for name, kind in list(others.items())[:4])
        inner = next((name for name, value in found.items() if isinstance(value, Mapping)), None)
        weights = (
            "{name: one for name, one in state.items() if torch.is_tensor(one)}"
            if inner is None
            else f"state[{json.dumps(inner)[:60]}]"
        )
        raise ModelError(
            f"{file}: expected tensors only, found {shown} beside them; keep its weights alone: torch.save({weights}, FILE)"
        )
    for name, tensor in found.items():
        kinds = {"meta": tensor.is_meta, "nested": tensor.is_nested, "quantised": tensor.is_quantized}
        kind = next((name for name, is_one in kinds.items() if is_one), str(tensor.layout).removeprefix("torch."))
        if kind != "strided":
            raise ModelError(
                f"{file}: {name}: expected a dense tensor with its values, found a {kind} one; save its weights anew"
            )
        held = tensor.untyped_storage().nbytes() // tensor.element_size()
        if held < tensor.numel():
            shape = " × ".join(map(str, tensor.shape))
            raise ModelError(
                f"{file}: {name}: expected {shape} values, found {held}, which it repeats; save tensor.contiguous() of it"
            )
    return dict(found)


def _check_archive(file: Path) -> None:
    """Raise an error for an archive that torch would unpack for ever: torch.save compresses nothing, and its list of tensors is short."""
    for part in _parts(file):
        if part.compress_type != zipfile.ZIP_STORED:
            raise ModelError(
                f"{file}: {part.filename[:80]}: expected what torch.save wrote, found it compressed; save it with torch.save"
            )
        if Path(part.filename).name == "data.pkl" and part.file_size > LARGEST_LIST:
            most = f"at most {LARGEST_LIST >> 20} MB"
            raise ModelError(
                f"{file}: {part.filename[:80]}: expected a list of tensors, {most}, found {part.file_size >> 20} MB"
            )


def _check_sums(file: Path) -> None:
    """Raise an error for a part of an archive that is not what its checksum says; torch itself reads it without a word."""
    for part in _parts(file):
        if not part.CRC:  # torch.save can leave them out
            continue
        try:
            with zipfile.ZipFile(file) as archive, archive.open(part) as content:
                while content.read(AT_ONCE):
                    pass
        except Exception as error:  # zipfile has no single exception for damage
            raise ModelError(
                f"{file}: {CUT}, its {part.filename[:80]} is not what its checksum says; fetch it again"
            ) from error


def _beginning(file: Path) -> str:
    """Return in words what the first bytes of a file say."""
    if is_pointer(file):
        return f"it is {NOT_FETCHED} (`git lfs pull`)"
    with file.open("rb") as opened:
        head = opened.read(12)
    return f"it begins with {head!r}"


def _refused(file: Path, error: Exception) -> str:
    """Return what is wrong with a file that torch refuses; torch's own message would advise to read it with weights_only off."""
    code = re.search(r"\bGLOBAL ([\w.]+)", str(error))
    if code:
        return (
            f"expected tensors only, found GLOBAL {code[1]}, which could run code when it is read; "
            'where you trust it, save its weights anew: torch.save(state["model"], FILE)'
        )
    if "TORCH_FORCE_" in str(error):
        return "torch refuses to read it, because TORCH_FORCE_WEIGHTS_ONLY_LOAD and its opposite are set; unset them"
    with file.open("rb") as opened:
        head = opened.read(len(ZIP) + len(MAGIC) + 2)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < file.stat().st_size:
        return f"expected a file that torch.save wrote, found safetensors; name it {file.stem}.safetensors"
    parts = {Path(part.filename).name for part in _parts(file)} if head.startswith(ZIP) else set()
    if "constants.pkl" in parts:
        return "expected tensors by name, found a program of TorchScript; save its weights, torch.jit.load(FILE).state_dict()"
    if parts and "data.pkl" not in parts:
        return "expected a file that torch.save wrote, found another zip archive"
    if not head.startswith(ZIP) and MAGIC not in head:
        return f"expected a file that torch.save wrote, found no torch file: {_beginning(file)}"
    if (protocol := _protocol(file)) is not None and protocol > MOST_PROTOCOL:
        return (
            f"expected a pickle of protocol 2 or {MOST_PROTOCOL}, found {protocol}, which torch reads only as code; "
            "save it anew without pickle_protocol"
        )
    if type(error).__name__ == "UnpicklingError":
        return 'expected tensors only, found more, which torch does not read; save its weights anew: torch.save(state["model"], FILE)'
    return f"{CUT}; fetch it again"


def _parts(file: Path) -> list[zipfile.ZipInfo]:
    """Return the files in a zip archive; none where it is damaged, or is none."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except Exception:  # zipfile has no single exception for archives that it cannot read
        return []


def _protocol(file: Path) -> int | None:
    """Return the protocol of the pickle that lists the tensors of an archive; None where there is none."""
    try:
        with zipfile.ZipFile(file) as archive:
            name = next(part.filename for part in archive.infolist() if Path(part.filename).name == "data.pkl")
            with archive.open(name) as content:
                head = content.read(2)
    except Exception:  # zipfile has no single exception for archives that it cannot read
        return None
    return head[1] if len(head) == 2 and head[0] == 0x80 else None


def convert_weights(
    weights: Mapping[str, Tensor], where: str, heads: int | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a config.json and transformers' tensors for those of lit-gpt.

    Raises:
        ModelError: a tensor is missing, unknown, or of a shape that does not fit.
    """
    left = dict(weights)
    for name, tensor in weights.items():
        if str(tensor.dtype).removeprefix("torch.") not in DTYPES.values():
            raise ModelError(
                f"{where}: {name}: expected {', '.join(DTYPES.values())}, found {str(tensor.dtype).removeprefix('torch.')}, which `load` "
                "refuses; cast it: torch.save({name: tensor.float() for name, tensor in state.items()}, FILE)"
            )
        if not tensor.ndim or not tensor.isfinite().all():
            found = "NaN or infinite ones" if tensor.ndim else "a single number"
            raise ModelError(
                f"{where}: {name}: expected rows of finite numbers, found {found}; fetch the checkpoint again"
            )

    def held(name: str) -> Tensor:
        if name not in left:
            if prefix := next((one.removesuffix(name) for one in weights if one.endswith(f".{name}")), None):
                raise ModelError(
                    f"{where}: expected a tensor {name}, found {prefix}{name}; remove {prefix!r}: "
                    f"torch.save({{name.removeprefix({prefix!r}): tensor for name, tensor in state.items()}}, FILE)"
                )
            raise ModelError(f"{where}: expected a tensor {name}, found none; it holds {_few(weights)} …")
        return left[name]

    def take(name: str, *shape: int | None) -> Tensor:
        tensor = held(name)
        del left[name]
        if len(shape) != tensor.ndim or any(
            asked not in (None, found) for asked, found in zip(shape, tensor.shape, strict=True)
        ):
            asked = str(tuple("any" if size is None else size for size in shape)).replace("'", "")
            raise ModelError(f"{where}: {name}: expected shape {asked}, found {tuple(tensor.shape)}")
        return tensor

    head = take("lm_head.weight", None, None)
    vocabulary, width = head.shape
    table = take("transformer.wte.weight", None, width)
    extra = table.shape[0] - vocabulary
    if extra not in (1, 2):
        raise ModelError(
            f"{where}: expected an embedding with a row for the mask, and at most one for a sink, beyond the head's {vocabulary}, "
            f"found {extra}"
        )
    layers = 1 + max((int(found[1]) for name in weights if (found := re.match(BLOCK, name))), default=-1)
    if not layers:
        raise ModelError(f"{where}: expected tensors transformer.h.0.…, found {_few(weights)} …")
    heads = heads or _published_heads(width, layers, where)
    if width % heads:
        raise ModelError(f"{where}: expected a number of heads that divides the width {width}, found {heads}")
    if width // heads % 2:
        raise ModelError(
            f"{where}: expected heads of an even size, whose halves can be rotated, found {heads} of {width // heads}"
        )
    gated = "transformer.h.0.attn.gate.weight" in left
    if gated and extra == 2:
        raise ModelError(f"{where}: expected either a sink token or a gate, found both")
    size, fused_rows = width // heads, held(f"transformer.h.0.{FUSED}").shape[0]
    groups = (fused_rows // size - heads) // 2
    if fused_rows % size or groups < 1 or heads % groups or (heads + 2 * groups) * size != fused_rows:
        raise ModelError(
            f"{where}: {FUSED}: expected the rows of {heads} heads of {size} and their keys and values, found {fused_rows}; see --heads"
        )
    tensors = {"lm_head.weight": head, "model.embed_tokens.weight": table[: vocabulary + 1]}
    tensors["model.norm.weight"] = take("transformer.ln_f.weight", width)
    inner = 0
    for number in range(layers):
        theirs, ours = f"transformer.h.{number}.", f"model.layers.{number}."
        queries, keys, values = split_fused(take(theirs + FUSED, fused_rows, width), heads, groups)
        for name, tensor in (("q", queries), ("k", keys), ("v", values)):
            tensors[f"{ours}self_attn.{name}_proj.weight"] = tensor
        if theirs + PACKED in left:
            parts = (theirs + "mlp.swiglu.w1.weight", theirs + "mlp.swiglu.w2.weight")
            if part := next((name for name in parts if name in left), None):
                raise ModelError(f"{where}: expected {theirs}{PACKED} or its two halves, found {part} beside it")
            left |= zip(parts, take(theirs + PACKED, None, width).chunk(2), strict=True)
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


def _few(names: Iterable[str]) -> str:
    return ", ".join(name[:80] for name in sorted(names)[:3])


def split_fused(fused: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of one projection, in which each group has its queries, then its key, then its value."""
    shared = heads // groups
    parts = fused.view(groups, shared + 2, -1, fused.shape[-1])
    return parts[:, :shared].flatten(0, 2), parts[:, shared].flatten(0, 1), parts[:, shared + 1].flatten(0, 1)


def _published_heads(width: int, layers: int, where: str) -> int:
    """Return the number of attention heads of a published shape."""
    if width not in HEADS:
        raise CallError(
            f"{where}: its width {width} is none of the published ones ({', '.join(map(str, HEADS))}); pass --heads"
        )
    return 8 if (width, layers) == (640, 16) else HEADS[width]


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
