"""`sinkscope completion`: the script is loaded by a real bash, and asked for completions."""

import os
import shutil
import subprocess
import sys

import pytest

from sinkscope.commands import COMMANDS

BASH = shutil.which("bash")


@pytest.fixture
def complete(run, tmp_path):
    """Return a function from the words of a line, the last one half typed, to the completions of bash."""
    script, python = tmp_path / "sinkscope.bash", tmp_path / "bin" / "python3"
    script.write_text(run("completion", "bash")[1])
    (tmp_path / "run.trace").mkdir()
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    def offered(*words):
        line = " ".join(f"'{word}'" for word in ("sinkscope", *words))
        program = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _sinkscope"
        program += '; printf "%s\\n" "${COMPREPLY[@]}"'
        environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
        how = {"capture_output": True, "text": True, "check": True, "cwd": tmp_path, "env": environment}
        done = subprocess.run([BASH, "-c", program], **how)
        assert not done.stderr
        return {*filter(None, done.stdout.splitlines())}

    return offered


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_commands_options_choices_and_files(complete):
    assert set(COMMANDS) <= complete("")
    assert complete("tr") == {"trace", "tracks", "train"}
    assert complete("trace", "lab-diffusion", "--keep") >= {"--keep", "--keep-maps"}
    assert complete("evaluate", "--gpu", "h") == {"h100", "h200"}
    assert complete("sinks", "run") == {"run.trace"}
