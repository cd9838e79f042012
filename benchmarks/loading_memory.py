"""Loading a sharded checkpoint: peak memory of a fresh process, as a multiple of the checkpoint's size.

A synthetic LLaDA of 2 GB in bf16 with the published names, in six shards, written to a temporary folder. Peaks are of
resident memory, mapped pages of the files included, above a process that has everything imported. ``loaded``: after
`sinkscope.load`. ``run``: after a forward call too, which touches every weight. ``as_float32``: loaded as fp32, whose size
is the measure there.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from _measuring import extra_memory, show

WIDTH, INNER, LAYERS, ROWS, SHARDS = 2048, 6144, 20, 16384, 6


def write_checkpoint(folder: Path) -> int:
    """Returns its size in bytes."""
    from safetensors.torch import save_file

    from sinkscope.lab.vocabulary import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "d_model": WIDTH,
        "n_layers": LAYERS,
        "n_heads": 16,
        "n_kv_heads": 16,
        "mlp_hidden_size": INNER,
        "vocab_size": ROWS,
        "embedding_size": ROWS,
        "max_sequence_length": 1024,
        "mask_token_id": tokenizer.mask_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rms_norm_eps": 1e-5,
        "rope": True,
        "rope_theta": 500000.0,
        "rope_full_precision": True,
        "weight_tying": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    block = {"attn_norm": (WIDTH,), "ff_norm": (WIDTH,), "ff_proj": (INNER, WIDTH), "up_proj": (INNER, WIDTH), "ff_out": (WIDTH, INNER)}
    block |= {name: (WIDTH, WIDTH) for name in ("q_proj", "k_proj", "v_proj", "attn_out")}
    shapes = {"wte": (ROWS, WIDTH), **{f"blocks.{n}.{name}": shape for n in range(LAYERS) for name, shape in block.items()}}
    shapes |= {"ln_f": (WIDTH,), "ff_out": (ROWS, WIDTH)}
    names, index = list(shapes), {}
    share = -(-len(names) // SHARDS)
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        mine = {f"model.transformer.{name}.weight": shapes[name] for name in names[number * share : (number + 1) * share]}
        tensors = {name: torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in mine.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def prepare(folder: str, dtype: str | None, forward: bool) -> Callable[[], None]:
    """For a fresh process: a small model loaded and run, so that every import and its memory are behind it."""
    import sinkscope

    torch.set_num_threads(1)
    small = sinkscope.load("lab-diffusion")
    small.network(torch.tensor([[5, 6, 7]]))

    def run() -> None:
        with torch.no_grad():
            model = sinkscope.load(folder, dtype=dtype)
            if forward:
                model.network(torch.tensor([[5, 6, 7]]))

    return run


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        size = write_checkpoint(Path(folder)) / 2**20
        for name, dtype, forward in (("loaded", None, False), ("run", None, True), ("as_float32", "float32", False)):
            peak = extra_memory(prepare, folder, dtype, forward)
            measure = size * (2 if dtype == "float32" else 1)
            rows.append({"kind": name, "checkpoint_mib": round(size), "peak_mib": round(peak), "peak_over_size": round(peak / measure, 3)})
    show(rows)


if __name__ == "__main__":
    main()
