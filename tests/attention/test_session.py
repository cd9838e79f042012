"""Sessions: which modules they hook, several at once, exceptions, and that they leave nothing behind."""

import copy
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from closeness import assert_close, terms_of
from diary import IDS, TOKENS, Diary, forward, step_events, tiny_llama
from leaves_no_trace import check_leaves_no_trace
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

import sinkscope
from sinkscope.attention import Hider, current_session, subscribed
from sinkscope.attention.stacks import find_stacks
from sinkscope.errors import AttentionError


@dataclass(frozen=True)
class HideFirst(Hider):
    """Equal to every other of its kind, as frozen dataclasses are; counts its own calls."""

    seen: list = field(default_factory=list, compare=False)

    def hide(self, call):
        self.seen.append(call.name)
        return (torch.arange(call.key.shape[2]) == 0)[None, None]


# Which modules are stacks


def test_the_stack_of_a_llama():
    network = tiny_llama()
    (stack,) = find_stacks(network)
    assert stack.name == "model" and stack.module is network.model
    assert list(stack.layers.values()) == [("model.layers.0.self_attn", 0), ("model.layers.1.self_attn", 1)]
    assert list(stack.layers) == [layer.self_attn for layer in network.model.layers]
    assert list(stack.blocks.items()) == [(layer.self_attn, layer) for layer in network.model.layers]
    (alone,) = find_stacks(network.model)
    assert alone.name == "" and [path for path, _ in alone.layers.values()] == [
        "layers.0.self_attn",
        "layers.1.self_attn",
    ]


def tiny_gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=24, n_layer=2, n_head=3, **TOKENS)).eval()


def test_feed_forward_networks_with_a_number_are_no_layers():
    """As in Hunyuan, whose MLPs carry a layer_idx."""
    network = tiny_llama()
    for number, layer in enumerate(network.model.layers):
        layer.mlp.layer_idx = number
    (stack,) = find_stacks(network)
    assert [path for path, _ in stack.layers.values()] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


class InnerAttention(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.layer_idx = number


def test_a_list_within_a_layer_is_no_stack_of_its_own():
    network = torch.nn.Module()
    network.layers = torch.nn.ModuleList(
        torch.nn.ModuleDict({"parts": torch.nn.ModuleList([InnerAttention(n)])}) for n in range(2)
    )
    (stack,) = find_stacks(network)
    assert [path for path, _ in stack.layers.values()] == ["layers.0.parts.0", "layers.1.parts.0"]


def test_whether_a_stack_is_causal_is_said_by_its_config_or_its_attention():
    assert [stack.causal for stack in find_stacks(tiny_llama())] == [True]
    assert [stack.causal for stack in find_stacks(tiny_llama(is_causal=False))] == [False]
    shape = {
        "vocab_size": 50,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 16,
    }
    assert [stack.causal for stack in find_stacks(BertForMaskedLM(BertConfig(**shape)))] == [False]


def test_the_stack_of_a_gpt2():
    network = tiny_gpt2()
    (stack,) = find_stacks(network)
    assert stack.module is network.transformer
    assert [path for path, _ in stack.layers.values()] == ["transformer.h.0.attn", "transformer.h.1.attn"]


def test_an_encoder_and_a_decoder_are_two_stacks():
    shape = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    network = BartForConditionalGeneration(
        BartConfig(vocab_size=50, d_model=24, encoder_ffn_dim=16, decoder_ffn_dim=16, **shape)
    ).eval()
    encoder, decoder = find_stacks(network)
    assert [path for path, _ in encoder.layers.values()] == ["model.encoder.layers.0.self_attn"]
    assert [path.removeprefix("model.decoder.layers.") for path, _ in decoder.layers.values()] == [
        "0.self_attn",
        "0.encoder_attn",
        "1.self_attn",
        "1.encoder_attn",
    ]
    with subscribed(network, diary := Diary()), torch.no_grad():
        network(input_ids=IDS, decoder_input_ids=IDS[:, :4])
    cross = dict(zip(diary.names, diary.columns, strict=True))["model.decoder.layers.1.encoder_attn"]
    assert cross.sums.shape == (2, 3, 1, 7), "four queries on seven keys"
    assert_close(cross.sums.sum(-1), 4.0, terms=3 * 7)


@torch.no_grad()
def test_an_encoder_whose_layers_have_no_number_is_a_stack(tmp_path):
    """Marian's encoder keeps no cache, so its attention has ``layer_idx`` None."""
    sizes = {
        f"{part}_{name}": size
        for part in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 3), ("ffn_dim", 16))
    }
    config = MarianConfig(vocab_size=50, d_model=24, pad_token_id=0, decoder_start_token_id=1, init_std=0.5, **sizes)
    network = MarianMTModel(config).eval()
    encoder, decoder = find_stacks(network)
    assert [(path, index) for path, index in encoder.layers.values()] == [
        (f"model.encoder.layers.{n}.self_attn", n) for n in range(2)
    ]
    assert (encoder.causal, decoder.causal) == (False, True)
    network.set_attn_implementation("eager")
    dense = network(IDS, decoder_input_ids=IDS[:, :4], output_attentions=True)
    with subscribed(network, diary := Diary()):
        network(IDS, decoder_input_ids=IDS[:, :4])
    for columns, expected in zip(diary.columns[:2], dense.encoder_attentions, strict=True):
        assert_close(columns.sums[:, :, 0], expected.sum(-2), terms=3 * 7)


