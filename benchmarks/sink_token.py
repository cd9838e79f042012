"""What a sink costs: a training step with it over one without, and inference folded and unfolded over a model
without.
"""

import copy
import dataclasses

import torch
from _measuring import flags, interleaved, ratio, show

from sinkscope.lab.canvases import draw_canvases
from sinkscope.lab.prompts import build_tokenizer
from sinkscope.lab.recipes import RECIPES
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.training import _objective
from sinkscope.models import add_sink_token
from sinkscope.models.sink_token import SinkToken, constant_keys, with_sink

REPEATS = 25
SHAPES = ((192, 6, 6, 8, 96), (192, 6, 6, 1, 256), (1024, 4, 16, 1, 512))


def training(variant: str):
    """One update of an arm, as `sinkscope train` runs it."""
    recipe, tokenizer = RECIPES[f"lab-sink-{variant}"], build_tokenizer()
    network = build_network(recipe, tokenizer).train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    objective = _objective(recipe, network, tokenizer, "cpu")
    canvases = draw_canvases(dataclasses.replace(recipe.canvases, lengths=(96,), weights=(1.0,)), tokenizer, 0, 0)

    def update() -> None:
        objective(canvases, 0).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return update


def inference(width: int, layers: int, heads: int):
    """A bidirectional network without a token, with one, and with it folded."""
    import transformers

    shape = {
        "hidden_size": width,
        "intermediate_size": 8 * width // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    config = transformers.LlamaConfig(
        vocab_size=456, num_key_value_heads=heads, max_position_embeddings=2048, pad_token_id=None, **shape
    )
    config.is_causal = False
    plain = transformers.LlamaForCausalLM(copy.deepcopy(config)).eval()
    unfolded = add_sink_token(copy.deepcopy(plain))
    made, asked = with_sink(transformers.LlamaForCausalLM, config, SinkToken(folded=True))
    folded, weights = made(asked).eval(), unfolded.state_dict()
    del weights["model.sink_token.embedding"]
    keys, values = constant_keys(unfolded.model)
    folded.load_state_dict(weights | {"model.sink_token.keys": keys, "model.sink_token.values": values})
    return {"plain": plain, "folded": folded, "unfolded": unfolded}


def main() -> None:
    given = flags()
    seconds = interleaved(
        {variant: training(variant) for variant in ("none", "token", "logit", "gate")}, repeats=REPEATS
    )
    rows = [
        {"what": f"training step, {name}", "over_without": ratio(seconds, name, "none")}
        for name in seconds
        if name != "none"
    ]
    for width, layers, heads, batch, length in SHAPES:
        tokens = torch.randint(0, 456, (batch, length))
        networks = inference(width, layers, heads)
        with torch.no_grad():
            seconds = interleaved(
                {
                    name: lambda one=one, tokens=tokens: one.model(input_ids=tokens, use_cache=False)
                    for name, one in networks.items()
                },
                REPEATS,
            )
        shape = f"width {width}, {layers} layers, {batch} × {length} tokens"
        rows += [
            {"what": f"{name}, {shape}", "over_without": ratio(seconds, name, "plain")}
            for name in ("folded", "unfolded")
        ]
    show(rows, given.json)


if __name__ == "__main__":
    main()
