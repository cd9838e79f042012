"""`compare-caches`: accuracy, agreement, work and speed of cache policies beside plain sampling."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from sinkscope.commands.bounds import Few, Shots
from sinkscope.commands.command import Command, Device, Dtype, Gpu, Json, ModelName, Switch, TaskFiles, Tflops, default_is
from sinkscope.commands.output import note, print_json
from sinkscope.commands.sampler_flags import TaskSamplerFlags
from sinkscope.errors import CallError

POLICIES = "fast-dllm-prefix,fast-dllm-dual,none@threshold=0.9,fast-dllm-prefix@threshold=0.9,fast-dllm-dual@threshold=0.9"


@dataclass(frozen=True, kw_only=True)
class CompareCaches(Command):
    """Compare cache policies with plain sampling: accuracy, tokens, multiply-adds, memory and speed; the same command resumes after a kill.

    Attributes:
        out: folder for the answers, the table caches.json, and the figure accuracy-against-work.
        tasks: separated by commas: lab-arith, lab-code, lab-sums, gsm8k, gsm8k_cot, humaneval, humaneval_instruct.
        policies: separated by commas, as for --cache of `generate`; parallel decoding stands behind an @, such as
            fast-dllm-dual@threshold=0.9. Plain sampling is always among them.
        budget: numbers of keys, separated by commas, for policies that leave it open, such as block:keep=sinks.
        limit: number of problems of each task, from the first.
        shots: solved problems in each prompt.
        chat: applies the chat template, unless the protocol decides that.
        protocol: published settings for published tasks: auto, none, or a name, such as fast-dllm and fast-dllm-512.
        batch: number of prompts in a batch.
        allow_code_execution: runs the programs that a model writes, in a sandbox.
        dry_run: prints what it costs at most, and reads neither weights nor problems.
    """

    model: ModelName
    out: Annotated[Path | None, default_is("none, which only a dry run allows")] = None
    tasks: str = "lab-arith"
    policies: str = POLICIES
    budget: Annotated[str, default_is("none")] = ""
    limit: Annotated[int | None, default_is("all")] = None
    shots: Annotated[Shots | None, default_is("the protocol's or the task's own number")] = None
    chat: Switch = False
    protocol: str = "auto"
    data: TaskFiles = ()
    batch: Few = 16
    allow_code_execution: Switch = False
    device: Device = "cpu"
    dtype: Dtype = None
    dry_run: Switch = False
    gpu: Gpu = None
    tflops: Tflops = None
    json: Json = False
    sampler: TaskSamplerFlags

    def run(self) -> None:
        from sinkscope.evaluation.cache_arms import read_arms, read_budgets
        from sinkscope.evaluation.tasks import read_data_flags

        arms = read_arms(self.policies, read_budgets(self.budget))
        asked: dict[str, Any] = {
            "tasks": list(dict.fromkeys(part.strip() for part in self.tasks.split(",") if part.strip())),
            "limit": self.limit,
            "shots": self.shots,
            "chat": self.chat,
            "protocol": self.protocol,
            "data": read_data_flags(self.data),
            "settings": dict(self.sampler),
            "allow_code_execution": self.allow_code_execution,
        }
        if self.dry_run:
            from sinkscope.evaluation.cache_cost import cost_of_comparison
            from sinkscope.evaluation.cost import card_of, cost_table
            from sinkscope.evaluation.task_plans import Request

            costs = cost_of_comparison(self.model, Request(**asked), arms, card_of(self.gpu, self.tflops))
            print_json(costs) if self.json else print(cost_table(costs))
            return
        if self.out is None:
            raise CallError("expected --out FOLDER, or --dry-run")
        import sinkscope
        from sinkscope.evaluation.cache_comparison import compare_caches
        from sinkscope.evaluation.cache_tables import comparison_table
        from sinkscope.figures.accuracy_and_work import draw_accuracy_and_work

        model = sinkscope.load(self.model, dtype=self.dtype, device=self.device)
        document = compare_caches(model, arms=arms, out=self.out, batch=self.batch, **asked)
        for path in draw_accuracy_and_work(document).save(self.out):
            note(str(path))
        print_json(document) if self.json else print(comparison_table(document))
