"""`sinkscope explore`: pages, folders, the server, and calls that are wrong."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from explorer_reader import ReadPage

import sinkscope


@pytest.fixture(scope="module")
def trace(diffusion, tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore") / "run.trace"
    with sinkscope.recording(diffusion, out=folder):
        sinkscope.generate(diffusion, "Q: Tom has 7 apples.\nA:", length=8, steps=8, block=8)
    return folder


def test_one_page_is_written_and_its_name_printed(run, trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("explore", trace) == (0, "explorer.html\n", "")
    page = ReadPage((tmp_path / "explorer.html").read_text())
    assert page.traces[0]["steps"] == 8


def test_a_lens_of_the_same_weights_is_on_the_page(run, diffusion, trace, tmp_path):
    document, lens = sinkscope.lens(diffusion, trace).as_dict(), tmp_path / "lens.json"
    lens.write_text(json.dumps(document))
    assert run("explore", trace, "--lens", lens, "--out", tmp_path / "page.html")[0] == 0
    shown = ReadPage((tmp_path / "page.html").read_text()).document["lens"]
    assert shown["headline"] == document["headline"] and len(shown["groups"]) == len(document["groups"])
    lens.write_text(json.dumps(document | {"weight_hash": "another"}))
    status, _, said = run("explore", trace, "--lens", lens, "--out", tmp_path / "other.html")
    assert status == 2 and "lens of the weights" in said


def test_several_traces_and_a_folder(run, trace, tmp_path):
    status, out, _ = run("explore", trace, trace, "--out", tmp_path / "both")
    assert (status, out.strip()) == (0, str(tmp_path / "both" / "index.html"))
    assert len(list((tmp_path / "both" / "data").glob("1-columns-*.bin"))) == 3 + 2


ENDLESS = """
import signal
import sys
import torch
from sinkscope import cli
from sinkscope.commands import explore

def compute(*place):
    print("computing", flush=True)
    while True:
        torch.linalg.svd(torch.rand(100, 100))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start this with interrupts ignored
explore.map_reader = lambda *_: compute
sys.argv[0] = "sinkscope"
cli.main()
"""


def test_an_interrupt_while_a_map_is_computed_ends_it_at_once_and_without_a_word(trace):
    """Python's own end aborts where another thread comes out of torch."""
    command = [sys.executable, "-c", ENDLESS, "explore", str(trace), "--serve", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        with contextlib.closing(http.client.HTTPConnection(urlsplit(address).netloc)) as connection:
            connection.request("GET", "/map?trace=0&step=2&layer=1&head=1")
            assert process.stdout.readline() == "computing\n"
            process.send_signal(signal.SIGINT)
            said, noted = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, said, noted) == (0, "", "Ctrl+C ends it\n")
