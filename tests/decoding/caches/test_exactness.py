"""A cache that refreshes everything in every step is no cache, and rows of a batch do not feel each other under any."""

import itertools

import pytest
import torch
from closeness import assert_close, terms_of
from other_kernels import other_kernels
from seeded_models import seeded_model, steps_of
from sixths import a_sixth_unmarked

import sinkscope
from sinkscope.decoding import known_caches

PROMPTS = [[5, 9, 22, 41, 7, 3, 18, 30, 2], [14, 8, 8, 51], [33, 2, 19, 44, 27, 6]]
SETTINGS = {
    "llada": {"length": 24, "steps": 12, "block": 8},
    "mmada": {"length": 24, "steps": 24, "block": 8},
    "dream": {"length": 16, "steps": 12, "algorithm": "maskgit_plus"},
}
WITHOUT_ORDER = [name for name in known_caches() if name != "dkv-greedy"]
KEEPING = [f"block:keep={keep},budget=6,window=2" for keep in ("sinks", "random")] + [
    "block:changed,keep=top,budget=5,every=3"
]
KEEPING += ["block:keep=oracle,budget=4", "block:fresh=sinks,sinks=2", "block:fresh=sinks,trigger=sink,level=0.1"]
KEEPING += [
    "block:trigger=drift,level=0.999",
    "block:changed,trigger=drift,level=0.99",
    "block:trigger=confidence,level=0.1",
]
KEEPING += [
    "block:changed,recent=3,trigger=entropy,level=2",
    "d2cache:masks=3,sigma=2.0,inflate=2",
    "dllm-cache:prompt=5,answer=3,ratio=0.3",
    "elastic-cache:window=4,gamma=0.97,tracked=2",
]


@pytest.mark.parametrize("sampler", SETTINGS)
@pytest.mark.parametrize("cache", ["block:fresh=all", "block:every=1"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["padded", "alone"])
def test_refreshing_everything_is_plain_sampling(sampler, cache, prompts):
    """The same tensors go through the same kernels: equal to the bit."""
    model = seeded_model(sampler)
    plain, cached = (steps_of(model, prompts, cache=name, **SETTINGS[sampler]) for name in ("none", cache))
    assert len(plain) == len(cached)
    for one, other in zip(plain, cached, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.confidence.nan_to_num(-1), other.confidence.nan_to_num(-1))


@pytest.mark.parametrize("sampler", ["llada", "mmada"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["padded", "alone"])
def test_a_layered_policy_that_computes_everything_is_plain_sampling(sampler, prompts):
    model = seeded_model(sampler)
    plain, cached = (
        steps_of(model, prompts, cache=name, **SETTINGS[sampler]) for name in ("none", "dllm-cache:prompt=1,answer=1")
    )
    for one, other in zip(plain, cached, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert_close(
            one.confidence.nan_to_num(-1),
            other.confidence.nan_to_num(-1),
            terms=terms_of(model.network, 33),
            scores=(20, 8),
        )
    assert [plain[-1].meter.work(row) for row in range(len(prompts))] == [
        cached[-1].meter.work(row) for row in range(len(prompts))
    ]


CACHES = ["none", *WITHOUT_ORDER, "block:suffix", "block:changed", "block:every=3", *KEEPING]
LLADA = [("llada", *one) for one in itertools.product(CACHES, [{}, {"threshold": 0.4}, {"factor": 0.8}])]
DREAM = [(cache, {}) for cache in ("fast-dllm-dual:block=8", "fast-dllm-prefix:block=4", "dkv-decode", "block:every=3")]
DREAM += [("fast-dllm-dual:block=8", {"threshold": 0.4}), ("fast-dllm-prefix:block=4", {"threshold": 0.4})]


@pytest.mark.parametrize(
    ("sampler", "cache", "more"),
    [*a_sixth_unmarked(LLADA), *[("dream", cache, {"algorithm": "entropy", **more}) for cache, more in DREAM]],
    ids=str,
)
def test_every_row_writes_what_it_writes_alone(sampler, cache, more):
    model, settings = seeded_model(sampler), {**SETTINGS[sampler], "cache": cache, **more}
    settings |= {"block": 24} if cache.startswith("elastic-cache") else {}
    batch = sinkscope.generate(model, PROMPTS, **settings)
    for prompt, found in zip(PROMPTS, batch, strict=True):
        with other_kernels(model.network):
            alone = sinkscope.generate(model, prompt, **settings)
        assert torch.equal(found.tokens, alone.tokens)
        assert (found.steps, found.work) == (alone.steps, alone.work)


@pytest.mark.parametrize("cache", ["fast-dllm-dual", "fast-dllm-prefix", "block:changed"])
def test_a_cache_changes_what_is_written_and_saves_work(cache):
    model, settings = seeded_model("llada"), {"length": 24, "block": 8, "steps": 24}
    plain = sinkscope.generate(model, PROMPTS, **settings)
    cached = sinkscope.generate(model, PROMPTS, cache=cache, **settings)
    assert any(not torch.equal(one.tokens, other.tokens) for one, other in zip(plain, cached, strict=True))
    for one, other in zip(plain, cached, strict=True):
        assert other.work.total < 0.8 * one.work.total and other.steps == one.steps
