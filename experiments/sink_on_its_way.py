"""What becomes of a causal model's first-token sink while its network learns to look both ways.

Everything is computed densely, on windows of held-out text, half of whose tokens are masked (none for a causal model):
by masks of attention alone, without any training; along the snapshots of runs of ``sinkscope train adapted``; and with
the strength of the last one's adapter turned from 0 to 1.

    python experiments/sink_on_its_way.py RUN… --texts texts.jsonl --out results/adaptation/sink-on-its-way.json
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _windows import cut_anywhere, half_of
from torch import Tensor
from transformers import AttentionInterface

from sinkscope.evaluation.text_likelihood import read_texts
from sinkscope.lab.recipes import Adaptation
from sinkscope.lab.run_folder import TrainingRun, network_at, open_run
from sinkscope.lab.starting_network import choose_tokenizer, hidden, seen_keys

LENGTH, CONTEXT = 128, 32
"""Tokens of a window; queries of the causal model that are not judged, and lose no keys."""
RULES = ("none", "first", "top", "rowmass", "random")
MASSIVE = 14
"""Number of layers behind which hidden states are compared; SmolLM2's massive activation is there."""


@dataclass
class Dense:
    """Attention with its maps, as an attention function of transformers; hides keys by ``rule`` and keeps sums.

    Attributes:
        bias: added to the scores of a layer, if the layer is among the keys; else the call's own mask is.
        judged: queries that lose keys and whose attention is counted, [query].
    """

    judged: Tensor
    rule: str = "none"
    bias: dict[int, Tensor] = field(default_factory=dict)
    share: list[Tensor] = field(default_factory=list)
    value: list[Tensor] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **given: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
        scores = query @ key.mT * given["scaling"] + self.bias.get(module.layer_idx, mask)
        maps = scores.softmax(-1)
        columns = maps[:, :, self.judged].mean(2)  # [row, head, key]: share of the judged queries' attention
        self.share.append(columns)
        norms = value.norm(dim=-1)
        self.value.append(norms[..., 0] / norms.median(-1).values)
        if self.rule != "none":
            gone = self._gone(columns)
            self.removed.append(float((columns * gone).sum(-1).mean()))
            lost = self.judged[:, None] & gone[:, :, None] & ~torch.eye(len(self.judged), dtype=torch.bool)
            maps = scores.masked_fill(lost, -torch.inf).softmax(-1)
        return (maps @ value).transpose(1, 2).contiguous(), None

    def _gone(self, columns: Tensor) -> Tensor:
        """Return which keys are hidden in each row and head: the first, the largest, one at random, or keys at random
        that hold as much attention as the largest (the largest excluded, as far as they reach).
        """
        gone = torch.zeros_like(columns, dtype=torch.bool)
        if self.rule == "first":
            gone[..., 0] = True
            return gone
        largest = columns.argmax(-1, keepdim=True)
        if self.rule == "top":
            return gone.scatter(-1, largest, True)
        order = torch.rand(columns.shape, generator=torch.Generator().manual_seed(len(self.share))).scatter(
            -1, largest, 2
        )
        order = order.argsort(-1)
        if self.rule == "random":
            return gone.scatter(-1, order[..., :1], True)
        sums = columns.gather(-1, order).cumsum(-1)
        kept = sums - columns.gather(-1, order) < columns.gather(-1, largest)
        kept[..., -1] = False  # the largest itself stays
        return gone.scatter(-1, order, kept)


@torch.no_grad()
def measure(
    network: Any, tokens: Tensor, seen: Tensor, causal: bool, bias: dict[int, Tensor] | None = None
) -> dict[str, Any]:
    """Return the numbers of one condition: of windows [row, position] under a mask of attention."""
    chosen = half_of(tokens)
    judged = torch.arange(LENGTH) >= (CONTEXT if causal else 0)
    if causal:
        chosen = (judged & (torch.arange(LENGTH) > CONTEXT)).expand(tokens.shape)
    elif not seen[0, 0, 0, 1:].any():
        judged[0] = False  # the first row sees itself alone
    noisy = tokens if causal else tokens.masked_fill(chosen, network.config.mask_token_id)
    found: dict[str, Any] = {}
    for rule in RULES:
        dense = Dense(judged, rule, bias or {})
        AttentionInterface.register("dense", dense)
        network.model.set_attn_implementation("dense")
        output = hidden(network, noisy, seen, rule == "none")
        nats = []
        for row in range(len(tokens)):
            states = output.last_hidden_state[row][chosen[row].roll(-1)]
            nats.append(float(F.cross_entropy(network.lm_head(states).float(), tokens[row][chosen[row]])))
        if rule == "none":
            found |= {"nats": nats, **_sinks(dense, output.hidden_states, noisy)}
            continue
        found[rule] = {"more": (np.array(nats) - found["nats"]).tolist(), "removed": float(np.mean(dense.removed))}
    return found


