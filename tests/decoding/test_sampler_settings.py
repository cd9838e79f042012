from itertools import pairwise

import pytest
from seeded_models import seeded_model

from sinkscope.decoding import AutoregressiveSettings, LLaDASettings, SettingsError, generate, resolve_settings
from sinkscope.errors import CallError
from sinkscope.models import FAMILIES

LLADA, LLAMA, DREAM = FAMILIES["llada"], FAMILIES["llama"], FAMILIES["dream"]
MMADA, SDAR = (seeded_model(name).family for name in ("mmada", "sdar"))

REFUSED = [
    (LLADA, {"max_new_tokens": 8}, TypeError, "llada has no setting 'max_new_tokens'; here it is called length"),
    (LLAMA, {"steps": 8}, TypeError, "llama has no setting 'steps'. Its settings are length, temperature, top_p"),
    (DREAM, {"alg": "entropy"}, SettingsError, "dream has no setting 'alg'; here it is called algorithm"),
    (DREAM, {"block_length": 8}, SettingsError, "dream has no setting 'block_length'. Its settings are length, steps"),
    (MMADA, {"cfg_scale": 1.0}, SettingsError, "here it is called guidance"),
    (SDAR, {"denoising_steps": 4}, SettingsError, "here it is called block_steps"),
    (LLADA, {"length": 30, "block": 8}, ValueError, "length must be a multiple of block"),
    (LLADA, {"length": 30, "block": 8}, ValueError, "try --block 6"),
    (LLADA, {"length": 32, "block": 8, "steps": 10}, ValueError, "do not share out among 4 blocks; try --steps 8"),
    (LLADA, {"length": 32, "block": 8, "steps": 64}, ValueError, "steps must not exceed length"),
    (LLADA, {"length": 8, "steps": -2}, ValueError, "steps: expected at least 1, found -2"),
    (LLADA, {"temperature": float("nan")}, ValueError, "temperature: expected a number from 0"),
    (LLADA, {"remasking": "sideways"}, ValueError, "remasking: expected low_confidence or random, found 'sideways'"),
    (LLADA, {"threshold": 0.9, "factor": 0.5}, ValueError, "expected one of threshold and factor"),
    (LLAMA, {"top_p": 1.5}, ValueError, "top_p: expected a number from 0 to 1, found 1.5"),
    (SDAR, {"block_steps": 5}, ValueError, "block_steps must not exceed block, found 5"),
    (SDAR, {"remasking": "entropy_bounded"}, ValueError, "remasking: expected dynamic, static or sequential"),
]


@pytest.mark.parametrize(
    ("family", "given", "kind", "message"), REFUSED, ids=lambda one: getattr(one, "name", None) or str(one)
)
def test_settings_that_do_not_fit_are_refused_by_name(family, given, kind, message):
    with pytest.raises(kind) as caught:
        resolve_settings(family, **given)
    assert isinstance(caught.value, CallError) and message in str(caught.value)


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
        ({"steps": 64}, 128, 64, 128),
    ],
)
def test_length_alone_sets_steps_and_block(given, length, steps, block):
    settings = resolve_settings(LLADA, **given)
    assert (settings.length, settings.steps, settings.block) == (length, steps, block)
    assert settings.most_calls == steps


@pytest.mark.parametrize(("eps", "expected"), [(1e-3, [0, 1, 1, 1, 1, 1, 1, 2]), (-1e-4, [1] * 8)])
def test_dream_commits_the_last_two_tokens_together_unless_eps_lies_below_zero(eps, expected):
    model, left = seeded_model("dream"), [8]
    generate(
        model,
        [5, 9, 11],
        length=8,
        steps=8,
        algorithm="maskgit_plus",
        eps=eps,
        on_step=lambda step: left.append(int((step.tokens == model.card.mask_id).sum())),
    )
    assert [before - after for before, after in pairwise(left)] == expected
