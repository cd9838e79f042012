"""Networks whose weights are set by hand, so that what their sink does is known.

The residual stream has named features: ``one`` (1 in every token), ``source`` (1 in the tokens that heads look for),
``letter`` (which of eight letters a token is) and ``said`` (what the head adds, read by the output layer). There are
eight sources, which have a letter where the kind of network says so. One head of one layer looks for the source; all
other heads attend to everything alike, and feed-forward layers add nothing.
"""

import dataclasses

import numpy as np
import torch

import sinkscope
from sinkscope.lab.prompts import build_tokenizer
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.starting_network import build_network

LETTERS = 8
SOURCE, FIRST_LETTER, FIRST_LETTERED = 20, 21, 40  # ids of the lab's tokenizer; what they read as does not matter
ONE, IS_SOURCE, LETTER, SAID = 0, 1, 2, 2 + LETTERS
STILL, TURNING = 3, 1
"""Places in a head of width 8 whose rotation is 1e-6 and 1e-2 a position, with a rotary base of 1e8."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a network's head does.

    Attributes:
        value: what the source adds: nothing, one vector, or its own letter, another in each prompt (a copier).
        sources: how many tokens of the prompt are sources.
        near: only queries near the source attend to it.
    """

    value: str
    sources: int = 1
    near: bool = False


SIZES = ((1, 3), (2, 3), (3, 4))
"""Layers, and heads in each."""

SETTINGS = {"length": 40, "steps": 40, "block": 40, "canvases": 2}
"""Of `find_roles` on them."""

# by the role that the rules give: a constant or a copier, read evenly (broadcast) or by nearby queries (carrier)
KINDS = {
    "idle": Kind("nothing"),
    "idle with a substitute": Kind("nothing", sources=2),
    "broadcast": Kind("vector"),
    "broadcast by a copier": Kind("letter"),
    "carrier": Kind("vector", near=True),
    "carrier by a copier": Kind("letter", near=True),
}


def shape(layers, heads):
    return Architecture(
        layers=layers,
        hidden_size=8 * heads,
        heads=heads,
        kv_heads=heads,
        intermediate_size=16,
        max_positions=128,
        rope_theta=1e8,
    )


@torch.no_grad()
def set_by_hand(model, kind, layer, head, rng):
    """Turn a random network into one of a kind."""
    network = model.network
    for parameter in network.parameters():
        parameter.zero_()
    for module in network.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.weight.fill_(1.0)
    width = network.config.hidden_size
    embed = network.model.embed_tokens.weight
    embed[:, ONE] = 1.0
    for token in range(len(embed)):
        embed[token, LETTER + (token - FIRST_LETTER) % LETTERS] = 1.0
    embed[SOURCE] = 0.0
    embed[SOURCE, ONE] = embed[SOURCE, IS_SOURCE] = 1.0
    embed[FIRST_LETTERED : FIRST_LETTERED + LETTERS] = 0.0
    for letter in range(LETTERS):  # two features, as every token has, so that the norm makes the same of them
        embed[FIRST_LETTERED + letter, IS_SOURCE] = embed[FIRST_LETTERED + letter, LETTER + letter] = 1.0
    scale = (width / 2) ** 0.5  # what the norm makes of a feature that is 1
    attention = network.model.layers[layer].self_attn
    query, key, value, out = (getattr(attention, name).weight for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    first = 8 * head
    strength = 8**0.5 / scale**2
    if kind.near:
        query[first + TURNING, ONE] = query[first + STILL, ONE] = 1.0
        key[first + TURNING, IS_SOURCE], key[first + STILL, IS_SOURCE] = 120 * strength, -114 * strength
    else:
        query[first + STILL, ONE] = 1.0
        key[first + STILL, IS_SOURCE] = 13 * strength
    said = torch.from_numpy(rng.permutation(LETTERS))
    for number in range(LETTERS):  # what text adds through this head: its letter
        value[first + number, LETTER + number] = 1.0 / scale
        out[SAID + int(said[number]) if width >= SAID + LETTERS else LETTER + int(said[number]), first + number] = 1.0
    if kind.value == "vector":
        value[first + int(rng.integers(LETTERS)), IS_SOURCE] = 2.0 / scale
    if kind.value == "letter":  # as all text does
        value[first : first + LETTERS] *= 2.0
    head_weight = network.lm_head.weight
    for token in range(FIRST_LETTER, FIRST_LETTER + LETTERS):
        column = SAID if width >= SAID + LETTERS else LETTER
        head_weight[token, column + (token - FIRST_LETTER) % LETTERS] = 2.0
    return model


def prompts(kind, count, rng):
    """Token ids: letters with the sources somewhere among them."""
    found = []
    for _ in range(count):
        tokens = rng.integers(FIRST_LETTER, FIRST_LETTER + LETTERS, int(rng.integers(20, 28)))
        places = rng.choice(
            np.arange(len(tokens) - 8, len(tokens)) if kind.near else np.arange(1, len(tokens)),
            kind.sources,
            replace=False,
        )
        tokens[places] = SOURCE if kind.value != "letter" else FIRST_LETTERED + rng.integers(LETTERS)
        found.append(tokens.tolist())
    return found


def untrained(folder, layers, heads, seed=0):
    """Return a network as it is before training, its weights scaled up until sinks show by chance."""
    recipe = dataclasses.replace(RECIPES["lab-diffusion"], architecture=shape(layers, heads), seed=seed)
    tokenizer = build_tokenizer()
    network = build_network(recipe, tokenizer)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(20 if "embed" in name else 6)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sinkscope.load(folder)


def make(folder, kind, layers=1, heads=3, seed=0):
    """Return a model of a kind, the layer and head of its sink, and prompts."""
    rng = np.random.default_rng(seed)
    model = sinkscope.load(folder) if (folder / "config.json").exists() else untrained(folder, layers, heads)
    layer, head = int(rng.integers(layers)), int(rng.integers(heads))
    return set_by_hand(model, KINDS[kind], layer, head, rng), (layer, head), prompts(KINDS[kind], 10, rng)


def save(folder, kind, layers=1, heads=3):
    """Write a network of a kind to a folder, and return prompts for it as text."""
    model, _, found = make(folder, kind, layers, heads)
    model.network.save_pretrained(folder)
    return [model.tokenizer.decode(one) for one in found]
