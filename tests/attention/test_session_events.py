"""The events of a session in order, for a published generation and for a foreign one."""

import threading

import pytest
import torch
from closeness import assert_close, terms_of
from diary import IDS, SMALL, Diary, forward, step_events, tiny_llama
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig, GenerationConfig, StaticCache
from transformers.generation import StoppingCriteria, StoppingCriteriaList

import sinkscope
from sinkscope.attention import Hider, subscribed
from sinkscope.decoding import LLaDASettings, make_batch
from sinkscope.decoding.llada import llada_steps
from sinkscope.errors import AttentionError, CallError

# What a published generation tells


def test_a_diffusion_generation_is_told_in_order(diffusion, question):
    with subscribed(diffusion.network, diary := Diary()):
        answer = sinkscope.generate(diffusion, question, length=6, block=3, steps=4)
    assert diary.events == ["begin_generation", *(step_events(3) * 4), "end_generation"]
    (start,) = diary.starts
    assert start.prompt_lengths == (answer.prompt_length,) and start.prompts == (question,) and not start.causal
    assert start.final_length == len(answer.tokens) and start.mask_id == diffusion.card.mask_id
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


def test_guidance_records_the_conditional_half(diffusion, question, short):
    """A batch of two halves, of which the first is to be recorded; its first step equals the one without guidance."""
    plain, guided = Diary("all", "prompt"), Diary("all", "prompt")
    for diary, guidance in ((plain, 0.0), (guided, 1.5)):
        with subscribed(diffusion.network, diary):
            sinkscope.generate(diffusion, [question, short], length=4, steps=2, guidance=guidance)
    context = guided.steps[0]
    assert context.rows == context.prompts == (0, 1)
    assert context.tokens.shape[0] == 4 and context.lengths.tolist() == 2 * plain.steps[0].lengths.tolist()
    assert torch.equal(context.tokens[:2], plain.steps[0].tokens) and context.masked.sum(-1)[:2].tolist() == [4, 4]
    assert context.masked[2:].all(), "the unconditional half sees no prompt"
    for mine, theirs in zip(guided.columns[:3], plain.columns[:3], strict=True):
        assert_close(mine.sums[:2], theirs.sums, terms=terms_of(diffusion.network, 40))
        assert (mine.sums[2:] - theirs.sums).abs().amax() > 1e-2
        assert_close(
            mine.sums[:, :, 0].sum(-1), context.lengths.float()[:, None].expand(-1, 5), terms=3 * mine.sums.shape[-1]
        )
        prompts = torch.tensor(2 * guided.starts[0].prompt_lengths, dtype=torch.float32)
        assert_close(mine.sums[:, :, 1].sum(-1), prompts[:, None].expand(-1, 5), terms=3 * mine.sums.shape[-1])


def test_a_generation_that_is_given_up_is_told_as_failed(diffusion, question):
    def interrupt(step):
        raise KeyboardInterrupt

    diary = Diary()
    with pytest.raises(KeyboardInterrupt), subscribed(diffusion.network, diary):
        sinkscope.generate(diffusion, question, length=6, on_step=interrupt)
    assert diary.events == ["begin_generation", *step_events(3), "failed"]


def test_a_generation_that_is_left_unfinished_is_told_as_failed(diffusion):
    batch = make_batch(diffusion, [[5, 6, 7]], [None], 4)
    steps = llada_steps(diffusion, batch, LLaDASettings(length=4, steps=4, block=4))
    with subscribed(diffusion.network, diary := Diary()):
        next(steps)
    assert diary.events == ["begin_generation", *step_events(3), "failed"]
    steps.close()
    assert diary.events[-1] == "failed" and diary.events.count("failed") == 1


# What a foreign generation tells


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


def test_a_call_with_other_rows_is_another_generation(diffusion):
    with subscribed(diffusion.network, diary := Diary()):
        forward(diffusion.network, IDS)
        forward(diffusion.network, IDS[:1])
    assert diary.events == 2 * ["begin_generation", *step_events(3), "end_generation"]
    assert [start.prompt_lengths for start in diary.starts] == [(7, 7), (7,)]


def test_foreign_columns_equal_ours(autoregressive, question):
    """transformers' own loop and our sampler lead to the same columns."""
    ids = torch.tensor([autoregressive.encode(question)])
    ours, theirs = Diary(), Diary()
    with subscribed(autoregressive.network, ours):
        answer = sinkscope.generate(autoregressive, question, length=4)
    with subscribed(autoregressive.network, theirs):
        tokens = autoregressive.network.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(tokens[0, : len(answer.tokens)], answer.tokens)
    assert len(ours.columns) == 3 * answer.steps
    for mine, other in zip(ours.columns, theirs.columns, strict=False):
        assert_close(mine.sums, other.sums, terms=terms_of(autoregressive.network, 40))


