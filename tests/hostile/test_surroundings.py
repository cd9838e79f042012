"""Locales, and files in the current folder that have the names of libraries or data sets."""

import os
import subprocess
import sys

import pytest


def run(*words, environment=None, shell="", cwd=None):
    """Run ``sinkscope`` as a shell does; ``shell`` is put behind the command."""
    command = f"exec {sys.executable} -m sinkscope " + " ".join(f"'{word}'" for word in words) + f" {shell}"
    done = subprocess.run(
        ["sh", "-c", command], env={**os.environ, **(environment or {})}, capture_output=True, cwd=cwd
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_output_is_utf8_whatever_the_locale(whole, locale):
    status, out, err = run("table", str(whole / "results"), environment=locale)
    assert (status, err) == (0, "")
    assert not out.isascii()


def test_a_folder_named_as_a_data_set_of_the_hub_is_not_taken_for_it(whole, tmp_path):
    (tmp_path / "openai" / "gsm8k").mkdir(parents=True)
    words = ["evaluate", str(whole / "model"), "--tasks", "gsm8k", "--limit", "1", "--out", str(tmp_path / "e")]
    status, _, err = run(*words, cwd=tmp_path)
    told = f"openai/gsm8k comes from the hub, but {tmp_path}/openai/gsm8k stands here, which datasets would read instead; move it, or pass a"
    assert status == 2 and told in err and not (tmp_path / "e").exists(), err


@pytest.mark.parametrize("name", ["json", "numpy", "pydantic", "tyro"])
def test_files_in_the_current_folder_named_as_libraries(whole, tmp_path, name):
    (tmp_path / f"{name}.py").write_text("syntax error")
    status, _, err = run("sinks", str(whole / "trace"), cwd=tmp_path)
    assert (status, err) == (0, "")


def test_figures_have_settings_of_their_own(whole, tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nnonsense\nbackend: nosuch\nfont.size: 90\n")
    status, _, err = run(
        "figures", str(whole / "trace"), "--only", "3", "--out", "f", environment={"MPLBACKEND": "nosuch"}, cwd=tmp_path
    )
    assert status == 0, err
    assert "nosuch" not in err and "usetex" not in err
