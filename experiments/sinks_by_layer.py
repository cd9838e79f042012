"""Which of a causal model's sinks are left, layer by layer, when its network looks both ways, before and after training.

Claim     Diffusion models have sinks of their own kind (arXiv 2510.15731).
Command   python experiments/sinks_by_layer.py --texts gsm8k-test.jsonl smollm2-problems-diffusion ARM…, arms as in
          results/adaptation
Cost      two minutes of one core, and twenty seconds for each further model.
Expected  SmolLM2 has one kind of sink, on its first token; looking both ways removes it; training makes others.
Found     Not so: see results/adaptation.

Each condition reads the same windows of held-out text; half of the tokens are masked but for *causal*. *Both ways* is
the sibling's network with SmolLM2's weights and the mask token's trained embedding. A head's largest key is *the same*
as the causal model's if it stands at the same place of the same masked window; by chance: of the window before.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from _settings import Arguments, run_script
from _windows import cut_anywhere, half_of
from torch import Tensor

import sinkscope
from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.evaluation.text_likelihood import read_texts
from sinkscope.lab.run_folder import held_out_rows, network_at, open_run
from sinkscope.lab.starting_network import seen_keys
from sinkscope.statistics.intervals import interval_of_means

FOLDER = Path(__file__).parents[1] / "results" / "adaptation"
LENGTH, BATCH = 128, 8
COLOURS = {"causal": "#d55e00", "both ways": "#56b4e9", "trained": "#0072b2"}
LABELS = {"causal": "causal (SmolLM2)", "both ways": "both ways, untrained", "trained": "smollm2-diffusion"}


class Largest(Watcher):
    """Keeps each head's largest share, its position, and the shares of the first token and of a sink token: [row, head]
    of every layer.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, ...]] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        shares = columns.sums[:, :, call.groups.index("all")] / LENGTH
        prefix = (
            torch.zeros_like(shares[..., 0]) if columns.prefix is None else columns.prefix[:, :, 0].sum(-1) / LENGTH
        )
        self.seen.append((*shares.max(-1), shares[..., 0], prefix))


@torch.no_grad()
def look(network: Any, tokens: Tensor, seen: Tensor | None = None) -> dict[str, Tensor]:
    """Return the largest share and its key, the first token's share and the sink token's [row, layer, head], and the
    largest hidden norm over the median, of each layer's input [row, layer]; ``seen``: a mask of attention.
    """
    parts: list[tuple[Tensor, ...]] = []
    for rows in tokens.split(BATCH):
        with subscribed(network, largest := Largest()):
            given = {} if seen is None else {"attention_mask": torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)}
            states = network.model(input_ids=rows, use_cache=False, output_hidden_states=True, **given).hidden_states
        norms = torch.stack(states[:-1], 1).norm(dim=-1)
        found = [torch.stack(one, 1) for one in zip(*largest.seen, strict=True)]
        parts.append((*found, norms.amax(-1) / norms.median(-1).values))
    return dict(
        zip(("share", "key", "first", "sink token", "norm"), map(torch.cat, zip(*parts, strict=True)), strict=True)
    )


def untrained(causal: Any, trained: str) -> Any:
    """Return the trained sibling's network with the causal model's weights, but for the mask token's embedding."""
    model, weights = sinkscope.load(trained, dtype=torch.float32), dict(causal.network.named_parameters())
    mask = model.network.get_input_embeddings().weight[model.card.mask_id].clone()
    with torch.no_grad():
        for name, weight in model.network.named_parameters():
            weight[: len(weights[name])] = weights[name]
        model.network.get_input_embeddings().weight[model.card.mask_id] = mask
    return model


def summary(found: dict[str, Tensor], causal: Tensor, tokens: Tensor, decode: Any) -> dict[str, Any]:
    """Return each layer's numbers, means over windows with their intervals."""
    same = (found["key"] == causal).float()
    chance = (found["key"] == causal.roll(1, 0)).float()
    layers = []
    for layer in range(same.shape[1]):
        keys = tokens.gather(1, found["key"][:, layer])
        kinds, counts = keys.unique(return_counts=True)
        order = counts.argsort(descending=True)[:3]
        layers.append(
            {
                "share": _mean(found["share"][:, layer].mean(-1)),
                "first": _mean(found["first"][:, layer].mean(-1)),
                "sink token": _mean(found["sink token"][:, layer].mean(-1)),
                "heads over .3": round(float((found["share"][:, layer].mean(0) > 0.3).float().mean()), 3),
                "norm over median": _mean(found["norm"][:, layer]),
                "same as causal": _mean(same[:, layer].mean(-1)),
                "by chance": _mean(chance[:, layer].mean(-1)),
                "tokens": {decode(int(kinds[one])): round(float(counts[one]) / keys.numel(), 3) for one in order},
            }
        )
    return {"layers": layers}


