"""kill −9 at changes of the file system: the same command goes on to the same files, or finds them whole."""

import builtins
import io
import json
import os
import re
import shutil
import signal

import pytest
from hostile import trial

CHANGES = ("rename", "replace", "mkdir", "unlink", "rmdir", "link", "symlink")
SHORT = ("--length", "4", "--steps", "4", "--block", "4")
SETTINGS = ("--length", "8", "--steps", "8", "--block", "8")
WORDS = {
    "trace": ("trace", "{whole}/model", "--prompt", "Tom has 7 apples", *SETTINGS, "--overwrite"),
    "traces": ("trace", "{whole}/model", "--prompts", "{whole}/prompts.jsonl", *SETTINGS, "--overwrite"),
    "drift": ("trace", "{whole}/model", "--prompt", "Tom has 7 apples", *SETTINGS, "--keep", "drift", "--overwrite"),
    "statistics": ("trace", "{whole}/model", "--prompts", "{whole}/prompts.jsonl", *SETTINGS, "--keep", "statistics"),
    "bundle": ("bundle", "{whole}/trace"),
    "fold": ("fold", "{whole}/model"),
    "convert": ("convert", "{whole}/lit/lit.safetensors", "--tokenizer", "{whole}/lit", "--heads", "2"),
    "zarr": ("export", "{whole}/trace", "--to", "zarr"),
    "figures": ("figures", "{whole}/trace", "--only", "3"),
    "explore": ("explore", "{whole}/trace"),
    "evaluate": ("evaluate", "{whole}/model", "--limit", "1", "--shots", "0", *SETTINGS),
    "train": ("train", "lab-sink-token"),
    "roles": ("roles", "{whole}/model", "--problems", "10", "--canvases", "1", *SHORT),
    "caches": (
        *("compare-caches", "{whole}/model", "--policies", "none@threshold=0.9", "--limit", "1", "--shots", "0"),
        *SHORT,
    ),
    "watch-training": ("watch-training", "{whole}/textrun", "--data", "{whole}/corpus", "--canvases", "2"),
}
ASIDE = re.compile(r"lock|\.claim|\.writing")
CACHED = 3
"""Changes that a first command makes and a later one need not, such as a library's cache."""
MOMENTS = 3
"""How many changes of each command are tried, spread over all."""


def run(words, errors, at=0, count=None):
    """Run a command in a forked process, which is killed before its change number ``at``; return its exit status."""
    child = os.fork()
    if not child:
        changes = [0]

        def watched(function, changing=lambda *arguments: True):
            def call(*arguments, **named):
                if changing(*arguments):
                    changes[0] += 1
                    if count is not None:
                        os.write(count, b".")
                    if changes[0] == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **named)

            return call

        for name in CHANGES:
            setattr(os, name, watched(getattr(os, name)))
        os.open = watched(os.open, lambda path, flags, *rest: flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        builtins.open = io.open = watched(open, lambda file, mode="r", *rest: bool({*mode} & {*"wax+"}))
        nothing = os.open(os.devnull, os.O_WRONLY)
        trial.command(words, nothing, os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def found_in(folder):
    """Return the bytes of the written files by name, but none of those that hold times or drawings.

    Files that a killed process has left aside, under a name that no reader takes, do not count.
    """
    plain = {".safetensors", ".npz", ".parquet", ".csv", ".nc"}
    names = [path for path in folder.rglob("*") if path.is_file() and not ASIDE.search(str(path.relative_to(folder)))]
    return {str(path.relative_to(folder)): contents(path) if path.suffix in plain else b"" for path in names}


def contents(path):
    """Return the bytes of a file; those of safetensors with a header in order, which the library writes in any."""
    content = path.read_bytes()
    if path.suffix != ".safetensors":
        return content
    end = 8 + int.from_bytes(content[:8], "little")
    return json.dumps(json.loads(content[8:end]), sort_keys=True).encode() + content[end:]


SLOW = ("caches", "convert", "drift", "evaluate", "explore", "figures", "fold", "roles", "watch-training", "zarr")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in WORDS])
def test_the_same_command_goes_on_wherever_it_was_killed(kind, whole, tmp_path):
    words, errors = [word.format(whole=whole) for word in WORDS[kind]], tmp_path / "errors"

    def command(name):
        return [*words, "--out", str(tmp_path / name / "made")]

    count = os.memfd_create("count")
    assert run(command("whole"), errors, count=count) == 0, errors.read_text()
    expected, changes = found_in(tmp_path / "whole"), os.fstat(count).st_size
    os.close(count)
    assert expected and changes > 1
    moments = sorted({1 + place * (changes - 1) // (MOMENTS - 1) for place in range(MOMENTS)})
    for at in moments:
        killed = run(command(str(at)), errors, at)
        assert killed == -signal.SIGKILL or at > changes - CACHED, killed
        before = found_in(tmp_path / str(at)) if (tmp_path / str(at)).exists() else {}
        status = run(command(str(at)), errors)
        told = f"{kind}, killed at change {at} of {changes}, which left {sorted(before)}: {errors.read_text()}"
        assert status == 0 or (status == 2 and before == expected), told
        assert found_in(tmp_path / str(at)) == expected, told
        shutil.rmtree(tmp_path / str(at))
