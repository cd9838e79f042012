"""The shared check is itself checked: every kind of trace must be found, and an honest context must pass."""

from contextlib import contextmanager, suppress

import pytest
import torch
from leaves_no_trace import check_leaves_no_trace
from transformers import LlamaConfig, LlamaForCausalLM

IDS = torch.arange(1, 8)[None]


@pytest.fixture
def network():
    torch.manual_seed(0)
    shape = {
        "hidden_size": 12,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=20, **shape)).eval()


def hook(network):
    return network.model.layers[1].register_forward_hook(lambda *_: None, with_kwargs=True)


def forward_method(network):
    network.model.forward = network.model.forward


def class_method(network):
    kind = type(network.model.layers[0].mlp)
    kind.added = lambda self: None
    return lambda: delattr(kind, "added")


def parameter(network):
    network.model.embed_tokens.weight.data[3, 2] += 1e-6


def exchanged_parameter(network):
    network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach().clone())


def buffer(network):
    network.model.rotary_emb.inv_freq[0] += 1e-6


def frozen(network):
    network.lm_head.weight.requires_grad_(False)


def gradient(network):
    network.lm_head.weight.grad = torch.zeros_like(network.lm_head.weight)


def attention_implementation(network):
    network.config._attn_implementation_internal = "eager"


def training(network):
    network.model.train()


def attribute(network):
    network.model.layers[0].note = 1


TRACES = {
    hook: "model.layers.1._forward_hooks",
    forward_method: "model.forward",
    class_method: "LlamaMLP.added",
    parameter: "values of model.embed_tokens.weight",
    exchanged_parameter: "lm_head._parameters",
    buffer: "values of model.rotary_emb.inv_freq",
    frozen: "gradient of lm_head.weight",
    gradient: "gradient of lm_head.weight",
    attention_implementation: "config.*",
    training: "model.training",
    attribute: "model.layers.0.note",
}


@pytest.mark.parametrize("leave", TRACES, ids=lambda leave: leave.__name__)
def test_every_kind_of_trace_is_found(network, leave):
    undo = []

    @contextmanager
    def context():
        undo.append(leave(network))
        yield

    with pytest.raises(AssertionError, match="after the context, these differ from before") as found:
        check_leaves_no_trace(network, context, IDS)
    assert TRACES[leave] in str(found.value)
    for restore in undo:
        if callable(restore):
            restore()


def test_a_context_that_only_cleans_up_after_success_is_found(network):
    @contextmanager
    def context():
        handle = hook(network)
        yield
        handle.remove()

    with pytest.raises(AssertionError, match="after a context whose body raised, these differ"):
        check_leaves_no_trace(network, context, IDS)


def test_a_context_that_swallows_exceptions_is_found(network):
    with pytest.raises(AssertionError, match="swallowed the exception"):
        check_leaves_no_trace(network, lambda: suppress(Exception), IDS)


def test_a_context_that_changes_the_logits_only_is_found(network):
    """Something outside of every module, as a patched global function would be."""
    entered = []

    @contextmanager
    def context():
        entered.append(1)
        yield

    embed = network.model.embed_tokens
    embed.register_forward_hook(lambda module, args, output: output * (1 + len(entered)))
    with pytest.raises(AssertionError, match=r"differ from before: logits$"):
        check_leaves_no_trace(network, context, IDS)


def test_a_context_that_restores_everything_passes(network):
    @contextmanager
    def context():
        handle, before = hook(network), network.lm_head.weight.detach().clone()
        network.lm_head.weight.data.mul_(2)
        try:
            yield
        finally:
            handle.remove()
            network.lm_head.weight.data.copy_(before)

    check_leaves_no_trace(network, context, IDS)
