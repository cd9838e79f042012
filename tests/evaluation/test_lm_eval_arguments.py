"""Arguments of the model ``sinkscope`` inside lm-eval: what is refused at its start, and what waits for a task."""

import types

import pytest

pytest.importorskip("lm_eval")

from sinkscope.errors import CallError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)


def language_model(model, **arguments):
    from sinkscope.evaluation.lm_eval import SinkscopeLM

    return SinkscopeLM(model, **arguments)


def test_a_tasks_arguments_in_our_words(autoregressive):
    lm = language_model(autoregressive, seed=3)
    settings, stops = lm._settings(
        {"until": "x", "do_sample": True, "temperature": 0.5, "top_p": 0.9, "max_new_tokens": 7}
    )
    assert (settings.length, settings.temperature, settings.top_p, settings.seed, stops) == (7, 0.5, 0.9, 3, ["x"])
    settings, stops = lm._settings({"do_sample": False, "temperature": 0.7})
    assert (settings.length, settings.temperature, stops) == (256, 0.0, [])
    with pytest.raises(CallError, match="llama has no setting 'num_beams'"):
        lm._settings({"num_beams": 4})


def test_an_unknown_word_is_refused_as_everywhere(diffusion):
    lm = language_model(diffusion, samples=2)
    with pytest.raises(CallError, match="does not know 'xylophone'"):
        lm.loglikelihood([types.SimpleNamespace(args=("Tom has 7", " xylophone"))], disable_tqdm=True)
    with pytest.raises(CallError, match="does not know 'xylophone'"):
        lm.generate_until([types.SimpleNamespace(args=("xylophone", {"max_gen_toks": 4}))], disable_tqdm=True)
    assert (
        lm.tok_encode("Tom has 7", add_special_tokens=False)
        == diffusion.tokenizer("Tom has 7", add_special_tokens=False).input_ids
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": "auto"}, "batch_size: expected a whole number from 1 upwards, found 'auto'"),
        ({"length": 8, "steps": 9}, "steps must not exceed length"),
        ({"gen_length": 8}, "llada has no setting 'gen_length'; here it is called length"),
    ],
)
def test_refused_arguments(diffusion, arguments, message):
    with pytest.raises(CallError, match=message):
        language_model(diffusion, **arguments)


def test_a_model_is_asked_for():
    with pytest.raises(
        CallError, match=r"pretrained: expected a bundled name, a folder or a hub id, as in --model_args .* found none"
    ):
        language_model(None)


def test_settings_that_hang_on_the_length_wait_for_the_tasks_own(diffusion):
    lm = language_model(diffusion, steps=240, block=16)
    assert lm._settings({"max_gen_toks": 240})[0].steps == 240
    requests = [types.SimpleNamespace(args=("Tom has 7", {"max_gen_toks": length})) for length in (240, 8)]
    with pytest.raises(CallError, match="length must be a multiple of block: 8 tokens"):
        lm.generate_until(requests, disable_tqdm=True)
    assert language_model(diffusion, steps=8, block=8)._settings({"max_gen_toks": 8})[0].block == 8
