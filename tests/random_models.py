"""Folders of random networks in the shapes of the lab's recipes."""

import dataclasses

import torch

from sinkscope.lab.prompts import build_tokenizer
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.starting_network import build_network

TINY = Architecture(layers=3, hidden_size=40, heads=5, kv_heads=5, intermediate_size=56, max_positions=256)


def save_random_model(folder, recipe_name, architecture=TINY, seed=0):
    """A folder with a random network that attends sharply enough for sinks to show, and the lab's tokenizer."""
    recipe = dataclasses.replace(RECIPES[recipe_name], architecture=architecture, seed=seed)
    tokenizer = build_tokenizer()
    network = build_network(recipe, tokenizer)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                parameter.mul_(6)
            if "embed" in name:
                parameter.mul_(20)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
