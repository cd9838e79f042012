"""`load("owner/name")` against a hub on this machine (local_hub.py)."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from damage import WEIGHTS, configure, refusal, shard
from filelock import FileLock
from huggingface_hub import constants
from local_hub import COMMIT, serve
from processes import environment

import sinkscope
from sinkscope.errors import CallError
from sinkscope.models import hub as hub_files
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


def incomplete(hub):
    return sorted(path.name for path in hub.cache.rglob("*.incomplete"))


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
    configure(hub.folder, alien=7)
    assert "alien" in refusal(NAME)
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


def test_a_full_disk_is_known_before(hub, monkeypatch):
    monkeypatch.setattr(hub_files, "shutil", SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=1000)))
    assert f"in {hub.cache}, found 0.0 MB; make room or set HF_HUB_CACHE" in refusal(NAME)
    assert not hub.fetched


# Connections that are cut


def test_a_cut_connection_goes_on_where_it_was(hub, diffusion, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)  # 10 MB; what is written at once
    hub.cut_after = [1000, 2000]
    assert sinkscope.load(NAME).card.weight_hash == diffusion.card.weight_hash
    assert hub.fetched == [(WEIGHTS, None), (WEIGHTS, "bytes=1000-"), (WEIGHTS, "bytes=3000-")]


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_is_cut_for_good_leaves_nothing_half(hub, reset):
    shard(hub.folder)
    hub.cut_after, hub.reset = [None, *[0] * 20], reset
    message = refusal(NAME)
    assert (
        message.startswith(f"{NAME}: the connection to {hub.address} failed (")
        and "run the same again, finished files are kept" in message
    )
    assert not incomplete(hub)
    hub.cut_after = []
    hub.asked.clear()
    sinkscope.load(NAME)
    assert len(hub.fetched) == 1, "a finished file was fetched again"


def test_what_a_killed_process_left_is_removed(hub):
    identify(NAME)
    blobs, etag = hub.cache / "models--lab--model" / "blobs", "f" * 64
    locks = hub.cache / ".locks" / "models--lab--model"
    for name in (etag, "e" * 64):
        (blobs / f"{name}.0a1b2c3d.incomplete").write_bytes(b"half")
        (locks / f"{name}.lock").touch()
    with FileLock(locks / f"{etag}.lock"):
        sinkscope.load(NAME)
    assert incomplete(hub) == [f"{etag}.0a1b2c3d.incomplete"], "of a process that still runs, or of none"


# What a hub says


def test_a_repository_that_is_missing(hub):
    message = refusal("lab/nothing")
    assert message == (
        f"lab/nothing: no such folder here, and no such repository on {hub.address}, or a private one; correct the name, or `hf auth login`"
    )
    hub.refuse = {".*": (404, "RepoNotFound")}
    assert refusal("lab/nothing") == message


def test_a_gated_repository(hub):
    hub.refuse = {".*resolve.*": (401, "GatedRepo")}
    assert f"accept its terms at {hub.address}/{NAME}, then `hf auth login`" in refusal(NAME)


def test_a_token_that_is_refused(hub):
    hub.refuse = {"/cdn/.*": (401, None)}
    assert f"{hub.address} refuses the token of this machine (401); `hf auth login`, or unset HF_TOKEN" in refusal(NAME)


def test_revisions(hub):
    assert sinkscope.load(NAME, revision="v1").commit == COMMIT
    assert f"found no 'v9'; see {hub.address}/{NAME}/tree/main" in refusal(NAME, revision="v9")
    for name in ("lab-diffusion", hub.folder):
        assert "has no revisions; leave it out" in refusal(name, CallError, revision="v1")


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_hub_that_is_down(hub, status):
    hub.down = status
    message = refusal(NAME)
    assert f"the cache does not hold it, and {hub.address} could not be reached (status {status})" in message
    assert "run the same again" in message


def test_weights_that_a_hub_does_not_give(hub):
    hub.refuse = {"/cdn/.*": (500, None)}
    assert f"{NAME}: {hub.address} could not give it (status 500); run the same again" in refusal(NAME)


def test_a_hub_that_is_not_there(hub, monkeypatch):
    for where in (constants, huggingface_hub.hf_api.api):
        monkeypatch.setattr(where, "ENDPOINT" if where is constants else "endpoint", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 could not be reached" in refusal(NAME)


@pytest.mark.parametrize("answer", [b"[]", b"{}", b'"x"', b'{"sha": null}'])
def test_an_answer_that_is_no_hubs(answer, hub, monkeypatch):
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
        assert f"expected the answer of a model hub from {address}, found another; correct HF_ENDPOINT" in refusal(NAME)
        server.shutdown()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HF_TOKEN", "é", "the environment variable HF_TOKEN: expected letters of ASCII, found others; correct it"),
        (
            "HF_HUB_USER_AGENT_ORIGIN",
            "é",
            "the environment variable HF_HUB_USER_AGENT_ORIGIN: expected letters of ASCII",
        ),
        (
            "SSL_CERT_FILE",
            "/no/such",
            "the environment variable SSL_CERT_FILE: expected a file of certificates, found none at /no/such",
        ),
        pytest.param(
            "ALL_PROXY",
            "socks5://127.0.0.1:9",
            "the proxy of this machine needs a package that is not installed",
            marks=pytest.mark.skipif(
                find_spec("socksio") is not None, reason="the package for such a proxy is installed"
            ),
        ),
    ],
)
def test_surroundings_at_which_the_library_would_fail(variable, value, message, hub, monkeypatch):
    huggingface_hub.close_session()  # the next one is made in these
    monkeypatch.setenv(variable, value)
    assert message in refusal(NAME)
    huggingface_hub.close_session()


@pytest.mark.parametrize("address", ["http://[::1", "https://", "ftp://a"])
def test_an_address_that_none_can_have(address, hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", address)
    assert "HF_ENDPOINT: expected the address of a model hub, which begins with https://, found" in refusal(NAME)


@pytest.mark.parametrize(
    ("write", "found"),
    [
        (lambda path: path.write_bytes(b"\xff"), "expected a token in letters of ASCII"),
        (lambda path: path.symlink_to("/dev/zero"), "a regular file"),
    ],
)
def test_a_token_that_none_can_be(write, found, hub, tmp_path, monkeypatch):
    write(tmp_path / "token")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert found in refusal(NAME)


def test_a_hub_that_takes_the_call_and_says_nothing(hub, monkeypatch):
    """The library itself would wait for ever, also for a model that its cache holds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sinkscope.load(NAME)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
        assert sinkscope.load(NAME).commit == COMMIT
        assert f"the cache does not hold it, and {address} could not be reached (timed out)" in refusal("lab/other")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"\xff\xfe\0"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text(f"../../{COMMIT}"),
        lambda path: path.write_text(COMMIT + "\n"),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["bytes", "empty", "outside", "a line", "fifo", "zero", "folder"],
)
@pytest.mark.parametrize("offline", [True, False])
def test_a_cache_whose_commit_was_damaged(damage, offline, hub, monkeypatch):
    sinkscope.load(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    folder = hub.cache / "models--lab--model"
    damage(folder / "refs/main")
    found = refusal(NAME)
    assert (
        f"{folder}/refs/main: expected a commit, 40 hexadecimal digits, found " in found
        and f"; delete {folder}" in found
    )


def test_weights_that_are_not_in_the_cache(hub, monkeypatch):
    identify(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set; unset HF_HUB_OFFLINE, or fetch it on another machine" in refusal(NAME)


def test_a_server_that_is_no_hub(hub, monkeypatch):
    monkeypatch.setattr("local_hub._Answers.info", lambda self: None)
    monkeypatch.setattr("local_hub.json.dumps", lambda value: "<html>")
    assert f"expected the answer of a model hub from {hub.address}, found another; correct HF_ENDPOINT" in refusal(NAME)


def test_check_says_what_it_verified(hub, tmp_path):
    """In a process of its own, with the variables that users set."""
    variables = environment(HF_ENDPOINT=hub.address, HF_HUB_OFFLINE="0", HF_HUB_CACHE=str(tmp_path / "other"))
    command = [sys.executable, "-m", "sinkscope", "check", NAME, "--json"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one["found"] for one in json.loads(done.stdout)["checks"]}
    assert found["files come from a hub"] == f"{NAME} at commit {COMMIT}"
    assert f"fetching {WEIGHTS}" in done.stderr
