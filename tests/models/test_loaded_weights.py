"""What is recorded, measured or evaluated says whose weights it was: those of the files, or others."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

import sinkscope
from sinkscope.errors import CallError
from sinkscope.evaluation import evaluate, read_results
from sinkscope.models.fingerprints import hash_memory, weight_hash_of, were_changed
from sinkscope.recorder.attention_map import recompute_map


def double(network):
    with torch.no_grad():
        network.model.layers[0].self_attn.q_proj.weight.mul_(2)


@pytest.mark.parametrize("change", ["doubled", "replaced", "adapted", "a layer dropped", "cast"])
@pytest.mark.parametrize("duplicate", [None, copy.deepcopy])
def test_a_trace_of_changed_weights_names_no_file(diffusion_folder, tmp_path, duplicate, change):
    """Weights that were only cast are those of the file, in another dtype."""
    model = sinkscope.load(diffusion_folder)
    if duplicate is not None:
        model = duplicate(model)
    stock, layers, projection = model.card, model.network.model.layers, model.network.model.layers[0].self_attn.q_proj
    for name in ("as-loaded", "changed"):
        if name == "changed" and change == "doubled":
            double(model.network)
        elif name == "changed" and change == "replaced":
            projection.weight = nn.Parameter(projection.weight * 2)
        elif name == "changed" and change == "adapted":
            projection.lora = nn.Linear(4, 4)
        elif name == "changed" and change == "cast":
            model.network.bfloat16()
        elif name == "changed":
            model.network.model.layers = layers[:-1]
        with sinkscope.recording(model, tmp_path / name):
            sinkscope.generate(model, [5, 6, 7], length=4, block=4)
        trace = sinkscope.open_trace(tmp_path / name)
        card, same = trace.manifest["model"], name == "as-loaded" or change == "cast"
        assert card["weight_hash"] == (stock.weight_hash if same else None) and card["layers"] == len(trace.layers)
        assert card["parameters"] == sum(one.numel() for one in model.network.parameters())
        dtype = "bfloat16" if name == "changed" and change == "cast" else "float32"
        assert card["dtype"] == trace.manifest["dtype"] == dtype and card["stored_dtype"] == stock.stored_dtype


def test_a_network_of_other_files_or_inside_an_adapter_counts_as_changed(diffusion_folder):
    model = sinkscope.load(diffusion_folder)
    other = dataclasses.replace(model, card=dataclasses.replace(model.card, weight_hash="of other files"))
    assert weight_hash_of(other) == hash_memory(model.network) != weight_hash_of(model)
    wrapped = nn.ModuleDict({"base": model.network, "adapter": nn.Linear(2, 2)})
    assert were_changed(wrapped)
    assert not were_changed(nn.ModuleDict({"base": model.network}))


def test_results_of_changed_weights_are_not_those_of_the_files(tmp_path):
    model = sinkscope.load("lab-diffusion")
    asked = {"tasks": ["lab-sums"], "limit": 1, "shots": 0, "settings": {"length": 4, "steps": 2, "block": 4}}
    evaluate(model, out=tmp_path / "files", **asked)
    changed = copy.deepcopy(model)
    double(changed.network)
    evaluate(changed, out=tmp_path / "changed", **asked)
    (ours,), (theirs,) = read_results(tmp_path / "files"), read_results(tmp_path / "changed")
    assert ours.weight_hash == model.card.weight_hash and theirs.weight_hash == hash_memory(changed.network)


def test_a_map_is_not_recomputed_with_changed_weights(diffusion_folder, tmp_path):
    model = sinkscope.load(diffusion_folder)
    with sinkscope.recording(model, tmp_path / "trace"):
        sinkscope.generate(model, [5, 6, 7], length=4, block=4)
    trace = sinkscope.open_trace(tmp_path / "trace")
    recompute_map(model, trace, 0, 0, 0)
    changed = copy.deepcopy(model)
    double(changed.network)
    ours, theirs = model.card.weight_hash[:12], hash_memory(changed.network)[:12]
    with pytest.raises(CallError, match=f"was written by weights {ours}…, .* has {theirs}…"):
        recompute_map(changed, trace, 0, 0, 0)
