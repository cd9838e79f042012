"""The events of a session in order, for a published generation and for a foreign one."""

import pytest
import torch
from closeness import assert_close
from diary import IDS, SMALL, Diary, forward, step_events, tiny_llama
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig, StaticCache

import sinkscope
from sinkscope.attention import Hider, subscribed
from sinkscope.errors import AttentionError


def test_a_diffusion_generation_is_told_in_order(diffusion, question):
    with subscribed(diffusion.network, diary := Diary()):
        answer = sinkscope.generate(diffusion, question, length=6, block=3, steps=4)
    assert diary.events == ["begin_generation", *(step_events(3) * 4), "end_generation"]
    (start,) = diary.starts
    assert start.prompt_lengths == (answer.prompt_length,) and start.prompts == (question,) and not start.causal
    assert start.mask_id == diffusion.card.mask_id
    assert [int(context.masked.sum()) for context in diary.steps] == [6, 4, 3, 1]
    last, result = diary.steps[-1], diary.results[-1]
    assert torch.equal(torch.where(result.written >= 0, result.written, last.tokens)[0], answer.tokens)


def test_an_autoregressive_generation_is_told_in_order(autoregressive, question, short):
    with subscribed(autoregressive.network, diary := Diary()):
        answers = sinkscope.generate(autoregressive, [question, short], length=5)
    steps = len(diary.steps)
    assert steps == max(answer.steps for answer in answers) >= 2
    assert diary.events == ["begin_generation", *(step_events(3) * steps), "end_generation"]
    assert diary.starts[0].prompt_lengths == tuple(answer.prompt_length for answer in answers)
    width = max(diary.starts[0].prompt_lengths)
    assert [columns.sums.shape[-1] for columns in diary.columns[::3]] == [width + step for step in range(steps)]
    for number, columns in enumerate(diary.columns):
        fresh = torch.tensor(diary.starts[0].prompt_lengths if number < 3 else (1, 1), dtype=torch.float32)
        assert_close(columns.sums[:, :, 0].sum(-1), fresh[:, None].expand(-1, 6), terms=3 * columns.sums.shape[-1])


def test_a_generation_that_is_given_up_is_told_as_failed(diffusion, question):
    def interrupt(step):
        raise KeyboardInterrupt

    diary = Diary()
    with pytest.raises(KeyboardInterrupt), subscribed(diffusion.network, diary):
        sinkscope.generate(diffusion, question, length=6, on_step=interrupt)
    assert diary.events == ["begin_generation", *step_events(3), "failed"]


@pytest.fixture
def padded():
    attention_mask = torch.ones_like(IDS)
    attention_mask[0, :3] = 0
    return attention_mask


def test_plain_calls_are_steps_of_one_generation(diffusion):
    ids = IDS.masked_fill(IDS < 20, diffusion.card.mask_id)
    with subscribed(diffusion.network, diary := Diary()):
        forward(diffusion.network, ids)
        forward(diffusion.network, ids)
    assert diary.events == ["begin_generation", *(step_events(3) * 2), "end_generation"]
    assert diary.results == [None, None]
    assert not diary.starts[0].causal and diary.starts[0].sampler == {"name": "foreign"}
    assert diary.starts[0].mask_id == diffusion.card.mask_id
    assert torch.equal(diary.steps[1].tokens, ids) and torch.equal(diary.steps[1].masked, ids == diffusion.card.mask_id)


