"""One map, recomputed from a trace: the dense softmax of transformers' eager attention on the stored canvas."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from closeness import assert_close, terms_of

import sinkscope
from sinkscope.errors import CallError, TraceError
from sinkscope.recorder.attention_map import recompute_map
from sinkscope.traces import open_trace

QUESTION = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
SHORT = "Q: Write a function f(x) that returns x plus 3.\nA:"
SETTINGS = {"diffusion": {"length": 12, "block": 6, "steps": 8}, "autoregressive": {"length": 7}}


@pytest.fixture(scope="module", params=list(SETTINGS))
def recorded(request, tmp_path_factory):
    """Two prompts of different length in one left-padded batch."""
    model = request.getfixturevalue(request.param)
    folder = request.getfixturevalue(f"{request.param}_folder")
    out = tmp_path_factory.mktemp("traces") / request.param
    with sinkscope.recording(model, out=out):
        sinkscope.generate(model, [QUESTION, SHORT], **SETTINGS[request.param])
    return model, folder, sinkscope.open_traces(out)


@torch.no_grad()
def dense_maps(folder, causal, tokens):
    """[layer, head, query, key] by transformers' eager attention."""
    network = transformers.LlamaForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    assert network.config.is_causal is causal if hasattr(network.config, "is_causal") else causal
    output = network(torch.from_numpy(tokens.astype(np.int64))[None], output_attentions=True, use_cache=False)
    return torch.stack(output.attentions)[:, 0].numpy()


@pytest.mark.parametrize("step", [0, 3, -1])
def test_a_map_is_the_dense_one_and_adds_up_to_what_was_recorded(recorded, step):
    model, folder, traces = recorded
    for trace in traces:
        number = range(trace.steps)[step]
        length = int(trace.lengths[number])
        dense = dense_maps(folder, trace.causal, trace.tokens[number, :length])
        for layer, head in [(0, 0), (1, 4), (2, 2)]:
            found = recompute_map(model, trace, step, layer, head)
            assert found.attention.shape == (length, length)
            assert_close(found.attention, dense[layer, head], terms=terms_of(model.network, length))
            assert_close(found.attention.sum(axis=1), 1, terms=length)
            recorded_columns = trace.column_sums[number, layer, head, :length]
            assert_close(found.attention.sum(axis=0), recorded_columns, terms=terms_of(model.network, length))
            assert found.largest_difference == pytest.approx(
                np.abs(found.attention.sum(axis=0) - recorded_columns).max()
            )


@pytest.mark.parametrize(("place", "name"), [((99, 0, 0), "step"), ((0, -4, 0), "layer"), ((0, 0, -7), "head")])
def test_a_place_outside_of_the_trace_is_refused(recorded, place, name):
    model, _, traces = recorded
    with pytest.raises(CallError, match=f"{name}: expected 0 to"):
        recompute_map(model, traces[0], *place)


def test_other_weights_are_refused(recorded, tmp_path):
    model, _, traces = recorded
    shutil.copytree(traces[0].folder, tmp_path / "edited")
    path = tmp_path / "edited" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    manifest["model"]["weight_hash"] = "f" * 64
    path.write_text(json.dumps(manifest))
    with pytest.raises(CallError, match=r"was written by weights ffffffffffff…, .*; pass the model"):
        recompute_map(model, open_trace(tmp_path / "edited"), 0, 0, 0)


def test_columns_that_are_not_those_of_the_map_are_refused(recorded):
    """As after hiding: here the same weights by name, but another network."""
    model, folder, traces = recorded
    network = transformers.LlamaForCausalLM.from_pretrained(
        folder, attn_implementation="sdpa", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        network.model.layers[0].self_attn.q_proj.weight.mul_(-1)
    with pytest.raises(TraceError, match="expected the map's columns to be those recorded; key"):
        recompute_map(dataclasses.replace(model, network=network), traces[0], 2, 0, 1)


def test_coarse_rounding_excuses_no_hidden_keys(diffusion_folder, tmp_path):
    model = sinkscope.load(str(diffusion_folder), dtype="bfloat16")
    with sinkscope.parse_rule("top:1@layers=0")(model), sinkscope.recording(model, out=tmp_path / "t"):
        sinkscope.generate(model, SHORT, length=4)
    trace, refused = open_trace(tmp_path / "t"), 0
    for place in np.ndindex(trace.steps, len(trace.layers), trace.heads):
        try:
            found = recompute_map(model, trace, *place)
        except TraceError as error:
            assert "It was written while keys were hidden, and maps are recomputed without hiding" in str(error)
            refused += 1
        else:
            columns = trace.column_sums[place][: len(found.attention)]
            assert (np.abs(found.attention.sum(axis=0) - columns) <= 0.021 * (1 + columns)).all()
    assert refused >= trace.heads * (trace.steps - 1)


def test_map_command_writes_what_it_prints(recorded, run, tmp_path):
    _, folder, traces = recorded
    out = tmp_path / "maps" / "one.csv"
    status, printed, error = run(
        "map", traces[1].folder, "--step", -2, "--layer", 1, "--head", 2, "--model", folder, "--out", out, "--json"
    )
    assert (status, error) == (0, "")
    document = json.loads(printed)
    attention = np.array(document["map"])
    assert attention.shape == (document["queries"], document["keys"])
    place = document["step"], document["layer"], document["head"]
    assert (*place, document["source"]) == (traces[1].steps - 2, 1, 2, "recomputed")
    assert 0 <= document["largest_difference"] < 1e-3
    rows = np.loadtxt(out, delimiter=",", skiprows=1)
    np.testing.assert_allclose(rows[:, 2].reshape(attention.shape), attention, atol=1e-6)


def test_a_network_that_load_does_not_know_gives_its_maps(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    prompt = torch.arange(9)[None]
    with sinkscope.recording(network, out=tmp_path / "trace"), torch.no_grad():
        network.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
    trace = open_trace(tmp_path / "trace")
    found = recompute_map(network, trace, -1, 1, 2).attention
    network.set_attn_implementation("eager")
    with torch.no_grad():
        dense = network(torch.from_numpy(trace.tokens[-1])[None].long(), output_attentions=True).attentions[1][0, 2]
    assert_close(found, dense.numpy(), terms=terms_of(network, len(found)))
