"""Hostile programs against the sandbox, with all its layers and with some switched off: each must hold and bite."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sinkscope.evaluation import run_program

FILES = ("namespaces", "landlock", "other user")
NETWORK = ("namespaces", "landlock", "seccomp")
SIGNALS = ("namespaces", "landlock", "seccomp", "other user")
PROCESSES = ("seccomp", "process limit")


def refused(protection, without=()):
    return [line for line in run_program("", without=without).not_enforced if line.startswith(protection + ":")]


@pytest.fixture(scope="module")
def granted():
    """Skips a test whose protection this system does not grant, or not without some layers, with what it said."""
    missing = {line.split(":")[0]: line for line in run_program("").not_enforced}

    def need(protection, without=()):
        if said := [missing[protection]] if protection in missing else without and refused(protection, without):
            pytest.skip(said[0])

    return need


def test_cpu_time(granted):
    granted("time")
    assert (
        run_program("while True:\n    try: f()\n    except BaseException: pass", timeout_s=0.5).reason
        == "used more than 1 s of CPU"
    )


def test_time_by_the_clock():
    silent = (
        "import os, time\nfor pipe in range(3, 64):\n    try: os.close(pipe)\n    except OSError: pass\ntime.sleep(60)"
    )
    assert run_program(silent, timeout_s=0.1).reason == "ran past 1 s by the clock"


def test_endless_output(granted):
    granted("output")
    result = run_program("while True: print('x' * 1000)", timeout_s=20)
    assert (result.passed, result.reason, len(result.output)) == (False, "wrote more than 1 MB", 2000)


def test_memory(granted):
    granted("memory")
    program = "x = bytearray(200 << 20)"
    assert run_program(program, memory_mb=150).reason == "MemoryError"
    assert run_program(program, memory_mb=512).passed


FORK_BOMB = "import os\nfor _ in range(6):\n    os.fork()\n    print('forked', flush=True)"  # 64 processes at most


@pytest.mark.parametrize("without", [(), ("seccomp",), ("process limit",), ("namespaces", "process limit")])
def test_fork_bomb(granted, without):
    granted("processes", without)
    result = run_program(FORK_BOMB, without=without, timeout_s=10)
    assert result.reason.startswith(("PermissionError", "BlockingIOError"))
    assert result.output == ""


def test_without_its_layers_a_program_can_fork():
    program = "import os\nchild = os.fork()\nif not child: os._exit(0)\nos.waitpid(child, 0)"
    assert run_program(program, without=PROCESSES).passed
    assert refused("processes", PROCESSES)


@pytest.fixture
def folder():
    """A folder that every user may read and write, so that the sandbox does not rely on file modes."""
    with tempfile.TemporaryDirectory(prefix="sinkscope-open-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.parametrize("without", [(), ("namespaces",), ("own root",), ("landlock",)])
def test_reading_and_writing_elsewhere(granted, without, folder):
    granted("files", without)
    (folder / "secret").write_text("secret")
    reads = run_program(f"print(open({str(folder / 'secret')!r}).read())", without=without)
    writes = run_program(f"open({str(folder / 'made')!r}, 'w')", without=without)
    assert (reads.passed, writes.passed) == (False, False)
    assert "secret" not in reads.output
    assert not (folder / "made").exists()


def test_without_its_layers_a_program_can_read(folder):
    (folder / "secret").write_text("secret")
    result = run_program(f"print(open({str(folder / 'secret')!r}).read())", without=FILES)
    assert result.output == "secret\n"
    assert refused("files", FILES)


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


@pytest.mark.parametrize("without", [(), ("namespaces",), ("seccomp",)])
def test_sockets(granted, without, server):
    granted("network", without)
    result = run_program(f"import socket\nsocket.create_connection({server!r})", without=without)
    assert result.reason.startswith(("PermissionError", "OSError", "ConnectionRefusedError"))


def test_without_its_layers_a_program_can_connect(server):
    assert run_program(f"import socket\nsocket.create_connection({server!r})", without=NETWORK).passed
    assert refused("network", NETWORK)


@pytest.fixture
def victim():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("without", [(), ("namespaces",), ("seccomp",)])
def test_killing_others(granted, without, victim):
    granted("signals", without)
    for target in (str(victim.pid), str(os.getpid()), "os.getppid()"):
        assert not run_program(f"import os\nos.kill({target}, 9)\nassert f() == 8", without=without).passed
    assert victim.poll() is None


def test_without_its_layers_a_program_can_kill(victim):
    assert run_program(f"import os\nos.kill({victim.pid}, 9)", without=SIGNALS).passed
    assert victim.wait(10) == -signal.SIGKILL
    assert refused("signals", SIGNALS)


def test_killing_the_supervisor_is_a_failure():
    result = run_program(
        "import os\nos.kill(os.getppid(), 9)\nimport time\ntime.sleep(60)", without=SIGNALS, timeout_s=20
    )
    assert (result.passed, result.reason) == (False, "the program ended the sandbox, which gave no verdict")


def test_nothing_of_the_environment_gets_in(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    seen = "print(dict(os.environ), sys.argv[1:], [p for p in sys.path if 'site-packages' in p])"
    result = run_program(f"import os, sys\n{seen}\nassert os.getuid() != 0")
    assert result.output.startswith("{} ")
    assert result.output.rstrip().endswith(" []")


def test_another_user_without_rights(granted):
    granted("user")
    program = (
        "import os\nassert os.getuid() == 65534\nassert os.geteuid() == 65534\nassert os.getgroups() in ([], [65534])"
    )
    assert run_program(program, without=("landlock",)).passed


@pytest.mark.slow
def test_no_process_survives_its_parent(tmp_path):
    code = "from sinkscope.evaluation import run_program\nrun_program('while True: pass', timeout_s=60)"
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        deadline = time.monotonic() + 30
        while len(family := descendants(process.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(family) == 3  # made the world, judges, runs the program
        process.kill()
    while any(map(runs, family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in family if runs(pid)]


def runs(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid):
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found += [int(entry), *descendants(int(entry))]
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def test_the_systems_own_mounts_are_never_changed(tmp_path):
    """`own_root` in another namespace first, where a broken check would harm nobody."""
    code = f"""
import os
from sinkscope.evaluation.sandbox.isolation import mount_namespace, namespaces, own_root
before = mount_namespace()
try:
    namespaces()
except OSError:
    print("no namespaces here")
else:
    assert mount_namespace() != before
    try:
        own_root({str(tmp_path)!r}, mount_namespace())
    except OSError as error:
        print(error.strerror, os.path.exists("/etc"))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    if said == "no namespaces here\n":
        pytest.skip("this system grants no namespaces")
    assert said == "the mounts are still those of the system True\n"
