"""`evaluate`: accuracy of a model on tasks, with or without sinks hidden."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sinkscope.commands.bounds import Few, Jobs, Shots
from sinkscope.commands.command import Command, Dtype, Gpu, Json, ModelName, Switch, TaskFiles, Tflops, default_is
from sinkscope.commands.output import print_costs
from sinkscope.commands.sampler_flags import TaskSamplerFlags
from sinkscope.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Measure accuracy on tasks, with intervals; the same command resumes after a kill, torchrun or --jobs divide the work.

    Attributes:
        out: folder for the results.
        tasks: separated by commas: lab-arith, lab-code, lab-sums, gsm8k, gsm8k_cot, gsm8k_two_pass, humaneval, humaneval_instruct,
            arc_easy, arc_challenge, hellaswag, piqa, race, social_iqa, lambada, lambada_openai.
        hide: rules separated by commas, none for the unchanged model: none,top:1@current,random:1@seed=2 …
        limit: number of problems of each task, from the first.
        shots: solved problems in each prompt.
        chat: applies the chat template, unless the protocol decides that.
        protocol: published settings for published tasks: auto, none, or a name.
        batch: number of prompts in a batch.
        allow_code_execution: runs the programs that a model writes, in a sandbox.
        device: cpu, cuda …; under torchrun, cuda is the device of each process.
        jobs: how many jobs to submit and wait for; 0 runs in this process.
        cluster: where jobs run: slurm, or local processes.
        job_options: name=value separated by commas, for submitit: slurm_partition=gpu,gpus_per_node=1,timeout_min=600 …
        method: how likelihoods of a diffusion model are estimated, in tasks that need them.
        samples: number of masked canvases for monte_carlo.
        dry_run: prints what it costs (forward calls, memory, GPU hours), and reads neither weights nor problems.
    """

    model: ModelName
    out: Annotated[Path | None, default_is("none, which only a dry run allows")] = None
    tasks: str = "lab-arith"
    hide: str = "none"
    limit: Annotated[int | None, default_is("all")] = None
    shots: Annotated[Shots | None, default_is("the protocol's or the task's own number")] = None
    chat: Switch = False
    protocol: str = "auto"
    data: TaskFiles = ()
    batch: Few = 16
    allow_code_execution: Switch = False
    device: str = "cpu"
    dtype: Dtype = None
    jobs: Jobs = 0
    cluster: Literal["slurm", "local"] = "slurm"
    job_options: Annotated[str, default_is("none")] = ""
    method: Annotated[Literal["monte_carlo", "chain_rule"] | None, default_is("the protocol's, else monte_carlo")] = None
    samples: Annotated[Few | None, default_is("the protocol's, else the method's own")] = None
    dry_run: Switch = False
    gpu: Gpu = None
    tflops: Tflops = None
    json: Json = False
    sampler: TaskSamplerFlags

    def run(self) -> None:
        from sinkscope.evaluation.jobs import run_in_jobs, run_share
        from sinkscope.evaluation.results import collect
        from sinkscope.evaluation.tables import write_table
        from sinkscope.evaluation.tasks import read_data_flags
        from sinkscope.interventions import split_rules

        tasks, rules = list(dict.fromkeys(part.strip() for part in self.tasks.split(",") if part.strip())), split_rules(self.hide)
        likelihood = {"method": self.method, "samples": self.samples}
        asked = {
            "tasks": tasks,
            "hide": rules,
            "limit": self.limit,
            "shots": self.shots,
            "chat": self.chat,
            "protocol": self.protocol,
            "data": read_data_flags(self.data),
            "settings": {**self.sampler, **{name: value for name, value in likelihood.items() if value is not None}},
            "allow_code_execution": self.allow_code_execution,
        }
        if self.dry_run:
            from sinkscope.evaluation.dry_run import parts_of
            from sinkscope.evaluation.task_plans import Request

            print_costs(parts_of(self.model, Request(**asked)), self.gpu, self.tflops, self.json)
            return
        if self.out is None:
            raise CallError("expected --out FOLDER, or --dry-run")
        arguments = {**asked, "out": self.out, "batch": self.batch}
        if self.jobs:
            run_in_jobs(self.model, self.device, self.dtype, arguments, self.jobs, self.cluster, self.job_options)
            results = collect(self.out, [(task, rule) for task in tasks for rule in rules])
        else:
            results = run_share(self.model, self.device, self.dtype, arguments)
        if results:
            print(write_table(results, "json" if self.json else "markdown"))
