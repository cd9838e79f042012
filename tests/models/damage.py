"""Ways to damage a model folder, and the error of loading it."""

import json

import pytest
from safetensors.torch import load_file, save_file

import sinkscope
from sinkscope.errors import ModelError

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def configure(folder, **changes):
    """Sets keys of config.json; None removes one."""
    config = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def reweigh(folder, change):
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def shard(folder):
    """Splits the weights in two files and an index, the second file first in the alphabet."""
    weights = load_file(folder / WEIGHTS)
    names = sorted(weights)
    (folder / WEIGHTS).unlink()
    files = {"model-00002.safetensors": names[:5], "model-00001.safetensors": names[5:]}
    for file, mine in files.items():
        save_file({name: weights[name] for name in mine}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, mine in files.items() for name in mine}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def refusal(name, kind=ModelError, **options):
    with pytest.raises(kind) as caught:
        sinkscope.load(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
