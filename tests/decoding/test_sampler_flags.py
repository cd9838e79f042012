"""The flags of `sinkscope trace` are the settings of the samplers, and a setting that a family lacks is refused by
name.
"""

import pytest
from seeded_models import seeded_model

from sinkscope import cli
from sinkscope.decoding import SettingsError, resolve_settings

DREAM, MMADA = seeded_model("dream").family, seeded_model("mmada").family


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
