"""Loading a sharded checkpoint: peak memory of a fresh process, as a multiple of the checkpoint's size.

A synthetic LLaDA of 2 GB in bf16 with the published names, in six shards, written to a temporary folder. Peaks are of
resident memory, mapped pages of the files included, above what the process held before the call, everything imported.
``loaded``: by `sinkscope.load`; the files are mapped, hardly a page is read. ``run``: by a forward call too, which
reads every weight. ``as_float32``: loaded as fp32 and run; its size in fp32 is the measure there.
"""

import json
import multiprocessing
import resource
import tempfile
from pathlib import Path
from typing import Any

import torch
from _measuring import flags, show

WIDTH, INNER, LAYERS, ROWS, SHARDS = 2048, 6144, 20, 16384, 6


def write_checkpoint(folder: Path) -> int:
    """Returns its size in bytes."""
    from safetensors.torch import save_file

    from sinkscope.lab.prompts import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {
        "tokenizer_class": "PreTrainedTokenizerFast"
    }
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
    block = {
        "attn_norm": (WIDTH,),
        "ff_norm": (WIDTH,),
        "ff_proj": (INNER, WIDTH),
        "up_proj": (INNER, WIDTH),
        "ff_out": (WIDTH, INNER),
    }
    block |= {name: (WIDTH, WIDTH) for name in ("q_proj", "k_proj", "v_proj", "attn_out")}
    shapes = {
        "wte": (ROWS, WIDTH),
        **{f"blocks.{n}.{name}": shape for n in range(LAYERS) for name, shape in block.items()},
    }
    shapes |= {"ln_f": (WIDTH,), "ff_out": (ROWS, WIDTH)}
    names, index = list(shapes), {}
    share = -(-len(names) // SHARDS)
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        mine = {
            f"model.transformer.{name}.weight": shapes[name] for name in names[number * share : (number + 1) * share]
        }
        tensors = {name: torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in mine.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def resident() -> float:
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measure(connection: Any, folder: str, dtype: str | None, forward: bool) -> None:
    """In a fresh process; a small model is loaded and run first, so that every import is behind it."""
    import sinkscope

    torch.set_num_threads(1)
    tokens = torch.tensor([[5, 6, 7]])
    sinkscope.load("lab-diffusion").network(tokens)
    before = resident()
    with torch.no_grad():
        model = sinkscope.load(folder, dtype=dtype)
        if forward:
            model.network(tokens)
    # Without a run the peak of the imports may be higher than what loading held.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 if forward else resident()
    connection.send(peak - before)


def peak_of(*arguments: Any) -> float:
    """MiB, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=measure, args=(there, *arguments))
    process.start()
    peak = here.recv()
    process.join()
    return peak


def main() -> None:
    given = flags()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        size = write_checkpoint(Path(folder)) / 2**20
        for name, dtype, forward in (("loaded", None, False), ("run", None, True), ("as_float32", "float32", True)):
            peak = peak_of(folder, dtype, forward)
            held = size * (2 if dtype == "float32" else 1)
            rows.append(
                {
                    "kind": name,
                    "checkpoint_mib": round(size),
                    "peak_mib": round(peak),
                    "peak_over_size": round(peak / held, 3),
                }
            )
    show(rows, given.json)


if __name__ == "__main__":
    main()
