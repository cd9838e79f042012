"""A call behind a cache goes on where the one before it ended; where it does not, column sums would be wrong, and it is
refused.
"""

import copy

import pytest
import torch
from diary import Diary
from transformers import BartConfig, BartForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

import sinkscope
from sinkscope.attention import subscribed
from sinkscope.errors import AttentionError
from sinkscope.interventions import HideTopSinks


@pytest.fixture
def ids(autoregressive, question):
    return torch.tensor([autoregressive.encode(question)])


def begin(network, ids, **more):
    return network(ids, use_cache=True, **more).past_key_values


@torch.no_grad()
@pytest.mark.parametrize("change", ["cut", "copied", "reordered", "otherwise padded", "swapped"])
@pytest.mark.parametrize("what", ["recorded", "hidden from"])
def test_another_cache_is_refused(autoregressive, ids, tmp_path, change, what):
    network, two = autoregressive.network, ids.repeat(2, 1)
    watched = HideTopSinks(1)(autoregressive)
    if what == "recorded":
        watched = sinkscope.recording(autoregressive, out=tmp_path / "run")
    with watched, pytest.raises(AttentionError, match="cache of the step before, of 12 tokens, found another, changed"):
        cache = begin(network, two[:, :10])
        network(two[:, 10:12], past_key_values=cache)
        mask, part = torch.ones_like(two[:, :13]), slice(10, 12) if change == "cut" else slice(12, 13)
        if change == "cut":
            cache.crop(-2)
        elif change == "reordered":
            cache.reorder_cache(torch.tensor([1, 0]))
        elif change == "otherwise padded":
            mask[:, :3] = 0
        elif change == "swapped":
            begin(network, two[:, :12])
        cache = copy.deepcopy(cache) if change == "copied" else cache
        more = {"attention_mask": mask} if change == "otherwise padded" else {}
        network(two[:, part], past_key_values=cache, **more)


@torch.no_grad()
def test_a_recording_begins_with_the_first_token(autoregressive, ids, tmp_path):
    cache = begin(autoregressive.network, ids[:, :5])
    expected = pytest.raises(AttentionError, match="from the first token on, found a cache that holds 5")
    with expected, sinkscope.recording(autoregressive, out=tmp_path / "run"):
        autoregressive.network.generate(ids, past_key_values=cache, max_new_tokens=3)


@torch.no_grad()
def test_one_text_behind_another_is_recorded(autoregressive, ids, tmp_path):
    network = autoregressive.network
    with sinkscope.recording(autoregressive, out=tmp_path / "run"):
        for first in (10, 8):
            cache = begin(network, ids[:, :first])
            network(ids[:, first : first + 2], past_key_values=cache)
            network(ids[:, first + 2 : first + 3], past_key_values=cache)
    for trace, first in zip(sinkscope.open_traces(tmp_path / "run"), (10, 8), strict=True):
        assert trace.lengths[:].tolist() == [first, first + 2, first + 3]
        assert trace.column_sums[-1].sum(-1) == pytest.approx(first + 3, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("change", ["reorder", "cut", "swap"])
def test_the_cache_of_a_decoder_beside_an_encoder_is_checked_too(change):
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    config = BartConfig(vocab_size=50, d_model=24, encoder_ffn_dim=16, decoder_ffn_dim=16, **sizes)
    network, tokens = BartForConditionalGeneration(config).eval(), torch.arange(5, 19).view(2, 7)
    first = network(tokens, decoder_input_ids=tokens[:, :4])
    encoded = BaseModelOutput(first.encoder_last_hidden_state)

    def call(decoded, cache):
        return network(encoder_outputs=encoded, decoder_input_ids=decoded, past_key_values=cache).past_key_values

    with pytest.raises(AttentionError, match="tokens, found another, changed"), subscribed(network, Diary()):
        cache = call(tokens[:, :4], None)
        if change == "reorder":
            cache.reorder_cache(torch.tensor([1, 0]))
        elif change == "cut":
            cache.self_attention_cache.crop(-1)
        else:
            call(tokens[:, :3], None)
        call(tokens[:, 4:5], cache)
