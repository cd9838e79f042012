"""`evaluate`: accuracy of a model on tasks, with or without sinks hidden."""

from dataclasses import dataclass
from typing import Annotated, Literal

from sinkscope import evaluation, interventions
from sinkscope.commands.command import TaskCommand, default_is, expect_out
from sinkscope.commands.output import print_costs, say
from sinkscope.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Evaluate(TaskCommand):
    """Measure accuracy on tasks, with intervals; the same command resumes after a kill; torchrun and --jobs divide it.

    Attributes:
        tasks: separated by commas: lab-arith, lab-code, lab-sums, gsm8k, gsm8k_cot, gsm8k_two_pass, humaneval,
            humaneval_instruct, arc_easy, arc_challenge, hellaswag, piqa, race, social_iqa, lambada, lambada_openai.
        hide: rules separated by commas, none for the unchanged model: none,top:1@current,random:1@seed=2 …
        device: cpu, cuda …; under torchrun, cuda is the device of each process.
        jobs: how many jobs to submit and wait for; 0 runs in this process.
        cluster: where jobs run: slurm, or local processes.
        job_options: name=value separated by commas, for submitit: slurm_partition=gpu,gpus_per_node=1,timeout_min=600 …
        method: how likelihoods of a diffusion model are estimated, in tasks that need them.
        samples: number of masked canvases for monte_carlo.
    """

    tasks: str = "lab-arith"
    hide: str = "none"
    device: str = "cpu"
    jobs: int = 0
    cluster: Literal["slurm", "local"] = "slurm"
    job_options: Annotated[str, default_is("none")] = ""
    method: Annotated[Literal["monte_carlo", "chain_rule"] | None, default_is("the protocol's, else monte_carlo")] = (
        None
    )
    samples: Annotated[int | None, default_is("the protocol's, else the method's own")] = None

    def run(self) -> None:
        from sinkscope.evaluation.results import collect
        from sinkscope.evaluation.running import run_in_jobs, run_share
        from sinkscope.interventions.intervention import canonical_rule

        if not self.jobs:
            self.refuse("cluster job_options", "without --jobs")
        if self.method == "chain_rule":
            self.refuse("samples", "with --method chain_rule, which draws none")
        rules, likelihood = interventions.split_rules(self.hide), {"method": self.method, "samples": self.samples}
        if not rules:
            raise CallError(f"--hide: expected rules separated by commas, such as none,top:1, found {self.hide!r}")
        asked = {**self.asked(), "hide": rules}
        asked["settings"] |= {name: value for name, value in likelihood.items() if value is not None}
        if self.dry_run:
            from sinkscope.evaluation.task_plans import Request, parts_of

            return print_costs(parts_of(self.model, Request(**asked)), self.gpu, self.tflops, self.json)
        out = expect_out(self.out)
        arguments = {**asked, "out": out, "batch": self.batch}
        if self.jobs:
            run_in_jobs(self.model, self.device, self.dtype, arguments, self.jobs, self.cluster, self.job_options)
            texts = dict.fromkeys(map(canonical_rule, rules))
            results = collect(out, [(task, text) for task in asked["tasks"] for text in texts])
        else:
            results = run_share(self.model, self.device, self.dtype, arguments)
        if results:
            say(evaluation.write_table(results, "json" if self.json else "text"))
