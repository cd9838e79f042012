"""Mixtures of experts: LLaDA 2 and LLaDA-MoE write what their published loops write around the published networks.

fixtures/llada2_tokens.json holds what `generate` of `LLaDA2MoeModelLM`, as ZHZisZZ/dllm carries it (ca17675), wrote on
the weights of tiny.py: after each call the positions and the tokens that it changed, and in ``final`` all tokens. Its
mask was given in fp32. fixtures/llada_moe_tokens.json holds what `generate` of ML-GSAI/LLaDA (b7e6c35, with other
special tokens) wrote around `LLaDAMoEModelLM` of dllm.
"""

import json
from pathlib import Path

import pytest
from changed_tokens import changes_along
from tiny import LLADA2_CONFIG, TINY, save_tiny, weights
from tiny_tokenizers import SAVE

import sinkscope
from sinkscope.decoding import find_sampler, make_batch, resolve_settings, settings_of
from sinkscope.decoding.checking import check_model
from sinkscope.errors import ModelError
from sinkscope.models import FAMILIES, recognise
from sinkscope.models.conversion import completed, convert_config

CASES = json.loads((Path(__file__).parent / "fixtures" / "llada2_tokens.json").read_text())
MOE_CASES = json.loads((Path(__file__).parent / "fixtures" / "llada_moe_tokens.json").read_text())
LLADA2 = FAMILIES["llada2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return sinkscope.load(str(SAVE["llada2"](save_tiny("llada2", tmp_path_factory.mktemp("llada2") / "m"))))


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    return sinkscope.load(str(SAVE["llada_moe"](save_tiny("llada_moe", tmp_path_factory.mktemp("moe") / "m"))))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case["settings"].values())))
def test_llada2_writes_what_the_published_loop_writes(case, model):
    settings = settings_of("llada2")(**case["settings"])
    steps = list(find_sampler("llada2")(model, make_batch(model, case["prompts"], [None], settings.length), settings))
    assert steps[-1].tokens[0].tolist() == case["final"]
    found = changes_along(case["prompts"][0], [step.tokens[0] for step in steps])
    writes = [bool((step.written >= 0).any()) for step in steps]
    assert [one for one, wrote in zip(found, writes, strict=True) if wrote] == case["steps"][0]  # others only read


@pytest.mark.parametrize("case", MOE_CASES, ids=lambda case: "-".join(map(str, case["settings"].values())))
def test_llada_moe_writes_what_the_published_loop_writes(case, moe):
    settings = settings_of("llada")(**case["settings"])
    steps = find_sampler("llada")(moe, make_batch(moe, case["prompts"], [None], settings.length), settings)
    assert changes_along(case["prompts"][0], [step.tokens[0] for step in steps]) == case["steps"][0]


def test_they_pass_every_check(model, moe):
    assert all(check.passed for check in check_model(moe))
    checks = check_model(model)
    assert [check for check in checks if not check.passed] == []
    found = {check.name: check.found for check in checks}["every stored tensor is used, none is missing"]
    assert found.startswith(f"{len(TINY['llada2'].shapes)} stored in 1 files")
    assert (
        sum(len(values.flatten()) for name, values in weights(TINY["llada2"]).items() if "bias" not in name)
        == model.card.parameters
    )


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
    found = [getattr(settings, name) for name in "length block block_steps threshold stop".split()]
    assert found == [2048, 32, 32, 0.95, True]


def test_a_missing_expert_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = SAVE["llada_moe"](save_tiny("llada_moe", tmp_path / "m"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.3.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 missing: model\.layers\.2\.mlp\.experts\.3\.up_proj\.weight \(24, 48\)"):
        sinkscope.load(str(folder))