@torch.no_grad()
def test_layers_that_share_their_attention_are_refused():
    network = tiny_llama()
    network.model.layers[1].self_attn = network.model.layers[0].self_attn
    with (
        pytest.raises(AttentionError, match=r"to run once in a call, found model.layers.1.self_attn a second time"),
        subscribed(network, Diary()),
    ):
        network(IDS)


def test_a_network_and_a_part_of_it_are_not_watched_together():
    network = tiny_llama()
    for outer, inner, what in (
        (network, network.model, "LlamaModel is a part of"),
        (network.model, network, "LlamaForCausalLM holds"),
    ):
        with (
            subscribed(outer, Diary()),
            pytest.raises(AttentionError, match=f"{what} {type(outer).__name__}, which is"),
            subscribed(inner, Diary()),
        ):
            pass
    with subscribed(network, Diary()), torch.no_grad():
        network(IDS)


def test_a_call_outside_of_inference_mode_follows_one_inside():
    network = tiny_llama()
    with subscribed(network, diary := Diary()):
        with torch.inference_mode():
            network(IDS)
        with torch.no_grad():
            network(IDS)
    assert torch.equal(diary.columns[0].sums, diary.columns[2].sums)


def test_a_module_without_layer_numbers_is_refused():
    network = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), 1)
    with pytest.raises(
        AttentionError, match="a layer_idx, found none in TransformerEncoder; watch any other torch module inside"
    ):
        find_stacks(network)


@pytest.mark.parametrize("build", [tiny_llama, tiny_gpt2])
def test_other_architectures_can_be_watched(build):
    network = build()
    expected = forward(network, IDS)
    with subscribed(network, diary := Diary()):
        found = forward(network, IDS)
    assert_close(found, expected, terms=terms_of(network, 7))
    assert diary.events == ["begin_generation", *step_events(2), "end_generation"]


def test_a_stack_that_is_called_with_hidden_states_can_be_watched():
    shape = {
        "vocab_size": 50,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 16,
    }
    network = BertForMaskedLM(BertConfig(**shape)).eval()
    with subscribed(network, diary := Diary()), torch.no_grad():
        network(IDS)
    assert_close(diary.columns[1].sums.sum(-1), 7.0, terms=3 * 7)
    assert torch.equal(diary.steps[0].tokens, IDS), "from the module around the stack, which gets hidden states only"
    padded = torch.ones_like(IDS)
    padded[0, :3] = 0
    with subscribed(network, diary := Diary()), torch.no_grad():
        network(IDS, attention_mask=padded)
    assert diary.steps[0].lengths.tolist() == [4, 7]


# Several subscribers, several models


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


def test_who_comes_late_is_told_of_the_start(diffusion):
    late = Diary()
    with subscribed(diffusion.network, Diary()):
        forward(diffusion.network, IDS)
        with subscribed(diffusion.network, late):
            forward(diffusion.network, IDS)
    assert late.events == ["begin_generation", *step_events(3), "end_generation"]


def test_of_equal_subscribers_the_right_one_leaves(diffusion):
    outer, inner = HideFirst(), HideFirst()
    assert outer == inner
    with subscribed(diffusion.network, outer):
        with subscribed(diffusion.network, inner):
            forward(diffusion.network, IDS)
        forward(diffusion.network, IDS)
    assert (len(outer.seen), len(inner.seen)) == (6, 3)


def test_two_models_are_watched_at_once(diffusion, autoregressive):
    one, other = Diary(), Diary()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(subscribed(diffusion.network, one))
        second.enter_context(subscribed(autoregressive.network, other))
        forward(autoregressive.network, IDS)
        forward(diffusion.network, IDS)
        first.close()
        forward(autoregressive.network, IDS)
    assert one.events == ["begin_generation", *step_events(3), "end_generation"]
    assert other.events == ["begin_generation", *(step_events(3) * 2), "end_generation"]
    assert {columns.sums.shape[1] for columns in one.columns} == {5} and {
        columns.sums.shape[1] for columns in other.columns
    } == {6}


def test_models_that_share_a_config_are_left_alone():
    network = tiny_llama()
    twin = LlamaForCausalLM(network.config).eval()
    assert twin.config is network.config
    expected = forward(twin, IDS)
    diary, hider = Diary(), HideFirst()
    with subscribed(network, diary), subscribed(network, hider):
        assert torch.equal(forward(twin, IDS), expected)
        assert not diary.events and not hider.seen
    assert torch.equal(forward(twin, IDS), expected)


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


