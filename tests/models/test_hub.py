"""`load("owner/name")` against a hub on this machine (local_hub.py)."""

import time

import huggingface_hub
import pytest
import torch
from damage import WEIGHTS, refusal, shard
from huggingface_hub import constants
from local_hub import COMMIT, serve

import sinkscope
from sinkscope.errors import CallError

NAME = "lab/model"


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A hub that serves the folder of a small model, an empty cache, and no waiting between tries."""
    with serve(folder) as (hub, address):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        hub.address, hub.cache = address, tmp_path / "cache"
        yield hub
    huggingface_hub.close_session()


def test_a_repository_loads_and_says_its_size_first(hub, diffusion, capfd):
    model = sinkscope.load(NAME)
    for (name, mine), (_, theirs) in zip(
        model.network.named_parameters(), diffusion.network.named_parameters(), strict=True
    ):
        assert torch.equal(mine, theirs), name
    assert (model.card.name, model.commit) == (NAME, COMMIT)
    assert model.card.weight_hash == diffusion.card.weight_hash
    out, err = capfd.readouterr()
    size = (hub.folder / WEIGHTS).stat().st_size
    assert f"{NAME} at 12345678: fetching {WEIGHTS}, {size / 1e6:.1f} MB, into {hub.cache}\n" in err and not out
    assert [name for name, _ in hub.fetched] == [WEIGHTS]


def test_shards_are_counted_and_other_weights_left(hub, capfd):
    shard(hub.folder)
    (hub.folder / "original").mkdir()
    (hub.folder / "original" / "consolidated.safetensors").write_bytes(b"0" * 100)
    (hub.folder / "original" / "params.json").write_text("{}")
    (hub.folder / "extra.safetensors").write_bytes(b"0" * 100)
    sinkscope.load(NAME)
    assert "fetching 2 of 2 files" in capfd.readouterr().err
    assert sorted(name for name, _ in hub.fetched) == ["model-00001.safetensors", "model-00002.safetensors"]
    assert not any("original" in path for _, path, _ in hub.asked)


def test_a_second_load_fetches_nothing_and_works_offline(hub, monkeypatch, capfd):
    sinkscope.load(NAME)
    hub.asked.clear()
    sinkscope.load(NAME)
    assert not hub.fetched
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    capfd.readouterr()
    assert sinkscope.load(NAME).commit == COMMIT
    assert not hub.asked and not capfd.readouterr().err


def test_a_repository_without_safetensors(hub):
    (hub.folder / WEIGHTS).rename(hub.folder / "pytorch_model.bin")
    message = refusal(NAME)
    assert message.startswith(
        f"{NAME}: expected weights in {WEIGHTS}, found none in the repository; sinkscope reads safetensors"
    )
    assert not hub.fetched


def test_what_the_hub_refuses_is_said_in_the_words_of_its_library(hub):
    assert "Repository Not Found" in refusal("lab/nothing")
    assert sinkscope.load(NAME, revision="v1").commit == COMMIT
    assert "v9" in refusal(NAME, revision="v9")
    assert "expected a hub id" in refusal("lab-diffusion", CallError, revision="v1")


def test_the_readmes_second_example_runs_on_a_repository_in_dllms_layout(hub, tmp_path, monkeypatch, run):
    monkeypatch.syspath_prepend("tests/decoding")
    from test_a2d import published_folder

    hub.folder = published_folder(tmp_path / "published", "qwen3")
    template = "{% for one in messages %}w7 {{ one.content }} w9{% endfor %}"
    (hub.folder / "chat_template.jinja").write_text(template)
    asked = ("--chat", "--prompt", "w3 w4", "--length", "8", "--steps", "4", "--out", tmp_path / "t")
    status, _, err = run("trace", NAME, *asked)
    assert status == 0, err
    trace = sinkscope.open_trace(tmp_path / "t")
    assert trace.manifest["model"]["name"] == NAME and trace.manifest["model"]["family"] == "a2d"
    assert list(trace.tokens[0][:4]) == [7, 3, 4, 9] and trace.steps == 4
