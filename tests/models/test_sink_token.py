import copy

import pytest
import torch
import transformers
from closeness import assert_close, terms_of
from dense_sink import body, dense_logits, trained, with_sink

from sinkscope.attention import Watcher, subscribed
from sinkscope.errors import AttentionError, CallError
from sinkscope.models import SinkToken, add_sink_token
from sinkscope.models.sink_token import VARIANTS

TOKENS = torch.randint(4, 150, (3, 21), generator=torch.Generator().manual_seed(1))
TOKEN_VARIANTS = [SinkToken(), SinkToken(count=2), SinkToken(count=4), SinkToken(zero_value=True)]
TERMS = terms_of(with_sink(), 21 + 4)
ENDS = [
    SinkToken(position="end"),
    SinkToken(position="end", count=4),
    SinkToken(position="end", count=2, zero_value=True),
]


# The token beside the text is the token in the text


@pytest.mark.parametrize("kind", ["llama", "qwen2", "causal"])
@pytest.mark.parametrize(
    "variant", TOKEN_VARIANTS + ENDS, ids=lambda one: f"{one.position}-{one.count}-{one.zero_value}"
)
def test_logits_are_those_of_rows_in_the_sequence(kind, variant):
    if kind == "causal" and variant.position == "end":
        return
    plain = body("llama", causal=True) if kind == "causal" else body(kind, kv_heads=1)
    network = trained(add_sink_token(copy.deepcopy(plain), variant))
    expected = dense_logits(
        plain, network.model.sink_token.embedding, TOKENS, end=variant.position == "end", zero_value=variant.zero_value
    )
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            assert_close(network(TOKENS, use_cache=False).logits, expected, terms=TERMS)
    assert (plain(TOKENS, use_cache=False).logits - expected).abs().max() > 1e-2 * expected.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("learned", [True, False])
