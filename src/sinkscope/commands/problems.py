"""`problems`: prints held-out problems of the lab."""

from dataclasses import dataclass

from sinkscope.commands.command import Command
from sinkscope.commands.output import print_json


@dataclass(frozen=True, kw_only=True)
class Problems(Command):
    """Print held-out problems of the lab as JSON lines {"prompt", "answer"}.

    Attributes:
        task: lab-arith, lab-code, or lab-sums, whose problems every model of the lab has learnt.
        count: how many, from the first.
    """

    task: str = "lab-arith"
    count: int = 10

    def run(self) -> None:
        from sinkscope.lab.prompts import problem_prompts

        for row in problem_prompts(self.task, self.count):
            print_json(row)
