"""Runs an evaluation as jobs of a cluster, through submitit: job i of N does share i of N in its own process, with its own model."""

import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.results import Result
from sinkscope.evaluation.tasks import find_task
from sinkscope.interventions import parse_rule
from sinkscope.models.folders import find_folder
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
        CallError: submitit is not installed, has no such jobs here, or refuses an option.
        EvaluationError: the jobs could not be submitted, or one failed.
    """
    if jobs < 1:
        raise CallError(f"jobs: expected at least 1, found {jobs}")
    parameters = _read_options(options)
    try:
        import submitit
    except ImportError as error:
        raise CallError("--jobs needs submitit, which is not installed: pip install 'sinkscope[slurm]'") from error
    folder = arguments["out"] / LOGS
    with tempfile.TemporaryDirectory() as elsewhere:  # an executor makes its folder at once
        _executor(submitit.AutoExecutor, Path(elsewhere), cluster, parameters)
    find_folder(model, weights=False)
    for rule in arguments.get("hide", ()):
        parse_rule(rule)
    for task in arguments["tasks"]:
        find_task(task)
    executor = _executor(submitit.AutoExecutor, folder, cluster, parameters)
    try:
        with executor.batch():
            running = [executor.submit(run_share, model, device, dtype, dict(arguments), Share(index, jobs)) for index in range(jobs)]
    except (OSError, RuntimeError) as error:
        raise EvaluationError(f"{jobs} jobs could not be submitted on {cluster} ({_last_line(error)}); see --job-options") from error
    failed = []
    for job in running:
        error = job.exception()
        if error is not None:
            failed.append(f"job {job.job_id}: {_last_line(error)}")
    if failed:
        raise EvaluationError(
            f"{len(failed)} of {jobs} jobs failed ({failed[0]}; logs in {folder}); run the same command again; finished problems are kept"
        )


def _executor(kind: Any, folder: Path, cluster: str, parameters: Mapping[str, Any]) -> Any:
    """Return submitit's executor with the options of the jobs; nothing is submitted.

    Raises:
        CallError: no such jobs on this machine, or an option that submitit does not know or whose value it refuses.
    """
    try:
        executor = kind(folder=folder, cluster=cluster)
    except RuntimeError as error:
        raise CallError(f"--jobs: expected a machine that submits jobs to {cluster}, found no srun; or pass --cluster local") from error
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
            int(value) if re.fullmatch("[0-9]{1,9}", value) else float(value) if re.fullmatch(r"\d{1,9}\.\d{1,9}", value) else value
        )
    return found


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
