"""The script that docs/sink-token.md names, run as it stands on a tiny model and a tiny text."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
from test_readme import run, shell_lines

import sinkscope
from sinkscope.commands import COMMANDS
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.texts import read_texts
from sinkscope.models.sink_token import VARIANTS

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "sink-token.md").read_text()


@pytest.fixture
def home(tmp_path):
    """A causal model without a mask token, and sums to learn."""
    rows = [{"prompt": f"What is {a} and {b}?", "answer": f" It is {a + b}."} for a in range(1, 9) for b in range(1, 9)]
    (tmp_path / "my-text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = read_texts(tmp_path / "my-text.jsonl").tokenizer(300)
    tokenizer.mask_token = None
    shape = Architecture(layers=2, hidden_size=32, heads=4, kv_heads=2, intermediate_size=48, max_positions=256)
    network = build_network(dataclasses.replace(RECIPES["lab-autoregressive"], architecture=shape), tokenizer)
    network.save_pretrained(tmp_path / "my-model")
    tokenizer.save_pretrained(tmp_path / "my-model")
    return tmp_path


def test_the_example_trains_a_users_own_model(home):
    assert "(examples/train_with_a_sink_token.py)" in PAGE
    code = (DOCS / "examples" / "train_with_a_sink_token.py").read_text()
    assert code.count("range(100)") == 1
    code = code.replace("range(100)", "range(3)").replace("tokens=2048", "tokens=128")
    assert run([sys.executable, "-c", code], home) == "token\n"
    model = sinkscope.load(str(home / "my-sink-model"))
    assert not model.family.causal and model.family.shift and model.card.mask_id == model.tokenizer.mask_token_id
    before = sinkscope.load(str(home / "my-model")).network
    assert not torch.equal(model.network.model.layers[0].mlp.up_proj.weight, before.model.layers[0].mlp.up_proj.weight)
    assert model.network.model.sink_token.trained


def test_the_page_names_every_variant_recipe_and_command():
    lines = [line.split() for line in shell_lines(PAGE)]
    assert {words[1] for words in lines} == {"train", "fold", "convert", "trace"} <= set(COMMANDS)
    assert {words[2] for words in lines if words[1] == "train"} <= set(RECIPES)
    assert all(f"`{name}`" in PAGE for name in VARIANTS if name != "none")
