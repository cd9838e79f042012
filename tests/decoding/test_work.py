"""Counted work against the products that a network really computes."""

from dataclasses import replace

import pytest
import torch
from seeded_models import seeded_model

import sinkscope
from sinkscope.models import SinkToken
from sinkscope.models.sink_token import with_sink


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the multiply-adds of every matrix product and every attention."""

    def __init__(self):
        super().__init__()
        self.linear = self.attention = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if name.startswith("aten.mm") or name.startswith("aten.addmm"):
            one, other = args[-2:]
            self.linear += one.shape[0] * one.shape[1] * other.shape[1]
        elif "scaled_dot_product" in name:
            query, key = args[:2]
            self.attention += 2 * query.shape[0] * query.shape[1] * query.shape[2] * query.shape[3] * key.shape[2]
        return func(*args, **(kwargs or {}))


CASES = [
    ("llada", {"length": 64, "steps": 8, "block": 32}),
    ("llada", {"length": 64, "steps": 8, "block": 32, "guidance": 1.0}),
    ("llada", {"length": 64, "steps": 8, "block": 64, "cache": "fast-dllm-dual"}),
    ("llada", {"length": 64, "steps": 8, "block": 32, "cache": "fast-dllm-prefix"}),
    ("llada", {"length": 64, "steps": 8, "block": 32, "cache": "block:changed"}),
    ("llada", {"length": 64, "steps": 8, "block": 32, "cache": "dllm-cache:prompt=3,answer=4"}),
    ("llada", {"length": 64, "steps": 8, "block": 32, "cache": "dllm-cache:prompt=3,answer=2,ratio=0.0"}),
    ("dream", {"length": 50, "steps": 6, "algorithm": "entropy"}),
]


def counted(model, settings):
    """The work, and how often a place more than it counts was projected; each step projects 32 places at least."""
    with Products() as found:
        work = sinkscope.generate(model, [5, 9, 22, 41, 7, 3, 18, 30, 2], **settings).work
    word = model.network.lm_head.weight.numel()
    more = found.linear - (work.projections + work.mlp + work.vocabulary)
    assert more % word == 0 and 0 <= more <= settings["steps"] * 31 * word
    assert work.vocabulary % word == 0 and work.vocabulary > 0
    return work, found


@pytest.mark.parametrize(("sampler", "settings"), CASES, ids=str)
def test_work_is_what_the_network_computes(sampler, settings):
    work, found = counted(seeded_model(sampler), settings)
    assert work.attention == found.attention
    assert work.total == work.projections + work.attention + work.mlp + work.vocabulary


SINKS = [SinkToken(), SinkToken(count=2), SinkToken(zero_value=True), SinkToken(folded=True)]
SINKS += [SinkToken("gate"), SinkToken("logit")]


@pytest.mark.parametrize("cache", ["none", "fast-dllm-dual", "block:every=2", "dllm-cache:prompt=3,answer=2"])
@pytest.mark.parametrize("variant", SINKS, ids=lambda variant: variant.name)
def test_work_with_a_sink_is_what_the_network_computes(variant, cache):
    plain = seeded_model("llada")
    kind, config = with_sink(type(plain.network), plain.network.config, variant)
    torch.manual_seed(0)
    model = replace(plain, network=kind(config).eval())
    counted(model, {"length": 64, "steps": 8, "block": 32, "cache": cache})
