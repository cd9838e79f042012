import dataclasses
import re

import pytest

import sinkscope
from sinkscope.decoding import AutoregressiveSettings, LLaDASettings, SettingsError, resolve_settings, step_count
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.models import FAMILIES

LLADA, LLAMA, DREAM = FAMILIES["llada"], FAMILIES["llama"], FAMILIES["dream"]

REFUSED = [
    (
        LLADA,
        {"max_new_tokens": 8},
        TypeError,
        ["llada has no setting 'max_new_tokens'", "it is called length", "length, steps, block"],
    ),
    (LLADA, {"gen_length": 8}, TypeError, ["'gen_length'", "it is called length"]),
    (LLADA, {"block_length": 8}, TypeError, ["'block_length'", "it is called block"]),
    (LLADA, {"cfg_scale": 1.0}, TypeError, ["'cfg_scale'", "it is called guidance"]),
    (
        LLADA,
        {"top_p": 0.9},
        TypeError,
        ["llada has no setting 'top_p'", "Its settings are length, steps, block, temperature"],
    ),
    (LLADA, {"lenght": 8}, TypeError, ["'lenght'", "Its settings are length, steps"]),
    (LLAMA, {"steps": 8}, TypeError, ["llama has no setting 'steps'", "length, temperature, top_p, top_k, seed"]),
    (LLAMA, {"block": 8}, TypeError, ["llama has no setting 'block'"]),
    (LLAMA, {"max_new_tokens": 8}, TypeError, ["'max_new_tokens'", "it is called length"]),
    (LLAMA, {"num_steps": 8}, TypeError, ["llama has no setting 'num_steps'. Its settings"]),
    (LLAMA, {"do_sample": True}, TypeError, ["'do_sample'", "it is called temperature"]),
    (LLADA, {"length": 30, "block": 8}, ValueError, ["length must be a multiple of block", "30", "8", "try --block 6"]),
    (
        LLADA,
        {"length": 32, "block": 8, "steps": 10},
        ValueError,
        ["steps must be a multiple of the number of blocks", "10", "4 blocks", "try --steps 8"],
    ),
    (LLADA, {"length": 32, "block": 8, "steps": 64}, ValueError, ["steps must not exceed length", "64", "32"]),
    (LLADA, {"length": 0}, ValueError, ["length: expected at least 1, found 0"]),
    (LLADA, {"length": 8, "steps": -2}, ValueError, ["steps: expected at least 1, found -2"]),
    (LLADA, {"temperature": -0.5}, ValueError, ["temperature: expected a number from 0 to 1000, found -0.5"]),
    (LLADA, {"temperature": float("nan")}, ValueError, ["temperature", "found nan"]),
    (LLADA, {"guidance": -1.0}, ValueError, ["guidance", "found -1.0"]),
    (LLADA, {"remasking": "sideways"}, ValueError, ["remasking: expected low_confidence or random, found 'sideways'"]),
    (LLADA, {"block_order": "inwards"}, ValueError, ["block_order: expected left_to_right or right_to_left"]),
    (LLADA, {"threshold": 1.5}, ValueError, ["threshold: expected a number from 0 to 1, found 1.5"]),
    (LLAMA, {"top_k": -1}, ValueError, ["top_k", "found -1"]),
    (LLAMA, {"top_p": 1.5}, ValueError, ["top_p: expected a number from 0 to 1, found 1.5"]),
    (DREAM, {"algorithm": "margin"}, ValueError, ["algorithm: expected origin, maskgit_plus, topk_margin or entropy"]),
    (DREAM, {"eps": -0.1}, ValueError, ["eps: expected a number from 0 to 1, found -0.1"]),
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


def test_an_unknown_setting_is_a_type_error_and_a_call_error_of_generate(diffusion, autoregressive, question):
    with pytest.raises(SettingsError, match="it is called length"):
        sinkscope.generate(diffusion, question, max_new_tokens=8)
    with pytest.raises(TypeError, match="llama has no setting 'steps'"):
        sinkscope.generate(autoregressive, question, steps=8)
    with pytest.raises(ValueError, match="multiple of block"):
        sinkscope.generate(diffusion, question, length=10, block=4)


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
    assert step_count(settings) == steps


def test_whole_numbers_pass_for_fractions():
    assert resolve_settings(LLADA, temperature=1, guidance=2) == LLaDASettings(temperature=1, guidance=2)
    assert step_count(resolve_settings(LLAMA, length=9)) == 9


def test_the_advice_of_an_error_is_right():
    """What the messages propose is accepted."""
    for length in range(1, 60):
        for block in range(1, length + 1):
            advised = _advice(length=length, steps=length, block=block)
            assert (
                LLaDASettings(length=length, steps=length, block=advised.get("block", block)).length
                % advised.get("block", block)
                == 0
            )
    for steps in range(1, 41):
        advised = _advice(length=40, steps=steps, block=8)
        LLaDASettings(length=40, steps=advised.get("steps", steps), block=8)


def _advice(**settings):
    try:
        LLaDASettings(**settings)
    except CallError as error:
        name, value = re.search(r"try --(\w+) (\d+)", str(error)).groups()
        return {name: int(value)}
    return {}


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LLaDASettings().length = 3
