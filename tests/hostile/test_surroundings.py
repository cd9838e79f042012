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


def test_little_address_space_is_told_in_our_words(whole):
    command = f'ulimit -v 300000; exec "{sys.executable}" -m sinkscope check "{whole / "model"}"'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    found = "found a limit of 292 MiB (ulimit -v); raise that limit"
    told = f"sinkscope: error: expected at least 1280 MiB of address space, as torch needs, {found}\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        MemoryError(),
    ],
)
def test_what_says_that_memory_did_not_suffice(error, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    assert _told(error) == ("there is not enough memory; use a machine with more", 1)


def test_nothing_is_printed_behind_a_memory_that_did_not_suffice():
    """torch looks at itself at the end, and fails where it was imported by half."""
    code = "import atexit\nfrom sinkscope import cli\ndef fail(*_): raise MemoryError\natexit.register(fail)\ncli._run = fail\ncli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "sinkscope: error: there is not enough memory; use a machine with more\n",
    )


def test_variables_that_break_an_import(whole, tmp_path):
    status, _, err = run("sinks", str(whole / "trace"), environment={"PYTHONOPTIMIZE": "2"})
    assert status == 1 and "PYTHONOPTIMIZE" in err and err.count("\n") == 1
    status, _, err = run("check", str(whole / "model"), environment={"TORCH_LOGS": "nonsense"})
    assert status == 1 and "environment variable TORCH_LOGS" in err and err.count("\n") == 1, err
    for given in (tmp_path / "gone" / "logs", os.path.relpath(tmp_path / "gone" / "logs")):
        status, _, err = run("check", str(whole / "model"), environment={"TORCH_LOGS_OUT": str(given)})
        told = f"{tmp_path / 'gone' / 'logs'}: No such file or directory; the environment variable TORCH_LOGS_OUT says so, unset it"
        assert (status, err) == (1, f"sinkscope: error: {told}\n")
    status, _, err = run("check", str(whole / "model"), environment={"TORCHINDUCTOR_CACHE_DIR": "/dev/null"})
    told = "/dev/null: File exists; the environment variable TORCHINDUCTOR_CACHE_DIR says so, unset it"
    assert (status, err) == (1, f"sinkscope: error: {told}\n")
    call = (
        "trace",
        "lab-sink-token",
        "--prompt",
        "Q: 1",
        "--length",
        "4",
        "--block",
        "4",
        "--out",
        str(tmp_path / "t"),
    )
    status, _, err = run(*call, environment={"TORCHINDUCTOR_CACHE_DIR": "/dev/null"})
    told = "/dev/null cannot be used (File exists); the environment variable TORCHINDUCTOR_CACHE_DIR names it, unset it"
    assert (status, err) == (1, f"sinkscope: error: {told}\n")




def test_a_variable_that_breaks_a_figure(whole, tmp_path):
    words = ["figures", str(whole / "trace"), "--only", "3", "--out", str(tmp_path / "f")]
    for date in ("abc", "-1", "9" * 30):
        status, _, err = run(*words, environment={"SOURCE_DATE_EPOCH": date})
        told = f"the environment variable SOURCE_DATE_EPOCH is set to '{date}', which matplotlib and NumPy refuse; "
        assert (status, err) == (1, f"sinkscope: error: {told}expected seconds since 1970, or unset it\n")
    assert not (tmp_path / "f").exists()