def test_right_padding_is_refused(padded):
    network = tiny_llama()
    with (
        pytest.raises(AttentionError, match="expected padding on the left alone, found it behind position"),
        subscribed(network, Diary()),
    ):
        forward(network, IDS, attention_mask=padded.flip(1))


def tiny_gemma():
    torch.manual_seed(0)
    return Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=8, sliding_window=4)).eval()


def test_padding_between_tokens_is_refused_as_such(diffusion):
    hole = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1]])
    with (
        pytest.raises(
            AttentionError,
            match=r"found it behind position 1 of row 1; .* left out of the canvas",
        ),
        subscribed(diffusion.network, Diary()),
    ):
        forward(diffusion.network, IDS[:, :4], attention_mask=hole)


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_a_row_of_padding_only_is_refused(diffusion, dtype):
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]).to(dtype)
    with (
        pytest.raises(CallError, match="at least one token in each row, found one whose mask calls all of it padding"),
        subscribed(diffusion.network, Diary()),
    ):
        forward(diffusion.network, IDS[:, :4], attention_mask=mask)


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
        assert (
            not columns.sums[..., 6].any()
            and (columns.local[..., 6] > 0).all()
            and (columns.sums[..., [5, 7, 8]] > 0).all()
        )


def test_a_hider_that_counts_the_held_keys_only_is_refused():
    network = tiny_gemma()
    with (
        pytest.raises(AttentionError, match=r"all 8 tokens so far \(LayerCall.keys\), found bool \[1, 1, 1, 4\]"),
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


@pytest.mark.parametrize("settings", [{"num_beams": 2}, {"prompt_lookup_num_tokens": 2}, {"guidance_scale": 2.0}])
def test_a_generate_that_reorders_or_guesses_is_refused(settings):
    network, name = tiny_llama(), next(iter(settings))
    with pytest.raises(AttentionError, match=f"generate with {name} is not modelled"), subscribed(network, Diary()):
        network.generate(IDS[:1], max_new_tokens=2, do_sample=False, **settings)
    assert "generate" not in vars(network)


@pytest.mark.parametrize("name", ["generate_batch", "init_continuous_batching"])
def test_paged_generation_is_refused(name):
    network = tiny_llama()
    with (
        pytest.raises(AttentionError, match=f"{name} and its paged cache are not modelled"),
        subscribed(network, Diary()),
    ):
        getattr(network, name)([[5, 6]])
    assert name not in vars(network)


def test_a_generate_whose_network_reorders_by_its_own_settings_is_refused():
    network = tiny_llama()
    network.generation_config.num_beams = 3
    with pytest.raises(AttentionError, match="generate with num_beams is not modelled"), subscribed(network, Diary()):
        network.generate(IDS[:1], generation_config=GenerationConfig(max_new_tokens=2))
    with subscribed(network, Diary()):
        network.generate(IDS[:1], generation_config=GenerationConfig(max_new_tokens=2, num_beams=1))


def test_a_generate_in_another_thread_is_refused_between_the_calls_of_the_first():
    """It would end the first one's generation."""
    network, written = tiny_llama(), []
    began, tried = threading.Event(), threading.Event()

    class Slow(StoppingCriteria):
        """Runs between two calls of the network."""

        def __call__(self, *args, **kwargs):
            began.set()
            assert tried.wait(60)
            return torch.zeros(1, dtype=torch.bool)

    def first():
        written.append(
            network.generate(
                IDS[:1], max_new_tokens=4, do_sample=False, stopping_criteria=StoppingCriteriaList([Slow()])
            )
        )

    with subscribed(network, diary := Diary()):
        one = threading.Thread(target=first)
        one.start()
        assert began.wait(60)
        with pytest.raises(AttentionError, match="one generation of it runs already, here or in another thread"):
            network.generate(IDS[:1], max_new_tokens=2)
        tried.set()
        one.join()
    assert written[0].shape == (1, 11) and len(diary.steps) == 4


# What a sampler of one's own may publish

START = {
    "prompt_lengths": (2,),
    "final_length": 4,
    "causal": False,
    "sampler": {"name": "mine"},
    "prompts": (None,),
    "mask_id": 3,
}
CONTEXT = {"tokens": IDS[:1], "masked": IDS[:1] < 0, "lengths": torch.tensor([7]), "rows": (0,), "prompts": (0,)}
RESULT = {"written": IDS[:1]}
