"""What does the token say? A logit lens on its row, layer by layer.

Claim     The token holds negligible semantic content (arXiv 2601.19657, §4.3).
Command   python experiments/sink_token_content.py ARMS --out results/sink-token/content
Cost      seconds an arm.
Expected  Through norm and head the token's row gives a distribution that is far from any word and from that of text tokens.
Found     results/sink-token/content.md once the arms are trained.

Beside the token stand the tokens of the text on held-out sums, and rows drawn at random with the norm of the token's: what a row
without any content gives.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import Arguments, run_script
from _sink_arms import Arm, find_arms, measure_arms, prompts, show, write


def rows_of_tokens(stack: Any) -> list[torch.Tensor]:
    """Return states [sink, width] of the sink tokens, as they enter each layer and leave the last; each is a sequence of its own."""
    hidden = stack.sink_token.embedding[:, None]
    rotations = stack.rotary_emb(hidden, position_ids=torch.zeros(1, 1, dtype=torch.long))
    found = [hidden[:, 0]]
    for layer in stack.layers:
        if stack.sink_token.variant.zero_value:  # its attention gives nothing
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        else:
            hidden = layer(hidden, position_embeddings=rotations)
        found.append(hidden[:, 0])
    return found


def lens(network: Any, hidden: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(network.lm_head(network.model.norm(hidden)).float(), dim=-1)


def bits(logs: torch.Tensor) -> np.ndarray:
    return (-(logs.exp() * logs).sum(-1) / np.log(2)).numpy()


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("arms", type=Path)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    started = time.time()
    arms = [arm for arm in find_arms(arguments.arms) if arm.recipe["sink_token"].startswith("token")]
    if not arms:
        parser.error(f"{arguments.arms}: expected arms with a token, found none")
    words: dict[str, list[str]] = {}

    def measure(arm: Arm, model: Any) -> dict[str, np.ndarray]:
        network, found = model.network, {}
        own = rows_of_tokens(network.model)
        states = [[], *([] for _ in network.model.layers)]
        for prompt in prompts(arm, arguments.problems):
            tokens = torch.tensor([model.encode(prompt)])
            for kept, state in zip(
                states,
                network.model(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states,
                strict=True,
            ):
                kept.append(state[0])
        generator = torch.Generator().manual_seed(0)
        for number, hidden in enumerate(own):
            if number == len(own) - 1:
                break  # the last state of the text has gone through the norm already
            logs, text = lens(network, hidden), lens(network, torch.cat(states[number]))
            noise = torch.randn(200, hidden.shape[-1], generator=generator)
            random = lens(network, noise / noise.norm(dim=-1, keepdim=True) * hidden.norm(dim=-1).mean())
            found[f"layer {number}: bits, token"] = bits(logs)
            found[f"layer {number}: bits, tokens of the text"] = bits(text)
            found[f"layer {number}: bits, random rows"] = bits(random)
            found[f"layer {number}: probability of its first word, token"] = logs.exp().amax(-1).numpy()
            found[f"layer {number}: probability of their first word, text"] = text.exp().amax(-1).numpy()
            for place, best in enumerate(log.topk(5) for log in logs):
                shown = [
                    f"{model.tokenizer.decode([int(token)])!r} {float(p.exp()):.2f}"
                    for token, p in zip(best.indices, best.values, strict=True)
                ]
                which = f", token {place + 1} of {len(logs)}" if len(logs) > 1 else ""
                words.setdefault(f"{arm.name}, seed {arm.seed}{which}", []).append(
                    f"layer {number}: " + ", ".join(shown)
                )
        return {key: np.array([values.mean()]) for key, values in found.items()}

    rows = measure_arms(arms, measure).rows()
    text = (
        show(rows)
        + "\n\n"
        + "\n\n".join(f"{name}:\n\n" + "\n".join(f"* {line}" for line in lines) for name, lines in words.items())
    )
    write(arguments.out, "What the sink token says", {"rows": rows, "words": words}, text, arms, started)


if __name__ == "__main__":
    run_script(main)
