"""Runs an evaluation as jobs of a cluster, through submitit: job i of N does share i of N in its own process, with its own model."""

import contextlib
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.bound_job import run_share
from sinkscope.evaluation.task_plans import Request, make_plans
from sinkscope.models.loading import outline
from sinkscope.work_items import Share

LOGS = "lock.jobs"  # named like a lock, so that the folder still counts as an evaluation
MINUTES = {"slurm": 24 * 60, "local": 365 * 24 * 60}
"""How long a job may take where no option says it; submitit's own 5 and 2 minutes end it within its work."""
GRACE = 10.0
"""Seconds that an interrupted call waits for its local jobs to end."""


def run_in_jobs(
    model: str,
    device: str,
    dtype: str | None,
    arguments: Mapping[str, Any],
    jobs: int,
    cluster: str = "slurm",
    options: str = "",
) -> None:
    """Submit the shares of an evaluation as jobs and wait until they have ended; the same call again does what is missing.

    Local jobs end with this call, however it ends; those of a cluster go on.

    Args:
        model, device, dtype: for `load`.
        arguments: of `evaluate`.
        jobs: number of jobs.
        cluster: ``slurm`` or ``local``.
        options: name=value, separated by commas, for submitit's ``update_parameters``; without ``timeout_min`` see `MINUTES`.

    Raises:
        CallError: submitit is not installed, has no such jobs here, or refuses an option; or the path of ``out`` has a ``%``.
        EvaluationError: the jobs could not be submitted, or one failed.
    """
    if jobs < 1:
        raise CallError(f"jobs: expected at least 1, found {jobs}")
    parameters = _read_options(options)
    try:
        import submitit
    except ImportError as error:
        raise CallError("--jobs needs submitit, which is not installed: pip install 'sinkscope[slurm]'") from error
    folder = arguments["out"].absolute() / LOGS  # submitit takes a relative ~ for a home
    if "%" in str(folder):
        raise CallError(
            f"--out: expected a path without %, where submitit and Slurm put the numbers of jobs, found {folder.parent}"
        )
    if not any(name.endswith("timeout_min") for name in parameters):
        parameters["timeout_min"] = MINUTES.get(cluster, MINUTES["slurm"])
    with tempfile.TemporaryDirectory() as elsewhere:  # an executor makes its folder at once
        _executor(submitit.AutoExecutor, Path(elsewhere), cluster, parameters)
    _check_options(parameters)
    make_plans(
        outline(model),
        Request(**{name: value for name, value in arguments.items() if name in Request.__dataclass_fields__}),
    )
    executor = _executor(submitit.AutoExecutor, folder, cluster, parameters)
    failed: list[str] = []
    running: list[Any] = []
    with _lock_of(running) if cluster == "local" else contextlib.nullcontext() as held:
        shares = [Share(index, jobs) for index in range(jobs)]
        try:
            with _without_interrupts(), executor.batch():
                running += [
                    executor.submit(run_share, model, device, dtype, dict(arguments), share, held) for share in shares
                ]
        except (OSError, RuntimeError) as error:
            raise EvaluationError(
                f"{jobs} jobs could not be submitted on {cluster} ({_last_line(error)}); see --job-options"
            ) from error
        for job in running:
            error = job.exception()
            if error is not None:
                failed.append(f"job {job.job_id}: {_last_line(error)}")
    if failed:
        raise EvaluationError(
            f"{len(failed)} of {jobs} jobs failed ({failed[0]}; logs in {folder}); run the same command again; finished problems are kept"
        )


@contextlib.contextmanager
def _lock_of(running: Sequence[Any]) -> Iterator[Path]:
    """Hold a lock while the body runs, and give its file: local jobs end when it is free, and so with this process; wait for them."""
    import filelock

    try:
        with tempfile.TemporaryDirectory() as folder, filelock.FileLock(path := Path(folder) / "jobs"):
            yield path
    finally:
        end = time.monotonic() + GRACE
        while time.monotonic() < end and not all(job.done() for job in running):
            time.sleep(0.05)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C while the body runs, and for ever from the processes that it starts: submitit's would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _executor(kind: Any, folder: Path, cluster: str, parameters: Mapping[str, Any]) -> Any:
    """Return submitit's executor with the options of the jobs; nothing is submitted.

    Raises:
        CallError: no such jobs on this machine, or an option that submitit does not know or whose value it refuses.
    """
    try:
        executor = kind(folder=folder, cluster=cluster)
    except RuntimeError as error:
        raise CallError(
            f"--jobs: expected a machine that submits jobs to {cluster}, found no srun; or pass --cluster local"
        ) from error
    for name, value in parameters.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of names of an earlier submitit
                executor.update_parameters(**{name: value})
        except (NameError, TypeError, ValueError, AssertionError, RuntimeError) as error:
            known = "timeout_min=60, cpus_per_task=4, slurm_partition=gpu …"
            raise CallError(
                f"--job-options: expected options of submitit with values of their kind ({known}), found {name[:60]}={str(value)[:60]}"
            ) from error
    return executor


def _read_options(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = part.partition("=")
        if not separator:
            raise CallError(f"--job-options: expected name=value separated by commas, found {part[:60]!r}")
        if name in found:
            raise CallError(f"--job-options: expected each name once, found {name[:60]!r} twice")
        found[name] = (
            int(value)
            if re.fullmatch("[0-9]{1,9}", value)
            else float(value)
            if re.fullmatch(r"\d{1,9}\.\d{1,9}", value)
            else value
        )
    return found


def _check_options(parameters: Mapping[str, Any]) -> None:
    """Raise CallError for options under which a job would do its share twice, or end at once."""
    for name, value in parameters.items():
        plain = re.sub("^(slurm|local)_", "", name)
        if plain in ("nodes", "tasks_per_node", "ntasks_per_node") and value != 1:
            raise CallError(
                f"--job-options: expected one process for each job, found {name}={value}; leave it out and raise --jobs"
            )
        if plain == "timeout_min" and value == 0:
            raise CallError(f"--job-options: expected minutes above 0, found {name}={value}")


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's message; of a failed job the last one of its own error, without the name of the class."""
    text = str(error)
    if (trace := re.search(r"^-{9,}\n(.*?)^-{9,}$", text, re.DOTALL | re.MULTILINE)) is not None:
        text = re.sub(r"^sinkscope\.errors\.\w+: ", "", trace[1].strip().splitlines()[-1])
    if "has not produced any output" in text:
        return "it was ended before it was done, perhaps for want of memory"
    if "timed-out" in text:
        return "it came to its limit of time, which --job-options timeout_min=… raises"
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
