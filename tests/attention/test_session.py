"""Sessions: which modules they hook, several at once, exceptions, and that they leave nothing behind."""

import copy
from contextlib import ExitStack, contextmanager
from unittest.mock import Mock

import pytest
import torch
from closeness import assert_close, terms_of
from diary import IDS, SIZES, Diary, forward, step_events, tiny_llama
from leaves_no_trace import check_leaves_no_trace
from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertForMaskedLM, LlamaForCausalLM

from sinkscope.attention import Hider, current_session, subscribed
from sinkscope.attention.stacks import find_stacks
from sinkscope.errors import AttentionError


class HideFirst(Hider):
    def hide(self, call):
        return (torch.arange(call.key.shape[2]) == 0)[None, None]


def test_whether_a_stack_is_causal_is_said_by_its_config_or_its_attention():
    assert [stack.causal for stack in find_stacks(tiny_llama())] == [True]
    assert [stack.causal for stack in find_stacks(tiny_llama(is_causal=False))] == [False]
    assert [stack.causal for stack in find_stacks(BertForMaskedLM(BertConfig(**SIZES)))] == [False]


def test_an_encoder_and_a_decoder_are_two_stacks():
    shape = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    network = BartForConditionalGeneration(
        BartConfig(vocab_size=50, d_model=24, encoder_ffn_dim=16, decoder_ffn_dim=16, **shape)
    ).eval()
    encoder, decoder = find_stacks(network)
    assert [path for path, _ in encoder.layers.values()] == ["model.encoder.layers.0.self_attn"]
    found = [path.removeprefix("model.decoder.layers.") for path, _ in decoder.layers.values()]
    assert found == ["0.self_attn", "0.encoder_attn", "1.self_attn", "1.encoder_attn"]
    with subscribed(network, diary := Diary()), torch.no_grad():
        network(input_ids=IDS, decoder_input_ids=IDS[:, :4])
    cross = dict(zip(diary.names, diary.columns, strict=True))["model.decoder.layers.1.encoder_attn"]
    assert cross.sums.shape == (2, 3, 1, 7), "four queries on seven keys"
    assert_close(cross.sums.sum(-1), 4.0, terms=3 * 7)


@torch.no_grad()
def test_layers_that_share_their_attention_are_refused():
    network = tiny_llama()
    network.model.layers[1].self_attn = network.model.layers[0].self_attn
    with (
        pytest.raises(AttentionError, match=r"to run once in a call, found model.layers.1.self_attn a second time"),
        subscribed(network, Diary()),
    ):
        network(IDS)


def test_a_module_without_layer_numbers_is_refused():
    network = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), 1)
    with pytest.raises(AttentionError, match="a layer_idx, found none in TransformerEncoder"):
        find_stacks(network)


def test_nested_subscribers_share_a_session(diffusion):
    outer, inner = Diary(), Diary()
    network = diffusion.network
    assert current_session(network) is None
    with subscribed(network, outer) as session:
        with subscribed(network, inner) as same:
            assert same is session is current_session(network)
            forward(network, IDS)
        forward(network, IDS)
        assert current_session(network) is session
    assert current_session(network) is None
    assert inner.events == ["begin_generation", *step_events(3), "end_generation"]
    assert outer.events == ["begin_generation", *(step_events(3) * 2), "end_generation"]
    assert all(torch.equal(one.sums, other.sums) for one, other in zip(inner.columns, outer.columns, strict=False))


def test_models_that_share_a_config_may_be_left_in_any_order():
    """The one that is still watched keeps our attention; the last one restores the stock attention."""
    network = tiny_llama()
    twin = LlamaForCausalLM(network.config).eval()
    one, other = Diary(), Diary()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(subscribed(network, one))
        second.enter_context(subscribed(twin, other))
        first.close()
        forward(twin, IDS)
        forward(network, IDS)
    assert not one.events and other.events == ["begin_generation", *step_events(2), "end_generation"]
    assert network.config._attn_implementation == "sdpa"


# Gradient checkpointing: the layers run once more, in the backward pass


class HideOnce(Hider):
    """Hides key 2 when first asked in a layer, key 3 from then on; a second run has to get the first answer."""

    def __init__(self):
        self.asked = []

    def hide(self, call):
        self.asked.append(call.name)
        return (torch.arange(call.keys) == 1 + self.asked.count(call.name))[None, None]


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_gradient_checkpointing_each_layer_is_told_once_and_gradients_are_right(reentrant):
    def gradients(checkpointing):
        network = tiny_llama().train()
        if checkpointing:
            network.activation_checkpointing_enable({"use_reentrant": reentrant})
            network.enable_input_require_grads()
        with subscribed(network, diary := Diary()), subscribed(network, hider := HideOnce()):
            network(IDS, use_cache=False).logits.square().sum().backward()
        assert diary.events == ["begin_generation", *step_events(2), "end_generation"]
        assert hider.asked == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
        assert all(not columns.sums[..., 2].any() for columns in diary.columns)
        return [parameter.grad for parameter in network.model.layers.parameters()]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        assert_close(found, expected, terms=3 * terms_of(tiny_llama(), 7))


@pytest.mark.parametrize("make", [Diary, HideFirst])
def test_a_session_leaves_no_trace(autoregressive, make):
    network = autoregressive.network
    check_leaves_no_trace(network, lambda: subscribed(network, make()), IDS)
    assert current_session(network) is None


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_call_that_raises_ends_its_generation(diffusion, error):
    """The unfinished step is not reported, and the next call starts a new generation; torch runs no hooks after a
    KeyboardInterrupt.
    """
    network, diary = copy.deepcopy(diffusion.network), Diary()
    broken = network.model.layers[2].mlp.register_forward_hook(Mock(side_effect=error))
    with subscribed(network, diary):
        with pytest.raises(error):
            forward(network, IDS)
        broken.remove()
        forward(network, IDS[:1, :5])
    ended = "failed" if error is ZeroDivisionError else diary.events[5]
    half = ["begin_generation", "begin_step", "watch 0", "watch 1", "watch 2", ended]
    assert diary.events == [*half, "begin_generation", *step_events(3), "end_generation"]
    assert diary.steps[1].tokens.shape == (1, 5)
    assert_close(diary.columns[-1].sums.sum(-1), 5.0, terms=3 * 7)


class BadLoser(Diary):
    def end_generation(self, failed):
        super().end_generation(failed)
        raise OSError("no space left on device")


def test_a_subscriber_that_raises_at_the_end_leaves_no_trace(diffusion):
    network, diary = diffusion.network, Diary()

    @contextmanager
    def forgiving():
        with pytest.raises(OSError, match="no space left"), subscribed(network, diary), subscribed(network, BadLoser()):
            forward(network, IDS)
        yield

    check_leaves_no_trace(network, forgiving, IDS)
    assert current_session(network) is None
    assert diary.events[-1] == "failed", "the others are told all the same"
