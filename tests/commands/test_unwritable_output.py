"""Output that cannot be written: one message with the place and the reason, status 1 or 2, nothing left behind."""

import os
import sys

import pytest

PROMPT = "Q: Tom has 7 apples.\nA:"
FULL = "/dev/full"
WRITING = {
    "demo": ["demo", "--out"],
    "trace": ["trace", "{model}", "--prompt", PROMPT, "--length", "4", "--out"],
    "statistics": ["trace", "{model}", "--prompt", PROMPT, "--length", "4", "--keep", "statistics", "--out"],
    "figures": ["figures", "{trace}", "--only", "3", "--out"],
    "map": ["map", "{trace}", "--step", "1", "--layer", "1", "--head", "2", "--model", "{model}", "--out"],
    **{to: ["export", "{trace}", "--to", to, "--out"] for to in ("numpy", "parquet", "zarr", "xarray")},
    "evaluate": ["evaluate", "{model}", "--limit", "1", "--shots", "0", "--length", "8", "--out"],
    "train": ["train", "lab-diffusion", "--updates", "1", "--out"],
}
PRINTING = {
    "problems": ["problems"],
    "sinks": ["sinks", "{trace}", "--excess", "0.1", "--json"],
    "tracks": ["tracks", "{trace}"],
    "analyse": ["analyse", "{trace}", "--no-sweep", "--no-choice", "--json"],
    "map": ["map", "{trace}", "--step", "1", "--layer", "1", "--head", "2", "--model", "{model}", "--json"],
    "check": ["check", "{model}", "--json"],
    "help": ["sinks", "--help"],
    "overview": [],
}


@pytest.fixture(scope="module")
def places(tmp_path_factory, diffusion, diffusion_folder):
    import sinkscope

    folder = tmp_path_factory.mktemp("traces") / "one"
    with sinkscope.recording(diffusion, out=folder):
        sinkscope.generate(diffusion, PROMPT, length=6, block=3, steps=6)
    return {"model": str(diffusion_folder), "trace": str(folder)}


def fill(arguments, places):
    return [one.format(**places) for one in arguments]


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def refused(outcome, place, *reasons):
    status, out, err = outcome
    lines = [line for line in err.splitlines() if "error:" in line]
    assert status in (1, 2), err
    assert len(lines) == 1 and out == "", err
    assert place in lines[0] and any(reason in lines[0] for reason in reasons), err
    assert "Traceback" not in err and "unexpected" not in err and "None" not in lines[0]


@pytest.mark.parametrize("name", WRITING)
def test_a_file_on_the_way_stays_as_it_is(run, places, name, tmp_path):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / f"x{'.csv' if name == 'map' else ''}"
    refused(
        run(*fill(WRITING[name], places), out),
        str(tmp_path / "file"),
        "Not a directory",
        "File exists",
        "found a file on the way",
    )
    assert everything(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not os.path.exists(FULL), reason=f"this system has no {FULL}")
@pytest.mark.parametrize("name", PRINTING)
def test_standard_output_is_full(run, places, name, monkeypatch):
    with open(FULL, "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        refused(run(*fill(PRINTING[name], places)), "standard output", "No space left on device")


@pytest.mark.parametrize("name", PRINTING)
def test_nobody_reads_standard_output_any_more(run, places, name, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        status, _, err = run(*fill(PRINTING[name], places))
    assert (status, "error" in err, "Traceback" in err) == (1, False, False), err
