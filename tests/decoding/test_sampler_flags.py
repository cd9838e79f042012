"""The flags of `sinkscope trace` are the settings of the samplers, and a setting that a family lacks is refused by
name.
"""

import dataclasses

import pytest
from seeded_models import seeded_model

import sinkscope
from sinkscope import cli
from sinkscope.decoding import DreamSettings, SettingsError, described, resolve_settings
from sinkscope.decoding.samplers import all_settings

DREAM, MMADA = seeded_model("dream").family, seeded_model("mmada").family


def test_help_shows_every_setting_of_every_sampler(capsys):
    with pytest.raises(SystemExit) as ended:
        cli._run(["trace", "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for kind in all_settings().values():
        for field in dataclasses.fields(kind):
            assert f"--{field.name.replace('_', '-')} " in shown, field.name
    assert "maskgit_plus" in shown


@pytest.mark.parametrize(
    "flag", [("--algorithm", "entropy"), ("--alg-temp", "0.2"), ("--top-p", "0.9"), ("--eps", "0.01")]
)
def test_a_flag_of_another_sampler_is_refused(tmp_path, flag):
    name = flag[0].removeprefix("--").replace("-", "_")
    with pytest.raises(SettingsError, match=f"llada has no setting '{name}'. Its settings are length, steps, block"):
        cli._run(["trace", "lab-diffusion", "--out", str(tmp_path / "run"), *flag])


@pytest.mark.parametrize(
    ("family", "given", "hint"),
    [
        (DREAM, {"alg": "entropy"}, "dream has no setting 'alg'; here it is called algorithm"),
        (DREAM, {"max_new_tokens": 8}, "here it is called length"),
        (
            DREAM,
            {"block_length": 8},
            r"dream has no setting 'block_length'\. Its settings are length, steps, temperature, top_p, top_k",
        ),
        (DREAM, {"guidance": 1.0}, "dream has no setting 'guidance'"),
        (DREAM, {"cfg_scale": 1.0}, r"'cfg_scale'\. Its settings"),
        (MMADA, {"gen_length": 8}, "mmada has no setting 'gen_length'; here it is called length"),
        (MMADA, {"cfg_scale": 1.0}, "here it is called guidance"),
        (MMADA, {"alg": "entropy"}, r"mmada has no setting 'alg'\. Its settings"),
    ],
)
def test_published_names_are_answered_with_ours(family, given, hint):
    with pytest.raises(SettingsError, match=hint):
        resolve_settings(family, **given)


def test_defaults_of_dream_are_those_of_the_published_function():
    assert resolve_settings(DREAM) == DreamSettings(20, 512, 0.0, 1.0, 0, "origin", 0.0, 1e-3, 0)


def test_length_alone_sets_the_steps_of_dream():
    assert resolve_settings(DREAM, length=40) == DreamSettings(length=40, steps=40)
    assert resolve_settings(DREAM, length=40, steps=10) == DreamSettings(length=40, steps=10)
    assert resolve_settings(DREAM, steps=10) == DreamSettings(steps=10)


def test_the_settings_are_in_the_manifest(tmp_path):
    with sinkscope.recording(seeded_model("dream"), out=tmp_path / "run"):
        sinkscope.generate(seeded_model("dream"), [3, 17], length=4, algorithm="entropy", top_p=0.9)
    sampler = sinkscope.open_trace(tmp_path / "run").manifest["sampler"]
    assert sampler == {"name": "dream", **described(DreamSettings(length=4, steps=4, algorithm="entropy", top_p=0.9))}
    assert sampler["top_p"] == 0.9 and "cache" not in sampler
    assert described(DreamSettings(cache="block"))["cache"] == "block"
