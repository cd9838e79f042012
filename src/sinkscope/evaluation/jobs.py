"""Runs an evaluation as jobs of a cluster, through submitit: job i of N does share i of N, with its own model.

The module loads little, so that a job watches the call that started it before it loads more.
"""

import contextlib
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.runs.share import Share

if TYPE_CHECKING:
    from sinkscope.evaluation.results import Result

LOGS = "lock.jobs"  # named like a lock, so that the folder still counts as an evaluation
MINUTES = {"slurm": 24 * 60, "local": 365 * 24 * 60}
"""How long a job may take where no option says it; submitit's own 5 and 2 minutes end it within its work."""
GRACE_S = 10.0  # that an interrupted call waits for its local jobs to end
LOOK_S = 0.2


def run_share(
    model: str,
    device: str,
    dtype: str | None,
    arguments: Mapping[str, Any],
    share: Share | None = None,
    held: Path | None = None,
) -> "list[Result]":
    """Load a model and evaluate it; ``cuda`` under torchrun is the device of the process.

    Args:
        held: a lock; this process ends with status 130 when nobody holds it any more.
    """
    if held is not None:
        threading.Thread(target=_end_with, args=(held,), daemon=True).start()
    from sinkscope.evaluation.running import evaluate
    from sinkscope.models import load
    from sinkscope.models.devices import own_device

    return evaluate(load(model, dtype=dtype, device=own_device(device)), **arguments, share=share)


def _end_with(held: Path) -> None:
    import filelock

    while held.exists():
        with contextlib.suppress(filelock.Timeout, OSError), filelock.FileLock(held, blocking=False):
            break
        time.sleep(LOOK_S)
    os._exit(130)


def run_in_jobs(
    model: str,
    device: str,
    dtype: str | None,
    arguments: Mapping[str, Any],
    jobs: int,
    cluster: str = "slurm",
    options: str = "",
) -> None:
    """Submit the shares of an evaluation as jobs and wait until they end; the same call again does what is missing.

    Local jobs end with this call, however it ends; those of a cluster go on.

    Args:
        model, device, dtype: for `load`.
        arguments: of `evaluate`.
        jobs: number of jobs.
        cluster: ``slurm`` or ``local``.
        options: name=value, separated by commas, for submitit's ``update_parameters``; without ``timeout_min``:
            `MINUTES`.

    Raises:
        CallError: submitit is not installed, or refuses an option; or an argument that does not fit.
        EvaluationError: the jobs could not be submitted, or one failed.
    """
    if jobs < 1:
        raise CallError(f"jobs: expected at least 1, found {jobs}")
    try:
        import submitit
    except ImportError as error:
        raise CallError("--jobs needs submitit, which is not installed: pip install 'sinkscope[slurm]'") from error
    from sinkscope.evaluation.task_plans import Request, make_plans
    from sinkscope.models.loading import outline

    folder = arguments["out"].absolute() / LOGS  # submitit takes a relative ~ for a home
    parameters = _read_options(options)
    if not any(name.endswith("timeout_min") for name in parameters):
        parameters["timeout_min"] = MINUTES.get(cluster, MINUTES["slurm"])
    with tempfile.TemporaryDirectory() as elsewhere:  # an executor makes its folder at once
        _executor(submitit.AutoExecutor, Path(elsewhere), cluster, parameters)
    asked = {name: value for name, value in arguments.items() if name in Request.__dataclass_fields__}
    make_plans(outline(model), Request(**asked))
    executor = _executor(submitit.AutoExecutor, folder, cluster, parameters)
    running: list[Any] = []
    with _lock_of(running) if cluster == "local" else contextlib.nullcontext() as held:
        shares = [Share(index, jobs) for index in range(jobs)]
        try:
            with _without_interrupts(), executor.batch():
                for share in shares:
                    running.append(executor.submit(run_share, model, device, dtype, dict(arguments), share, held))
        except (OSError, RuntimeError) as error:
            raise EvaluationError(
                f"the jobs could not be submitted on {cluster} ({error}); see --job-options"
            ) from error
        errors = [(job.job_id, job.exception()) for job in running]
    failed = [f"job {job}: {_last_line(error)}" for job, error in errors if error is not None]
    if failed:
        raise EvaluationError(
            f"{len(failed)} of {jobs} jobs failed ({failed[0]}; logs in {folder}); run the same command again; "
            "finished problems are kept"
        )


@contextlib.contextmanager
def _lock_of(running: Sequence[Any]) -> Iterator[Path]:
    """Hold a lock and give its file: local jobs end when it is free, and so with this process; wait for them."""
    import filelock

    try:
        with tempfile.TemporaryDirectory() as folder, filelock.FileLock(path := Path(folder) / "jobs"):
            yield path
    finally:
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end and not all(job.done() for job in running):
            time.sleep(0.05)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C, for ever from the processes that start here: submitit's would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _executor(kind: Any, folder: Path, cluster: str, parameters: Mapping[str, Any]) -> Any:
    try:
        executor = kind(folder=folder, cluster=cluster)
        executor.update_parameters(**parameters)
    except (NameError, TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise CallError(f"--jobs, --job-options: submitit refuses {cluster} with {parameters}: {error}") from error
    return executor


def _read_options(text: str) -> dict[str, Any]:
    """Return options by name, without those under which a job would do its share twice."""
    found: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, value = part.partition("=")
        several = re.fullmatch("((slurm|local)_)?(nodes|n?tasks_per_node)", name) and value != "1"
        if not separator or name in found or several:
            raise CallError(
                f"--job-options: expected name=value once each, separated by commas, with one process for each job, "
                f"found {part!r}"
            )
        found[name] = int(value) if re.fullmatch("[0-9]+", value) else value
    return found


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's message; of a failed job the last one of its own error."""
    text = str(error)
    if (trace := re.search(r"^-{9,}\n(.*?)^-{9,}$", text, re.DOTALL | re.MULTILINE)) is not None:
        text = re.sub(r"^sinkscope\.errors\.\w+: ", "", trace[1].strip().splitlines()[-1])
    if "has not produced any output" in text:
        return "it was ended before it was done, perhaps for want of memory"
    if "timed-out" in text:
        return "it came to its limit of time, which --job-options timeout_min=… raises"
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
