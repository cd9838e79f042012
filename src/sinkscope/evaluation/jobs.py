"""Runs an evaluation as jobs of a cluster, through submitit: job i of N does share i of N, with its own model."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.runs.share import Share

if TYPE_CHECKING:
    from sinkscope.evaluation.results import Result

LOGS = "lock.jobs"  # named like a lock, so that the folder still counts as an evaluation
MINUTES = {"slurm": 24 * 60, "local": 365 * 24 * 60}
"""How long a job may take where no option says it; submitit's own 5 and 2 minutes end it within its work."""


def run_share(
    model: str, device: str, dtype: str | None, arguments: Mapping[str, Any], share: Share | None = None
) -> "list[Result]":
    """Load a model and evaluate it; ``cuda`` under torchrun is the device of the process."""
    from sinkscope.evaluation.running import evaluate
    from sinkscope.models import load
    from sinkscope.models.devices import own_device

    return evaluate(load(model, dtype=dtype, device=own_device(device)), **arguments, share=share)


def run_in_jobs(
    model: str,
    device: str,
    dtype: str | None,
    arguments: Mapping[str, Any],
    jobs: int,
    cluster: str = "slurm",
    options: str = "",
) -> None:
    """Submit the shares of an evaluation as jobs and wait until they end; the same call again does the rest.

    ``cluster`` is slurm or local; ``options`` are name=value, separated by commas, for ``update_parameters``.
    """
    try:
        import submitit
    except ImportError as error:
        raise CallError("--jobs needs submitit, which is not installed: pip install 'sinkscope[slurm]'") from error
    from sinkscope.evaluation.task_plans import Request, make_plans
    from sinkscope.models.loading import outline

    asked = {name: value for name, value in arguments.items() if name in Request.__dataclass_fields__}
    make_plans(outline(model), Request(**asked))  # refuses a call that no job could do, before one waits
    folder = arguments["out"].absolute() / LOGS  # submitit takes a relative ~ for a home
    parameters: dict[str, Any] = {}
    for part in filter(None, map(str.strip, options.split(","))):
        name, separator, value = part.partition("=")
        if not separator or (re.fullmatch("((slurm|local)_)?(nodes|n?tasks_per_node)", name) and value != "1"):
            raise CallError(f"--job-options: expected name=value, with one process for each job, found {part!r}")
        parameters[name] = int(value) if value.isdigit() else value
    if not any(name.endswith("timeout_min") for name in parameters):
        parameters["timeout_min"] = MINUTES[cluster]
    running: list[Any] = []
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**parameters)
        with executor.batch():
            for index in range(jobs):
                running.append(executor.submit(run_share, model, device, dtype, dict(arguments), Share(index, jobs)))
        failed = [(job.job_id, error) for job in running if (error := job.exception()) is not None]
    except (NameError, TypeError, ValueError, AssertionError) as error:
        raise CallError(f"--jobs, --job-options: submitit refuses {cluster} with {parameters}: {error}") from error
    except (OSError, RuntimeError) as error:
        raise EvaluationError(f"the jobs could not be submitted on {cluster} ({error}); see --job-options") from error
    except KeyboardInterrupt:
        for job in running if cluster == "local" else ():  # those of a cluster go on
            job.cancel()
        raise
    if failed:
        job, text = failed[0][0], str(failed[0][1])
        trace = re.search(r"^-{9,}\n(.*?)^-{9,}$", text, re.DOTALL | re.MULTILINE)  # the job's own, in submitit's words
        why = re.sub(r"^sinkscope\.errors\.\w+: ", "", (trace[1] if trace else text).strip().splitlines()[-1])
        raise EvaluationError(
            f"{len(failed)} of {jobs} jobs failed (job {job}: {why}; logs in {folder}); run the same command again; "
            "finished problems are kept"
        )
