"""The flags of the commands that let a model work on tasks, `evaluate` and `compare-caches`, written once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from sinkscope.commands.command import (
    Command,
    Device,
    Dtype,
    Gpu,
    Json,
    ModelName,
    Switch,
    TaskFiles,
    Tflops,
    default_is,
)
from sinkscope.commands.sampler_flags import TaskSamplerFlags
from sinkscope.errors import CallError


@dataclass(frozen=True, kw_only=True)
class TaskCommand(Command):
    """A command that lets a model work on tasks.

    Attributes:
        out: folder for the results.
        tasks: separated by commas.
        limit: number of problems of each task, from the first.
        shots: solved problems in each prompt.
        chat: applies the chat template, unless the protocol decides that.
        protocol: published settings for published tasks: auto, none, or a name, such as fast-dllm and fast-dllm-512.
        batch: number of prompts in a batch.
        allow_code_execution: runs the programs that a model writes, in a sandbox.
        dry_run: prints what it costs (forward calls, memory, GPU hours), and reads neither weights nor problems.
    """

    model: ModelName
    out: Annotated[Path | None, default_is("none, which only a dry run allows")] = None
    tasks: str = "lab-arith"
    limit: Annotated[int | None, default_is("all")] = None
    shots: Annotated[int | None, default_is("the protocol's or the task's own number")] = None
    chat: Switch = False
    protocol: str = "auto"
    data: TaskFiles = ()
    batch: int = 16
    allow_code_execution: Switch = False
    device: Device = "cpu"
    dtype: Dtype = None
    dry_run: Switch = False
    gpu: Gpu = None
    tflops: Tflops = None
    json: Json = False
    sampler: TaskSamplerFlags

    def asked(self) -> dict[str, Any]:
        """Return what is asked of the model, by the names of `Request`."""
        from sinkscope.evaluation.tasks import PUBLISHED, read_data_flags

        tasks = list(dict.fromkeys(part.strip() for part in self.tasks.split(",") if part.strip()))
        data = read_data_flags(self.data)
        if unused := [name for name in data if name not in {*tasks, *(PUBLISHED.get(task) for task in tasks)}]:
            raise CallError(
                f"--data {unused[0]} is not used without this task; leave it out, or add {unused[0]} to --tasks"
            )
        return {
            "tasks": tasks,
            "limit": self.limit,
            "shots": self.shots,
            "chat": self.chat,
            "protocol": self.protocol,
            "data": data,
            "settings": dict(self.sampler),
            "allow_code_execution": self.allow_code_execution,
        }

    def folder(self) -> Path:
        """Return the folder for the results; raise CallError without one."""
        if self.out is None:
            raise CallError("expected --out FOLDER, or --dry-run")
        return self.out
