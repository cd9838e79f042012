"""What recording costs on a GPU at LLaDA-8B's shape, in bf16 with random weights, batch 1: ratios, medians over interleaved rounds.

    recorded over plain, time and peak memory     goal 1.03 and 1.01     one forward call at --length, S = 1024
    hiding over recorded, time                    goal 1.02              a key of each head hidden
    kernel over flash attention, time             goal 1.7               the attention alone at --kernel, S = 4096
    published loop over ours, time                goal 1.1               LLaDA's sampler, --written tokens, the same tokens

Run it on the machine in question, it needs 20 GB of GPU memory:

    python benchmarks/gpu.py --json

`--device cpu --shape tiny --dtype float32 --length 96 --kernel 128 --written 32` runs the same lines without a GPU; its figures
mean nothing.
"""

import contextlib
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measuring import flags, show

SHAPES = {
    "llada-8b": {"layers": 32, "heads": 32, "width": 4096, "inner": 12288, "vocabulary": 126_464},
    "tiny": {"layers": 3, "heads": 4, "width": 128, "inner": 256, "vocabulary": 1024},
}


def random_model(shape: str, device: str, dtype: torch.dtype, max_positions: int) -> Any:
    """Random weights made on the device itself, the lab's tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from sinkscope.lab.vocabulary import build_tokenizer
    from sinkscope.models import LLADA, Model, ModelCard

    torch.manual_seed(0)
    given, tokenizer = SHAPES[shape], build_tokenizer()
    config = LlamaConfig(
        vocab_size=given["vocabulary"],
        hidden_size=given["width"],
        intermediate_size=given["inner"],
        num_hidden_layers=given["layers"],
        num_attention_heads=given["heads"],
        max_position_embeddings=max_positions,
        pad_token_id=None,
    )
    config.is_causal = False
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            network = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    name = str(dtype).removeprefix("torch.")
    card = ModelCard(
        f"random-{shape}", "llada", "random", parameters, given["layers"], given["heads"], given["heads"], given["width"],
        given["vocabulary"], name, name, tokenizer.mask_token_id, None, max_positions,
    )  # fmt: skip
    return Model(network, tokenizer, LLADA, card)


def timed(runs: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each run, interleaved, after two rounds that do not count; the device is waited for around each run."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 2):
        for name, run in runs.items():
            wait(device)
            started = time.perf_counter()
            run()
            wait(device)
            if number >= 2:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def over(seconds: dict[str, list[float]], name: str, base: str) -> float:
    return round(median(a / b for a, b in zip(seconds[name], seconds[base], strict=True)), 3)


def peak(run: Callable[[], Any], device: str) -> int | None:
    """Bytes of GPU memory at most during a run, weights included; None on a CPU."""
    if not device.startswith("cuda"):
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def recording_rows(model: Any, given: Any) -> list[dict[str, Any]]:
    """Several forward calls in one recording, as a generation makes them: what opens and closes a trace is spread over them."""
    import sinkscope

    tokens = torch.full((1, given.length), model.card.mask_id, device=given.device)
    tokens[:, : given.length // 2] = torch.arange(given.length // 2, device=given.device) % 400 + 4

    @torch.no_grad()
    def plain() -> None:
        for _ in range(given.steps):
            model.network.model(input_ids=tokens, use_cache=False)

    def recorded(hide: bool = False) -> None:
        rule = sinkscope.HidePositions((5,))(model) if hide else contextlib.nullcontext()
        with tempfile.TemporaryDirectory() as folder, sinkscope.recording(model, out=Path(folder) / "trace"), rule:
            plain()

    runs = {"plain": plain, "recorded": recorded, "hiding": lambda: recorded(hide=True)}
    seconds = timed(runs, given.device, given.rounds)
    memory = {name: peak(run, given.device) for name, run in runs.items()}
    shown = {name: None if memory["plain"] is None else round(found / memory["plain"], 4) for name, found in memory.items() if found}
    return [
        {"what": "recorded over plain", "goal_time": 1.03, "time": over(seconds, "recorded", "plain"), "memory": shown.get("recorded")},
        {"what": "hiding over recorded", "goal_time": 1.02, "time": over(seconds, "hiding", "recorded"), "memory": shown.get("hiding")},
    ]


def kernel_row(given: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Attention with columns against attention alone."""
    from sinkscope.attention import attend

    shape = SHAPES[given.shape]
    heads, dim = shape["heads"], shape["width"] // shape["heads"]
    query, key, value = (torch.randn(1, heads, given.kernel, dim, device=given.device, dtype=dtype) for _ in range(3))
    groups = torch.ones(1, 2, given.kernel, device=given.device)
    runs: dict[str, Callable[[], Any]] = {
        "plain": lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value),
        "columns": lambda: attend(query, key, value, groups=groups),
    }
    with torch.no_grad():
        seconds = timed(runs, given.device, 10 * given.rounds)
    return {"what": f"kernel over torch's attention, S = {given.kernel}", "goal_time": 1.7, "time": over(seconds, "columns", "plain")}


@torch.no_grad()
def published_loop(model: Any, prompt: torch.Tensor, length: int, steps: int) -> torch.Tensor:
    """The form of the published loop in one block at temperature 0: logits and softmax of the whole canvas in every step."""
    mask_id = model.card.mask_id
    canvas = torch.cat([prompt, torch.full((length,), mask_id, device=prompt.device)])[None]
    for step in range(steps):
        logits = model.network(input_ids=canvas, use_cache=False).logits
        masked = canvas == mask_id
        token = logits.argmax(-1)
        sure = torch.softmax(logits, dim=-1).gather(-1, token[..., None])[..., 0].masked_fill(~masked, -torch.inf)
        chosen = sure[0].topk(length // steps + (step < length % steps)).indices
        canvas[0, chosen] = token[0, chosen]
    return canvas[0]


def sampling_row(model: Any, given: Any) -> dict[str, Any]:
    """Both loops, and whether they wrote the same."""
    import sinkscope

    prompt = torch.arange(given.length - given.written) % 400 + 4
    wrote: dict[str, torch.Tensor] = {}

    def ours() -> None:
        steps = given.written // 2
        wrote["ours"] = sinkscope.generate(model, prompt, length=given.written, steps=steps, block=given.written).tokens

    def theirs() -> None:
        wrote["published"] = published_loop(model, prompt.to(given.device), given.written, given.written // 2)

    seconds = timed({"ours": ours, "published": theirs}, given.device, max(1, given.rounds // 3))
    return {
        "what": "published loop over ours",
        "goal_time": 1.1,
        "time": over(seconds, "published", "ours"),
        "same_tokens": bool(torch.equal(wrote["ours"].cpu(), wrote["published"].cpu())),
    }


def main() -> None:
    given = flags(device="cuda", shape="llada-8b", dtype="bfloat16", length=1024, kernel=4096, written=128, steps=16, rounds=7)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        print("gpu: expected a CUDA device, found none: nothing is measured; --help says how to run without one", file=sys.stderr)
        print("[]" if given.json else "")
        return
    from sinkscope.attention.paths import has_triton

    dtype = getattr(torch, given.dtype)
    rows = [kernel_row(given, dtype)]
    model = random_model(given.shape, given.device, dtype, max(given.length, 256))
    rows += [*recording_rows(model, given), sampling_row(model, given)]
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else platform.processor() or "cpu"
    about = {"shape": given.shape, "dtype": given.dtype, "device": name, "torch": torch.__version__, "triton": has_triton()}
    names = ["what", "time", "goal_time", "memory", "same_tokens"]
    show([{column: row.get(column) for column in names} | about for row in rows], given.json)


if __name__ == "__main__":
    main()
