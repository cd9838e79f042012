"""`sinkscope completion`: the script is loaded by a real bash, and asked what it would complete."""

import os
import shutil
import stat
import subprocess
import sys

import pytest

from sinkscope.commands import COMMANDS

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "sinkscope.bash"
    done = subprocess.run(
        [sys.executable, "-m", "sinkscope", "completion", "bash"], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    path.write_text(done.stdout)
    return path


@pytest.fixture(scope="module")
def complete(script, tmp_path_factory):
    """What bash offers for a line whose last word is being typed."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "run.trace").mkdir()
    (folder / "bin").mkdir()
    python = folder / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)

    def offered(*words):
        line = " ".join(f"'{word}'" for word in ("sinkscope", *words))
        program = f'source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _sinkscope; printf "%s\\n" "${{COMPREPLY[@]}}"'
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            [BASH, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            env={**os.environ, "PATH": path},
        )
        assert not done.stderr
        return {line for line in done.stdout.splitlines() if line}

    return offered


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_commands_options_choices_and_files(complete):
    assert set(COMMANDS) <= complete("")
    assert complete("tr") == {"trace", "tracks", "train"}
    assert complete("trace", "lab-diffusion", "--keep") >= {"--keep", "--keep-maps"}
    assert complete("trace", "lab-diffusion", "--keep", "st") == {"statistics"}
    assert complete("evaluate", "--gpu", "h") == {"h100", "h200"}
    assert complete("sinks", "run") == {"run.trace"}
    assert complete("sinks", "nothing") == set()
