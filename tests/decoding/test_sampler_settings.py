import pytest

from sinkscope.decoding import AutoregressiveSettings, LLaDASettings, resolve_settings
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.models import FAMILIES

LLADA, LLAMA, DREAM = FAMILIES["llada"], FAMILIES["llama"], FAMILIES["dream"]

REFUSED = [
    (LLADA, {"max_new_tokens": 8}, TypeError, ["llada has no setting 'max_new_tokens'", "it is called length"]),
    (LLAMA, {"steps": 8}, TypeError, ["llama has no setting 'steps'", "length, temperature, top_p, top_k, seed"]),
    (LLADA, {"length": 30, "block": 8}, ValueError, ["length must be a multiple of block", "try --block 6"]),
    (LLADA, {"length": 32, "block": 8, "steps": 10}, ValueError, ["multiple of the number of blocks", "--steps 8"]),
    (LLADA, {"length": 32, "block": 8, "steps": 64}, ValueError, ["steps must not exceed length", "64", "32"]),
    (LLADA, {"length": 8, "steps": -2}, ValueError, ["steps: expected at least 1, found -2"]),
    (LLADA, {"temperature": float("nan")}, ValueError, ["temperature", "found nan"]),
    (LLADA, {"remasking": "sideways"}, ValueError, ["remasking: expected low_confidence or random, found 'sideways'"]),
    (LLAMA, {"top_p": 1.5}, ValueError, ["top_p: expected a number from 0 to 1, found 1.5"]),
]


@pytest.mark.parametrize(
    ("family", "given", "kind", "fragments"),
    REFUSED,
    ids=lambda value: None if not isinstance(value, dict) else str(value),
)
def test_what_does_not_fit_is_refused_by_name(family, given, kind, fragments):
    with pytest.raises(kind) as caught:
        resolve_settings(family, **given)
    assert isinstance(caught.value, SinkscopeError)
    assert isinstance(caught.value, CallError)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_defaults_are_those_of_the_published_functions():
    assert resolve_settings(LLADA) == LLaDASettings(
        128, 128, 128, 0.0, 0.0, "low_confidence", 0, logits_eos_inf=False, confidence_eos_eot_inf=False
    )
    assert resolve_settings(LLAMA) == AutoregressiveSettings(128, 0.0, 1.0, 0, 0)


@pytest.mark.parametrize(
    ("given", "length", "steps", "block"),
    [
        ({"length": 40}, 40, 40, 40),
        ({"length": 40, "block": 8}, 40, 40, 8),
        ({"length": 40, "steps": 20}, 40, 20, 40),
        ({"length": 40, "steps": 20, "block": 8}, 40, 20, 8),
        ({"steps": 64}, 128, 64, 128),
        ({"block": 32}, 128, 128, 32),
    ],
)
def test_length_alone_sets_steps_and_block(given, length, steps, block):
    settings = resolve_settings(LLADA, **given)
    assert (settings.length, settings.steps, settings.block) == (length, steps, block)
    assert settings.most_calls == steps
