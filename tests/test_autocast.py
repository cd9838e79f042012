"""Within an autocast of the caller's everything runs that runs without one."""

import pytest
import torch
from test_default_device import CACHES, settings_for

import sinkscope

PROMPTS = ["Q: 1 + 2\nA:", "Q: 1 + 2 + 3\nA:"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("model_dtype", ["float32", "bfloat16"])
def test_a_cache(diffusion_folder, cache, model_dtype, dtype):
    model = sinkscope.load(str(diffusion_folder), dtype=model_dtype)
    with torch.autocast("cpu", dtype):
        answers = sinkscope.generate(model, PROMPTS, **settings_for(cache))
    assert not any((answer.tokens == model.card.mask_id).any() for answer in answers)


@pytest.mark.parametrize("rule", ["none", "top:1", "top:1@zero"])
def test_a_recording_of_a_model_with_a_sink_token(rule, tmp_path):
    model = sinkscope.load("lab-sink-token", dtype="float32")
    columns = []
    for autocast in (False, True):
        out = tmp_path / str(autocast)
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
            sinkscope.recording(model, out=out),
            sinkscope.parse_rule(rule)(model),
        ):
            sinkscope.generate(model, PROMPTS[0], length=8, steps=1, block=8)
        columns.append(torch.from_numpy(sinkscope.open_trace(out).column_sums[0]))
    torch.testing.assert_close(columns[1], columns[0], rtol=0.1, atol=0.1)
