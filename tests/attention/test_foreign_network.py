"""Foreign torch modules: calls of ``F.scaled_dot_product_attention`` are watched, hidden from and prepended to."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from closeness import assert_close, terms_of
from diary import Diary, step_events
from leaves_no_trace import check_leaves_no_trace
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import sinkscope
from sinkscope.attention import Hider, foreign, subscribed
from sinkscope.errors import AttentionError, CallError

ROWS, LENGTH, HEADS, KV_HEADS, DIM, WIDTH = 2, 7, 6, 3, 5, 24
IDS = torch.randint(1, 50, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Calls F.scaled_dot_product_attention with whatever ``arguments`` says, and keeps a dense map of the same."""

    def __init__(self, value_dim=4, **arguments):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, HEADS * DIM), nn.Linear(WIDTH, KV_HEADS * DIM)
        self.value, self.out = nn.Linear(WIDTH, KV_HEADS * value_dim), nn.Linear(HEADS * value_dim, WIDTH)
        self.arguments = {"enable_gqa": True, **arguments}
        self.cache = None
        self.maps, self.values = [], []

    def forward(self, x, attn_mask=None, cached=False):
        heads = (("query", HEADS), ("key", KV_HEADS), ("value", KV_HEADS))
        query, key, value = (getattr(self, name)(x).unflatten(-1, (count, -1)).transpose(1, 2) for name, count in heads)
        if cached:
            key, value = (
                (torch.cat([old, new], dim=2) for old, new in zip(self.cache, (key, value), strict=True))
                if self.cache
                else (key, value)
            )
            self.cache = (key, value)
        self.maps.append(self.dense(query, key, attn_mask).detach())
        self.values.append(value.detach())
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **self.arguments)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def dense(self, query, key, mask):
        scale = self.arguments.get("scale") or query.shape[-1] ** -0.5
        scores = query @ key.repeat_interleave(HEADS // KV_HEADS, dim=1).mT * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        if self.arguments.get("is_causal"):
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return torch.softmax(scores, dim=-1).nan_to_num(0.0)


class Block(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.attention, self.feed = Attention(**arguments), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, **more):
        x = x + self.attention(x, **more)
        return x + self.feed(x).tanh()


class Foreign(nn.Module):
    """A model without config or layer_idx."""

    def __init__(self, **arguments):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 50)
        self.blocks = nn.ModuleList(Block(**arguments) for _ in range(3))
        self.checkpointed = False

    def forward(self, ids, **more):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.checkpointed else block(x, **more)
        return SimpleNamespace(logits=self.head(x))

    def attentions(self):
        return [block.attention for block in self.blocks]


def build(**arguments):
    return Foreign(**arguments).eval()


def logits(network, ids=IDS, **more):
    with torch.no_grad():
        return network(ids, **more).logits


TERMS = terms_of(build(), 3 * LENGTH)  # of three layers


class HideOne(Hider):
    def __init__(self, place):
        self.place = place

    def hide(self, call):
        return (torch.arange(call.keys) == self.place)[None, None]


