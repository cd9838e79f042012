"""Our LLaDA loop against a plain loop that projects the whole canvas every step, at a vocabulary of 126,464: same
tokens, time as a ratio.

The network is small (4 layers, width 512) beside its vocabulary, as the ratio of the two is what decides: in LLaDA-8B
the projection is 6 % of the forward call, so there the gain is smaller (stated per row as projection_share).
"""

from typing import Any

import torch
from _measuring import flags, interleaved, random_model, ratio, show

VOCABULARY = 126_464
SHAPES = ((192, 64), (448, 64), (448, 256))
STEPS = 16
REPEATS = 3


@torch.no_grad()
def plain_loop(model: Any, prompt: torch.Tensor, length: int, steps: int) -> torch.Tensor:
    """Low-confidence remasking in one block, the vocabulary projected for every position in every step."""
    mask_id = model.card.mask_id
    canvas = torch.cat([prompt, torch.full((length,), mask_id)])[None]
    for step in range(steps):
        logits = model.network(input_ids=canvas, use_cache=False).logits
        masked = canvas == mask_id
        token = logits.argmax(-1)
        confidence = torch.softmax(logits, dim=-1).gather(-1, token[..., None])[..., 0].masked_fill(~masked, -torch.inf)
        quota = length // steps + (step < length % steps)
        chosen = confidence[0].topk(quota).indices
        canvas[0, chosen] = token[0, chosen]
    return canvas[0]


def main() -> None:
    given = flags()
    import sinkscope

    torch.set_num_threads(2)
    model = random_model(512, 1536, 4, 8, 1024, VOCABULARY)
    rows = []
    for prompt_length, length in SHAPES:
        prompt = torch.arange(prompt_length) % 400 + 4
        wrote: dict[str, torch.Tensor] = {}

        def ours(prompt: torch.Tensor = prompt, length: int = length, wrote: dict[str, torch.Tensor] = wrote) -> None:
            wrote["ours"] = sinkscope.generate(model, prompt, length=length, steps=STEPS, block=length).tokens

        def theirs(prompt: torch.Tensor = prompt, length: int = length, wrote: dict[str, torch.Tensor] = wrote) -> None:
            wrote["plain"] = plain_loop(model, prompt, length, STEPS)

        seconds = interleaved({"ours": ours, "plain": theirs}, REPEATS)
        shape = model.network.config
        layers = shape.num_hidden_layers * (4 * shape.hidden_size**2 + 3 * shape.hidden_size * shape.intermediate_size)
        rows.append(
            {
                "prompt": prompt_length,
                "length": length,
                "steps": STEPS,
                "plain_over_ours_time": ratio(seconds, "plain", "ours"),
                "same_tokens": bool(torch.equal(wrote["ours"], wrote["plain"])),
                "projection_share": round(
                    VOCABULARY * shape.hidden_size / (VOCABULARY * shape.hidden_size + layers), 2
                ),
            }
        )
    show(rows, given.json)


if __name__ == "__main__":
    main()