def test_a_variable_that_is_set_to_nothing_is_not_set():
    """numpy.f2py, which loading a model may import, fails at it."""
    code = "import os, sys\nfrom sinkscope.cli import main\nsys.argv[1:] = ['--version']\ntry: main()\nexcept SystemExit: import numpy.f2py"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "SOURCE_DATE_EPOCH": ""}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_s_own_settings(whole, tmp_path):
    words = ["export", str(whole / "trace"), "--to", "zarr", "--out", str(tmp_path / "z")]
    assert run(*words) == (0, f"{words[-1]}.zarr\n", "")
    expected = {
        path.relative_to(tmp_path / "z.zarr"): path.read_bytes()
        for path in (tmp_path / "z.zarr").rglob("*")
        if path.is_file()
    }
    settings = {
        "DEFAULT_ZARR_FORMAT": "9",
        "JSON_INDENT": "x",
        "CODEC_PIPELINE__BATCH_SIZE": "0",
        "CODEC_PIPELINE": "x",
        "THREADING": "3",
        "ARRAY__WRITE_EMPTY_CHUNKS": "x",
        "CONFIG": "/dev/zero",
        "ROOT_CONFIG": "/dev/zero",
        "INTERNAL_INHERIT_CONFIG": "x",
        "ASYNC__CONCURRENCY": "0",
        "ASYNC__TIMEOUT": "0",
        "THREADING__MAX_WORKERS": "0",
    }
    for number, given in enumerate((settings, settings | {"ASYNC__CONCURRENCY": "abc", "THREADING": "x"})):
        words[-1] = str(tmp_path / f"under-{number}")
        assert run(*words, environment={f"ZARR_{name}": value for name, value in given.items()}) == (
            0,
            f"{words[-1]}.zarr\n",
            "",
        )
        found = Path(f"{words[-1]}.zarr")
        assert expected == {path.relative_to(found): path.read_bytes() for path in found.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda path: path.write_bytes(b"font.size: \xff\n"), "expected text in UTF-8, found other bytes"),
        (lambda path: os.mkfifo(path), "expected a regular file, found a named pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "expected a regular file, found a device"),
        (lambda path: path.symlink_to("/dev/null"), None),
    ],
)
@pytest.mark.parametrize("variable", ["MATPLOTLIBRC", "XDG_CONFIG_HOME"])
def test_settings_of_matplotlib_that_cannot_be_read(variable, write, told, whole, tmp_path):
    folder = tmp_path / "settings" / ("matplotlib" if variable == "XDG_CONFIG_HOME" else "")
    folder.mkdir(parents=True)
    write(folder / "matplotlibrc")
    words = ["figures", str(whole / "trace"), "--only", "3", "--out", str(tmp_path / "f")]
    status, _, err = run(*words, environment={variable: str(tmp_path / "settings")})
    assert (status, err) == (0, "") if told is None else status == 1 and told in err and "MATPLOTLIBRC" in err, err
    assert (tmp_path / "f").exists() is (told is None)


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        (
            "fsspec/conf.json",
            b"{broken",
            "expected settings as fsspec reads them, found others (Expecting property name",
        ),
        ("fsspec/conf.json", b'{"file": 5}', "expected settings as fsspec reads them, found others ('int' object"),
        (
            "fsspec/conf.ini",
            b"broken",
            "expected settings as fsspec reads them, found others (File contains no section headers",
        ),
        (
            "fsspec/conf.ini",
            None,
            "expected a regular file, found a named pipe; fsspec reads its settings there; remove it",
        ),
        ("zarr/own.yaml", b"a: [b", "expected settings as zarr reads them, found others (A config file at"),
        ("zarr/own.yaml", b"- 5", "expected settings as zarr reads them, found others (A config file at"),
        (
            "zarr/own.yml",
            b"\xff",
            "expected text in UTF-8, found other bytes; zarr reads its settings there; remove it",
        ),
        (
            "matplotlib/stylelib/own.mplstyle",
            b"\xff",
            "expected text in UTF-8, found other bytes; matplotlib reads its settings there",
        ),
        ("matplotlib/stylelib/own.mplstyle", None, "expected a regular file, found a named pipe"),
        ("matplotlib/stylelib/own.mplstyle", b"no.such.setting: 5", None),
    ],
)
def test_files_of_settings_that_libraries_read(file, content, told, whole, tmp_path):
    place = tmp_path / ".config" / file
    place.parent.mkdir(parents=True)
    os.mkfifo(place) if content is None else place.write_bytes(content)
    out = tmp_path / "out"
    command = (
        ["figures", "--only", "3", "--out", out]
        if file.startswith("matplotlib")
        else ["export", "--to", "zarr", "--out", out]
    )
    status, _, err = run(
        command[0], whole / "trace", *command[1:], environment={"HOME": str(tmp_path), "MPLCONFIGDIR": ""}
    )
    assert (
        (status, err) == (0, "") if told is None else status == 1 and f"{place}: {told}" in err and err.count("\n") == 1
    ), err
    assert told is None or [*tmp_path.iterdir()] == [tmp_path / ".config"]


