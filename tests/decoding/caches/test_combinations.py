"""Every policy beside every sink, and beside what hides or watches: equal to a dense reference, or refused by one
message.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from closeness import assert_close, terms_of
from seeded_models import seeded_model
from seeded_network import MASK, seeded_network
from sixths import a_sixth_unmarked

import sinkscope
from sinkscope.attention import Hider, Prefix, Prepender, subscribed
from sinkscope.decoding import known_caches
from sinkscope.decoding.caches.reader import reading
from sinkscope.decoding.canvas import WorkMeter, make_batch, masked_canvas, publishing
from sinkscope.decoding.settings import LLaDASettings
from sinkscope.errors import CallError
from sinkscope.models.sink_token import VARIANTS

PROMPTS = [[5, 9, 22, 41, 7, 3, 18], [14, 8, 8, 51]]
OWN = {"dkv-greedy": {"remasking": "random"}, "elastic-cache": {"block": 16}}
"""Settings that a policy asks for."""
SINKS = [name for name in VARIANTS if name != "token-end"]
READ_ALL = ["block", "block:suffix", "block:changed", "block:fresh=sinks,sinks=2", "block:trigger=sink"]
READ_ALL += ["block:trigger=drift", "block:trigger=entropy", "fast-dllm-dual", "fast-dllm-prefix", "dkv-decode"]
READ_ALL += ["d2cache", "dllm-cache:ratio=0.5", "elastic-cache:window=3", "elastic-cache:gamma=1.0,tracked=2"]
READ_SOME = ["block:keep=top,budget=3", "block:keep=oracle,budget=3", "sparse-dllm"]


def with_sink(variant):
    """The seeded LLaDA with a sink, whose weights are drawn as those of a trained one might be."""
    model = seeded_model("llada")
    if VARIANTS[variant] is None:
        return model
    network = sinkscope.add_sink_token(seeded_network("llama", 0), variant)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "sink_" in name:
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    return replace(model, network=network)


def stale_steps(model, cache, count=5):
    """Hidden states of steps that commit nothing, so that what is stored is what would be computed; and those without a
    cache.
    """
    settings = LLaDASettings(
        length=16, steps=16, block=8, cache=cache, remasking="random" if "greedy" in cache else "low_confidence"
    )
    batch = make_batch(model, PROMPTS, [None, None], 16)
    canvas, layout = masked_canvas(batch, 16, MASK)
    meter, found = WorkMeter(model.network, 2), []
    nothing, unknown = torch.full_like(canvas, -1), torch.full(canvas.shape, torch.nan)
    opened = reading(model, batch, layout, meter, settings)
    with torch.no_grad(), opened as reader, publishing(model, batch, settings) as publisher:
        reader.begin_block(7, 15)
        for _ in range(count):
            masked = canvas == MASK
            reader.open_places(canvas, masked)
            publisher.before(canvas, masked, layout.lengths, range(2), candidates=masked)
            found.append(reader.read(canvas).clone())
            logits = model.network.lm_head(found[-1])
            if reader.surveys():
                reader.survey(logits[masked], masked)
            reader.judge(logits[masked], masked)
            reader.committed(nothing, unknown)
            publisher.after(nothing, nothing, unknown)
    with torch.no_grad():
        dense = model.network.model(
            input_ids=canvas, attention_mask=layout.seen, position_ids=layout.positions, use_cache=False
        )
    return found, dense.last_hidden_state, batch.real, meter.work(0).rows


@pytest.mark.parametrize(("sink", "cache"), a_sixth_unmarked(itertools.product(SINKS, READ_ALL)))
def test_a_policy_that_reads_all_keys_reads_those_of_a_sink_too(sink, cache):
    model = with_sink(sink)
    found, dense, real, rows = stale_steps(model, cache)
    assert rows < 5 * 23  # some steps computed a part
    own = torch.nn.functional.pad(real, (0, 16), value=True)
    for step in found:
        assert_close(step[own], dense[own], terms=terms_of(model.network, 23), scores=(20, 8))


class HidesTwo(Hider):
    def hide(self, call):
        return (torch.arange(call.key.shape[2]) >= call.key.shape[2] - 2)[None, None]


class Puts(Prepender):
    def prepend(self, call):
        return Prefix(logits=torch.zeros(call.query.shape[1], 1))


@pytest.mark.parametrize("cache", known_caches())
def test_hiding_keys_in_front_and_a_sink_token_at_the_end_are_refused_under_every_policy(cache):
    settings = {"length": 16, "block": 8, "cache": cache, **OWN.get(cache, {})}
    for one, found in ((HidesTwo(), "hiding"), (Puts(), "keys put in front")):
        told = f"cache {cache}: expected a model in which nothing is hidden or put in front, .* found {found}"
        with subscribed(seeded_model("llada").network, one), pytest.raises(CallError, match=told):
            sinkscope.generate(seeded_model("llada"), PROMPTS[0], **settings)
    with pytest.raises(CallError, match=f"cache {cache}: .* has a sink token at the end"):
        sinkscope.generate(with_sink("token-end"), PROMPTS[0], **settings)


@pytest.mark.parametrize("cache", [*READ_ALL, *READ_SOME, "dkv-greedy"])
def test_every_policy_is_recorded_or_refused(cache, tmp_path):
    """Recording changes nothing, and a step's columns add up to the queries that it computed."""
    model, settings = seeded_model("llada"), {"length": 16, "steps": 16, "block": 8, "cache": cache}
    settings |= OWN.get(cache.partition(":")[0], {})
    alone = sinkscope.generate(model, PROMPTS[0], **settings)
    if cache in READ_SOME or cache.startswith(("dllm-cache", "elastic-cache")):
        with (
            pytest.raises(CallError, match="expected a model that nothing watches"),
            sinkscope.recording(model, out=tmp_path / "trace"),
        ):
            sinkscope.generate(model, PROMPTS[0], **settings)
        return
    with sinkscope.recording(model, out=tmp_path / "trace"):
        recorded = sinkscope.generate(model, PROMPTS[0], **settings)
    assert recorded.tokens.equal(alone.tokens) and recorded.work == alone.work
    sums = sinkscope.open_trace(tmp_path / "trace").column_sums[:].sum(-1)
    assert abs(sums[:, 0, 0].sum() - alone.work.rows) < 1e-3