def _sinks(dense: Dense, states: Any, tokens: Tensor) -> dict[str, Any]:
    share, norms = (
        torch.stack(dense.share, 1),
        torch.stack(states).norm(dim=-1),
    )  # [row, layer, head, key]; [layer, row, key]
    mean, largest = share.mean(0), share.argmax(-1)
    over_median = norms / norms.median(-1, keepdim=True).values
    at = tokens[torch.arange(len(tokens))[:, None, None], largest]
    kinds, counts = at.flatten().unique(return_counts=True)
    most = counts.argsort(descending=True)[:6]
    return {
        "first_share": share[..., 0].mean((1, 2)).tolist(),
        "heads_first_over_.3": float((mean[..., 0] > 0.3).float().mean()),
        "heads_largest_over_.3": float((share.amax(-1).mean(0) > 0.3).float().mean()),
        "first_is_largest": (largest == 0).float().mean((1, 2)).tolist(),
        "first_share_of_layers": mean[..., 0].mean(-1).tolist(),
        "first_value_over_median": float(torch.stack(dense.value).mean()),
        "first_norm_over_median": float(over_median[MASSIVE, :, 0].mean()),
        "largest_norm_over_median": float(over_median[MASSIVE].amax(-1).mean()),
        "largest_key_tokens": [[int(kinds[one]), float(counts[one] / largest.numel())] for one in most],
    }


def conditions(
    runs: list[TrainingRun], tokenizer: Any, tokens: Tensor, turns: int
) -> Iterator[tuple[str, str, float, Any]]:
    """Yield (part, name, value on its axis, call that measures) of each condition; it holds until the next."""
    place, (first, *_) = torch.arange(LENGTH), runs
    back, both = (place[None] <= place[:, None])[None, None], seen_keys(Adaptation(), LENGTH)
    alone = seen_keys(Adaptation(first_alone=True), LENGTH)
    network = network_at(first, min(first.weights), tokenizer)
    _turn(network, 0.0)
    yield "masks", "causal", 0, partial(measure, network, tokens, back, True)
    for name, seen in (("causal, masked text", back), ("both ways", both), ("first token alone", alone)):
        yield "masks", name, 0, partial(measure, network, tokens, seen, False)
    for run in runs:
        seen = seen_keys(run.recipe.adaptation or Adaptation(), LENGTH)
        for update in sorted(run.weights):
            trained = network_at(run, update, tokenizer)
            yield "training", run.folder.name, update, partial(measure, trained, tokens, seen, False)
        for turn in range(turns):
            _turn(trained, turn / turns)
            yield "strength", run.folder.name, turn / turns, partial(measure, trained, tokens, seen, False)
    bias = {
        name: torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        for name, seen in (("causal", back), ("both", both))
    }
    for below in (1, 3, 6, 12, 20):
        for name, kinds in (
            ("both ways below, causal above", ("both", "causal")),
            ("causal below, both ways above", ("causal", "both")),
        ):
            chosen = {one: bias[kinds[one >= below]] for one in range(len(network.model.layers))}
            yield "layers", name, below, partial(measure, network, tokens, both, False, chosen)
    for share in (0.005, 0.02, 0.05, 0.2, 0.5):
        drawn = torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)) < share
        yield (
            "degrees",
            "share of the future that is seen",
            share,
            partial(measure, network, tokens, back | drawn, False),
        )


def _turn(network: Any, strength: float) -> None:
    """Scale what the adapter adds."""
    from peft.tuners.lora import LoraLayer

    for module in network.modules():
        if isinstance(module, LoraLayer):
            module.scaling = {name: module.lora_alpha[name] / module.r[name] * strength for name in module.scaling}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines {text}, which no run was trained on")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="conditions that it holds are not measured again")
    given = parser.parse_args()
    runs = [open_run(one) for one in given.runs]
    tokenizer = choose_tokenizer(runs[0].recipe, None)
    tokens = cut_anywhere(tokenizer, read_texts(given.texts), given.windows, LENGTH)
    rows: list[dict[str, Any]] = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    done = {(row["part"], row["name"], row["at"]) for row in rows}
    for part, name, value, measured in conditions(runs, tokenizer, tokens, given.turns):
        if (part, name, value) in done:
            continue
        numbers = measured()
        for pair in numbers["largest_key_tokens"]:
            pair[0] = tokenizer.decode([pair[0]])
        rows.append({"part": part, "name": name, "at": value, **numbers})
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"windows": len(tokens), "length": LENGTH, "rows": rows}) + "\n")
        costs = " ".join(
            f"{rule} {np.mean(numbers[rule]['more']):+.3f}({numbers[rule]['removed']:.2f})" for rule in RULES[1:]
        )
        print(
            f"{part:9}{name[:32]:33}{value:<7g} nats {np.mean(numbers['nats']):.3f} "
            f"first {np.mean(numbers['first_share']):.3f} norm {numbers['first_norm_over_median']:.1f}/"
            f"{numbers['largest_norm_over_median']:.1f} {costs}",
            flush=True,
        )


if __name__ == "__main__":
    main()
