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


@pytest.fixture(params=["recorded", "hidden from"])
def watched(request, autoregressive, tmp_path):
    return (
        HideTopSinks(1)(autoregressive)
        if request.param == "hidden from"
        else sinkscope.recording(autoregressive, out=tmp_path / "run")
    )


def begin(network, ids):
    return network(ids, use_cache=True).past_key_values


@torch.no_grad()
def test_a_cache_that_was_cut_is_refused(watched, autoregressive, ids):
    network = autoregressive.network
    with (
        watched,
        pytest.raises(
            AttentionError, match=r"the cache of the step before, of 12 tokens, found another, changed or .* one of 10"
        ),
    ):
        cache = begin(network, ids[:, :10])
        network(ids[:, 10:12], past_key_values=cache)
        cache.crop(-2)
        network(ids[:, 12:14], past_key_values=cache)


@torch.no_grad()
def test_a_copied_cache_is_refused(watched, autoregressive, ids):
    network = autoregressive.network
    with watched, pytest.raises(AttentionError, match="of 12 tokens, found another"):
        cache = begin(network, ids[:, :10])
        network(ids[:, 10:12], past_key_values=cache)
        network(ids[:, 12:13], past_key_values=copy.deepcopy(cache))


@torch.no_grad()
def test_a_reordered_cache_is_refused(watched, autoregressive, ids):
    network, two = autoregressive.network, ids[:, :12].repeat(2, 1)
    with (
        watched,
        pytest.raises(AttentionError, match=r"of 10 tokens, found another, changed or .* reorder"),
    ):
        cache = begin(network, two[:, :10])
        cache.reorder_cache(torch.tensor([1, 0]))
        network(two[:, 10:11], past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize("padding", [0, 2, 4])
def test_an_attention_mask_with_other_padding_is_refused(watched, autoregressive, ids, padding):
    network, mask = autoregressive.network, torch.ones_like(ids[:, :12])
    mask[:, :3] = 0
    with (
        watched,
        pytest.raises(
            AttentionError,
            match=r"changed or otherwise padded one of 10; .* mask of all",
        ),
    ):
        cache = network(ids[:, :10], attention_mask=mask[:, :10], use_cache=True).past_key_values
        network(ids[:, 10:11], attention_mask=mask[:, :11], past_key_values=cache)
        mask[:, :3] = 1
        mask[:, :padding] = 0
        cache = network(
            ids[:, :10], attention_mask=torch.cat([torch.zeros(1, 3), torch.ones(1, 7)], -1), use_cache=True
        ).past_key_values
        network(ids[:, 10:11], attention_mask=mask[:, :11] if padding else None, past_key_values=cache)


@torch.no_grad()
def test_two_texts_in_turn_are_refused(watched, autoregressive, ids):
    network = autoregressive.network
    with watched, pytest.raises(AttentionError, match=r"of 10 tokens, found another, .* one of 8"):
        first, _ = begin(network, ids[:, :8]), begin(network, ids[:, :10])
        network(ids[:, 8:10], past_key_values=first)


@torch.no_grad()
def test_a_recording_begins_with_the_first_token(autoregressive, ids, tmp_path):
    cache = begin(autoregressive.network, ids[:, :5])
    expected = pytest.raises(
        AttentionError, match=f"from the first token on, found a cache that holds 5 of {ids.shape[1]}"
    )
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

    found = {
        "reorder": "of 4 tokens, found another, changed or .* one of 4",
        "cut": r"of 4 tokens, found another, changed or .* one of 3",
        "swap": "of 3 tokens, found another, .* one of 4",
    }[change]
    with pytest.raises(AttentionError, match=found), subscribed(network, Diary()):
        cache = call(tokens[:, :4], None)
        if change == "reorder":
            cache.reorder_cache(torch.tensor([1, 0]))
        elif change == "cut":
            cache.self_attention_cache.crop(-1)
        else:
            call(tokens[:, :3], None)
        call(tokens[:, 4:5], cache)