def test_a_refused_twin_leaves_the_other_watched():
    network = tiny_llama()
    twin = LlamaForCausalLM(network.config).eval()
    twin.model.layers[1].self_attn.config = copy.deepcopy(network.config)
    with subscribed(network, diary := Diary()):
        with pytest.raises(AttentionError, match="this model cannot be watched"), subscribed(twin, Diary()):
            pass
        forward(network, IDS)
    assert diary.events == ["begin_generation", *step_events(2), "end_generation"]
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


class MeasureFirst(Hider):
    """Measures every layer, hides its largest column, and wants columns the first time only."""

    def __init__(self):
        self.measured, self.asked, self.observed = 0, [], []

    def hide(self, call):
        self.measured += 1
        columns = call.measure().sums[:, :, 0]
        return (
            None
            if call.index == 0
            else torch.zeros_like(columns, dtype=torch.bool).scatter(-1, columns.argmax(-1, keepdim=True), True)
        )

    def observes(self, call):
        self.asked.append(call.name)
        return self.asked.count(call.name) == 1

    def observe(self, call, columns):
        self.observed.append(call.index)


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_gradient_checkpointing_a_hider_that_looks_is_asked_once(reentrant):
    def gradients(checkpointing):
        network = tiny_llama().train()
        if checkpointing:
            network.activation_checkpointing_enable({"use_reentrant": reentrant})
            network.enable_input_require_grads()
        with subscribed(network, hider := MeasureFirst()):
            network(IDS, use_cache=False).logits.square().sum().backward()
        assert (hider.measured, len(hider.asked), hider.observed) == (2, 2, [0, 1])
        return [parameter.grad for parameter in network.model.layers.parameters()]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        assert_close(found, expected, terms=3 * terms_of(tiny_llama(), 7))


# Exceptions and traces


@pytest.mark.parametrize("name", ["diffusion", "autoregressive"])
@pytest.mark.parametrize("make", [Diary, HideFirst])
def test_a_session_leaves_no_trace(request, name, make):
    network = request.getfixturevalue(name).network
    check_leaves_no_trace(network, lambda: subscribed(network, make()), IDS)
    assert current_session(network) is None


def test_nested_sessions_leave_no_trace(diffusion):
    @contextmanager
    def both():
        with subscribed(diffusion.network, Diary()), subscribed(diffusion.network, HideFirst()):
            yield

    check_leaves_no_trace(diffusion.network, both, IDS)


def test_a_network_in_eager_attention_gets_it_back():
    network = tiny_llama(attn_implementation="eager")
    check_leaves_no_trace(network, lambda: subscribed(network, Diary()), IDS)
    assert network.config._attn_implementation == "eager"


def test_a_body_that_raises_is_told_as_failed(diffusion):
    diary = Diary()
    with pytest.raises(ZeroDivisionError), subscribed(diffusion.network, diary):
        forward(diffusion.network, IDS)
        _ = 1 / 0
    assert diary.events == ["begin_generation", *step_events(3), "failed"]


def test_a_call_that_raises_ends_its_generation(diffusion):
    """The unfinished step is not reported, and the next call starts a new generation."""
    network, diary = copy.deepcopy(diffusion.network), Diary()
    broken = network.model.layers[2].mlp.register_forward_hook(lambda *_: 1 / 0)
    with subscribed(network, diary):
        with pytest.raises(ZeroDivisionError):
            forward(network, IDS)
        broken.remove()
        forward(network, IDS[:1, :5])
    half = ["begin_generation", "begin_step", "watch 0", "watch 1", "watch 2", "failed"]
    assert diary.events == [*half, "begin_generation", *step_events(3), "end_generation"]
    assert diary.steps[1].tokens.shape == (1, 5)


def test_an_interrupted_call_leaves_the_next_one_right(diffusion):
    """torch runs no hooks after a KeyboardInterrupt."""

    def interrupt(*_):
        raise KeyboardInterrupt

    network, diary = copy.deepcopy(diffusion.network), Diary()
    broken = network.model.layers[2].mlp.register_forward_hook(interrupt)
    with subscribed(network, diary):
        with pytest.raises(KeyboardInterrupt):
            forward(network, IDS)
        broken.remove()
        forward(network, IDS[:1, :5])
    assert diary.steps[-1].tokens.shape == (1, 5)
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
    with pytest.raises(OSError, match="no space left"), subscribed(network, Diary()), subscribed(network, BadLoser()):
        sinkscope.generate(diffusion, [5, 6, 7], length=2)
    assert current_session(network) is None


def test_one_subscriber_that_raises_does_not_keep_the_others_from_knowing(diffusion):
    first, last = Diary(), Diary()
    with pytest.raises(OSError, match="no space left"), ExitStack() as stack:
        for subscriber in (first, BadLoser(), last):
            stack.enter_context(subscribed(diffusion.network, subscriber))
        sinkscope.generate(diffusion, [5, 6, 7], length=2)
    assert first.events[-1] == last.events[-1] == "end_generation"
