"""Runs an evaluation as jobs of a cluster, through submitit: job i of N does share i of N in its own process, with its own model."""

import os
from collections.abc import Mapping
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.results import Result
from sinkscope.work_items import Share

LOGS = "lock.jobs"  # named like a lock, so that the folder still counts as an evaluation


def run_share(model: str, device: str, dtype: str | None, arguments: Mapping[str, Any], share: Share | None = None) -> list[Result]:
    """Load a model and evaluate it; ``cuda`` under torchrun is the process's own device."""
    from sinkscope.evaluation.running import evaluate
    from sinkscope.models import load

    local = os.environ.get("LOCAL_RANK")
    if device == "cuda" and local is not None:
        device = f"cuda:{local}"
    return evaluate(load(model, dtype=dtype, device=device), **arguments, share=share)


def run_in_jobs(
    model: str, device: str, dtype: str | None, arguments: Mapping[str, Any], jobs: int, cluster: str = "slurm", options: str = ""
) -> None:
    """Submit the shares of an evaluation as jobs and wait until they have ended; the same call again does what is missing.

    Args:
        model, device, dtype: for `load`.
        arguments: of `evaluate`.
        jobs: number of jobs.
        cluster: ``slurm`` or ``local``.
        options: name=value, separated by commas, for submitit's ``update_parameters``.

    Raises:
        CallError: submitit is not installed, or options it does not know.
        EvaluationError: a job failed.
    """
    if jobs < 1:
        raise CallError(f"jobs: expected at least 1, found {jobs}")
    parameters = _read_options(options)
    try:
        import submitit
    except ImportError as error:
        raise CallError("--jobs needs submitit, which is not installed: pip install 'sinkscope[slurm]'") from error
    folder = arguments["out"] / LOGS
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**parameters)
    except (NameError, TypeError, RuntimeError) as error:
        raise CallError(f"--jobs on {cluster} with {parameters}: {error}") from error
    with executor.batch():
        running = [executor.submit(run_share, model, device, dtype, dict(arguments), Share(index, jobs)) for index in range(jobs)]
    failed = []
    for job in running:
        error = job.exception()
        if error is not None:
            failed.append(f"job {job.job_id}: {_last_line(error)}")
    if failed:
        raise EvaluationError(
            f"{len(failed)} of {jobs} jobs failed ({failed[0]}; logs in {folder}); run the same command again; finished problems are kept"
        )


def _read_options(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = part.partition("=")
        if not separator:
            raise CallError(f"--job-options: expected name=value separated by commas, found {part!r}")
        found[name] = int(value) if value.isdigit() else value
    return found


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
