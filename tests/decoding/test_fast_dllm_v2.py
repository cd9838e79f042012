"""Fast-dLLM v2 from a folder in its published layout: logits, and every token of every call, as published."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from changed_tokens import changes_along
from seeded_models import steps_of, words
from seeded_network import MASK, leaning, seed_weights, seeded_network

import sinkscope
from sinkscope.errors import CallError, ModelError

PUBLISHED = json.loads((Path(__file__).parent / "fixtures" / "fast-dllm-v2.json").read_text())


def published_folder(folder):
    seed_weights(transformers.Qwen2ForCausalLM(seeded_network("qwen2", 1).config), 1).save_pretrained(folder)
    words().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    for key in ("is_causal", "layer_types"):
        config.pop(key)
    config |= {"model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"], "bd_size": 8}
    config |= {"mask_token_id": MASK, "rope_theta": config.pop("rope_parameters")["rope_theta"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return sinkscope.load(published_folder(tmp_path_factory.mktemp("fast-dllm-v2") / "m"))


def test_the_logits_are_the_published_ones(model):
    assert (model.card.family, model.card.mask_id, model.network.model.block_length) == ("fast_dllm_v2", MASK, 8)
    with torch.no_grad():
        found = model.network(torch.tensor([PUBLISHED["prompt"]])).logits[0, ::4].flatten()
    expected = torch.tensor(PUBLISHED["logits"])
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_it_loads_again_once_transformers_saved_it(model, tmp_path):
    model.network.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    again, prompt = sinkscope.load(tmp_path), torch.tensor([PUBLISHED["prompt"]])
    assert again.card.family == "fast_dllm_v2"
    with torch.no_grad():
        assert torch.equal(again.network(prompt).logits, model.network(prompt).logits)


@pytest.mark.parametrize("case", PUBLISHED["cases"], ids=lambda case: str(case["settings"]))
def test_every_call_writes_the_published_tokens(case, model):
    """Up to where the published text was cut."""
    canvases = [step.tokens[0, : case["final"]] for step in steps_of(model, case["prompts"], **case["settings"])]
    assert changes_along(*case["prompts"], canvases) == case["steps"][0]


def test_it_is_recorded_with_the_token_behind_each_block(model, tmp_path):
    with sinkscope.recording(model, out=tmp_path):
        written = sinkscope.generate(model, PUBLISHED["prompt"], length=16, block=8, small_block=4, threshold=0.9)
    trace = sinkscope.open_trace(tmp_path)
    committed = sum(int((np.asarray(trace.written[step]) >= 0).sum()) for step in range(trace.steps))
    assert committed == int((written.tokens != MASK).sum()) - len(PUBLISHED["prompt"])
    for step in range(trace.steps):
        end = int(trace.lengths[step])
        np.testing.assert_allclose(trace.column_sums[step, ..., :end].sum(-1), end, atol=1e-3)


def test_a_prompt_of_one_block_is_read(model):
    steps = steps_of(model, [list(range(3, 11))], length=5, block=8)
    assert (steps[0].written[0] >= 0).nonzero().flatten().tolist() == [8]
    assert steps[0].tokens.shape[1] == 17  # written to the end of the block, and the token behind it


def test_a_predicted_mask_is_an_error(model):
    with leaning(model.network, {MASK: 1000.0}), pytest.raises(ModelError, match="found the mask token"):
        steps_of(model, [[3, 4, 5]], length=8, block=8)


def test_blocks_that_do_not_fit_are_refused(model):
    with pytest.raises(CallError, match="small_block: expected a divisor of 8"):
        sinkscope.generate(model, [3, 4], length=16, block=8, small_block=3)
