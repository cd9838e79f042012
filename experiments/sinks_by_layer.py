"""Which of a causal model's sinks are left, layer by layer, when its network looks both ways, before and after training.

Claim     Diffusion models have sinks of their own kind (arXiv 2510.15731).
Command   python experiments/sinks_by_layer.py --texts gsm8k-test.jsonl
Cost      ten minutes of one core.
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
from torch import Tensor

import sinkscope
from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.evaluation.text_likelihood import read_texts
from sinkscope.statistics.intervals import interval_of_means

FOLDER = Path(__file__).parents[1] / "results" / "adaptation"
LENGTH, BATCH = 128, 8
COLOURS = {"causal": "#d55e00", "both ways": "#56b4e9", "trained": "#0072b2"}
LABELS = {"causal": "causal (SmolLM2)", "both ways": "both ways, untrained", "trained": "smollm2-diffusion"}


class Largest(Watcher):
    """Keeps each head's largest share and its position, and the first token's share: [row, head] of every layer."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        shares = columns.sums[:, :, call.groups.index("all")] / LENGTH
        self.seen.append((*shares.max(-1), shares[..., 0]))


@torch.no_grad()
def look(network: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Return the largest share and its key, the first token's share [row, layer, head], and the largest hidden norm
    over the median, of each layer's input [row, layer].
    """
    parts: list[tuple[Tensor, ...]] = []
    for rows in tokens.split(BATCH):
        with subscribed(network, largest := Largest()):
            states = network.model(input_ids=rows, use_cache=False, output_hidden_states=True).hidden_states
        norms = torch.stack(states[:-1], 1).norm(dim=-1)
        found = [torch.stack(one, 1) for one in zip(*largest.seen, strict=True)]
        parts.append((*found, norms.amax(-1) / norms.median(-1).values))
    return dict(zip(("share", "key", "first", "norm"), map(torch.cat, zip(*parts, strict=True)), strict=True))


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
                "heads over .3": round(float((found["share"][:, layer].mean(0) > 0.3).float().mean()), 3),
                "norm over median": _mean(found["norm"][:, layer]),
                "same as causal": _mean(same[:, layer].mean(-1)),
                "by chance": _mean(chance[:, layer].mean(-1)),
                "tokens": {decode(int(kinds[one])): round(float(counts[one]) / keys.numel(), 3) for one in order},
            }
        )
    return {"layers": layers}


def _mean(values: Tensor) -> list[float]:
    found = interval_of_means(values.double().numpy()[:, None])
    return [round(float(one[0]), 4) for one in (found.mean, found.low, found.high)]


def draw(rows: dict[str, Any], path: Path) -> None:
    """Draw the largest key's share and the largest norm of each layer."""
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.1), layout="constrained")
    for axis, key, title in (
        (axes[0], "share", "largest key of a head: share of the attention"),
        (axes[1], "norm over median", "largest hidden norm over the median"),
    ):
        for name, colour in COLOURS.items():
            mean, low, high = np.array([layer[key] for layer in rows[name]["layers"]]).T
            axis.plot(mean, color=colour, marker="o", markersize=3, label=LABELS[name])
            axis.fill_between(range(len(mean)), low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("layer")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(0, 1)
    axes[1].set_yscale("log")
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    fig.savefig(path, dpi=130)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines {text}, which no model was trained on")
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--out", type=Path, default=FOLDER / "sinks-by-layer.json")
    parser.add_argument("--figure", type=Path, default=FOLDER.parents[1] / "docs" / "sinks-by-layer.png")
    given = parser.parse_args()
    causal, trained = (sinkscope.load(name, dtype=torch.float32) for name in ("smollm2", "smollm2-diffusion"))
    texts = read_texts(given.texts)
    ids = [one for text in texts for one in (1, *causal.tokenizer(text, add_special_tokens=False).input_ids, 2)]
    tokens = torch.tensor(ids[: given.windows * LENGTH]).view(-1, LENGTH)
    chosen = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    chosen[:, 0] = False
    masked, rows, keys = tokens.masked_fill(chosen, trained.card.mask_id), {}, torch.empty(0)
    both = untrained(causal, "smollm2-diffusion")
    for name, model, text in (
        ("causal, masked text", causal, masked),
        ("causal", causal, tokens),
        ("both ways", both, masked),
        ("trained", trained, masked),
    ):
        found = look(model.network, text)
        keys = found["key"] if name == "causal, masked text" else keys
        rows[name] = summary(found, keys, text, causal.tokenizer.decode)
        print(name, [round(layer["share"][0], 2) for layer in rows[name]["layers"]], flush=True)
    given.out.write_text(json.dumps({"windows": given.windows, "rows": rows}, ensure_ascii=False) + "\n")
    draw(rows, given.figure)


if __name__ == "__main__":
    run_script(main)
