"""`compare-caches`: accuracy, agreement, work and speed of cache policies beside plain sampling."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

import sinkscope
from sinkscope.commands.command import Switch, TaskCommand, default_is, expect_out
from sinkscope.commands.output import note, print_json, say
from sinkscope.errors import CallError, EvaluationError

POLICIES = (
    "fast-dllm-prefix,fast-dllm-dual,none@threshold=0.9,fast-dllm-prefix@threshold=0.9,fast-dllm-dual@threshold=0.9"
)


@dataclass(frozen=True, kw_only=True)
class CompareCaches(TaskCommand):
    """Compare cache policies with plain sampling: accuracy, work, memory, speed; the same command resumes after a kill.

    Attributes:
        out: folder for the answers, the table caches.json, and the figure accuracy-against-work.
        tasks: separated by commas: lab-arith, lab-code, lab-sums, gsm8k, gsm8k_cot, humaneval, humaneval_instruct.
        policies: separated by commas, as for --cache of `generate`, see --definitions; parallel decoding stands behind
            an @, such as fast-dllm-dual@threshold=0.9. Plain sampling is always among them.
        budget: numbers of keys, separated by commas, for policies that leave it open, such as block:keep=sinks.
        definitions: prints what each policy is, its options and its source, and loads no model.
    """

    model: Annotated[
        Positional[str],
        arg(help="a built-in name, a folder, a .gguf file, or a hub id.", help_behavior_hint="(required)"),
    ] = ""
    tasks: str = "lab-arith"
    policies: str = POLICIES
    budget: Annotated[str, default_is("none")] = ""
    definitions: Switch = False

    def run(self) -> None:
        from sinkscope.evaluation import cache_comparison as caches

        if self.definitions:
            from sinkscope.decoding.caches.policy import cache_definitions, definitions_text

            return print_json({"caches": cache_definitions()}) if self.json else say(definitions_text())
        if not self.model:
            raise CallError("expected a model: a built-in name, a folder, or a hub id; found none")
        budgets = [int(one) for one in self.budget.split(",") if one.strip()]
        arms, asked = caches.read_arms(self.policies, budgets), self.asked()
        if self.dry_run:
            from sinkscope.evaluation.cost import card_of, cost_table
            from sinkscope.evaluation.task_plans import Request

            costs = caches.cost_of_comparison(self.model, Request(**asked), arms, card_of(self.gpu, self.tflops))
            return print_json(costs) if self.json else say(cost_table(costs))
        out = expect_out(self.out)
        from sinkscope.figures.run_figures import draw_accuracy_and_work
        from sinkscope.runs.folder import claimed_folder

        model = sinkscope.load(self.model, dtype=self.dtype, device=self.device)
        document = caches.compare_caches(model, arms=arms, out=out, batch=self.batch, **asked)
        with claimed_folder(out, EvaluationError):
            paths = draw_accuracy_and_work(document).save(out)
        for path in paths:
            note(str(path))
        print_json(document) if self.json else say(caches.comparison_table(document))
