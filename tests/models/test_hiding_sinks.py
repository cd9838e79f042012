"""Rules on a network that has a sink of its own: the sink itself taken away, and others beside it."""

import copy

import pytest
import torch
from closeness import assert_close, terms_of
from dense_sink import body, trained, with_sink

from sinkscope.attention import Watcher, subscribed
from sinkscope.interventions import HidePositions, HideSinkToken, HideTopSinks, RandomKeys, compose
from sinkscope.models import add_sink_token
from sinkscope.models.sink_token import VARIANTS

TOKENS = torch.randint(4, 150, (2, 19), generator=torch.Generator().manual_seed(1))
TERMS = terms_of(with_sink(), 19 + 4)
NAMES = ["token", "token-end", "token-4", "token-zero-value", "logit"]


def logits(network, **more):
    return network(TOKENS, use_cache=False, **more).logits


class Received(Watcher):
    """What the sink and the text received in every layer."""

    def __init__(self):
        self.sinks, self.text = [], []

    def watch(self, call, columns):
        self.sinks.append(columns.prefix[:, :, 0])
        self.text.append(columns.sums[:, :, 0])


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_without_its_sink_a_network_is_its_body(name):
    plain = body()
    network = trained(add_sink_token(copy.deepcopy(plain), name))
    before = logits(network)
    with HideSinkToken()(network):
        found = logits(network)
    assert_close(found, logits(plain), terms=TERMS)
    assert torch.equal(logits(network), before) and float((found - before).abs().max()) > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("effect", ["mask", "zero"])
@pytest.mark.parametrize("name", ["token", "logit"])
def test_one_head_alone_loses_its_sink(name, effect):
    network = with_sink(VARIANTS[name])
    with HideSinkToken(heads={(1, 2)}, effect=effect)(network) as running, subscribed(network, hidden := Received()):
        logits(network)
    heads = range(hidden.sinks[1].shape[1])
    assert [bool(hidden.sinks[1][:, head].any()) for head in heads] == [head != 2 for head in heads]
    assert bool((hidden.sinks[0] > 0).all())
    assert running.effect.removed[0, 1].nonzero()[0].tolist() == [2] and running.effect.removed_share > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", ["token", "token-end", "logit"])
def test_the_sink_and_a_key_of_the_text_together(name):
    plain = body()
    network = trained(add_sink_token(copy.deepcopy(plain), name))
    mask = torch.ones(1, 1, 19, 19, dtype=torch.bool)
    mask[..., 6] = False
    with compose(HidePositions((6,)), HideSinkToken())(network) as running:
        found = logits(network)
    assert_close(found, logits(plain, attention_mask=mask), terms=TERMS)
    assert running.effect.keys_per_head == 1  # the sink is no key of the canvas


@torch.no_grad()
@pytest.mark.parametrize("name", ["token", "logit"])
def test_rules_choose_among_the_text_and_leave_the_sink(name):
    """Hiding the top key of every head is dense attention without that key, the sink still in the softmax."""
    network, watcher = with_sink(VARIANTS[name]), Received()
    with subscribed(network, watcher):
        logits(network)
    with HideTopSinks(1, observe="current", layers=(0,))(network) as running, subscribed(network, hidden := Received()):
        logits(network)
    top = watcher.text[0].argmax(-1, keepdim=True)
    assert not hidden.text[0].gather(-1, top).any() and bool((hidden.sinks[0] > watcher.sinks[0]).all())
    share = float(watcher.text[0].gather(-1, top).sum() / (2 * 5 * 19))
    assert_close(running.effect.removed_share, share, terms=TERMS, dtype=torch.float32)


@torch.no_grad()
@pytest.mark.parametrize("rule", [HideTopSinks(0), RandomKeys(0), HideTopSinks(2, layers=()), HideSinkToken(layers=())])
def test_at_strength_zero_it_is_bit_identical(rule):
    network = with_sink()
    expected = logits(network)
    with rule(network):
        assert torch.equal(logits(network), expected)
