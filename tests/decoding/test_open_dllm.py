"""Open-dLLM from a folder in its published layout: logits, and every token of every step, as published."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from seeded_models import changes_of, steps_of, words
from seeded_network import MASK, seed_weights, seeded_network

import sinkscope

PUBLISHED = json.loads((Path(__file__).parent / "fixtures" / "open-dllm.json").read_text())


def published_folder(folder):
    """Write a seeded network as Open-dLLM's upload_model.py does: a Qwen2 that its code alone makes bidirectional."""
    seed_weights(transformers.Qwen2ForCausalLM(seeded_network("qwen2", 1).config), 1).save_pretrained(folder)
    words().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["is_causal"]
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling_qwen2.Qwen2ForCausalLM"}, "trust_remote_code": True}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return sinkscope.load(published_folder(tmp_path_factory.mktemp("open-dllm") / "m"))


def test_the_logits_are_the_published_ones(model):
    assert (model.card.family, model.card.mask_id) == ("open_dllm", MASK)
    with torch.no_grad():
        found = model.network(torch.tensor([PUBLISHED["prompt"]])).logits[0, ::4].flatten()
    expected = torch.tensor(PUBLISHED["logits"])
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("case", PUBLISHED["cases"], ids=lambda case: str(case["settings"]))
def test_every_step_writes_the_published_tokens(case, model):
    steps = steps_of(model, case["prompts"], **case["settings"])
    assert changes_of(steps, case["prompts"], case["settings"]["length"]) == case["steps"]


@pytest.mark.parametrize("algorithm", ["p2", "entropy"])
def test_a_row_of_a_batch_is_written_as_if_alone(model, algorithm):
    prompts, settings = (
        [[3, 14, 15, 9, 26, 5], [35, 8, 9, 7]],
        {"length": 9, "steps": 7, "temperature": 0.6, "top_k": 9},
    )
    settings["algorithm"] = algorithm
    together = changes_of(steps_of(model, prompts, **settings), prompts, 9)
    for row, prompt in enumerate(prompts):
        alone = changes_of(steps_of(model, [prompt], **settings, seed=row), [prompt], 9)[0]
        assert [one for one in together[row] if one] == [one for one in alone if one]


def test_p2_is_recorded_with_masks_put_back(model, tmp_path):
    with sinkscope.recording(model, out=tmp_path):
        sinkscope.generate(model, PUBLISHED["prompt"], length=12, steps=12, algorithm="p2")
    trace = sinkscope.open_trace(tmp_path)
    assert torch.allclose(
        torch.as_tensor(trace.column_sums[-1]).sum(-1), torch.tensor(float(trace.lengths[-1])), atol=1e-3
    )