SOME = torch.rand(ROWS, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.7
SOME[..., [0, -1]] = True
SLOPE = torch.randn(HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(2))
CALLS = {
    "plain": ({}, {}),
    "causal": ({"is_causal": True}, {}),
    "scale": ({"scale": 0.9}, {}),
    "boolean mask": ({}, {"attn_mask": SOME}),
    "mask for all rows": ({}, {"attn_mask": SOME[0, 0]}),
    "additive mask of three axes": ({}, {"attn_mask": SLOPE}),
    "value as wide as key": ({"value_dim": DIM}, {}),
}


@pytest.mark.parametrize(("arguments", "more"), CALLS.values(), ids=CALLS)
def test_columns_equal_the_dense_maps(arguments, more):
    network = build(**arguments)
    expected = logits(network, **more)
    for attention in network.attentions():
        attention.maps.clear()
    with foreign(network), subscribed(network, diary := Diary()):
        assert_close(logits(network, **more), expected, terms=TERMS)
    assert diary.events == ["begin_generation", *step_events(3), "end_generation"]
    assert diary.names == [f"blocks.{number}.attention" for number in range(3)]
    for call, columns, attention in zip(diary.calls, diary.columns, network.attentions(), strict=True):
        assert_close(columns.sums[:, :, 0], attention.maps[0].sum(dim=2), terms=TERMS)
        assert_close(columns.diagonal, attention.maps[0].diagonal(0, -2, -1), terms=TERMS)
        assert_close(call.value, attention.values[0], terms=TERMS)
    assert torch.equal(diary.steps[0].tokens, IDS)


def test_inputs_of_three_axes_are_one_head():
    class Headless(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x):
            return functional.scaled_dot_product_attention(x, x, x[..., :3], is_causal=True)

    network, x = Headless(), torch.randn(ROWS, LENGTH, DIM, generator=torch.Generator().manual_seed(0))
    with foreign(network), subscribed(network, diary := Diary()):
        found = network(x)
    assert_close(found, network(x), terms=TERMS)
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    dense = torch.softmax((x @ x.mT * DIM**-0.5).masked_fill(~visible, -torch.inf), dim=-1)
    assert_close(diary.columns[0].sums[:, 0, 0], dense.sum(dim=1), terms=TERMS)
    assert diary.names == ["attention"] and (diary.steps[0].tokens == -1).all()


def test_padding_on_the_left_counts_for_nothing():
    mask = torch.ones(ROWS, 1, 1, LENGTH, dtype=torch.bool)
    mask[0, ..., :3] = False
    network = build()
    with foreign(network), subscribed(network, diary := Diary()):
        logits(network, attn_mask=mask)
    assert diary.steps[0].lengths.tolist() == [4, 7]
    for columns, attention in zip(diary.columns, network.attentions(), strict=True):
        assert_close(columns.sums[0, :, 0], attention.maps[0][0, :, 3:].sum(dim=1), terms=TERMS)
    refused = pytest.raises(AttentionError, match="expected padding on the left alone, found it behind")
    with refused, foreign(network), subscribed(network, Diary()):
        logits(network, attn_mask=mask.flip(-1))


def test_hiding_equals_a_mask_given_to_the_stock_network():
    network, visible = build(), torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    visible[:, 2] = False
    with foreign(network), subscribed(network, HideOne(2)), subscribed(network, diary := Diary()):
        found = logits(network)
    assert_close(found, logits(network, attn_mask=visible), terms=TERMS)
    assert (found - logits(network)).abs().amax() > 1e-3
    assert all(not columns.sums[..., 2].any() and (columns.local[..., 2] > 0).all() for columns in diary.columns)


def test_a_foreign_network_is_recorded(tmp_path):
    network = build()
    with foreign(network), sinkscope.recording(network, out=tmp_path / "t"):
        logits(network, IDS[:1])
    trace = sinkscope.open_trace(tmp_path / "t")
    assert trace.layers == tuple(f"blocks.{number}.attention" for number in range(3))
    assert trace.complete and not trace.causal and (trace.heads, trace.manifest["kv_heads"]) == (HEADS, KV_HEADS)
    assert trace.manifest["model"] == {"name": "Foreign"} and trace.tokens[0].tolist() == IDS[0].tolist()
    x = network.embed(IDS[0])
    for number, attention in enumerate(network.attentions()):
        assert_close(trace.column_sums[0, number], attention.maps[0][0].sum(dim=1), terms=TERMS)
        assert_close(trace.value_norms[0, number], attention.values[0][0].norm(dim=-1), terms=TERMS)
        assert_close(trace.hidden_norms[0, number], x.norm(dim=-1).detach(), terms=TERMS)
        x = network.blocks[number](x[None])[0]


def test_behind_its_own_cache_columns_run_on(tmp_path):
    """A loop that passes only the new token; a call with all queries again begins another text."""
    network = build()
    with foreign(network, causal=True), sinkscope.recording(network, out=tmp_path / "t"):
        for attention in network.attentions():
            attention.arguments["is_causal"] = True
        logits(network, IDS[:1, :5], cached=True)
        for attention in network.attentions():
            attention.arguments["is_causal"] = False
        logits(network, IDS[:1, 5:6], cached=True)
        logits(network, IDS[:1, 6:7], cached=True)
        for attention in network.attentions():
            attention.cache = None
        logits(network, IDS[1:, :5], cached=True)
    first, second = sinkscope.open_traces(tmp_path / "t")
    assert (first.steps, second.steps) == (3, 1) and first.tokens[2].tolist() == IDS[0].tolist()
    for number, attention in enumerate(network.attentions()):
        running = sum(functional.pad(each[0].sum(dim=1), (0, LENGTH - each.shape[-1])) for each in attention.maps[:3])
        assert_close(first.column_sums[2, number], running, terms=TERMS)
        assert_close(first.last_query[2, number], attention.maps[2][0, :, 0], terms=TERMS)
        assert_close(second.column_sums[0, number], attention.maps[3][0].sum(dim=1), terms=TERMS)


def test_a_generate_of_its_own_is_one_generation(tmp_path):
    class Writer(Foreign):
        def generate(self, ids, count):
            for _ in range(count):
                ids = torch.cat([ids, self(ids).logits[:, -1:].argmax(-1)], dim=-1)
            return ids

    network = Writer(is_causal=True).eval()
    with torch.no_grad(), foreign(network, causal=True), sinkscope.recording(network, out=tmp_path / "t"):
        answers = [network.generate(IDS[:1, :4], 3), network.generate(IDS[:1, :5], 2)]
    first, second = sinkscope.open_traces(tmp_path / "t")
    assert (first.steps, second.steps) == (3, 2)
    assert (
        first.tokens[2].tolist() == answers[0][0, :6].tolist()
        and second.tokens[1].tolist() == answers[1][0, :6].tolist()
    )
    assert_close(first.column_sums[2, 1], network.attentions()[1].maps[2][0].sum(dim=1), terms=TERMS)


def test_a_transformer_encoder_of_torch_is_watched_and_hidden_in():
    """nn.MultiheadAttention: torch shows it as one function, whose code is run with our attention inside."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, dim_feedforward=16, batch_first=True)
    network = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(x)
        _, dense = network.layers[0].self_attn(x, x, x, need_weights=True, average_attn_weights=False)
        with foreign(network), subscribed(network, diary := Diary()):
            found = network(x)
            hidden = None
            with subscribed(network, HideOne(2)):
                hidden = network(x)
        masked = network(x, src_key_padding_mask=(torch.arange(LENGTH) == 2).expand(ROWS, -1))
    assert_close(found, expected, terms=TERMS)
    assert_close(hidden, masked, terms=TERMS)
    assert diary.names[:2] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert_close(diary.columns[0].sums[:, :, 0], dense.sum(dim=2), terms=TERMS)
    assert torch.equal(diary.calls[0].hidden_states, x)


def test_layers_that_look_at_other_tokens_are_refused():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Attention(), Attention()

        def forward(self, x):
            return self.one(x), self.two(x[:, :4])

    network = Two()
    refused = pytest.raises(AttentionError, match=r"expected two to have 7 queries on 7 keys .* found 4 on 4")
    with refused, foreign(network), subscribed(network, Diary()):
        network(torch.ones(ROWS, LENGTH, WIDTH))


def test_an_unknown_layer_is_refused():
    with pytest.raises(CallError, match=r"Foreign has no module blocks\.7"), foreign(build(), layers=["blocks.7"]):
        pass


def test_a_network_that_does_not_ask_is_refused():
    network = nn.Sequential(nn.Linear(3, 3))
    refused = pytest.raises(AttentionError, match=r"expected Sequential to call F\.scaled_dot_product_attention")
    with refused, foreign(network), subscribed(network, Diary()):
        network(torch.ones(1, 2, 3))


class WithoutBatch(nn.Module):
    def forward(self, ids):
        return functional.scaled_dot_product_attention(*[torch.ones(4, ids.shape[1], 6)] * 3)


def test_heads_in_place_of_a_batch_are_not_recorded_as_texts(tmp_path):
    network = WithoutBatch()
    expected = "of attention to have as many rows as the tokens, found 4 and 1; give heads an axis"
    refused = pytest.raises(AttentionError, match=expected)
    with refused, foreign(network), sinkscope.recording(network, out=tmp_path / "t"):
        network(torch.ones(1, 9, dtype=torch.long))
    with foreign(network), sinkscope.recording(network, out=tmp_path / "rows"):
        network(torch.ones(4, 9, dtype=torch.long))
    assert [trace.heads for trace in sinkscope.open_traces(tmp_path / "rows")] == [1] * 4


def test_gradient_checkpointing_is_refused():
    network = build()
    network.checkpointed = True
    with foreign(network), subscribed(network, HideOne(2)):
        loss = network(IDS).logits.sum()
        with pytest.raises(AttentionError, match=r"gradient checkpointing runs blocks\.2.* once more, unseen"):
            loss.backward()


def test_watching_and_hiding_leave_no_trace():
    network = build()

    def watched_and_hidden_from():
        contexts = ExitStack()
        for context in (foreign(network), subscribed(network, Diary()), subscribed(network, HideOne(2))):
            contexts.enter_context(context)
        return contexts

    check_leaves_no_trace(network, watched_and_hidden_from, IDS)
