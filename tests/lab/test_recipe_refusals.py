import dataclasses
import stat

import pytest

from sinkscope.errors import CallError
from sinkscope.lab.checkpoint import train_checkpoint
from sinkscope.lab.recipes import RECIPES, Architecture


@pytest.mark.parametrize("updates", [0, -5])
def test_a_run_without_updates_is_refused(updates):
    with pytest.raises(CallError, match=f"updates: expected at least 1, found {updates}"):
        dataclasses.replace(RECIPES["lab-diffusion"], updates=updates)


def test_weights_are_as_readable_as_what_lies_beside_them(tmp_path):
    tiny = Architecture(layers=1, hidden_size=24, heads=3, kv_heads=3, intermediate_size=16, max_positions=1024)
    recipe = dataclasses.replace(RECIPES["lab-autoregressive"], architecture=tiny, updates=1, autocast=False)
    out = train_checkpoint(recipe, tmp_path / "out")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
    assert modes["model.safetensors"] == modes["recipe.json"]


@pytest.mark.parametrize(
    ("name", "sink", "instead", "message"),
    [
        ("lab-autoregressive", "token-end", "token", "expected a bidirectional network"),
        ("lab-diffusion-learned-positions", "token", "logit", "'token': expected rotated positions, found learned ones"),
    ],
)
def test_a_variant_that_does_not_fit_leaves_the_folder_free(tmp_path, name, sink, instead, message):
    tiny = dataclasses.replace(RECIPES[name].architecture, layers=1, hidden_size=24, heads=3, kv_heads=3, intermediate_size=16)
    recipe = dataclasses.replace(RECIPES[name], architecture=tiny, updates=1, autocast=False, sink_token=sink)
    with pytest.raises(CallError, match=message):
        train_checkpoint(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    train_checkpoint(dataclasses.replace(recipe, sink_token=instead), tmp_path / "out")
