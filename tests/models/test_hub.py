"""`load("owner/name")` against a hub on this machine (local_hub.py)."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from damage import WEIGHTS, configure, refusal, shard
from huggingface_hub import constants
from local_hub import COMMIT, serve
from processes import environment

import sinkscope
from sinkscope.errors import CallError
from sinkscope.models import identify

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


@pytest.mark.parametrize("status", [500, 503])
def test_a_hub_that_is_down_leaves_the_cache(hub, status):
    sinkscope.load(NAME)
    hub.down = status
    assert sinkscope.load(NAME).commit == COMMIT


def test_a_wrong_model_is_refused_before_its_weights_are_fetched(hub):
    configure(hub.folder, attention_chunk_size=7)
    assert "attention_chunk_size" in refusal(NAME)
    assert not hub.fetched


def test_a_family_is_known_without_the_weights(hub):
    assert identify(NAME)[0].name == "llada"
    assert not hub.fetched


def test_a_repository_without_safetensors(hub):
    (hub.folder / WEIGHTS).rename(hub.folder / "pytorch_model.bin")
    message = refusal(NAME)
    assert message.startswith(
        f"{NAME}: expected weights in {WEIGHTS}, found pytorch_model.bin in the repository; sinkscope reads safetensors"
    )
    assert not hub.fetched


# Connections that are cut


def test_a_cut_connection_goes_on_where_it_was(hub, diffusion, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)  # 10 MB; what is written at once
    hub.cut_after = [1000, 2000]
    assert sinkscope.load(NAME).card.weight_hash == diffusion.card.weight_hash
    assert hub.fetched == [(WEIGHTS, None), (WEIGHTS, "bytes=1000-"), (WEIGHTS, "bytes=3000-")]


# What a hub says


def test_check_says_what_it_verified(hub, tmp_path):
    """In a process of its own, with the variables that users set."""
    variables = environment(HF_ENDPOINT=hub.address, HF_HUB_OFFLINE="0", HF_HUB_CACHE=str(tmp_path / "other"))
    command = [sys.executable, "-m", "sinkscope", "check", NAME, "--json"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one["found"] for one in json.loads(done.stdout)["checks"]}
    assert found["files come from a hub"] == f"{NAME} at commit {COMMIT}"
    assert f"fetching {WEIGHTS}" in done.stderr


def test_a_connection_that_is_cut_for_good_keeps_finished_files(hub):
    shard(hub.folder)
    hub.cut_after = [None, *[0] * 20]
    assert f"{NAME}: no such folder here, and it cannot be fetched" in refusal(NAME)
    hub.cut_after = []
    hub.asked.clear()
    sinkscope.load(NAME)
    assert len(hub.fetched) == 1, "a finished file was fetched again"


def test_a_full_disk_is_known_before(hub, monkeypatch):
    disk = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=1000))
    monkeypatch.setattr("sinkscope.models.folders.shutil", disk)
    assert f"in {hub.cache}, found 0.0 MB" in refusal(NAME)
    assert not hub.fetched


def test_what_the_hub_refuses_is_said_in_the_words_of_its_library(hub):
    assert "Repository Not Found" in refusal("lab/nothing")
    hub.refuse = {".*resolve.*": (401, "GatedRepo")}
    assert "gated" in refusal(NAME).lower()
    hub.refuse = {}
    assert sinkscope.load(NAME, revision="v1").commit == COMMIT
    assert "v9" in refusal(NAME, revision="v9")
    assert "expected a hub id" in refusal("lab-diffusion", CallError, revision="v1")
