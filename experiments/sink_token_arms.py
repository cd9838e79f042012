"""What an extra sink token gives SmolLM2 on its way to a diffusion model, and what it costs to hide it.

Claim     A sink token lowers the loss, and the model comes to need it (after arXiv 2601.19657).
Command   python experiments/sink_token_arms.py FOLDER… --texts gsm8k-test.jsonl, of folders that results/adaptation says
          how to train
Cost      on an H200 half a minute an arm; the measurement ten minutes of a CPU core an arm, moves five.
Expected  As claimed.
Found     See results/adaptation.

Each window of held-out text is predicted at three masked shares, once, with the same masks in all arms and rules.
Moves are those of each arm's own answers, 32 tokens in 32 steps, to the first problems among the texts.
"""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from _settings import Arguments, run_script
from _windows import cut_anywhere
from sink_token_movement import moves

import sinkscope
from sinkscope.evaluation.text_likelihood import read_texts
from sinkscope.interventions import Composed, compose, parse_rule
from sinkscope.lab.run_folder import read_recipe
from sinkscope.lab.starting_network import RATES

FILE = Path(__file__).parents[1] / "results" / "adaptation" / "arms.json"
RULES = ["none", "position:0", "top:1", "mass:1", "random:1"]
LENGTH, BATCH = 128, 32


@torch.no_grad()
def measure(folder: Path, texts: list[str], windows: int, rules: list[str]) -> dict[str, Any]:
    """Return for each rule and masked share the nats a masked token of each window, and the attention hidden."""
    model, recipe = sinkscope.load(str(folder), dtype=torch.float32), read_recipe(folder)
    tokens = cut_anywhere(model.tokenizer, texts, windows, LENGTH)
    found: dict[str, Any] = {}
    for text in (*rules, "sink-token") if recipe.sink_token != "none" else rules:
        rule, source = parse_rule(text), torch.Generator().manual_seed(1)
        parts = rule.parts if isinstance(rule, Composed) else (rule,)
        rule = compose(*(replace(one, observe="current") if one.waits else one for one in parts))
        for share in RATES:
            chosen = torch.rand(tokens.shape, generator=source) < share
            chosen[:, 0] = False
            noisy, nats = tokens.masked_fill(chosen, model.card.mask_id), []
            with rule(model) as hiding:
                for at in range(0, len(tokens), BATCH):
                    rows = slice(at, at + BATCH)
                    logits = model.network(input_ids=noisy[rows], use_cache=False).logits[:, :-1].float()
                    losses = F.cross_entropy(logits.transpose(1, 2), tokens[rows, 1:], reduction="none")
                    picked = chosen[rows, 1:]
                    nats += ((losses * picked).sum(1) / picked.sum(1).clamp(min=1)).tolist()
            removed = round(float(hiding.effect.removed_share or 0), 4)
            found[f"{text} {share}"] = {"nats": [round(one, 4) for one in nats], "removed": removed}
    return found


def moves_of_answers(folder: Path, texts: list[str]) -> list[dict[str, float]]:
    """Return how the main sinks among the text's keys move while each problem is answered."""
    model = sinkscope.load(str(folder), dtype=torch.float32)
    with TemporaryDirectory() as traces, sinkscope.recording(model, out=traces, numbered=True):
        for text in texts:
            sinkscope.generate(model, text[: text.index("Answer:") + 7], length=32, steps=32)
        return [moves(trace) for trace in sinkscope.open_traces(traces)]


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines {text}, which no arm was trained on")
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--rules", nargs="+", default=RULES, help="what is hidden; of arms with a token that too")
    parser.add_argument("--prompts", type=int, default=12, help="problems whose answers tell how sinks move")
    parser.add_argument("--out", type=Path, default=FILE)
    given = parser.parse_args()
    rows = json.loads(given.out.read_text()) if given.out.exists() else {}
    for folder in given.folders:
        texts = read_texts(given.texts)
        rows[folder.name] = measure(folder, texts, given.windows, given.rules)
        rows[folder.name]["moves"] = moves_of_answers(folder, texts[: given.prompts])
        given.out.write_text(json.dumps(rows, separators=(",", ":")) + "\n")
        plain = rows[folder.name]["none 0.5"]["nats"]
        print(folder.name, f"{sum(plain) / len(plain):.3f} nats a token, half of them masked", flush=True)


if __name__ == "__main__":
    run_script(main)
