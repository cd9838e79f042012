"""One evaluation by several processes: torchrun, jobs, a killed worker; each result equals that of a single process."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import environment, without

import sinkscope
from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation import evaluate, read_results, running
from sinkscope.evaluation.running import run_in_jobs, run_share
from sinkscope.runs.folder import Share

ARGUMENTS = {"tasks": ["lab-arith"], "limit": 11, "shots": 0, "batch": 2, "settings": {"length": 8}, "hide": ["top:1"]}
"""Under a rule, so that items hold sums that kernels computed."""


def items(folder):
    """Every item and the results, but for times; each item once."""
    paths, times = [*sorted(folder.glob("*/*/??????.json")), folder / "results.json"], ("seconds", "checksum")
    return {str(path.relative_to(folder)): without(json.loads(path.read_text()), times) for path in paths}


@pytest.fixture(scope="module")
def whole(diffusion_folder, tmp_path_factory):
    """The same evaluation by one process."""
    folder = tmp_path_factory.mktemp("whole")
    evaluate(sinkscope.load(str(diffusion_folder)), out=folder, progress=False, **ARGUMENTS)
    return items(folder)


COMMAND = ["-m", "sinkscope", "evaluate"]
FLAGS = ["--limit", "11", "--shots", "0", "--batch", "2", "--length", "8", "--hide", "top:1"]


@pytest.mark.slow
def test_torchrun_shares_the_work_and_rank_0_sums_up(diffusion_folder, whole, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, *COMMAND, str(diffusion_folder), "--out", str(tmp_path / "r"), *FLAGS, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert items(tmp_path / "r") == whole
    (document,) = [json.loads(line) for line in done.stdout.splitlines()]  # rank 0's, once
    assert document["rows"][0]["n"] == 11
    assert (tmp_path / "r" / "lock.1-of-2").exists()


SLOWLY = f"""
import sys, time
import sinkscope
from pathlib import Path
from sinkscope.evaluation import evaluate, running
plain = running.generate
def slowly(*arguments, **settings):
    time.sleep(float(sys.argv[3]))
    return plain(*arguments, **settings)
running.generate = slowly
try:
    evaluate(sinkscope.load(sys.argv[1]), out=Path(sys.argv[2]), progress=False, **{ARGUMENTS})
except sinkscope.errors.SinkscopeError as error:
    sys.exit(str(error))
"""


def start(rank, count, model, out, pause):
    arguments = [sys.executable, "-c", SLOWLY, str(model), str(out), str(pause)]
    return subprocess.Popen(
        arguments, env=environment(RANK=str(rank), WORLD_SIZE=str(count)), stderr=subprocess.PIPE, text=True
    )


@contextlib.contextmanager
def ending(process):
    """End a process where the body fails, which otherwise waits for it for ever."""
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_worker_killed_9_is_noticed_and_the_same_command_goes_on(
    diffusion, diffusion_folder, whole, tmp_path, monkeypatch
):
    out = tmp_path / "r"
    with (
        ending(start(0, 2, diffusion_folder, out, 0)) as first,
        ending(start(1, 2, diffusion_folder, out, 2)) as second,
    ):
        deadline = time.monotonic() + 120
        while not (out / "lab-arith" / "top-1" / "000002.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        second.send_signal(signal.SIGKILL)
        error = first.communicate(timeout=120)[1]
    assert first.returncode == 1
    assert f"{out}: process 1 of 2 ended with " in error
    assert "problems missing; run the same command again; finished problems are kept" in error
    with pytest.raises(EvaluationError, match="is unfinished"):
        read_results(out)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (1, 0):  # side by side they are in the test above; here it is what they find that counts
        monkeypatch.setenv("RANK", str(rank))
        evaluate(diffusion, out=out, progress=False, **ARGUMENTS)
    assert items(out) == whole


def test_shares_one_after_the_other(diffusion, whole, tmp_path):
    for index in (2, 0, 1):
        assert evaluate(diffusion, out=tmp_path, progress=False, **ARGUMENTS, share=Share(index, 3)) == []
        assert not (tmp_path / "results.json").exists()
    evaluate(diffusion, out=tmp_path, progress=False, **ARGUMENTS)
    assert items(tmp_path) == whole


def test_a_share_that_nobody_takes_is_not_waited_for_for_ever(diffusion, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "STARTING_S", 0.1)
    monkeypatch.setattr(running, "POLL_S", 0.01)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(EvaluationError, match="process 1 of 2 ended with 5 problems missing"):
        evaluate(diffusion, out=tmp_path / "r", progress=False, **ARGUMENTS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_jobs_of_submitit(diffusion_folder, whole, tmp_path, monkeypatch):
    """Also in a folder whose name submitit takes for that of a home."""
    pytest.importorskip("submitit")
    from sinkscope.evaluation.results import collect

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    arguments = {**ARGUMENTS, "out": Path("~"), "progress": False}
    run_in_jobs(str(diffusion_folder), "cpu", None, arguments, 2, "local", "timeout_min=5")
    assert (tmp_path / "~" / "lock.jobs").is_dir() and not (tmp_path / "home").exists()
    assert not (tmp_path / "~" / "results.json").exists()
    collect(tmp_path / "~", [("lab-arith", "top:1")])
    assert items(tmp_path / "~") == whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_job_that_fails_is_named_with_its_own_reason(diffusion_folder, tmp_path):
    pytest.importorskip("submitit")
    arguments = {**ARGUMENTS, "out": tmp_path / "r"}
    folder = shutil.copytree(diffusion_folder, tmp_path / "no-weights", ignore=shutil.ignore_patterns("*.safetensors*"))
    reason = rf"1 of 1 jobs failed \(job .*: {folder}: expected weights .*; logs in .*\); run the same command again"
    with pytest.raises(EvaluationError, match=reason):
        run_in_jobs(str(folder), "cpu", None, arguments, 1, "local", "")


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        ({"tasks": ["humaneval"]}, "", "humaneval runs programs that the model wrote"),
        ({}, "tasks_per_node=2", "with one process for each job, found 'tasks_per_node=2'"),
        ({}, "no_such_option=1", "--job-options: submitit refuses local with .*"),
    ],
)
def test_what_is_refused_before_a_job_waits(more, options, message, tmp_path):
    pytest.importorskip("submitit")
    with pytest.raises(CallError, match=message):
        run_in_jobs("lab-diffusion", "cpu", None, ARGUMENTS | {"out": tmp_path / "r"} | more, 1, "local", options)
    assert not (tmp_path / "r" / "run.json").exists()


def test_a_process_of_torchrun_takes_its_own_device(monkeypatch):
    asked = []
    monkeypatch.setattr(running, "load", lambda name, dtype, device: asked.append(device))
    monkeypatch.setattr(running, "evaluate", lambda model, **arguments: [])
    monkeypatch.setenv("LOCAL_RANK", "3")
    for device in ("cuda", "cuda:0", "cpu"):
        run_share("m", device, None, {})
    assert asked == ["cuda:3", "cuda:0", "cpu"]
