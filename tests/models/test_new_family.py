"""A family is one file, a sampler of its own a second one: the files of docs/adding.md in a copy of the package, on the command line."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from adding_page import files_of_the_page
from safetensors.torch import save_file
from tiny import LLAMA_CONFIG, TINY, weights
from tiny_tokenizers import save_llada_tokenizer

import sinkscope
from sinkscope.models.families import find_families

CONFIG = {key: value for key, value in LLAMA_CONFIG.items() if key not in ("hidden_size", "rope_scaling")} | {
    "model_type": "novel",
    "architectures": ["NovelModel"],
    "width": 64,
    "dropout": 0.1,
    "mask_token_id": 60,
    "eos_token_id": 57,
}


def renamed(text):
    """Return text of the page with other names, so that somebody who has followed the page has no file of that name."""
    for name, other in (("tiny", "novel"), ("Tiny", "Novel"), ("leftmost", "leftward"), ("Leftmost", "Leftward")):
        text = text.replace(name, other)
    return text


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package with the files of the page in it."""
    home = tmp_path_factory.mktemp("copy")
    source = Path(sinkscope.__file__).parent
    shutil.copytree(source, home / "src" / "sinkscope", ignore=shutil.ignore_patterns("checkpoints", "__pycache__"))
    (home / "src" / "sinkscope" / "checkpoints").symlink_to(source / "checkpoints")
    for path in ("src/sinkscope/models/families/tiny_family.py", "src/sinkscope/decoding/leftmost.py"):
        copy = home / renamed(path)
        assert not copy.exists()
        copy.write_text(renamed(files_of_the_page()[path]))
    return home / "src"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of the new family with random weights under the family's names."""
    folder = tmp_path_factory.mktemp("tiny")
    names = {"model.embed_tokens.weight": "tokens.weight"}
    stored = {
        re.sub(r"model\.layers\.(\d+)\.self_attn\.q_proj", r"blocks.\1.query", name): one
        for name, one in weights(TINY["llama"]).items()
    }
    save_file(
        {names.get(name, name): one for name, one in stored.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return save_llada_tokenizer(folder)


def command(package, *arguments):
    environment = os.environ | {"PYTHONPATH": str(package)}
    called = [sys.executable, "-m", "sinkscope", *map(str, arguments)]
    return subprocess.run(called, capture_output=True, text=True, env=environment, cwd=package.parent)


@pytest.mark.slow
def test_a_checkpoint_of_a_new_family_passes_every_check(package, folder):
    found = command(package, "check", folder, "--json")
    assert (found.returncode, found.stderr) == (0, "")
    document = json.loads(found.stdout)
    assert document["model"]["family"] == "novel"
    assert all(check["passed"] for check in document["checks"])
    (stored,) = (
        check for check in document["checks"] if check["name"] == "every stored tensor is used, none is missing"
    )
    assert stored["found"] == "21 stored in 1 files, 21 parameters, 3 under another name"


def test_a_new_sampler_writes_and_its_settings_are_flags(package, folder, tmp_path):
    prompt = ("--prompt", "w3 w17 w5", "--length", "7", "--tokens-at-once", "3")
    found = command(package, "trace", folder, *prompt, "--out", tmp_path / "run", "--json")
    assert found.returncode == 0, found.stderr
    trace = sinkscope.open_trace(tmp_path / "run")
    assert trace.manifest["sampler"] == {"name": "leftward", "length": 7, "tokens_at_once": 3}
    assert [(step >= 0).nonzero()[0].tolist() for step in trace.written[:]] == [[3, 4, 5], [6, 7, 8], [9]]


def test_two_families_of_one_name_are_refused(tmp_path, monkeypatch):
    import sinkscope.models.families as families

    (tmp_path / "again_family.py").write_text("from sinkscope.models.families.llada_family import FAMILY\n")
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    with pytest.raises(ValueError, match=r"again_family\.py: expected a family of a new name, found another 'llada'"):
        find_families(families.__path__)
    sys.modules.pop("sinkscope.models.families.again_family", None)
