"""A network whose attention was set to transformers' eager one, whose masks are added to the scores, writes what it
wrote before.
"""

import pytest
from seeded_models import seeded_model

import sinkscope

PROMPTS = [[5, 9, 22, 41, 7, 3, 18, 30, 2], [14, 8, 8, 51], [33, 2, 19, 44, 27, 6]]


@pytest.fixture
def eager(request):
    model = seeded_model(request.param)
    before = model.network.config._attn_implementation
    model.network.set_attn_implementation("eager")
    yield model
    model.network.set_attn_implementation(before)


CACHES = ["fast-dllm-dual", "block:changed", "dllm-cache:prompt=3,answer=2", "dkv-decode"]


@pytest.mark.parametrize(
    ("eager", "settings"),
    [
        *[(sampler, {"length": 8}) for sampler in ("llada", "mmada", "dream", "sdar", "autoregressive")],
        *[("llada", {"length": 16, "block": 8, "cache": cache}) for cache in CACHES],
    ],
    indirect=["eager"],
    ids=str,
)
def test_a_padded_batch_is_written_as_with_sdpa(eager, settings):
    found = sinkscope.generate(eager, PROMPTS, **settings)
    eager.network.set_attn_implementation("sdpa")
    expected = sinkscope.generate(eager, PROMPTS, **settings)
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in expected]
