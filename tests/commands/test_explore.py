"""`sinkscope explore`: pages, folders, the server, and calls that are wrong."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import time
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
    assert {one["name"] for one in page.traces[0]["quantities"]} == {
        "columns",
        "masked",
        "prompt",
        "self",
        "values",
        "keys",
        "hidden",
    }


def test_several_traces_and_a_folder(run, trace, tmp_path):
    status, out, _ = run("explore", trace, trace, "--out", tmp_path / "both")
    assert (status, out.strip()) == (0, str(tmp_path / "both" / "index.html"))
    assert len(list((tmp_path / "both" / "data").glob("*/1-columns-*.bin"))) == 3 + 2


def test_all_columns_that_there_are_need_no_word(run, diffusion_folder, tmp_path):
    call = (
        "trace",
        diffusion_folder,
        "--prompt",
        "Q: 1\nA:",
        "--length",
        4,
        "--keep",
        "top",
        "--top",
        1000,
        "--out",
        tmp_path / "top",
    )
    assert run(*call)[0] == 0
    status, _, err = run("sinks", tmp_path / "top")
    assert status == 0 and "largest columns of each head" not in err


def test_the_largest_columns_alone_make_a_page_that_says_so(run, diffusion_folder, tmp_path):
    status, _, err = run(
        "trace", diffusion_folder, "--prompt", "Q: 1\nA:", "--length", 4, "--keep", "top", "--out", tmp_path / "top"
    )
    assert status == 0, err
    status, _, err = run("explore", tmp_path / "top", "--out", tmp_path / "page.html")
    assert status == 0, err
    assert "largest columns of each head" in err
    assert "largest columns of each head" in ReadPage((tmp_path / "page.html").read_text()).document["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "at least one trace"),
        (["NOWHERE"], 1, "no trace at"),
        (["TRACE", "--serve", "--out", "page.html"], 2, "found both"),
        (["TRACE", "--excess", "9999"], 2, "can never hold"),
        (["FOREIGN"], 1, "expected JSON"),
        (["TRACE", "--roles", "NOWHERE"], 2, "no roles there"),
    ],
)
def test_wrong_calls_are_one_message(run, trace, tmp_path, monkeypatch, arguments, status, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "manifest.json").write_text("<html>")
    places = {
        "TRACE": trace,
        "NOWHERE": tmp_path / "nowhere",
        "FILE": tmp_path / "file",
        "FOREIGN": tmp_path / "foreign",
    }
    found, out, err = run("explore", *(places.get(one, one) for one in arguments))
    assert (found, out) == (status, ""), err
    assert message in err and "Traceback" not in err
    assert not list(tmp_path.glob("*.html"))


def test_a_damaged_trace_is_one_message(run, trace, tmp_path):
    import shutil

    shutil.copytree(trace, tmp_path / "cut")
    part = next((tmp_path / "cut").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:100])
    status, out, err = run("explore", tmp_path / "cut", "--out", tmp_path / "page.html")
    assert (status, out) == (1, "")
    assert len(err.strip().splitlines()) == 1 and str(part) in err


def test_a_browser_that_ends_first_gets_the_page(trace, tmp_path):
    """Python waits for a browser of a terminal, which waits for the page."""
    browser = tmp_path / "browser"
    fetch = f"import sys, urllib.request as u; open({str(tmp_path / 'page')!r}, 'wb').write(u.urlopen(sys.argv[1], timeout=60).read())"
    browser.write_text(f"#!{sys.executable}\n{fetch}\n")
    browser.chmod(0o755)
    command = [sys.executable, "-m", "sinkscope", "explore", str(trace), "--serve"]
    process = subprocess.Popen(
        command, env={**os.environ, "BROWSER": f"{browser} %s"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        ends = time.monotonic() + 90
        while not ((tmp_path / "page").exists() and (tmp_path / "page").read_bytes().endswith(b"</html>\n")):
            assert time.monotonic() < ends and process.poll() is None
            time.sleep(0.1)
    finally:
        process.terminate()
        process.communicate()


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


def test_serve_prints_its_address_and_answers(trace):
    command = [sys.executable, "-m", "sinkscope", "explore", str(trace), "--serve", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        connection = http.client.HTTPConnection(urlsplit(address).netloc)
        connection.request("GET", "/map?trace=0&step=2&layer=1&head=1")
        answer = connection.getresponse()
        assert answer.status == 200
        queries = int(answer.headers["X-Queries"])
        assert len(answer.read()) == 4 * queries * queries
    finally:
        process.terminate()
        process.communicate()