def along(folder: Path, tokenizer: Any) -> list[dict[str, Any]]:
    """Return what stands in layers 12 to 29 at each snapshot of a training, under that update's own mask of attention,
    on held-out canvases of its own kind.
    """
    run, rows = open_run(folder), []
    canvases, _ = held_out_rows(run.recipe, tokenizer, None, 16)
    tokens = torch.from_numpy(np.stack([one[:LENGTH] for one in canvases]))
    chosen = half_of(tokens)
    for update in sorted(run.weights):
        network = network_at(run, update, tokenizer)
        text = tokens.masked_fill(chosen, network.config.mask_token_id)
        found = look(network, text, seen_keys(run.recipe.adaptation, LENGTH, update))
        keys = text[:, None, None].expand(-1, *found["key"].shape[1:], -1).gather(-1, found["key"][..., None])[:, 12:]
        kinds, counts = keys.unique(return_counts=True)
        order = counts.argsort(descending=True)[:3]
        rows.append(
            {
                "update": update,
                **{name: _mean(found[name][:, 12:].mean((1, 2))) for name in ("share", "first")},
                "norm over median": _mean(found["norm"][:, 12:].amax(-1)),
                "tokens": {
                    tokenizer.decode(int(kinds[one])): round(float(counts[one]) / keys.numel(), 3) for one in order
                },
            }
        )
        print(folder.name, rows[-1], flush=True)
    return rows


def _mean(values: Tensor) -> list[float]:
    found = interval_of_means(values.double().numpy()[:, None])
    return [round(float(one[0]), 4) for one in (found.mean, found.low, found.high)]


def draw(rows: dict[str, Any], runs: dict[str, Any], path: Path) -> None:
    """Draw the largest key's share and the largest norm of each layer; and what stands in layers 12 to 29 along the
    runs, with the first token's share of the first one.
    """
    fig, axes = plt.subplots(1, 3, figsize=(12.5, 3.1), layout="constrained", width_ratios=(1, 1, 1.1))
    for axis, key, title in (
        (axes[0], "share", "attention on each head's largest key"),
        (axes[1], "norm over median", "largest hidden norm over the median"),
    ):
        for name, colour in COLOURS.items():
            mean, low, high = np.array([layer[key] for layer in rows[name]["layers"]]).T
            axis.plot(mean, color=colour, marker="o", markersize=3, label=LABELS[name])
            axis.fill_between(range(len(mean)), low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xlabel("layer")
        axis.set_title(title, fontsize=10, loc="left")
    for (name, run), colour in zip(runs.items(), ("#009e73", "#0072b2", "#cc79a7", "#999999"), strict=False):
        for key, line in (("share", "-"), ("first", ":")) if run is next(iter(runs.values())) else (("share", "-"),):
            mean, low, high = np.array([row[key] for row in run]).T
            updates = [row["update"] for row in run]
            label = f"{name.replace('-', ' ')}{': the first token' if key == 'first' else ''}"
            axes[2].plot(updates, mean, line, color=colour, marker="o", markersize=3, label=label)
            axes[2].fill_between(updates, low, high, color=colour, alpha=0.15, linewidth=0)
    axes[2].set_xscale("symlog", linthresh=1)
    axes[2].set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    axes[2].set_xlabel("update")
    axes[2].set_title("layers 12 to 29: largest key, as attention opens", fontsize=10, loc="left")
    axes[0].set_ylim(0, 1)
    axes[2].set_ylim(0, 0.6)
    axes[1].set_yscale("log")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    if runs:
        axes[2].legend(fontsize=7, frameon=False, loc="upper right", ncols=2)
    fig.savefig(path, dpi=130)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("more", nargs="*", help="further diffusion models that were made of SmolLM2")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="folders of trainings with snapshots")
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines {text}, which no model was trained on")
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--out", type=Path, default=FOLDER / "sinks-by-layer.json")
    parser.add_argument("--figure", type=Path, default=FOLDER.parents[1] / "docs" / "sinks-by-layer.png")
    given = parser.parse_args()
    causal, trained = (sinkscope.load(name, dtype=torch.float32) for name in ("smollm2", "smollm2-diffusion"))
    texts = read_texts(given.texts)
    tokens = cut_anywhere(causal.tokenizer, texts, given.windows, LENGTH)
    masked, rows, keys = tokens.masked_fill(half_of(tokens), trained.card.mask_id), {}, torch.empty(0)
    both = untrained(causal, "smollm2-diffusion")
    for name, model, text in (
        ("causal, masked text", causal, masked),
        ("causal", causal, tokens),
        ("both ways", both, masked),
        ("trained", trained, masked),
        *((Path(name).name, sinkscope.load(name, dtype=torch.float32), masked) for name in given.more),
    ):
        found = look(model.network, text)
        keys = found["key"] if name == "causal, masked text" else keys
        rows[name] = summary(found, keys, text, causal.tokenizer.decode)
        print(name, [round(layer["share"][0], 2) for layer in rows[name]["layers"]], flush=True)
    runs = {folder.name: along(folder, causal.tokenizer) for folder in given.runs}
    document = {"windows": given.windows, "rows": rows, "runs": runs}
    given.out.write_text(json.dumps(document, ensure_ascii=False) + "\n")
    draw(rows, runs, given.figure)


if __name__ == "__main__":
    run_script(main)
