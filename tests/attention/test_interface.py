"""The attention function inside real networks: idle it is the stock model, watching changes nothing, hiding removes the
key.
"""

import copy

import pytest
import torch
from closeness import assert_close, terms_of
from diary import TOKENS, Diary
from torch import Tensor
from transformers import GPTJConfig, GPTJForCausalLM

from sinkscope.attention import Hidden, Hider, Prepender, Replacer, Subscriber, subscribed
from sinkscope.attention.hooks import attention_forward
from sinkscope.errors import AttentionError

ROWS, LENGTH, PADDING = 2, 13, 4


class Idle(Subscriber):
    pass


class Hide(Hider):
    """Hides what ``chosen`` says: a function of the layer's call."""

    def __init__(self, chosen):
        self.chosen = chosen

    def hide(self, call):
        return self.chosen(call)


class Front(Prepender):
    def __init__(self, prefix):
        self.prefix = prefix

    def prepend(self, call):
        return self.prefix


class Give(Replacer):
    """Replaces what ``given``, a function of the layer's call, returns."""

    def __init__(self, given):
        self.given = given

    def replace(self, call):
        return self.given(call)


def one_key(position):
    return Hide(lambda call: (torch.arange(call.key.shape[2]) == position)[None, None])


@pytest.fixture(params=["diffusion", "autoregressive"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def ids(model):
    return torch.randint(5, model.card.vocabulary, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def padded():
    """The first row is padded on the left."""
    attention_mask = torch.ones(ROWS, LENGTH, dtype=torch.long)
    attention_mask[0, :PADDING] = 0
    return attention_mask


def logits(network, ids, **arguments):
    with torch.no_grad():
        return network(ids, **arguments).logits


def watched(network, subscribers, ids, **arguments):
    """Logits with subscribers in force."""
    if not subscribers:
        return logits(network, ids, **arguments)
    with subscribed(network, subscribers[0]):
        return watched(network, subscribers[1:], ids, **arguments)


def dense_columns(model, ids, attention_mask=None) -> list[Tensor]:
    """Columns of transformers' own eager attention maps, padding rows left out, per layer [batch, head, key]."""
    network = copy.deepcopy(model.network)
    network.set_attn_implementation("eager")
    with torch.no_grad():
        maps = network(ids, attention_mask=attention_mask, output_attentions=True).attentions
    real = torch.ones_like(ids) if attention_mask is None else attention_mask
    return [torch.einsum("bq,bhqk->bhk", real.float(), each) for each in maps]


IDLERS = {
    "nothing": Idle(),
    "hides None": Hide(lambda call: None),
    "hides no key": Hide(lambda call: torch.zeros(1, 1, call.key.shape[2], dtype=torch.bool)),
    "prepends None": Front(None),
    "replaces nothing": Give(lambda call: None),
}


@pytest.mark.parametrize("idler", IDLERS.values(), ids=IDLERS)
@pytest.mark.parametrize("padding", [False, True])
def test_with_no_verb_in_force_the_model_is_the_stock_model(model, ids, padded, idler, padding):
    attention_mask = padded if padding else None
    expected = logits(model.network, ids, attention_mask=attention_mask)
    assert torch.equal(watched(model.network, [idler], ids, attention_mask=attention_mask), expected)


@pytest.mark.parametrize("padding", [False, True])
def test_columns_equal_the_eager_maps(model, ids, padded, padding):
    seen, attention_mask = Diary(), padded if padding else None
    watched(model.network, [seen], ids, attention_mask=attention_mask)
    for columns, expected in zip(seen.columns, dense_columns(model, ids, attention_mask), strict=True):
        assert_close(columns.sums[:, :, 0], expected, terms=terms_of(model.network, LENGTH))


def test_hiding_equals_a_mask_given_to_the_stock_model(model, ids):
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    if model.family.causal:
        visible = visible.tril()
    visible[:, 2] = False
    expected = logits(model.network, ids, attention_mask=visible.expand(ROWS, 1, -1, -1))
    assert_close(watched(model.network, [one_key(2)], ids), expected, terms=terms_of(model.network, LENGTH))


def test_a_value_of_zero_is_a_key_zeroed_behind_the_softmax_and_replacers_follow_each_other(model, ids):
    def without(call):
        value = call.value.clone()
        value[:, :, 2] = 0
        return call.key, value

    shared = model.card.heads // model.card.kv_heads
    by_head = Give(lambda call: tuple(one.repeat_interleave(shared, 1) for one in (call.key, call.value)))
    zeroed = Hide(lambda call: [Hidden((torch.arange(LENGTH) == 2)[None, None, None], zeroed=True)])
    expected, terms = watched(model.network, [zeroed], ids), terms_of(model.network, LENGTH)
    for replacers in ([Give(without)], [Give(without), by_head], [by_head, Give(without)]):
        assert_close(watched(model.network, replacers, ids), expected, terms=terms)
    assert not torch.allclose(expected, logits(model.network, ids), atol=1e-3)
    assert_close(watched(model.network, [by_head], ids), logits(model.network, ids), terms=terms)


@pytest.mark.parametrize("name", ["softcap", "s_aux"])
def test_arguments_it_does_not_model_are_refused(autoregressive, name):
    module = autoregressive.network.model.layers[0].self_attn
    query, key = torch.ones(ROWS, 6, 3, 8), torch.ones(ROWS, 2, 3, 8)
    attention_forward(module, query, key, key, None, **{name: None})
    with pytest.raises(AttentionError, match=f"{name} is not modelled"):
        attention_forward(module, query, key, key, None, **{name: torch.ones(1)})


def test_dropout_is_refused_while_something_watches(model, ids):
    network = copy.deepcopy(model.network).train()
    for layer in network.model.layers:
        layer.self_attn.attention_dropout = 0.25
    for subscriber in (Diary(), one_key(2)):
        with pytest.raises(AttentionError, match=r"no attention dropout while watching or hiding, found 0.25"):
            watched(network, [subscriber], ids)
    torch.manual_seed(3)
    expected = logits(network, ids)
    torch.manual_seed(3)
    assert torch.equal(watched(network, [Idle()], ids), expected), "with no verb in force dropout is the stock model's"


def test_a_model_without_the_attention_interface_is_refused_by_name():
    network = GPTJForCausalLM(
        GPTJConfig(vocab_size=50, n_positions=16, n_embd=24, n_layer=2, n_head=3, rotary_dim=4, **TOKENS)
    ).eval()
    before = network.config._attn_implementation
    with pytest.raises(AttentionError, match=r"transformer\.h\.0\.attn of GPTJForCausalLM .* found 'eager'"):
        watched(network, [Diary()], torch.arange(1, 8)[None])
    assert network.config._attn_implementation == before
    assert not any(module._forward_pre_hooks for module in network.modules())


def test_a_model_whose_layers_do_not_ask_is_refused(model, ids):
    """As when somebody sets another attention implementation while something watches."""
    network = copy.deepcopy(model.network)
    with pytest.raises(AttentionError, match="took its attention from sinkscope"), subscribed(network, Diary()):
        network.set_attn_implementation("eager")
        logits(network, ids)


def test_watching_leaves_gradients_as_they_are(model, ids):
    def gradient(watching):
        network = copy.deepcopy(model.network)
        if watching:
            with subscribed(network, Diary()):
                network(ids, labels=ids).loss.backward()
        else:
            network(ids, labels=ids).loss.backward()
        return network.model.layers[0].self_attn.q_proj.weight.grad

    expected = gradient(watching=False)
    assert expected.abs().amax() > 0
    assert_close(
        gradient(watching=True), expected, terms=3 * terms_of(model.network, LENGTH)
    )  # backwards each product is two