def test_a_foreign_generate_is_told_step_by_step(padded):
    """Three steps with a cache; the second generation starts with an empty one."""
    network = tiny_llama()
    expected = network.generate(IDS, attention_mask=padded, max_new_tokens=3, do_sample=False)
    with subscribed(network, diary := Diary()):
        found = network.generate(IDS, attention_mask=padded, max_new_tokens=3, do_sample=False)
        network.generate(IDS, max_new_tokens=2, do_sample=False)
    assert torch.equal(found, expected)
    first = ["begin_generation", *(step_events(2) * 3), "end_generation"]
    assert diary.events == [*first, "begin_generation", *(step_events(2) * 2), "end_generation"]
    assert [start.prompt_lengths for start in diary.starts] == [(4, 7), (7, 7)]
    assert all(start.causal for start in diary.starts)
    assert [context.lengths.tolist() for context in diary.steps] == [[4, 7], [5, 8], [6, 9], [7, 7], [8, 8]]
    for step, context in enumerate(diary.steps[:3]):
        assert torch.equal(context.tokens, expected[:, : 7 + step]), (
            "behind a cache all tokens so far, not the fresh ones alone"
        )
    for number, columns in enumerate(diary.columns[:6]):
        fresh = torch.tensor([4.0, 7.0] if number < 2 else [1.0, 1.0])
        assert_close(columns.sums[:, :, 0].sum(-1), fresh[:, None].expand(-1, 3), terms=3 * columns.sums.shape[-1])


def tiny_gemma():
    torch.manual_seed(0)
    return Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=8, sliding_window=4)).eval()


def test_caches_that_preallocate_keys_are_refused():
    network = tiny_llama()
    with pytest.raises(AttentionError, match="static caches are not modelled"), subscribed(network, Diary()):
        forward(network, IDS, past_key_values=StaticCache(config=network.config, max_cache_len=16))


def test_a_sliding_layer_shows_its_keys_in_their_absolute_place():
    """Four keys of nine behind a cache: columns go over all nine tokens, 0 where the window has moved on."""
    network = tiny_gemma()
    with subscribed(network, diary := Diary()):
        network.generate(IDS, max_new_tokens=3, do_sample=False)
    last = diary.calls[-2:]
    assert [(call.first_key, call.key.shape[2], call.keys) for call in last] == 2 * [(5, 4, 9)]
    for columns in diary.columns[-2:]:
        assert columns.sums.shape[-1] == columns.last_row.shape[-1] == 9 and not columns.sums[..., :5].any()
        assert_close(columns.sums.sum(-1), 1.0, terms=3 * columns.sums.shape[-1])


class HideKey(Hider):
    def __init__(self, key, count):
        self.key, self.count = key, count

    def hide(self, call):
        return (torch.arange(self.count(call)) == self.key)[None, None]


def test_what_is_hidden_behind_a_window_is_hidden_in_its_absolute_place():
    network = tiny_gemma()
    with subscribed(network, HideKey(6, lambda call: call.keys)), subscribed(network, diary := Diary()):
        network.generate(IDS, max_new_tokens=3, do_sample=False)
    assert diary.calls[-1].first_key == 5
    for columns in diary.columns[-2:]:
        assert not columns.sums[..., 6].any() and (columns.local[..., 6] > 0).all()
        assert (columns.sums[..., [5, 7, 8]] > 0).all()


def test_a_hider_that_counts_the_held_keys_only_is_refused():
    network = tiny_gemma()
    with (
        pytest.raises(AttentionError, match=r"all 8 tokens so far \(LayerCall.keys\), found torch.bool \[1, 1, 1, 4\]"),
        subscribed(network, HideKey(2, lambda call: call.key.shape[2])),
    ):
        network.generate(IDS, max_new_tokens=3, do_sample=False)


def test_keys_that_are_not_the_tokens_so_far_are_refused():
    """As with a cache that was filled or cut without the session."""
    network = tiny_llama()

    class Shrunk(DynamicCache):
        def get_seq_length(self, layer_idx=0):
            return max(0, super().get_seq_length(layer_idx) - 2)

    cache = Shrunk(config=network.config)
    forward(network, IDS, past_key_values=cache)
    with (
        pytest.raises(AttentionError, match="to look at the 12 tokens so far, found 14 keys"),
        subscribed(network, Diary()),
    ):
        forward(network, IDS, past_key_values=cache)


@pytest.mark.parametrize("settings", [{"num_beams": 2}, {"guidance_scale": 2.0}])
def test_a_generate_that_reorders_or_guesses_is_refused(settings):
    network, name = tiny_llama(), next(iter(settings))
    with pytest.raises(AttentionError, match=f"generate with {name} is not modelled"), subscribed(network, Diary()):
        network.generate(IDS[:1], max_new_tokens=2, do_sample=False, **settings)
    assert "generate" not in vars(network)
