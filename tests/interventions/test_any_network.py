"""Rules on networks that are not loaded by sinkscope: sliding windows, an encoder beside a decoder, torch modules of no
known kind.
"""

from contextlib import nullcontext

import pytest
import torch
from closeness import assert_close, terms_of
from dense_maps import Seen
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
)

import sinkscope
from sinkscope.attention import foreign, query_heads, subscribed
from sinkscope.errors import AttentionError, CallError
from sinkscope.interventions import HidePositions, HideTopSinks

TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
IDS = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(0))


class Calls(Seen):
    """Keeps the layers' calls beside their columns."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def begin_step(self, context):
        super().begin_step(context)
        self.calls.append({})

    def watch(self, call, columns):
        super().watch(call, columns)
        self.calls[-1][call.index] = call


def gemma():
    """Layers 0 and 2 hold the newest four tokens only."""
    torch.manual_seed(0)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    shape = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    shape |= {"vocab_size": 50, "num_hidden_layers": 3, "intermediate_size": 16, "initializer_range": 0.3}
    config = Gemma3TextConfig(layer_types=kinds, sliding_window=4, query_pre_attn_scalar=8, **shape, **TOKENS)
    return Gemma3ForCausalLM(config).eval()


def newest_row(call):
    """Softmax of the newest query over the keys that the layer holds, in their absolute place: [batch, head, key]."""
    repeat = call.query.shape[1] // call.key.shape[1]
    scores = call.query[:, :, -1:] @ call.key.repeat_interleave(repeat, 1).mT * 8**-0.5
    return torch.nn.functional.pad(torch.softmax(scores[:, :, 0], -1), (call.first_key, 0))


def test_behind_a_window_the_step_before_hides_only_what_is_still_held():
    network, rule = gemma(), HideTopSinks(2, decide="last_row")
    with subscribed(network, seen := Calls()), rule(network) as running:
        network.generate(IDS, max_new_tokens=4, do_sample=False)
    for step in (2, 3):
        for layer in range(3):
            before, call = seen.columns[step - 1][layer], seen.calls[step][layer]
            assert_close(before.last_row, newest_row(seen.calls[step - 1][layer]), terms=terms_of(gemma(), 11))
            row = before.last_row.clone()
            row[..., : call.first_key] = -1
            expected = torch.zeros(2, 4, call.keys, dtype=torch.bool)
            expected.scatter_(-1, row.topk(2, dim=-1).indices, True)
            assert torch.equal(seen.hidden(step, layer), expected)
    assert running.effect.keys_per_head == 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        query, key, value = self.project(x).mul(2).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        self.scores = (query @ key.mT / 2).detach()
        return x + self.out(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.blocks = nn.Embedding(50, 12), nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("effect", ["mask", "zero"])
def test_rules_in_a_foreign_network_equal_dense(effect, tmp_path):
    network = Foreign().eval()
    with foreign(network), torch.no_grad():
        plain = network(IDS)
        with sinkscope.recording(network, out=tmp_path / "t"), subscribed(network, seen := Seen()):
            rule = HideTopSinks(2, observe="current", effect=effect, queries=range(3))
            with rule(network) as running:
                changed = network(IDS)
    assert (changed - plain).abs().max() > 1e-3
    total = torch.zeros(())
    for layer, block in enumerate(network.blocks):
        weights = torch.softmax(block.scores, -1)
        top = torch.zeros(2, 3, 1, 7).scatter(-1, weights.sum(-2, keepdim=True).topk(2).indices, 1).bool()
        taken = top & (torch.arange(7) < 3)[:, None]
        removed = (weights * taken).sum(-1)
        assert_close(seen.columns[0][layer].removed, removed, terms=terms_of(network, 7))
        after = weights * ~taken if effect == "zero" else torch.softmax(block.scores.masked_fill(taken, -torch.inf), -1)
        assert_close(seen.columns[0][layer].sums[:, :, 0], after.sum(-2), terms=terms_of(network, 7))
        total = total + removed.sum()
    assert running.effect.removed.shape == (2, 2, 3)
    assert_close(running.effect.removed_share, total / (2 * 2 * 3 * 7), terms=terms_of(network, 7))
    for row, trace in enumerate(sinkscope.open_traces(tmp_path / "t")):
        assert trace.manifest["hidden"] == [{"rules": [repr(rule)], **running.effect.of(row).as_dict()}]


def bart(decoder_layers=1):
    torch.manual_seed(0)
    shape = {"encoder_layers": 2, "decoder_layers": decoder_layers, "vocab_size": 50, "d_model": 24, "init_std": 0.5}
    shape |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    return BartForConditionalGeneration(BartConfig(**shape)).eval()


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=24, n_layer=2, n_head=3, n_positions=20, **TOKENS)).eval()


@pytest.mark.parametrize("make", [gemma, bart, gpt2])
def test_the_heads_of_a_layer_are_known_before_it_runs(make):
    network = make()
    with torch.no_grad(), subscribed(network, seen := Calls()) as session:
        network(IDS)
        known = {name: query_heads(module) for stack in session.stacks for module, (name, _) in stack.layers.items()}
    calls = [call for step in seen.calls for call in step.values()]
    assert {known[call.name] == call.query.shape[1] for call in calls} == {True}
    with (
        pytest.raises(CallError, match=r"layers or heads: layer 1 of the model has the heads 0…., found 1\.4"),
        HidePositions((0,), heads={(1, 4)})(network),
    ):
        pass


def test_layers_of_a_decoder_are_those_of_its_trace(tmp_path):
    """Its cross-attention is a trace of its own, and no layer in between."""
    rule = HideTopSinks(1, heads={(1, 0), (1, 1), (1, 2)}, observe="current")
    network, folders = bart(decoder_layers=2), (tmp_path / "plain", tmp_path / "hidden")
    for folder, hiding in zip(folders, (nullcontext(), rule(network)), strict=True):
        with hiding, sinkscope.recording(network, out=folder), torch.no_grad():
            network(input_ids=IDS[:1], decoder_input_ids=IDS[:1, :3])
    traces = zip(*(sinkscope.open_traces(folder) for folder in folders), strict=True)
    lost = {
        (plain.manifest["stack"], plain.manifest["attends_to"]): plain.column_sums[0] != hidden.column_sums[0]
        for plain, hidden in traces
    }
    assert len(lost) == 3
    for stack in ("model.encoder", "model.decoder"):
        assert lost[stack, stack].any(axis=(1, 2)).tolist() == [False, True]


def test_cross_attention_of_as_many_keys_as_tokens_is_refused():
    network, message = bart(), r"encoder_attn attends to 7 keys of another stack, not to the 7 tokens"
    with pytest.raises(AttentionError, match=message), HidePositions((0,))(network), torch.no_grad():
        network(input_ids=IDS, decoder_input_ids=IDS)


@torch.no_grad()
def test_a_rule_does_not_decide_by_a_longer_canvas():
    """It would hide nothing, without a word."""
    network = gpt2()
    refused = pytest.raises(CallError, match="no shorter canvas than then, found 4 tokens behind 7")
    with refused, HideTopSinks(1)(network):
        network(IDS, use_cache=False)
        network(IDS[:, :4], use_cache=False)
    refused = pytest.raises(CallError, match="top:1 hid nothing: there was no step before")
    with refused, HideTopSinks(1)(network):  # nor by the attention of another text
        network(IDS[:, :4], use_cache=False)
        network(IDS.flip(1), use_cache=False)
