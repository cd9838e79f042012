"""DiffusionGemma under diffusers' pipeline, which calls the encoder and the decoder itself."""

from types import SimpleNamespace

import pytest
import torch
from test_any_model import diffusion_gemma

import sinkscope
from sinkscope.attention import Hider, subscribed

diffusers = pytest.importorskip(
    "diffusers", reason="diffusers, whose pipelines run here, is not installed: pip install diffusers"
)

PROMPT = torch.randint(5, 50, (1, 9), generator=torch.Generator().manual_seed(0))


class Processor(SimpleNamespace):
    """Gives the same prompt for any text."""

    def apply_chat_template(self, *_, **__):
        return {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}


class HideFirst(Hider):
    """Hides the first token from all queries."""

    def hide(self, call):
        return (torch.arange(call.keys) == 0)[None, None]


@pytest.fixture
def pipeline():
    """Two canvases of five tokens, three steps each, from one seed."""
    made = diffusers.DiffusionGemmaPipeline(
        model=diffusion_gemma(), scheduler=diffusers.BlockRefinementScheduler(block_length=5), processor=Processor()
    )
    made.set_progress_bar_config(disable=True)

    def run(**more):
        options = {
            "prompt": "any",
            "gen_length": 10,
            "num_inference_steps": 3,
            "output_type": "seq",
            "confidence_threshold": None,
        }
        return made(generator=torch.Generator().manual_seed(1), **options, **more).sequences

    return made.model, run


def test_the_pipeline_is_recorded(pipeline, tmp_path):
    """A trace of the encoder and one of the decoder, whose newest tokens are the canvas that went into each step."""
    network, run = pipeline
    expected, canvases = run(), []
    with sinkscope.recording(network, out=tmp_path / "t"):
        found = run(
            callback_on_step_end=lambda _, step, timestep, tensors: canvases.append(tensors["canvas"][0].tolist()) or {}
        )
    assert torch.equal(found, expected), "recording changed what the pipeline writes"
    encoder, decoder = sinkscope.open_traces(tmp_path / "t")
    assert (encoder.steps, decoder.steps) == (2, 6) and encoder.complete and decoder.complete
    for step in range(6):
        length = int(decoder.lengths[step])
        if step % 3:
            assert decoder.tokens[step, length - 5 : length].tolist() == canvases[step - 1]
        assert decoder.tokens[step, :9].tolist() == PROMPT[0].tolist()
        assert float(decoder.column_sums[step, 1, 0, :length].sum()) == pytest.approx(5, rel=1e-4)


def test_hiding_is_in_force(pipeline):
    network, run = pipeline
    plain, logits = run(), []
    keep = {"callback_on_step_end_tensor_inputs": ["logits"]}
    run(callback_on_step_end=lambda _, step, timestep, tensors: logits.append(tensors["logits"]) or {}, **keep)
    with subscribed(network, HideFirst()):
        run(callback_on_step_end=lambda _, step, timestep, tensors: logits.append(tensors["logits"]) or {}, **keep)
    assert (logits[0] - logits[6]).abs().max() > 1e-3
    assert torch.equal(run(), plain)