def test_a_logit_takes_its_share_and_gives_nothing(learned):
    plain = body(kv_heads=1)
    network = trained(add_sink_token(copy.deepcopy(plain), SinkToken(kind="logit", learned=learned)))
    plain.set_attn_implementation("eager")
    logits = network.model.sink_token.logits if learned else torch.zeros(3, 5)
    weights = []
    hooks = [
        layer.self_attn.register_forward_hook(lambda m, i, out: weights.append(out[1])) for layer in plain.model.layers
    ]

    def attention(module, query, key, value, mask, scaling=None, **kwargs):
        scores = query @ key.repeat_interleave(5, 1).transpose(-1, -2) * scaling
        sink = logits[module.layer_idx][None, :, None, None].expand(*scores.shape[:3], 1)
        shares = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
        return (shares @ value.repeat_interleave(5, 1)).transpose(1, 2), shares

    transformers.AttentionInterface.register("dense_logit", attention)
    plain.set_attn_implementation("dense_logit")
    expected = plain(TOKENS, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    assert_close(network(TOKENS, use_cache=False).logits, expected, terms=TERMS)
    assert all(float(one.sum(-1).max()) < 1 for one in weights)


@torch.no_grad()
def test_a_gate_multiplies_the_attention_output():
    plain = body()
    network = add_sink_token(copy.deepcopy(plain), "gate")
    gates = [layer.self_attn.sink_gate.weight for layer in network.model.layers]
    for gate in gates:
        gate.normal_(std=0.5)
    expected = plain.model.embed_tokens(TOKENS)
    rotations = plain.model.rotary_emb(expected, position_ids=torch.arange(21)[None])
    for layer, gate in zip(plain.model.layers, gates, strict=True):
        entering, outputs = layer.input_layernorm(expected), []
        layer.self_attn.o_proj.register_forward_pre_hook(lambda m, args, kept=outputs: kept.append(args[0]))
        layer.self_attn(entering, position_embeddings=rotations, attention_mask=None, is_causal=False)
        expected = expected + layer.self_attn.o_proj(outputs[0] * torch.sigmoid(entering @ gate.T))
        expected = expected + layer.mlp(layer.post_attention_layernorm(expected))
    expected = plain.lm_head(plain.model.norm(expected))
    assert_close(network(TOKENS, use_cache=False).logits, expected, terms=TERMS)


@torch.no_grad()
@pytest.mark.parametrize(
    ("causal", "name"), [(False, "token-2"), (True, "token-2"), (False, "token-end"), (True, "logit"), (False, "gate")]
)
def test_a_left_padded_row_is_the_row_alone(causal, name):
    network = with_sink(VARIANTS[name], causal=causal)
    short = TOKENS[:1, :13]
    tokens = torch.cat([torch.nn.functional.pad(short, (8, 0), value=1), TOKENS[1:2]])
    real = torch.ones_like(tokens)
    real[0, :8] = 0
    for told in ({"position_ids": (real.cumsum(-1) - 1).clamp(min=0)}, {}):  # the mask alone says where a row begins
        batch = network(tokens, attention_mask=real, use_cache=False, **told).logits
        assert_close(batch[:1, 8:], network(short, use_cache=False).logits, terms=TERMS)
        assert_close(batch[1:], network(TOKENS[1:2], use_cache=False).logits, terms=TERMS)


@torch.no_grad()
@pytest.mark.parametrize("name", ["token", "token-4", "token-zero-value", "logit", "off-by-one", "gate"])
def test_a_cache_holds_the_text_alone_and_changes_nothing(name):
    network = with_sink(VARIANTS[name], causal=True, kv_heads=1)
    whole = network(TOKENS, use_cache=False).logits
    cache = transformers.DynamicCache(config=network.config)
    parts = [
        network(part, past_key_values=cache, use_cache=True).logits
        for part in (TOKENS[:, :17], TOKENS[:, 17:18], TOKENS[:, 18:19])
    ]
    assert cache.get_seq_length() == 19
    assert_close(torch.cat(parts, dim=1), whole[:, :19], terms=TERMS)


def test_the_gradient_of_the_token_is_that_of_its_rows():
    plain = body()
    network = trained(add_sink_token(copy.deepcopy(plain), SinkToken(count=2)))
    embedding = network.model.sink_token.embedding
    network(TOKENS, use_cache=False).logits.logsumexp(-1).sum().backward()
    row = embedding.detach().clone().requires_grad_()
    dense_logits(plain, row, TOKENS).logsumexp(-1).sum().backward()
    assert_close(embedding.grad, row.grad, terms=3 * TERMS)
    assert_close(network.model.embed_tokens.weight.grad, plain.model.embed_tokens.weight.grad, terms=3 * TERMS)


class _Sums(Watcher):
    def __init__(self):
        self.sums, self.sinks = [], []

    def watch(self, call, columns):
        self.sums.append(columns.sums[:, :, 0])
        self.sinks.append(columns.prefix[:, :, 0])  # type: ignore


@torch.no_grad()
@pytest.mark.parametrize("name", ["token", "token-end", "token-2", "token-zero-value", "logit", "off-by-one"])
def test_columns_are_the_users_own_and_the_sinks_come_apart(name):
    network, watcher = with_sink(VARIANTS[name]), _Sums()
    plain = network(TOKENS, use_cache=False).logits
    with subscribed(network, watcher):
        watched = network(TOKENS, use_cache=False).logits
    assert_close(watched, plain, terms=TERMS)
    assert len(watcher.sums) == 3
    for sums, sinks in zip(watcher.sums, watcher.sinks, strict=True):
        assert sums.shape == (3, 5, 21) and sinks.shape == (3, 5, VARIANTS[name].count)  # type: ignore
        assert_close(sums.sum(-1) + sinks.sum(-1), 21.0, terms=3 * 21)
        assert bool((sinks > 0).all())


def test_another_attention_that_would_leave_the_sink_out_is_refused():
    network = with_sink()
    network.set_attn_implementation("eager")
    with pytest.raises(
        AttentionError, match=r"attend through 'sinkscope', found 'eager', which would leave its sink out"
    ):
        network(TOKENS)


def test_a_cache_with_the_token_at_the_end_is_refused():
    network = with_sink(SinkToken(position="end"))
    cache = network(TOKENS, use_cache=True).past_key_values
    with pytest.raises(AttentionError, match="at the end moves with every token"):
        network(TOKENS[:, :1], past_key_values=cache)


def test_adding_leaves_the_body_and_a_shared_configuration_alone():
    config = body().config
    one, other = transformers.LlamaForCausalLM(config).eval(), transformers.LlamaForCausalLM(config).eval()
    before = {name: parameter for name, parameter in one.named_parameters()}
    expected = other(TOKENS, use_cache=False).logits
    assert add_sink_token(one, "token-2") is one
    assert {name for name, _ in one.named_parameters()} - set(before) == {"model.sink_token.embedding"}
    assert all(parameter is dict(one.named_parameters())[name] for name, parameter in before.items())
    assert torch.equal(other(TOKENS, use_cache=False).logits, expected)
    assert not hasattr(config, "sink_token") and type(one.config).model_type == "sink_llama"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SinkToken(count=3), r"count: expected one of 1, 2, 4, found 3"),
        (lambda: add_sink_token(body(), "tokens"), r"no variant 'tokens'; expected one of none, token, token-end"),
        (lambda: add_sink_token(with_sink(), "gate"), "'gate': expected .* without a sink, found Sink"),
        (lambda: add_sink_token(body(causal=True), "token-end"), r"expected a bidirectional network"),
        (lambda: add_sink_token(torch.nn.Linear(2, 2)), "expected a LlamaForCausalLM .*, found Linear"),
    ],
)
def test_a_variant_that_does_not_fit_is_refused(make, message):
    with pytest.raises(CallError, match=message):
        make()


def test_a_copy_has_its_own_sink():
    network = trained(with_sink("token"))
    again = copy.deepcopy(network)
    assert type(again) is type(network) and torch.equal(again(TOKENS).logits, network(TOKENS).logits)


def test_an_id_in_use_is_refused_and_a_free_one_is_not():
    from sinkscope.lab.prompts import build_tokenizer

    tokenizer = build_tokenizer()
    text = tokenizer.convert_ids_to_tokens(7)
    with pytest.raises(
        CallError,
        match=rf"'token' has token_id 7, but the tokenizer has '{text}' there; its free ids begin at {len(tokenizer)}",
    ):
        add_sink_token(body(), SinkToken(token_id=7), tokenizer=tokenizer)
    add_sink_token(body(), SinkToken(token_id=len(tokenizer)), tokenizer=tokenizer)
