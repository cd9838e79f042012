"""LLaDA-MoE: transformers' Qwen3-MoE, looking both ways, writes what LLaDA's published loop writes around the published
network.

fixtures/llada_moe_tokens.json holds what `generate` of ML-GSAI/LLaDA (b7e6c35, with other special tokens) wrote around
`LLaDAMoEModelLM` as ZHZisZZ/dllm carries it (ca17675), on the weights of tiny.py.
"""

import json
from pathlib import Path

import pytest
import torch
from closeness import assert_close
from tiny import LLADA_MOE_CONFIG, MASK, TINY, save_tiny, weights
from tiny_tokenizers import SAVE

import sinkscope
from sinkscope.decoding import find_sampler, make_batch, settings_of
from sinkscope.decoding.checking import check_model
from sinkscope.errors import ModelError

CASES = json.loads((Path(__file__).parent / "fixtures" / "llada_moe_tokens.json").read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return sinkscope.load(str(SAVE["llada_moe"](save_tiny("llada_moe", tmp_path_factory.mktemp("moe") / "m"))))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case["settings"].values())))
def test_llada_moe_writes_what_the_published_loop_writes(case, model):
    settings = settings_of("llada")(**case["settings"])
    before = torch.tensor([*case["prompts"][0], *[MASK] * settings.length])
    found = []
    for step in find_sampler("llada")(model, make_batch(model, case["prompts"], [None], settings.length), settings):
        changed = (step.tokens[0] != before).nonzero().flatten()
        found.append(torch.stack([changed, step.tokens[0][changed]], dim=1).flatten().tolist())
        before = step.tokens[0]
    assert found == case["steps"][0]


@torch.no_grad()
def test_the_experts_that_are_stored_one_by_one_are_those_of_the_network(model):
    """Each token goes through the experts that the softmax of its router weights most, by these weights as they are."""
    assert all(check.passed for check in check_model(model))
    block, config = model.network.model.layers[1].mlp, LLADA_MOE_CONFIG
    stored = {
        name: tensor for name, tensor in weights(TINY["llada_moe"]).items() if name.startswith("model.layers.1.mlp.")
    }
    states = torch.randn(1, 7, config["hidden_size"], generator=torch.Generator().manual_seed(0))
    shares, chosen = (
        (states[0] @ stored["model.layers.1.mlp.gate.weight"].T).softmax(-1).topk(config["num_experts_per_tok"])
    )
    expected = torch.zeros_like(states[0])
    for row in range(7):
        for weight, expert in zip(shares[row], chosen[row].tolist(), strict=True):
            gate, up, down = (
                stored[f"model.layers.1.mlp.experts.{expert}.{one}_proj.weight"] for one in ("gate", "up", "down")
            )
            expected[row] += weight * (down @ (torch.nn.functional.silu(gate @ states[0, row]) * (up @ states[0, row])))
    found = block(states)
    assert_close((found[0] if isinstance(found, tuple) else found)[0], expected, terms=200)


def test_a_missing_expert_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = SAVE["llada_moe"](save_tiny("llada_moe", tmp_path / "m"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.3.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 missing: model\.layers\.2\.mlp\.experts\.3\.up_proj\.weight \(24, 48\)"):
        sinkscope.load(str(folder))
