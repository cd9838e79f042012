"""Column sums of every layer and head by sinkscope and by what people use today, in one run: time and peak memory over
plain.

A bidirectional Llama of about 100 M parameters with random weights, fp32, one forward call on a canvas of S tokens;
each kind leaves the column sums [layer, head, key] of that call, from the same weights. Extra memory is how far a run
raises the peak of a fresh process that has everything loaded and has run one small canvas.

    plain                  the forward call, nothing watched
    columns                sinkscope, a trace on disk
    statistics             sinkscope, counts only
    hide                   sinkscope, a trace on disk while a key is hidden from all queries
    output_attentions      transformers' eager attention, its maps summed
    transformer_lens       TransformerBridge.run_with_cache, only the patterns kept, then summed
    nnsight                a trace that saves the sum of each layer's attention weights

Peers are no dependencies of sinkscope: pip install transformer-lens nnsight. A kind whose package is missing is left
out. In a script of their own `--lengths`, `--kinds`, `--rounds` and `--what time,memory` take parts of the whole.
"""

import contextlib
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from _measuring import extra_memory, flags, interleaved, ratio, show
from recording_overhead import model_of

LENGTHS = (256, 512, 1024, 2048)
NEEDS = {"transformer_lens": "transformer_lens", "nnsight": "nnsight"}
Run = Callable[[], torch.Tensor | None]


def canvas(model: Any, length: int) -> torch.Tensor:
    """Int64 [1, length]: half a prompt, half masks."""
    half = length // 2
    return torch.cat([torch.arange(4, 4 + half) % 400 + 4, torch.full((length - half,), model.card.mask_id)])[None]


def plain(model: Any, length: int) -> Run:
    tokens = canvas(model, length)

    @torch.no_grad()
    def run() -> None:
        model.network.model(input_ids=tokens, use_cache=False)

    return run


def watched(model: Any, length: int, keep: str = "columns", hide: bool = False) -> Run:
    """What `sinkscope.recording` leaves on disk."""
    import sinkscope

    tokens = canvas(model, length)
    rule: Any = sinkscope.interventions.HidePositions((5,)) if hide else None

    @torch.no_grad()
    def run() -> torch.Tensor | None:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "trace"
            with sinkscope.recording(model, out=out, keep=keep), rule(model) if hide else contextlib.nullcontext():  # type: ignore[arg-type]
                model.network.model(input_ids=tokens, use_cache=False)
            return None if keep == "statistics" else torch.tensor(sinkscope.open_trace(out).column_sums[0])

    return run


def output_attentions(model: Any, length: int) -> Run:
    tokens = canvas(model, length)

    @torch.no_grad()
    def run() -> torch.Tensor:
        model.network.set_attn_implementation("eager")
        maps = model.network.model(input_ids=tokens, use_cache=False, output_attentions=True).attentions
        model.network.set_attn_implementation("sdpa")
        return torch.stack([one[0].sum(dim=-2) for one in maps])

    return run


def lens(model: Any, length: int) -> Run:
    """The bridge wraps the same network."""
    import copy

    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        network = copy.deepcopy(model.network)
        network.config.architectures = ["LlamaForCausalLM"]
        network.set_attn_implementation("eager")
        network.config.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=network, device="cpu")
    tokens = canvas(model, length)

    @torch.no_grad()
    def run() -> torch.Tensor:
        cache = bridge.run_with_cache(tokens, names_filter=lambda name: name.endswith("attn.hook_pattern"))[1]
        return torch.stack([cache[name][0].sum(dim=-2) for name in cache if name.endswith("hook_pattern")])

    return run


def sight(model: Any, length: int) -> Run:
    from nnsight import NNsight

    wrapped = NNsight(model.network)
    tokens = canvas(model, length)

    @torch.no_grad()
    def run() -> torch.Tensor:
        model.network.set_attn_implementation("eager")
        with wrapped.trace(input_ids=tokens, use_cache=False):
            sums = list().save()
            for layer in wrapped.model.layers:
                sums.append(layer.self_attn.output[1][0].sum(dim=-2))
        model.network.set_attn_implementation("sdpa")
        return torch.stack([*sums])

    return run


KINDS: dict[str, Callable[[Any, int], Run]] = {
    "plain": plain,
    "columns": watched,
    "statistics": lambda model, length: watched(model, length, keep="statistics"),
    "hide": lambda model, length: watched(model, length, hide=True),
    "output_attentions": output_attentions,
    "transformer_lens": lens,
    "nnsight": sight,
}


def installed(kinds: tuple[str, ...]) -> list[str]:
    """The kinds whose package is there, plain among them."""
    return [
        name
        for name in KINDS
        if (name in kinds or name == "plain") and (name not in NEEDS or find_spec(NEEDS[name]) is not None)
    ]


def prepare(kind: str, length: int) -> Callable[[], Any]:
    """For a fresh process: the model loaded, one small canvas behind it."""
    torch.set_num_threads(2)
    model = model_of(positions=max(LENGTHS))
    KINDS[kind](model, 64)()
    return KINDS[kind](model, length)


def main() -> None:
    given = flags(lengths=LENGTHS, kinds=tuple(KINDS), rounds=3, what=("time", "memory"))
    torch.set_num_threads(2)
    model = model_of(positions=max(LENGTHS))
    kinds, rows = installed(given.kinds), []
    for length in given.lengths:
        row: dict[str, Any] = {name: {"length": length, "kind": name} for name in kinds}
        if "time" in given.what:
            runs = {name: KINDS[name](model, length) for name in kinds}
            found = {name: run() for name, run in runs.items()}
            seconds = interleaved(runs, given.rounds)
            for name in kinds:
                row[name]["over_plain_time"] = ratio(seconds, name, "plain")
                row[name]["seconds"] = round(sorted(seconds[name])[len(seconds[name]) // 2], 3)
                sums, ours = found[name], found.get("columns")
                both = sums is not None and ours is not None and name not in ("columns", "hide")
                row[name]["differs_from_columns"] = round(float((sums - ours).abs().max()), 6) if both else None
        if "memory" in given.what:
            memory = {name: extra_memory(prepare, name, length) for name in kinds}
            for name in kinds:
                row[name]["extra_mib"] = round(memory[name], 1)
                row[name]["more_than_plain_mib"] = round(memory[name] - memory["plain"], 1)
        rows += row.values()
    show(rows, given.json)


if __name__ == "__main__":
    main()