def test_what_datasets_cannot_read_of_its_settings_is_told(whole, tmp_path):
    place = tmp_path / "conf.json"
    place.write_text("{broken")
    words = ["evaluate", str(whole / "model"), "--tasks", "gsm8k", "--limit", "1", "--out", str(tmp_path / "e")]
    status, _, err = run(*words, environment={"FSSPEC_CONFIG_DIR": str(tmp_path)})
    assert (
        status == 1 and f"{place}: expected settings as fsspec reads them" in err and not (tmp_path / "e").exists()
    ), err


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


def test_an_interrupt_while_torch_is_imported(whole, tmp_path):
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\ntry:\n os.kill(os.getpid(), signal.SIGINT)\n time.sleep(5)\nexcept KeyboardInterrupt:\n os.abort()\n"
    )
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "import sinkscope.cli; sys.argv[1:] = ['check', 'model']; sinkscope.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=whole,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (130, "sinkscope: error: interrupted\n")


def test_several_interrupts_are_told_once():
    """One at work, one while the program ends."""
    code = (
        "import atexit, os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nfrom sinkscope import cli\n"
        "interrupt = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "atexit.register(interrupt)\ncli._run = interrupt\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "sinkscope: error: interrupted\n")


def test_an_interrupt_within_an_exec(tmp_path):
    """Python ends by the signal then, unless it is told otherwise."""
    (tmp_path / "within.py").write_text(
        "from sinkscope import cli\ncli._run = lambda *_: exec('import os, signal; os.kill(os.getpid(), signal.SIGINT)')\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-m", "within"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "sinkscope: error: interrupted\n")


@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_an_interrupt_beside_a_fork(when):
    """Python ignores what is raised there."""
    code = (
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nfrom sinkscope import cli\n"
        f"os.register_at_fork({when}=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "def run(_):\n if not os.fork(): os._exit(0)\n time.sleep(5)\n print('went on')\ncli._run = run\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sinkscope: error: interrupted\n")


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
def test_an_interrupt_at_the_beginning(whole, tmp_path, seconds):
    words = ["trace", str(whole / "model"), "--prompt", "Q: Tom\nA:", "--length", "64", "--out", str(tmp_path / "t")]
    command = [sys.executable, "-m", "sinkscope", *words]
    # What a shell starts in the background ignores interrupts, and hands that on.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    if process.returncode == 130:
        assert err.splitlines()[-1] == "sinkscope: error: interrupted" and "Traceback" not in err
    elif process.returncode != 0:  # before sinkscope's first line, Python itself was asked to end
        assert process.returncode in (1, -signal.SIGINT) and "sinkscope/cli.py" not in err, err


def test_a_body_that_changes_the_current_folder(place, monkeypatch):
    (place / "other").mkdir()
    monkeypatch.chdir(place)
    model = sinkscope.load("model")
    with sinkscope.recording(model, out="out"):
        monkeypatch.chdir(place / "other")
        sinkscope.generate(model, "Q", length=4, steps=4, block=4)
    assert sinkscope.open_trace(place / "out").complete
    assert sorted(path.name for path in (place / "out").iterdir()) == ["manifest.json", "steps-000000.safetensors"]
    assert not [*(place / "other").iterdir()]




def test_a_variable_about_progress_bars_is_heeded_without_a_word(whole, tmp_path):
    words = [
        "trace",
        str(whole / "model"),
        "--prompt",
        "Tom",
        "--length",
        "8",
        "--block",
        "8",
        "--out",
        str(tmp_path / "t"),
        "--json",
    ]
    status, _, err = run(*words, environment={"HF_HUB_DISABLE_PROGRESS_BARS": "0"})
    assert (status, err) == (0, "")
