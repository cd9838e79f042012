"""LLaDA 2: GLM-4-MoE of transformers under a block-causal mask writes what LLaDA 2's published loop writes around its
own network.

fixtures/llada2_tokens.json holds what `generate` of `LLaDA2MoeModelLM`, as ZHZisZZ/dllm carries it (ca17675), wrote on
the weights of tiny.py: after each call the positions and the tokens that it changed, and in ``final`` all tokens. Its
mask was given in fp32.
"""

import json
from pathlib import Path

import pytest
import torch
from closeness import assert_close
from tiny import LLADA2_CONFIG, MASK, TINY, save_tiny, weights
from tiny_tokenizers import SAVE

import sinkscope
from sinkscope.decoding import find_sampler, make_batch, resolve_settings, settings_of
from sinkscope.decoding.checking import check_model
from sinkscope.models import FAMILIES, recognise
from sinkscope.models.conversion import completed, convert_config

CASES = json.loads((Path(__file__).parent / "fixtures" / "llada2_tokens.json").read_text())
LLADA2 = FAMILIES["llada2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return sinkscope.load(str(SAVE["llada2"](save_tiny("llada2", tmp_path_factory.mktemp("llada2") / "m"))))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case["settings"].values())))
def test_llada2_writes_what_the_published_loop_writes(case, model):
    settings, prompt = settings_of("llada2")(**case["settings"]), case["prompts"][0]
    steps = list(find_sampler("llada2")(model, make_batch(model, case["prompts"], [None], settings.length), settings))
    assert steps[-1].tokens[0].tolist() == case["final"]
    before, found = torch.tensor([*prompt, *[MASK] * (len(case["final"]) - len(prompt))]), []
    for step in steps:
        if bool((step.written >= 0).any()):  # the other calls only read, and the published loop has none of them
            changed = (step.tokens[0] != before).nonzero().flatten()
            found.append(torch.stack([changed, step.tokens[0][changed]], dim=1).flatten().tolist())
        before = step.tokens[0]
    assert found == case["steps"][0]


def test_it_passes_every_check(model):
    checks = check_model(model)
    assert [check for check in checks if not check.passed] == []
    found = {check.name: check.found for check in checks}["every stored tensor is used, none is missing"]
    assert found.startswith(f"{len(TINY['llada2'].shapes)} stored in 1 files")
    assert (
        sum(len(values.flatten()) for name, values in weights(TINY["llada2"]).items() if "bias" not in name)
        == model.card.parameters
    )


@torch.no_grad()
def test_a_token_goes_through_the_experts_of_the_best_groups(model):
    """Five lines for the router: a bias that chooses and does not weigh, two of four groups, three experts, weights
    that add up to 2.5.
    """
    block, config, stored = model.network.model.layers[1].mlp, LLADA2_CONFIG, weights(TINY["llada2"])
    part = {
        name.removeprefix("model.layers.1.mlp."): tensor
        for name, tensor in stored.items()
        if name.startswith("model.layers.1.mlp.")
    }
    states = torch.randn(1, 7, config["hidden_size"], generator=torch.Generator().manual_seed(0))

    def mlp(name, state):
        gate, up, down = (part[f"{name}.{one}_proj.weight"] for one in ("gate", "up", "down"))
        return down @ (torch.nn.functional.silu(gate @ state) * (up @ state))

    for row in range(7):
        score = (part["gate.weight"] @ states[0, row]).sigmoid()
        groups = (score + part["gate.expert_bias"]).view(4, 4)
        best = groups.topk(2).values.sum(-1).topk(2).indices.tolist()
        open_ = torch.full((4, 4), -torch.inf).index_copy(0, torch.tensor(best), groups[best]).flatten()
        chosen = open_.topk(3).indices
        expected = mlp("shared_experts", states[0, row])
        for expert in chosen.tolist():
            expected = expected + 2.5 * score[expert] / score[chosen].sum() * mlp(f"experts.{expert}", states[0, row])
        assert_close(block(states)[0, row], expected, terms=400)


def test_the_work_of_a_call_counts_what_a_token_goes_through(model):
    """One dense layer of 56, two layers with a router over 16 experts, three experts and two shared ones of 24."""
    work = sinkscope.generate(model, [3, 4], length=4, block=4, block_steps=4, stop=False).work
    assert work.mlp == work.rows * (3 * 48 * 56 + 2 * (48 * 16 + 5 * 3 * 48 * 24))


def test_what_its_config_does_not_name_is_what_its_published_code_takes():
    assert recognise(LLADA2_CONFIG, "here") is LLADA2
    bare = {
        key: value for key, value in LLADA2_CONFIG.items() if key not in ("block_size", "mask_token_id", "eos_token_id")
    }
    converted = convert_config(completed(bare | {"vocab_size": 157184}, LLADA2), LLADA2, "here")
    assert (converted.mask_id, converted.eos_ids, converted.fields["block_size"]) == (156895, (156892,), 32)
    settings = resolve_settings(LLADA2)
    assert (settings.length, settings.block, settings.block_steps, settings.threshold, settings.stop) == (
        2048,
        32,
        32,
        0.95,
        True,
    )
