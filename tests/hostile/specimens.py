"""Whole specimens of everything that sinkscope reads, made once with a network of one layer."""

import dataclasses
import json
from pathlib import Path

from sinkscope.lab.prompts import problem_prompt
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.training import train_checkpoint

PROMPT = problem_prompt("lab-arith", 0, 0)["prompt"]
OTHER = problem_prompt("lab-arith", 1, 0)["prompt"]
RECIPE = dataclasses.replace(
    RECIPES["lab-sink-token"],
    updates=2,
    architecture=Architecture(layers=1, hidden_size=16, heads=2, kv_heads=1, intermediate_size=16, max_positions=128),
    validate_every=2,
    save_every=1,
)
SMALL_TEXT = Architecture(
    layers=1, hidden_size=16, heads=2, kv_heads=1, intermediate_size=16, max_positions=256, tied=True
)
TEXT_RECIPE = dataclasses.replace(RECIPES["lab-text-diffusion"], updates=1, architecture=SMALL_TEXT, snapshots=(0,))
SETTINGS = {"length": 8, "steps": 8, "block": 8}
SHORT = {"length": 4, "steps": 4, "block": 4}
ROLES = {**SHORT, "canvases": 1}


def make_specimens(folder: Path) -> Path:
    """Make a folder with one whole specimen of everything, and return it."""
    import sinkscope
    from sinkscope.commands.trace import add_prompts, keep_maps
    from sinkscope.decoding import resolve_settings
    from sinkscope.emergence import TrainingWatch, hold_out
    from sinkscope.evaluation import evaluate
    from sinkscope.evaluation.cache_comparison import compare_caches, read_arms
    from sinkscope.lab.texts import LongText, make_corpus, open_corpus
    from sinkscope.roles.head_roles import Estimate, HeadRole, Roles, Rules
    from sinkscope.traces.bundles import write_bundle

    train_checkpoint(RECIPE, folder / "model")
    _half_trained(folder / "run")
    model = sinkscope.load(folder / "model")
    with sinkscope.recording(model, out=folder / "trace"):
        sinkscope.generate(model, PROMPT, **SETTINGS)
    keep_maps(model, [folder / "trace"], [(1, 0, 1)])
    add_prompts(model, [PROMPT, OTHER], folder / "statistics", resolve_settings(model.family, **SETTINGS))
    evaluate(model, tasks=["lab-arith"], out=folder / "results", limit=2, shots=0, settings=SETTINGS, progress=False)
    card = model.card
    estimate = Estimate(0.5, 0.25, 0.75)
    measured = {"share": estimate, "kl.sink": estimate}
    head = HeadRole(0, 1, "dispensable", "idle", "adds nothing", 1.0, 0.5, 4, " has", measured, 1, 1)
    roles = Roles(card.name, card.weight_hash, card.layers, card.heads, Rules(), (head,), 4, 2, {})
    (folder / "roles.json").write_text(json.dumps(roles.as_dict()))
    (folder / "prompts.jsonl").write_text(json.dumps({"prompt": PROMPT}) + "\n")
    _lit_gpt(folder / "lit")
    canvases = hold_out([range(5, 25)] * 2, mask_id=model.card.mask_id)
    TrainingWatch(model.network, canvases, folder / "watch", updates=[1])(1)
    (folder / "counts.json").write_text(json.dumps({"3": 7, "4": 1}))
    (folder / "text.jsonl").write_text(json.dumps({"prompt": "a b", "answer": "c d"}) + "\n")
    words = "the cat sat on the mat and the dog ate the rat " * 40
    books = [LongText("a", words), LongText("b", words[::-1], held_out=True)]
    make_corpus(books, folder / "corpus", vocabulary=300, progress=False)
    train_checkpoint(TEXT_RECIPE, folder / "textrun", texts=open_corpus(folder / "corpus"))
    write_bundle(sinkscope.open_trace(folder / "trace"), folder / "bundle", page="<!doctype html>")
    sinkscope.find_roles(
        model, [problem_prompt("lab-arith", number, 0)["prompt"] for number in range(10)], out=folder / "found", **ROLES
    )
    request = {"tasks": ["lab-arith"], "limit": 1, "shots": 0, "settings": SHORT}
    compare_caches(model, arms=read_arms("none@threshold=0.9"), out=folder / "caches", progress=False, **request)
    return folder


def _lit_gpt(folder: Path) -> None:
    """Write weights as paper 2's code names them, and a tokenizer for them."""
    from safetensors.torch import save_file
    from smdm_weights import Shape, lit_gpt_weights

    from sinkscope.lab.prompts import build_tokenizer

    build_tokenizer().save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    plain = {key: value for key, value in json.loads(path.read_text()).items() if key != "mask_token"}
    path.write_text(json.dumps(plain))
    save_file(lit_gpt_weights("none", Shape(1, 2, 2, 8, 8)), folder / "lit.safetensors")


def _half_trained(folder: Path) -> None:
    """Leave a run as a kill after its first update does."""
    import torch

    from sinkscope.lab.run_folder import save_state, write_recipe
    from sinkscope.lab.starting_network import build_network, choose_tokenizer

    folder.mkdir()
    network = build_network(RECIPE, choose_tokenizer(RECIPE))
    optimiser = torch.optim.AdamW(network.parameters())
    sum(parameter.sum() for parameter in network.parameters()).backward()
    optimiser.step()
    write_recipe(RECIPE, folder)
    save_state(folder, network, optimiser, 1)
    (folder / "training.jsonl").write_text(json.dumps({"update": 1, "loss": 1.0}) + "\n")
